"""`fednoil relabel`: decisions change a copy exactly, and what doesn't fit the data is one line and no copy."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import shutil
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import done, fednoil, refused, tiny_arrays
from hypothesis import given, settings
from hypothesis import strategies as st
from made_labels import true_labels
from PIL import Image

from fednoil.audit.decisions import DECISION_COLUMNS, guard, read_decisions, unguard
from fednoil.audit.relabel import relabel
from fednoil.cli.stopping import Stopped
from fednoil.data import DataConfig, folder, load
from fednoil.manifest import read_manifest

Line = tuple[Any, ...]


def write_csv(path: Path, *lines: Line, columns: tuple[str, ...] = DECISION_COLUMNS) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([columns, *lines])
    return path


def picture(path: Path, shade: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((4, 4), shade, np.uint8)).save(path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three classes, one with an accent and one with markup; each picture has a different shade."""
    names = ["cat/1.png", "cat/2.png", "cat/3.png", "dög/1.png", "dög/2.png", "<b>/1.png", "<b>/x y.png"]
    for shade, name in enumerate(names):
        picture(tmp_path / "photos" / "train" / name, shade)
        picture(tmp_path / "photos" / "test" / name, 100 + shade)
    return tmp_path / "photos"


def shades(root: Path) -> dict[str, int]:
    """Relative path → shade of every picture."""
    return {p.relative_to(root).as_posix(): Image.open(p).getpixel((0, 0)) for p in root.rglob("*.png")}  # pyright: ignore


