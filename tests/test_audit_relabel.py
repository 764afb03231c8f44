"""From an audit to a copy with other labels: decisions about a site's data, as the site has them."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import done, refused, tiny_arrays, write_folder
from made_audit import at_site
from PIL import Image

from fednoil.data.items import read_items


def test_decisions_about_a_site_s_own_folder_can_be_applied(trained: Path, site: Path, tmp_path: Path) -> None:
    """Class folders alone, as an audit takes them; an empty one is a class that a picture may go to."""
    (site / "train" / "skin").rename(tmp_path / "skin")
    (site / "train").rename(tmp_path / "own")
    (tmp_path / "own" / "skin").mkdir()
    at_site(trained, tmp_path / "own", tmp_path)
    rows = pq.read_table(tmp_path / "audit" / "labels.parquet").to_pylist()
    row = next(row for row in rows if row["given"] == "Röntgen")
    decisions = tmp_path / "decisions.csv"
    head = "client,item,index,given,decision,label\n"
    decisions.write_text(f"{head},{row['item']},{row['index']},{row['given']},change,skin\n")
    words = ("relabel", "--data", f"folder:{tmp_path / 'own'}", "--decisions", decisions, "--out", tmp_path / "copy")
    printed = done(*words)
    assert "1 changed" in printed
    assert (tmp_path / "copy" / "skin" / Path(row["item"]).name).is_file()
    assert len(list((tmp_path / "copy").rglob("*.png"))) == len(rows)
    (tmp_path / "own" / "skin").rmdir()
    shutil.rmtree(tmp_path / "copy")
    assert "an empty folder 'skin' beside the others" in refused(*words)


def test_decisions_about_several_sites_need_to_know_whose_the_data_are(site: Path, tmp_path: Path) -> None:
    """Two sites may have a picture of the same name, and a decision about one must not change the other's."""
    first, second = sorted(path for path in (site / "train" / "Röntgen").iterdir())[:2]
    lines = [("nord", first, "reject", "Röntgen"), ("süd", second, "accept", "skin")]
    rows = [f"{who},Röntgen/{path.name},,Röntgen,{what},{label}\n" for who, path, what, label in lines]
    decisions = tmp_path / "decisions.csv"
    decisions.write_text("client,item,index,given,decision,label\n" + "".join(rows))
    words = ("relabel", "--data", f"folder:{site / 'train'}", "--decisions", decisions, "--out", tmp_path / "copy")
    assert "has decisions about nord, süd, and folder:" in refused(*words)
    assert not (tmp_path / "copy").exists()
    printed = done(*words, "--site", "nord")
    assert "0 changed, 1 kept" in printed


@pytest.mark.parametrize("whole", [True, False])
def test_decisions_about_numbered_classes_can_be_applied(trained: Path, tmp_path: Path, whole: bool) -> None:
    """The audit shows the model's names for them, whether or not there are test images."""
    arrays = tiny_arrays()
    site, copy, decisions = tmp_path / "site.npz", tmp_path / "copy.npz", tmp_path / "decisions.csv"
    np.savez(site, **{name: a for name, a in arrays.items() if whole or name.endswith("_train")})  # pyright: ignore[reportArgumentType]
    label, names = int(arrays["y_train"][3]), ("Röntgen", "bone", "lung", "skin")
    new = (label + 1) % 4
    decisions.write_text(f"client,item,index,given,decision,label\n,3,3,{names[label]},accept,{names[new]}\n")
    words = ("relabel", "--data", f"npz:{site}", "--decisions", decisions, "--out", copy)
    assert "add the model it was audited with" in refused(*words)
    model = trained / "run" / "model.safetensors"
    known = json.loads(done("audit", "--data", f"npz:{site}", "--model", model, "--out", tmp_path / "a", "--json"))
    order = known["classes"]
    decisions.write_text(f"client,item,index,given,decision,label\n,3,3,{order[label]},accept,{order[new]}\n")
    done(*words, "--model", model)
    with np.load(copy) as file:
        assert int(file["y_train"][3]) == new
        assert (np.delete(file["y_train"], 3) == np.delete(arrays["y_train"], 3)).all()


