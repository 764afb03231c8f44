"""`fednoil relabel` of data that are odd but allowed, and of data that are damaged: whole copies, or one line."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import done, refused
from PIL import Image

HEAD = "client,item,index,given,decision,label\n"
PIXELS = np.arange(6 * 16, dtype=np.uint8).reshape(6, 4, 4)


def words(tmp_path: Path, data: str, *lines: str) -> tuple[object, ...]:
    """The command that applies these decisions."""
    decisions = tmp_path / "decisions.csv"
    decisions.write_text(HEAD + "".join(f"{line}\n" for line in lines))
    return "relabel", "--data", data, "--decisions", decisions, "--out", tmp_path / "copy"


def applied(tmp_path: Path, data: str, *lines: str) -> Path:
    done(*words(tmp_path, data, *lines))
    return tmp_path / "copy"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"):
        for split in ("train", "test"):
            path = tmp_path / "photos" / split / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(PIXELS[0]).save(path)
    return tmp_path / "photos"


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_a_picture_makes_way_for_what_is_no_picture(photos: Path, tmp_path: Path, kind: str) -> None:
    taken = photos / "train" / "dog" / "3.png"
    taken.mkdir() if kind == "folder" else taken.symlink_to("nowhere")
    (photos / "train" / "cat" / "1.png").rename(photos / "train" / "cat" / "3.png")
    copy = applied(tmp_path, f"folder:{photos}", ",train/cat/3.png,,cat,change,dog")
    assert (copy / "train" / "dog" / "3-2.png").is_file()
    assert (copy / "train" / "dog" / "3.png").is_symlink() == (kind == "link")


def test_what_lies_beside_train_and_test_is_in_the_copy(photos: Path, tmp_path: Path) -> None:
    (photos / "LICENSE").write_text("free")
    (photos / "val" / "cat").mkdir(parents=True)
    (photos / "val" / "cat" / "1.png").write_bytes(b"later")
    copy = applied(tmp_path, f"folder:{photos}", ",train/cat/1.png,,cat,drop,")
    found, copied = ({p.relative_to(top) for p in top.rglob("*")} for top in (photos, copy))
    assert found - copied == {Path("train/cat/1.png")}


def test_folders_among_the_pictures_are_copied_without_pipes(photos: Path, tmp_path: Path) -> None:
    deep = photos / "train" / "cat" / "more" / "deep"
    deep.mkdir(parents=True)
    (deep / "notes.txt").write_text("as found")
    (deep / "link").symlink_to("nowhere")
    os.mkfifo(deep / "pipe")
    copy = applied(tmp_path, f"folder:{photos}", ",train/cat/1.png,,cat,drop,") / deep.relative_to(photos)
    assert sorted(path.name for path in copy.iterdir()) == ["link", "notes.txt"]
    assert (copy / "link").is_symlink()


def test_a_file_of_such_a_folder_that_can_t_be_copied_is_named(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "train" / "cat" / "more").mkdir()
    (photos / "train" / "cat" / "more" / "notes.txt").touch()
    real = shutil.copy2

    def copy(source: Path, target: Path, **options: bool) -> None:
        if Path(source).name == "notes.txt":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(source))
        real(source, target, **options)

    monkeypatch.setattr(shutil, "copy2", copy)
    error = refused(*words(tmp_path, f"folder:{photos}", ",train/cat/1.png,,cat,drop,"))
    assert error == f"fednoil: {photos / 'train/cat/more/notes.txt'}: Permission denied; nothing was written\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decisions.csv", "photos"]


@pytest.mark.parametrize("linked", ["train", "train/cat"])
def test_no_copy_is_written_into_a_folder_that_the_data_link_to(photos: Path, tmp_path: Path, linked: str) -> None:
    (photos / linked).rename(tmp_path / "elsewhere")
    (photos / linked).symlink_to(tmp_path / "elsewhere")
    line = words(tmp_path, f"folder:{photos}", ",train/cat/1.png,,cat,change,dog")[:-1]
    assert "is inside the data" in refused(*line, tmp_path / "elsewhere" / "new")
    assert not (tmp_path / "elsewhere" / "new").exists()


def test_a_place_that_can_t_be_written_is_named_as_given(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(prefix: str, dir: Path) -> str:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(dir / f"{prefix}1"))

    monkeypatch.setattr(tempfile, "mkdtemp", locked)
    error = refused(*words(tmp_path, f"folder:{photos}", ",train/cat/1.png,,cat,change,dog"))
    assert error == f"fednoil: {tmp_path / 'copy'}: Read-only file system; nothing was written\n"


def with_entries(path: Path, **entries: bytes) -> Path:
    """An .npz of six images and labels, with more entries."""
    np.savez(path, x_train=PIXELS, y_train=np.arange(6) % 2)
    with zipfile.ZipFile(path, "a") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


def test_an_npz_keeps_every_entry(tmp_path: Path) -> None:
    """Whatever it is called, and whether or not it is an array."""
    buffer = io.BytesIO()
    np.save(buffer, np.arange(3))
    more = {"file.npy": buffer.getvalue(), "allow_pickle.npy": buffer.getvalue(), "README.txt": b"hello"}
    path = with_entries(tmp_path / "own.npz", **more)
    copy = applied(tmp_path, f"npz:{path}", ",0,0,0,change,1")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(copy) as new:
        assert old.namelist() == new.namelist()
        changed = [name for name in old.namelist() if old.read(name) != new.read(name)]
    assert changed == ["y_train.npy"]
    assert np.load(copy)["y_train"].tolist() == [1, 1, 0, 1, 0, 1]


def test_a_label_that_the_array_can_t_hold_is_refused(tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(200)]
    np.savez(tmp_path / "own.npz", x_train=PIXELS, y_train=(np.arange(6) % 2).astype(np.int8), class_names=names)
    assert "y_train is int8" in refused(*words(tmp_path, f"npz:{tmp_path}/own.npz", ",0,0,c0,change,c150"))
    assert not (tmp_path / "copy").exists()


def damaged_npz(path: Path) -> dict[str, str]:
    """Files that are zip archives and no data: name → what is said."""
    with_entries(path / "text.npz", class_names=b"cat, dog")  # no array, so classes are numbers
    np.savez(path / "half.npz", x_train=PIXELS)
    with zipfile.ZipFile(path / "half.npz", "a") as archive:
        archive.writestr("y_train", b"0 1 0 1 0 1")
    text = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000000,), }".ljust(117) + b"\n"
    header = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    with_entries(path / "huge.npz", **{"more.npy": header})
    locked = bytearray(with_entries(path / "locked.npz").read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        for start in [i for i in range(len(locked)) if locked[i : i + 4] == mark]:
            locked[start + place] |= 1  # the flag that an entry is encrypted
    (path / "locked.npz").write_bytes(locked)
    return {"half.npz": "lacks y_train", "huge.npz": "can't be read", "locked.npz": "encrypted"}


def test_damaged_arrays_are_one_line(trained: Path, tmp_path: Path) -> None:
    model = trained / "run" / "model.safetensors"
    for name, message in damaged_npz(tmp_path).items():
        assert message in refused(*words(tmp_path, f"npz:{tmp_path / name}", ",0,0,0,change,1"))
        audit = ("audit", "--data", f"npz:{tmp_path / name}", "--model", model, "--out", tmp_path / "audit")
        assert message in refused(*audit)
    applied(tmp_path, f"npz:{tmp_path}/text.npz", ",0,0,0,change,1")


def shard(path: Path, columns: dict[str, Any], names: list[str] | None = None) -> Path:
    table = pa.table(list(columns.values()), names=[name.strip() for name in columns])
    if names is not None:
        about = {"info": {"features": {"label": {"names": names}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(about)})
    pq.write_table(table, path)
    return path


def test_labels_beyond_reason_are_refused_at_once(tmp_path: Path) -> None:
    """A name for each class up to such a label would fill the memory."""
    labels = np.array([0, 1, 0, 1, 0, 2**60])
    np.savez(tmp_path / "own.npz", x_train=PIXELS, y_train=labels)
    shard(tmp_path / "own.parquet", {"image": [b"x"] * 6, "label": labels})
    for data in (f"npz:{tmp_path}/own.npz", f"parquet:{tmp_path}/own.parquet"):
        assert f"label {2**60} (number 5) is out of range" in refused(*words(tmp_path, data, ",0,0,0,change,1"))


def test_columns_and_names_that_stand_for_two_are_refused(tmp_path: Path) -> None:
    good = {"image": [b"x"] * 4, "label": [0, 1, 0, 1]}
    data = f"parquet:{shard(tmp_path / 'a.parquet', {**good, 'label ': [1, 0, 1, 0]})}"
    assert "has 2 columns 'label'; keep one" in refused(*words(tmp_path, data, ",0,0,0,change,1"))
    data = f"parquet:{shard(tmp_path / 'b.parquet', good, ['cat', 'cat'])}"
    assert "'cat' stands for two classes" in refused(*words(tmp_path, data, ",0,0,cat,drop,"))
    line = words(tmp_path, f"parquet:{shard(tmp_path / 'c.parquet', good)}", ",0,0,0,change,1")
    (tmp_path / "decisions.csv").write_text(f"client,{HEAD},,0,0,0,change,1\n")
    assert "needs the column client exactly once" in refused(*line)
    (tmp_path / "decisions.csv").write_text(HEAD.replace(",", ";"))
    assert "has its columns separated by ';'" in refused(*line)


@pytest.mark.parametrize(("kind", "item"), [("csv", "4.png"), ("table", "4"), ("parquet", "4")])
@pytest.mark.parametrize(("old", "new", "often"), [("No", "Yes", " Yes"), ("0", "1", "01")])
def test_labels_stay_as_they_are_written(kind: str, item: str, old: str, new: str, often: str, tmp_path: Path) -> None:
    """One that changes is written as most of its class are."""
    labels, data = [often, old, new, often, old], f"{kind}:{tmp_path}/own.csv"
    (tmp_path / "own.csv").write_text("path,label\n" + "".join(f"{k}.png,{own}\n" for k, own in enumerate(labels)))
    if kind == "parquet":
        data = f"table:{shard(tmp_path / 'own.parquet', {'label': labels, 'a': range(5)})}"
    copy = applied(tmp_path, data, f",{item},4,{old},change,{new}")
    lines = [] if kind == "parquet" else copy.read_text().splitlines()[1:]
    made = [line.split(",")[1] for line in lines] or pq.read_table(copy)["label"].to_pylist()
    assert made == [*labels[:4], often]
