"""`fednoil audit`: what it writes of a run and of a site's own data, and what it says of bad input."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import fednoil, refused, tiny_arrays
from PIL import Image
from pyarrow import csv

from fednoil.audit import files
from fednoil.audit.cases import load_run
from fednoil.config import load_config
from fednoil.runner import Silent, run

COLUMNS = ["client", "item", "index", "given", "suggested", "p_wrong", "flagged", "rank"]


def write_folder(root: Path, arrays: dict[str, np.ndarray], names: tuple[str, ...]) -> Path:
    for split in ("train", "test"):
        for number, (image, label) in enumerate(zip(arrays[f"x_{split}"], arrays[f"y_{split}"], strict=True)):
            folder = root / split / names[label]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"bild-{number:03d}-ä.png")
    return root


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pictures with a class called Röntgen, and a run on it with FedNoiL."""
    root = tmp_path_factory.mktemp("audit")
    names = ("bone", "lung", "Röntgen", "skin")
    write_folder(root / "photos", tiny_arrays(), names)
    values: dict[str, Any] = {
        "data": {"name": f"folder:{root / 'photos'}"},
        "partition": {"clients": 4, "min_size": 2},
        "noise": {"kind": "symmetric", "ratios": [0.2, 0.4]},
        "model": {"name": "cnn", "width": 2},
        "server": {"sampling": "score", "client_fraction": 0.5},
        "learner": {"name": "fednoil"},
        "schedule": {"name": "constant", "epochs": 4},
        "train": {"rounds": 6, "batch_size": 8},
        "run": {"device": "cpu"},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDNOIL_CACHE", str(root / "cache"))
        run(load_config(values), root / "run", Silent())
    return root


@pytest.fixture
def site(made: Path, tmp_path: Path) -> Path:
    """A copy of the pictures that a test may spoil."""
    shutil.copytree(made / "photos", tmp_path / "site")
    return tmp_path / "site"


def at_site(made: Path, site: Path, tmp_path: Path, *options: str) -> tuple[dict[str, Any], str]:
    out = tmp_path / "audit"
    model = made / "run" / "model.safetensors"
    status, told, err = fednoil("audit", "--data", f"folder:{site}", "--model", model, "--out", out, *options)
    assert status == 0, err
    return json.loads((out / "summary.json").read_text()), told


def test_a_run(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "audit"
    status, told, err = fednoil("audit", made / "run", "--out", out)
    assert status == 0, err
    assert "against true labels: AUROC" in told
    table, summary = pq.read_table(out / "labels.parquet"), json.loads((out / "summary.json").read_text())
    assert table.column_names[:8] == COLUMNS
    assert table.schema == files.SCHEMA
    assert csv.read_csv(out / "labels.csv").num_rows == table.num_rows == 80
    rows = table.to_pylist()
    assert [row["client"] for row in rows] == [str(k) for k in range(4) for _ in range(20)]
    for k in range(4):
        mine = rows[20 * k : 20 * k + 20]
        assert [row["rank"] for row in mine] == list(range(1, 21))
        assert [row["p_wrong"] for row in mine] == sorted((row["p_wrong"] for row in mine), reverse=True)
    for row in rows:
        assert (made / "photos" / row["item"]).is_file()  # the paths name the pictures themselves, umlauts and all
        assert row["looks"] == 7  # six rounds, and the final model
        assert row["flagged"] == (row["p_wrong"] > 0.5)
        assert row["suggested"] != row["given"] or not row["flagged"]
    assert summary["classes"] == ["Röntgen", "bone", "lung", "skin"]
    assert [entry["client"] for entry in summary["clients"]] == ["0", "1", "2", "3"]
    for entry in summary["clients"]:
        assert entry["interval"][0] <= entry["noise_ratio"] <= entry["interval"][1]
        assert np.sum(entry["matrix"]) == pytest.approx(20, abs=0.1)
        assert entry["flagged"] == sum(r["flagged"] for r in rows if r["client"] == entry["client"])
    assert {"auroc", "average_precision", "f1"} <= summary["overall"]["quality"].keys()


def test_given_labels_are_those_of_the_run(made: Path, tmp_path: Path) -> None:
    experiment, state = load_run(made / "run")
    fednoil("audit", made / "run", "--client", "2", "--out", tmp_path / "audit")
    rows = pq.read_table(tmp_path / "audit" / "labels.parquet").to_pylist()
    names = experiment.setting.dataset.class_names
    wanted = dict(zip(experiment.setting.parts[2].tolist(), experiment.setting.labels.given[2].tolist(), strict=True))
    assert {row["index"]: names.index(row["given"]) for row in rows} == wanted
    assert {row["client"] for row in rows} == {"2"}
    assert state.evidence["looks"].tolist() == [6, 6, 6, 6]


def test_true_labels_change_nothing_but_the_measures(made: Path, tmp_path: Path) -> None:
    from fednoil.audit import cases, run_audit

    found = cases.of_run(made / "run", None, None, torch.device("cpu"))
    blind = [cases.Case(c.client, c.items, c.index, c.given, c.bundle) for c in found.clients]
    run_audit(found, tmp_path / "a")
    run_audit(cases.Cases(found.data, found.class_names, blind, found.images), tmp_path / "b")
    assert (tmp_path / "a" / "labels.csv").read_bytes() == (tmp_path / "b" / "labels.csv").read_bytes()
    assert "quality" not in json.loads((tmp_path / "b" / "summary.json").read_text())["overall"]


@pytest.mark.parametrize("train", [True, False])
def test_a_sites_folder(made: Path, site: Path, tmp_path: Path, train: bool) -> None:
    """With train/ and test/ as for training, or plain class folders; wrong labels are found by the model alone."""
    place = site if train else site / "train"
    wrong = sorted((site / "train" / "bone").iterdir())[:3]
    for path in wrong:
        path.rename(site / "train" / "skin" / path.name)
    summary, told = at_site(made, place, tmp_path)
    rows = pq.read_table(tmp_path / "audit" / "labels.parquet").to_pylist()
    assert len(rows) == 80
    assert {row["client"] for row in rows} == {None}
    assert all((place / row["item"]).is_file() for row in rows)
    assert summary["clients"][0]["client"] is None
    assert summary["data"] == f"folder:{place}"
    assert "labels wrong" in told


@pytest.mark.parametrize("form", ["npz", "parquet"])
def test_a_sites_arrays(made: Path, tmp_path: Path, form: str) -> None:
    import io

    arrays = tiny_arrays()
    order = np.array([1, 2, 0, 3])  # the model's classes are sorted by name
    model = made / "run" / "model.safetensors"
    path = tmp_path / f"site.{form}"
    if form == "npz":
        names = np.array(["bone", "lung", "Röntgen", "skin"])
        np.savez(path, x_train=arrays["x_train"], y_train=arrays["y_train"], class_names=names)
    else:
        encoded = []
        for image in arrays["x_train"]:
            Image.fromarray(image).save(buffer := io.BytesIO(), format="png")
            encoded.append(buffer.getvalue())
        pq.write_table(pa.table({"image": encoded, "label": order[arrays["y_train"]]}), path)
    status, _, err = fednoil("audit", "--data", f"{form}:{path}", "--model", model, "--out", tmp_path / "a", "--json")
    assert status == 0, err
    rows = pq.read_table(tmp_path / "a" / "labels.parquet").to_pylist()
    assert sorted(int(row["item"]) for row in rows) == list(range(80))
    assert all(row["index"] == int(row["item"]) for row in rows)
    expected = ["bone", "lung", "Röntgen", "skin"]
    assert all(row["given"] == expected[arrays["y_train"][row["index"]]] for row in rows)


def test_unreadable_images_are_listed_and_skipped(made: Path, site: Path, tmp_path: Path) -> None:
    (site / "train" / "bone" / "broken.png").write_bytes(b"no picture")
    (site / "train" / "bone" / "notes.txt").write_text("x")
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(site / "train" / "lung" / "deep.png")
    (site / "train" / "stray.png").write_bytes(b"")
    summary, told = at_site(made, site, tmp_path)
    skipped = dict(summary["clients"][0]["skipped"])
    assert skipped.keys() == {
        "train/bone/broken.png",
        "train/bone/notes.txt",
        "train/lung/deep.png",
        "train/stray.png",
    }
    assert "can't be read as an image" in skipped["train/bone/broken.png"]
    assert "8 bits" in skipped["train/lung/deep.png"]
    assert summary["overall"]["skipped"] == 4
    assert summary["overall"]["samples"] == 80
    assert "and 3 more" in told


def test_duplicates_are_told_and_kept(made: Path, site: Path, tmp_path: Path) -> None:
    first = sorted((site / "train" / "bone").iterdir())[0]
    shutil.copy(first, site / "train" / "skin" / "again.png")
    summary, told = at_site(made, site, tmp_path)
    assert summary["clients"][0]["duplicates"] == [[f"train/bone/{first.name}", "train/skin/again.png"]]
    assert summary["overall"]["samples"] == 81
    assert "1 image is there more than once" in told


def test_empty_class_folders_are_told(made: Path, site: Path, tmp_path: Path) -> None:
    (site / "train" / "heart").mkdir()
    summary, told = at_site(made, site, tmp_path)
    assert "the class folder 'heart' is empty" in told
    assert summary["clients"][0]["notices"] == ["the class folder 'heart' is empty"]


def test_unknown_classes_are_refused_or_left_out(made: Path, site: Path, tmp_path: Path) -> None:
    shutil.copytree(site / "train" / "skin", site / "train" / "heart")
    model = made / "run" / "model.safetensors"
    said = refused("audit", "--data", f"folder:{site}", "--model", model, "--out", tmp_path / "audit")
    assert "class 'heart'" in said
    assert "Röntgen, bone, lung, skin" in said
    assert not (tmp_path / "audit").exists()
    summary, _ = at_site(made, site, tmp_path, "--skip-unknown")
    assert len(summary["clients"][0]["skipped"]) == 20
    assert summary["overall"]["samples"] == 80


def test_images_of_another_size_are_refused_or_scaled(made: Path, site: Path, tmp_path: Path) -> None:
    for path in list((site / "train" / "bone").iterdir())[:2]:
        Image.new("RGB", (16, 12)).save(path)
    model = made / "run" / "model.safetensors"
    said = refused("audit", "--data", f"folder:{site}", "--model", model, "--out", tmp_path / "audit")
    assert "(16×12 pixels) and 1 more are not of the model's size, 8×8; add --resize" in said
    summary, told = at_site(made, site, tmp_path, "--resize")
    assert "2 images were scaled to 8×8 pixels" in told
    assert summary["overall"]["samples"] == 80


def test_other_bad_input(made: Path, site: Path, tmp_path: Path) -> None:
    """Each is one line, and nothing is written."""
    model, out = made / "run" / "model.safetensors", tmp_path / "out"
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken" / "bone").mkdir(parents=True)
    (tmp_path / "broken" / "bone" / "x.png").write_bytes(b"x")
    (tmp_path / "model.safetensors").write_bytes(b"no model")
    np.savez(tmp_path / "labels.npz", x_train=np.zeros((3, 8, 8), np.uint8), y_train=np.array([0, 1, 9]))
    np.savez(tmp_path / "short.npz", x_train=np.zeros((3, 8, 8), np.uint8))
    said = {
        (f"folder:{tmp_path / 'none'}", model): "is not a folder",
        (f"folder:{tmp_path / 'empty'}", model): "holds no labelled image",
        (f"folder:{tmp_path / 'broken'}", model): "none of its 1 images can be read",
        (f"npz:{tmp_path / 'none.npz'}", model): "is not a file",
        (f"npz:{tmp_path / 'short.npz'}", model): "lacks y_train",
        (f"npz:{tmp_path / 'labels.npz'}", model): "label 9 (number 2) is no class of the model, which has 0 to 3",
        (f"parquet:{tmp_path / 'none'}", model): "neither a file nor a folder",
        ("photos", model): "must be folder:PATH, npz:FILE or parquet:PATH",
        (f"folder:{site}", tmp_path / "model.safetensors"): "is damaged or no safetensors file",
        (f"folder:{site}", tmp_path / "none"): "no such file",
    }
    for (data, file), wanted in said.items():
        assert wanted in refused("audit", "--data", data, "--model", file, "--out", out)
    assert not out.exists()


def test_a_model_of_another_architecture_is_refused(made: Path, site: Path, tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    source = made / "run" / "model.safetensors"
    with safe_open(source, framework="pt") as file:
        metadata = file.metadata()
    tensors = {name: torch.zeros(*tensor.shape, 2) for name, tensor in load_file(source).items()}
    save_file(tensors, tmp_path / "other.safetensors", metadata)
    said = refused(
        "audit", "--data", f"folder:{site}", "--model", tmp_path / "other.safetensors", "--out", tmp_path / "o"
    )
    assert "does not fit the architecture" in said


def test_options_that_do_not_go_together(made: Path, tmp_path: Path) -> None:
    run_folder, out = made / "run", tmp_path / "out"
    assert "RUN, or --data and --model" in refused("audit")
    assert "give --model" in refused("audit", "--data", "folder:x")
    assert "either RUN" in refused("audit", run_folder, "--data", "folder:x")
    assert "--client 9" in refused("audit", run_folder, "--client", 9, "--out", out)
    assert "--method magic is unknown" in refused("audit", run_folder, "--method", "magic")
    assert "--resize is for --data" in refused("audit", run_folder, "--resize")
    assert "is not a run folder" in refused("audit", tmp_path / "nothing")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    assert "holds no audit" in refused("audit", run_folder, "--out", tmp_path / "mine", "--force")
    assert fednoil("audit", run_folder, "--out", out)[0] == 0
    assert "holds an audit already; add --force" in refused("audit", run_folder, "--out", out)
    assert fednoil("audit", run_folder, "--out", out, "--force")[0] == 0


def test_budget(made: Path, tmp_path: Path) -> None:
    """Looking at everything corrects everything; suspicious labels hold more wrong ones than random ones."""
    import csv as plain

    status, _, err = fednoil("audit", made / "run", "--budget", "25,100", "--out", tmp_path / "out")
    assert status == 0, err
    with (tmp_path / "out" / "budget.csv").open() as file:
        rows = {(row["order"], float(row["percent"])): row for row in plain.DictReader(file)}
    assert [key[0] for key in rows] == ["none", "suspicious", "random", "suspicious", "random"]
    assert float(rows["suspicious", 100.0]["noise_ratio"]) == 0
    assert rows["suspicious", 100.0]["final_accuracy"] == rows["random", 100.0]["final_accuracy"]
    assert int(rows["suspicious", 25.0]["looked_at"]) == 20
    assert int(rows["suspicious", 25.0]["corrected"]) > int(rows["random", 25.0]["corrected"])
    summary = json.loads((made / "run" / "summary.json").read_text())
    assert float(rows["none", 0.0]["final_accuracy"]) == pytest.approx(summary["final_accuracy"], abs=1e-3)
    assert (tmp_path / "out" / "budget-curve.png").is_file()
    (tmp_path / "file").touch()
    assert "is a file" in refused("audit", made / "run", "--budget", "5", "--out", tmp_path / "file")
    for bad in ("0", "x", "5,200"):
        assert f"--budget {bad} must be percentages" in refused("audit", made / "run", "--budget", bad)
    assert "give RUN" in refused("audit", "--data", "folder:x", "--model", "m", "--budget", "5")


def test_a_budget_leaves_the_folder_of_the_audit_alone(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "run", tmp_path / "run")
    assert fednoil("audit", tmp_path / "run", "--budget", "100")[0] == 0
    assert (tmp_path / "run" / "budget" / "budget.csv").is_file()
    assert fednoil("audit", tmp_path / "run")[0] == 0


def test_an_unfinished_run_is_told(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def early(path: Path, data_dir: Path | None = None) -> tuple[Any, Any]:
        experiment, state = load_run(path, data_dir)
        return experiment, replace(state, round_idx=2)

    monkeypatch.setattr("fednoil.audit.cases.load_run", early)
    status, told, _ = fednoil("audit", made / "run", "--out", tmp_path / "audit")
    assert status == 0
    assert "client 0: the run is unfinished: this rests on round 2 of 6" in told


def test_a_model_that_has_diverged_is_refused(made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fednoil.audit.cases.Case.probabilities", np.full((3, 4), np.nan))
    assert "has diverged" in refused("audit", made / "run", "--out", tmp_path / "audit")
    assert not (tmp_path / "audit").exists()


def test_decisions_about_a_site_s_own_folder_can_be_applied(made: Path, site: Path, tmp_path: Path) -> None:
    """Class folders alone, as an audit takes them; an empty one is a class that a picture may go to."""
    (site / "train" / "skin").rename(tmp_path / "skin")
    (site / "train").rename(tmp_path / "own")
    (tmp_path / "own" / "skin").mkdir()
    at_site(made, tmp_path / "own", tmp_path)
    rows = pq.read_table(tmp_path / "audit" / "labels.parquet").to_pylist()
    row = next(row for row in rows if row["given"] == "Röntgen")
    decisions = tmp_path / "decisions.csv"
    head = "client,item,index,given,decision,label\n"
    decisions.write_text(f"{head},{row['item']},{row['index']},{row['given']},change,skin\n")
    words = ("relabel", "--data", f"folder:{tmp_path / 'own'}", "--decisions", decisions, "--out", tmp_path / "copy")
    status, told, err = fednoil(*words)
    assert status == 0, err
    assert "1 changed" in told
    assert (tmp_path / "copy" / "skin" / Path(row["item"]).name).is_file()
    assert len(list((tmp_path / "copy").rglob("*.png"))) == len(rows)
    (tmp_path / "own" / "skin").rmdir()
    shutil.rmtree(tmp_path / "copy")
    assert "an empty folder of that name" in refused(*words)


@pytest.mark.parametrize("whole", [True, False])
def test_decisions_about_numbered_classes_can_be_applied(made: Path, tmp_path: Path, whole: bool) -> None:
    """The audit shows the model's names for them, whether or not there are test images."""
    arrays = tiny_arrays()
    site, copy, decisions = tmp_path / "site.npz", tmp_path / "copy.npz", tmp_path / "decisions.csv"
    np.savez(site, **{name: a for name, a in arrays.items() if whole or name.endswith("_train")})  # pyright: ignore[reportArgumentType]
    label, names = int(arrays["y_train"][3]), ("Röntgen", "bone", "lung", "skin")
    new = (label + 1) % 4
    decisions.write_text(f"client,item,index,given,decision,label\n,3,3,{names[label]},accept,{names[new]}\n")
    words = ("relabel", "--data", f"npz:{site}", "--decisions", decisions, "--out", copy)
    assert "give the model it was audited with" in refused(*words)
    model = made / "run" / "model.safetensors"
    known = json.loads(
        fednoil("audit", "--data", f"npz:{site}", "--model", model, "--out", tmp_path / "a", "--json")[1]
    )
    order = known["classes"]
    decisions.write_text(f"client,item,index,given,decision,label\n,3,3,{order[label]},accept,{order[new]}\n")
    status, _, err = fednoil(*words, "--model", model)
    assert status == 0, err
    with np.load(copy) as file:
        assert int(file["y_train"][3]) == new
        assert (np.delete(file["y_train"], 3) == np.delete(arrays["y_train"], 3)).all()