def test_classes_that_a_model_numbers_with_gaps_can_be_relabelled_with_it(tmp_path: Path) -> None:
    arrays = tiny_arrays()
    site, copy, run = tmp_path / "site.npz", tmp_path / "copy.npz", tmp_path / "run"
    labels = {name: a + 1 + (a > 2) if name.startswith("y") else a for name, a in arrays.items()}
    np.savez(site, **labels)  # pyright: ignore[reportArgumentType]
    tiny = ("--set", f"data.name=npz:{site}", "--set", "train.rounds=1", "--set", "model.width=2")
    done("run", "demo/fedavg", *tiny, "--out", run, "--set", "partition.clients=2", "-q")
    row = int(np.flatnonzero(labels["y_train"] == 5)[0])
    decisions = decide(tmp_path / "decisions.csv", f",{row},{row},5,accept,1")
    words = ("relabel", "--data", f"npz:{site}", "--decisions", decisions, "--model", run / "model.safetensors")
    done(*words, "--out", copy)
    with np.load(copy) as file:
        assert int(file["y_train"][row]) == 1
        assert (np.delete(file["y_train"], row) == np.delete(labels["y_train"], row)).all()
    np.savez(site, **arrays)  # pyright: ignore[reportArgumentType]
    assert "has the label 0, but" in (line := refused(*words, "--out", tmp_path / "other.npz"))
    assert line.rstrip().endswith("knows only 1, 2, 3, 5")


def decide(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["client,item,index,given,decision,label", *lines, ""]))
    return path


def test_a_class_with_a_slash_is_a_folder_with_an_underscore(tmp_path: Path) -> None:
    """No folder can be called T-shirt/top; the audit shows the model's name, and relabelling finds the folder again."""
    np.savez(tmp_path / "data.npz", **tiny_arrays(), class_names=np.array(["T-shirt/top", "bag", "boot", "coat"]))  # pyright: ignore[reportArgumentType]
    tiny = ("--set", f"data.name=npz:{tmp_path / 'data.npz'}", "--set", "train.rounds=1", "--set", "model.width=2")
    few = ("--set=partition.clients=2", "--set=partition.samples_per_client=40", "--set=schedule.name=constant")
    done("run", "demo", "--out", tmp_path / "run", *tiny, *few)
    site = write_folder(tmp_path / "site", tiny_arrays(), ("T-shirt_top", "bag", "boot", "coat"))
    model = tmp_path / "run" / "model.safetensors"
    done("audit", "--data", f"folder:{site}", "--model", model, "--out", tmp_path / "audit")
    rows = pq.read_table(tmp_path / "audit" / "labels.parquet").to_pylist()
    top, bag = (next(row for row in rows if row["given"] == name) for name in ("T-shirt/top", "bag"))
    assert top["item"].startswith("train/T-shirt_top/")
    lines = [f",{top['item']},,T-shirt/top,change,bag", f",{bag['item']},,bag,change,T-shirt/top"]
    decisions = decide(tmp_path / "decisions.csv", *lines)
    words = ("relabel", "--data", f"folder:{site}", "--decisions", decisions, "--out", tmp_path / "copy")
    printed = done(*words)
    assert "2 changed" in printed
    assert (tmp_path / "copy" / "train" / "T-shirt_top" / Path(bag["item"]).name).is_file()
    assert (tmp_path / "copy" / "train" / "bag" / Path(top["item"]).name).is_file()


def test_what_the_audit_skips_is_in_the_copy(site: Path, tmp_path: Path) -> None:
    """Files that are no pictures don't hinder an audit, so they mustn't hinder a copy; nothing of them is lost."""
    (site / "train" / "bone" / "notes.txt").write_text("as found")
    (site / "train" / "list.csv").write_text("a,b")
    (site / "train" / "bone" / "more").mkdir()
    (site / "train" / "bone" / "more" / "scan.png").write_bytes(b"deep")
    (site / "train" / "bone" / "dead.png").symlink_to("nowhere")
    item = sorted((site / "train" / "lung").iterdir())[0].name
    decisions = decide(tmp_path / "decisions.csv", f",train/lung/{item},,lung,drop,")
    done("relabel", "--data", f"folder:{site}", "--decisions", decisions, "--out", tmp_path / "copy")
    found, copied = ({p.relative_to(top) for p in top.rglob("*")} for top in (site, tmp_path / "copy"))
    assert found - copied == {Path("train") / "lung" / item}
    assert (tmp_path / "copy" / "train" / "bone" / "notes.txt").read_text() == "as found"