def content(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.mark.parametrize("text", ["cat", "=1+2", "'=x", "''-x", "'x", "@a", "\tb", "", "-3", "a=b"])
def test_guarded_cells_start_no_formula_and_come_back(text: str) -> None:
    assert not guard(text).startswith(("=", "+", "-", "@", "\t", "\r"))
    assert unguard(guard(text)) == text


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip), min_size=1))
@settings(max_examples=50, deadline=None)
def test_any_names_survive_the_file(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    names = [name.replace("\0", "0") for name in names]
    path = tmp_path_factory.getbasetemp() / "names.csv"
    write_csv(path, *[("", guard(n), i, guard(n), "change", guard(n)) for i, n in enumerate(names)])
    assert [(d.item, d.given, d.label) for d in read_decisions(path)] == [(n, n, n) for n in names]


def test_a_folder_is_copied_with_pictures_moved_and_dropped(photos: Path, tmp_path: Path) -> None:
    before = content(photos)
    decisions = write_csv(
        tmp_path / "d.csv",
        ("", "train/cat/1.png", 0, "cat", "accept", "dög"),  # a name that is taken there
        ("", "train/cat/2.png", 1, "cat", "reject", "cat"),
        ("", "train/cat/3.png", 2, "cat", "drop", ""),
        ("", unicodedata.normalize("NFD", "train/dög/2.png"), 4, "dög", "change", "<b>"),
        ("", "test/<b>/x y.png", "", "<b>", "change", "cat"),
    )
    out = tmp_path / "fixed"
    text = done("relabel", "--data", f"folder:{photos}", "--decisions", decisions, "--out", out)
    assert "3 changed, 1 kept, 1 dropped, 9 not decided" in text
    assert content(photos) == before
    found = shades(out)
    assert {name: shade for name, shade in found.items() if name.startswith("train")} == {
        "train/cat/2.png": 1,
        "train/dög/1.png": 3,
        "train/dög/1-2.png": 0,
        "train/<b>/1.png": 5,
        "train/<b>/2.png": 4,
        "train/<b>/x y.png": 6,
    }
    assert (len(found), found["test/cat/x y.png"]) == (13, 106)
    load(DataConfig(name=f"folder:{out}"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d.csv", "fixed", "photos"]


def test_npz_keeps_everything_but_the_labels(tmp_path: Path) -> None:
    source = {**tiny_arrays(8), "hospital_train": np.arange(8), "note": np.array("kept")}
    source["y_train"] = source["y_train"].astype(np.int16)
    np.savez_compressed(tmp_path / "a.npz", **source)
    decisions = write_csv(tmp_path / "d.csv", ("3", "1", 1, "1", "accept", "2"), ("3", "", 4, "0", "drop", ""))
    text = done(
        "relabel", "--data", f"npz:{tmp_path}/a.npz", "--decisions", decisions, "--out", tmp_path / "b.npz", "--json"
    )
    assert json.loads(text)["labels"] == [
        {"given": "1", "new": "2", "samples": 1},
        {"given": "0", "new": None, "samples": 1},
    ]
    with np.load(tmp_path / "b.npz") as made:
        assert made["y_train"].tolist() == [0, 2, 2, 3, 1, 2, 3]
        assert made["y_train"].dtype == np.int16
        assert made["hospital_train"].tolist() == [0, 1, 2, 3, 5, 6, 7]
        assert np.array_equal(made["x_train"], np.delete(source["x_train"], 4, 0))
        assert all(np.array_equal(made[name], source[name]) for name in ("x_test", "y_test", "note"))
    assert (tmp_path / "b.npz").stat().st_size < (tmp_path / "a.npz").stat().st_size * 1.1


@given(st.lists(st.tuples(st.integers(0, 39), st.sampled_from("0123")), unique_by=lambda t: t[0], min_size=1))
@settings(max_examples=25, deadline=None)
def test_decisions_and_their_opposite_give_the_data_back(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[tuple[int, str]]
) -> None:
    folder = tmp_path_factory.mktemp("there-and-back")
    source = tiny_arrays(40)
    np.savez(folder / "a.npz", **source)
    there = [("", i, i, str(source["y_train"][i]), "change", new) for i, new in wanted]
    left = source["y_train"].copy()
    left[[i for i, _ in wanted]] = [int(new) for _, new in wanted]
    outcome = relabel(f"npz:{folder}/a.npz", write_csv(folder / "d.csv", *there), folder / "b.npz")
    assert outcome.changed == Counter((g, n) for _, _, _, g, _, n in there if g != n)
    with np.load(folder / "b.npz") as made:
        assert np.array_equal(made["y_train"], left)
    back = [(c, i, j, new, action, old) for c, i, j, old, action, new in there]
    relabel(f"npz:{folder}/b.npz", write_csv(folder / "e.csv", *back), folder / "c.npz")
    with np.load(folder / "c.npz") as made:
        assert np.array_equal(made["y_train"], source["y_train"])


def shard(path: Path, labels: list[int], names: list[str]) -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(buffer, "PNG")
    features = {"features": {"label": {"names": names, "_type": "ClassLabel"}}}
    schema = pa.schema(
        [("image", pa.binary()), ("label", pa.int8()), ("site", pa.string())],
        metadata={"huggingface": json.dumps({"info": features})},
    )
    rows = {"image": [buffer.getvalue()] * len(labels), "label": labels, "site": [f"s{i}" for i in range(len(labels))]}
    pq.write_table(pa.table(rows, schema=schema), path)


def test_parquet_shards_keep_columns_and_metadata(tmp_path: Path) -> None:
    source = tmp_path / "shards"
    source.mkdir()
    for name, labels in (("train-0", [0, 1, 0]), ("train-1", [1, 1, 0]), ("test-0", [0, 1])):
        shard(source / f"{name}.parquet", labels, ["cat", "dog"])
    before = content(source)
    decisions = write_csv(tmp_path / "d.csv", ("", 0, 0, "cat", "accept", "dog"), ("", 4, 4, "dog", "drop", ""))
    relabel(f"parquet:{source}", decisions, tmp_path / "out")
    assert content(source) == before
    tables = [pq.read_table(tmp_path / "out" / f"train-{i}.parquet") for i in range(2)]
    assert [t.column("label").to_pylist() for t in tables] == [[1, 1, 0], [1, 0]]
    assert tables[1].column("site").to_pylist() == ["s0", "s2"]
    assert tables[0].schema.equals(pq.read_schema(source / "train-0.parquet"), check_metadata=True)
    made = load(DataConfig(name=f"parquet:{tmp_path}/out"))
    assert (made.class_names, made.train.labels.tolist()) == (("cat", "dog"), [1, 1, 0, 1, 0])


def test_a_run_starts_from_its_relabelled_manifest(tmp_path: Path, tiny_npz: Path) -> None:
    changes = ["data.name=npz:" + str(tiny_npz), "partition.clients=4", "model.width=2"]
    changes += ["train.rounds=1", "train.batch_size=8", "schedule.epochs=1", "noise.kind=symmetric", "run.device=cpu"]
    sets = [f"--set={change}" for change in changes]
    run = tmp_path / "run"
    done("run", "demo/fedavg", "--out", run, "--quiet", *sets)
    dataset = load(DataConfig(name=f"npz:{tiny_npz}"))
    check = (dataset.train.labels, dataset.num_classes, dataset.hash)
    parts, labels, truth = read_manifest(run / "noise.parquet", *check)
    lines = [
        (2, f"train/{i}.png", i, str(g), "accept", str(t))  # the run's data may be a folder: the index counts
        for i, g, t in zip(parts[2], labels.given[2], true_labels(truth)[2], strict=True)
        if g != t
    ]
    assert lines
    decisions = write_csv(tmp_path / "d.csv", *lines, ("1", "", parts[1][0], str(labels.given[1][0]), "drop", ""))
    relabel(f"manifest:{run}", decisions, tmp_path / "fixed.parquet")
    new_parts, new_labels, new_truth = read_manifest(tmp_path / "fixed.parquet", *check)
    assert np.array_equal(new_labels.given[2], true_labels(new_truth)[2])
    assert np.array_equal(new_labels.given[0], labels.given[0])
    assert np.array_equal(new_parts[1], parts[1][1:])
    sets = [f"--set={change}" for change in changes[:-2]]
    again = ["--set", "noise.kind=manifest", "--set", f"noise.file={tmp_path}/fixed.parquet"]
    done("run", "demo/fedavg", "--out", tmp_path / "run2", "--quiet", *sets, *again)
    other = write_csv(tmp_path / "e.csv", (3, "", parts[2][0], str(labels.given[2][0]), "reject", ""))
    args = ("relabel", "--decisions", other, "--out", tmp_path / "o.parquet", "--data")
    assert "is client 2's" in refused(*args, f"manifest:{run}/noise.parquet")
    whole = [(0, "", i, str(g), "drop", "") for i, g in zip(parts[0], labels.given[0], strict=True)]
    nobody = write_csv(tmp_path / "f.csv", *whole)
    said = refused("relabel", "--decisions", nobody, "--out", tmp_path / "o.parquet", "--data", f"manifest:{run}")
    assert "client 0 would have no sample left" in said
    moved = shutil.copy(run / "noise.parquet", tmp_path / "moved.parquet")
    assert "--dataset" in refused(*args, f"manifest:{moved}")
    assert "is client 2's" in refused(*args, f"manifest:{moved}", "--dataset", f"npz:{tiny_npz}")


GOOD = ("", "train/cat/1.png", 0, "cat", "accept", "dög")
BAD: list[tuple[list[Line], str]] = [
    ([("", "train/cat/9.png", 0, "cat", "reject", "")], "no picture 'train/cat/9.png'"),
    ([("", "../secret.png", 0, "cat", "reject", "")], "no picture '../secret.png'"),
    ([("", "train/cat/1.png", 0, "dög", "accept", "cat")], "was 'dög' when this was decided, but is 'cat'"),
    ([("", "train/cat/1.png", 0, "cat", "accept", "dog")], "'dog' is not a class of folder:"),
    ([GOOD, GOOD], "again, as in line 2"),
    ([GOOD, (*GOOD[:4], "drop", "")], "'drop', but 'accept' in line 2"),
    ([(*GOOD[:4], "agree", "cat")], "decision 'agree' must be accept, reject, change, drop"),
    ([(*GOOD[:4], "accept", "")], "has no label"),
    ([(*GOOD[:4], "reject", "dög")], "'reject' keeps 'cat'"),
    ([(*GOOD[:4], "drop", "cat")], "'drop' removes"),
    ([("", "train/cat/1.png", "x", "cat", "reject", "")], "index 'x'"),
    ([("", "train/cat/1.png", 0, "", "reject", "")], "no given label"),
    ([("", "train/cat/1.png")], "has 2 cells"),
    ([("", f"train/dög/{i}.png", i, "dög", "drop", "") for i in (1, 2)], "class 'dög' would have no training image"),
    ([], "has no decisions"),
]


@pytest.mark.parametrize(("lines", "message"), BAD, ids=[message for _, message in BAD])
def test_what_does_not_fit_is_one_line_and_no_copy(
    photos: Path, tmp_path: Path, lines: list[Line], message: str
) -> None:
    decisions = write_csv(tmp_path / "d.csv", *lines)
    error = refused("relabel", "--data", f"folder:{photos}", "--decisions", decisions, "--out", tmp_path / "out")
    assert message in error
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d.csv", "photos"]


def test_bad_files_and_places(photos: Path, tmp_path: Path, tiny_npz: Path) -> None:
    decisions = write_csv(tmp_path / "d.csv", GOOD)
    args = ("relabel", "--decisions", decisions, "--data", f"folder:{photos}", "--out")
    (tmp_path / "there").symlink_to("nowhere")
    assert "already exists" in refused(*args, photos)
    assert "already exists" in refused(*args, tmp_path / "there")
    assert "which is not a folder" in refused(*args, tmp_path / "a" / "b")
    assert "inside the data" in refused(*args, photos / "train" / "new")
    place = ("--out", tmp_path / "out")
    for data, message in (
        ("fashion-mnist", "manifest:RUN"),
        ("zip:x", "--data 'zip:x' must be folder:PATH"),
        ("npz:", "must be"),
        ("npz:none.npz", "is not a file"),
        (f"npz:{tiny_npz}", "must be the same row number"),
    ):
        assert message in refused("relabel", "--data", data, "--decisions", decisions, *place)
    where = ("relabel", "--data", f"npz:{tiny_npz}", *place, "--decisions")
    assert "no row 80" in refused(*where, write_csv(tmp_path / "e.csv", ("", 80, 80, "0", "reject", "")))
    assert "column decision" in refused(*where, write_csv(tmp_path / "e.csv", columns=("item", "index", "given")))
    (tmp_path / "e.csv").write_bytes(b"\xff\xfe\0x")
    assert "can't be read as CSV" in refused(*where, tmp_path / "e.csv")
    assert "No such file" in refused(*where, tmp_path / "none.csv")
    assert not (tmp_path / "out").exists()


FULL = (errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    "error",
    [OSError(*FULL), OSError(*FULL, "source.png", None, "target.png"), Stopped(2)],
    ids=["full", "two", "Ctrl-C"],
)
def test_a_full_disk_or_ctrl_c_leaves_nothing(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    decisions, done = write_csv(tmp_path / "d.csv", GOOD), []
    real = shutil.copy2

    def copy(source: Path, target: Path) -> None:
        if len(done) == 3:
            raise error
        done.append(real(source, target))

    monkeypatch.setattr(folder.shutil, "copy2", copy)
    status, out, err = fednoil(
        "relabel", "--data", f"folder:{photos}", "--decisions", decisions, "--out", tmp_path / "o"
    )
    assert out == ""
    assert status == (2 if isinstance(error, OSError) else 130)
    if isinstance(error, OSError):
        assert "No space left" in err
        assert str(tmp_path / "o") in err
        assert ".relabel-" not in err
        assert "source.png" not in err
    assert len(done) == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d.csv", "photos"]


def test_a_dry_run_writes_nothing(photos: Path, tmp_path: Path) -> None:
    args = ("--decisions", write_csv(tmp_path / "d.csv", GOOD), "--out", tmp_path / "o", "--dry-run")
    status, text, _ = fednoil("relabel", "--data", f"folder:{photos}", *args)
    assert (status, text.splitlines()[-1].split(": ")[1]) == (0, "1 changed, 0 kept, 0 dropped, 13 not decided")
    assert not (tmp_path / "o").exists()


WRITER = """
import sys, time
from pathlib import Path
from fednoil.audit.relabel import _whole

with _whole(Path(sys.argv[1])) as place:
    place.mkdir()
    (place / "half.png").touch()
    print(flush=True)
    time.sleep(600)
"""


def test_what_a_killed_process_left_goes_and_what_a_running_one_writes_stays(photos: Path, tmp_path: Path) -> None:
    def hidden() -> list[Path]:
        return sorted(path for path in tmp_path.iterdir() if path.name.startswith("."))

    def relabelled() -> None:
        done("relabel", "--data", f"folder:{photos}", "--decisions", decisions, "--out", out)
        assert shades(out)["train/dög/1-2.png"] == 0
        shutil.rmtree(out)

    out, decisions = tmp_path / "o", write_csv(tmp_path / "d.csv", GOOD)
    others = [tmp_path / ".relabel-password", tmp_path / ".relabel-12345678"]
    others[0].mkdir()
    (others[0] / "mine.txt").touch()
    picture(tmp_path / "linked" / "o.png", 7)
    others[1].symlink_to(tmp_path / "linked")
    with subprocess.Popen([sys.executable, "-c", WRITER, out], stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            writer.stdout.readline()
            (place,) = set(hidden()) - set(others)
            relabelled()
            assert (place / "o" / "half.png").is_file()
        finally:
            writer.kill()
    assert place.is_dir()
    elsewhere = ("--out", tmp_path / "p")
    done("relabel", "--data", f"folder:{photos}", "--decisions", decisions, *elsewhere)
    assert place.is_dir()  # a copy to another place
    relabelled()
    assert hidden() == sorted(others)
    assert (others[0] / "mine.txt").is_file()
    assert (others[1] / "o.png").is_file()