@pytest.mark.parametrize("form", ["file", "folder"])
def test_a_site_s_shards_need_no_test_images(tmp_path: Path, form: str) -> None:
    """One parquet file, or training shards alone, as an audit takes them; the last row of a class can go."""
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(buffer, "PNG")
    table = pa.table({"image": [buffer.getvalue()] * 4, "label": [0, 0, 1, 2], "id": list("abcd")})
    source, copy = tmp_path / "data", tmp_path / "copy"
    source.mkdir()
    pq.write_table(table, source / "train-0.parquet")
    place = source / "train-0.parquet" if form == "file" else source
    decisions = decide(tmp_path / "decisions.csv", ",0,0,0,change,1", ",3,3,2,drop,")
    done("relabel", "--data", f"parquet:{place}", "--decisions", decisions, "--out", copy)
    made = pq.read_table(copy if form == "file" else copy / "train-0.parquet")
    assert made.column("label").to_pylist() == [1, 0, 1]
    assert made.column("id").to_pylist() == ["a", "b", "c"]
    assert pq.read_table(source / "train-0.parquet").equals(table)


def test_the_last_picture_of_a_site_s_class_can_go(site: Path, tmp_path: Path) -> None:
    """A site may lack classes; data with test images, which are trained on alone, may not, and no data may be empty."""
    for path in sorted((site / "train" / "lung").iterdir())[1:]:
        path.unlink()
    (last,) = (site / "train" / "lung").iterdir()
    decisions, copy = tmp_path / "decisions.csv", tmp_path / "copy"
    decide(decisions, f",train/lung/{last.name},,lung,change,bone")
    words = ("relabel", "--data", f"folder:{site}", "--decisions", decisions, "--out", copy)
    assert "class 'lung' would have no training image left" in refused(*words)
    shutil.rmtree(site / "test")
    done(*words)
    assert (copy / "train" / "bone" / last.name).read_bytes() == last.read_bytes()
    assert not (copy / "train" / "lung").exists()
    everything = [f",{p.relative_to(site)},,{p.parent.name},drop," for p in site.rglob("*.png")]
    decide(decisions, *everything)
    assert "every sample would be dropped" in refused(*words[:-1], tmp_path / "none")


def test_classes_may_be_called_train_and_test(tmp_path: Path) -> None:
    """Vehicles and exams: `train` with pictures and no folders in it is a class like any other."""
    photos, copy = tmp_path / "photos", tmp_path / "copy"
    for name in ("car", "test", "train"):
        (photos / name).mkdir(parents=True)
        Image.new("L", (8, 8)).save(photos / name / f"{name}.png")
    found = read_items(f"folder:{photos}", (1, 8, 8), resize=False)
    assert found.class_names == ("car", "test", "train")
    assert found.items == ("car/car.png", "test/test.png", "train/train.png")
    decisions = decide(tmp_path / "decisions.csv", ",train/train.png,2,train,accept,car", ",test/test.png,1,test,drop,")
    done("relabel", "--data", f"folder:{photos}", "--decisions", decisions, "--out", copy)
    assert {path.relative_to(copy).as_posix() for path in copy.rglob("*.png")} == {"car/car.png", "car/train.png"}


def test_a_run_s_picture_whose_name_is_no_text_is_audited_and_moved(tmp_path: Path) -> None:
    """Training reads it, so the audit of the run lists it too; decisions find it under the name that was shown."""
    names = ("bone", "lung", "heart", "skin")
    photos = write_folder(tmp_path / "photos", tiny_arrays(), names)
    odd = photos / "train" / "bone" / os.fsdecode(b"\xff.png")
    try:
        next((photos / "train" / "bone").iterdir()).rename(odd)
    except OSError:
        pytest.skip("this file system has text for names")
    small = ("partition.clients=2", "train.rounds=1", "model.width=2", "noise.kind=auto", "schedule.epochs=1")
    small += ("partition.samples_per_client=40", "schedule.name=constant")
    sets = [f"--set={key}" for key in (f"data.name=folder:{photos}", *small)]
    done("run", "demo", *sets, "--out", tmp_path / "run", "--quiet")
    done("audit", tmp_path / "run", "--json")
    rows = pq.read_table(tmp_path / "run" / "audit" / "labels.parquet").to_pylist()
    row = next(row for row in rows if row["item"] == r"train/bone/\xff.png")
    decisions, copy = tmp_path / "decisions.csv", tmp_path / "copy"
    head = "client,item,index,given,decision,label\n"
    decisions.write_text(f"{head}{row['client']},{row['item']},{row['index']},bone,change,skin\n")
    done("relabel", "--data", f"folder:{photos}", "--decisions", decisions, "--out", copy)
    assert (copy / "train" / "skin" / odd.name).read_bytes() == odd.read_bytes()
