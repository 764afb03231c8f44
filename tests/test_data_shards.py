"""Images in tar shards (WebDataset), as Hugging Face's datasets saves them, and paths in parquet files."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import done, refused
from test_data_parquet import encoded

from fednoil.data import DataConfig, load, open_source
from fednoil.errors import UserError

HEAD = "client,item,index,given,decision,label\n"


def tar(path: Path, members: Mapping[str, bytes | str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as file:
        for name, content in members.items():
            data = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return path


def samples(labels: Sequence[str], first: int = 0) -> dict[str, bytes | str]:
    """Sample number i has the pixel value i."""
    return {
        f"s{k}.{suffix}": encoded(k) if suffix == "png" else label
        for k, label in enumerate(labels, first)
        for suffix in ("png", "cls")
    }


def saved(root: Path, splits: Mapping[str, Sequence[int]], names: Sequence[str] = ("no", "yes"), **more: Any) -> Path:
    """A folder as `DatasetDict.save_to_disk` writes it, with two files a split."""
    kinds = {"picture": {"_type": "Image"}, "kind": {"_type": "ClassLabel", "names": list(names)}}
    schema_words = {"huggingface": json.dumps({"info": {"features": kinds}})}
    for split, labels in splits.items():
        (root / split).mkdir(parents=True)
        names_of_files = []
        for number, rows in enumerate(np.array_split(np.arange(len(labels)), 2)):
            pictures = pa.array([{"bytes": encoded(int(k)), "path": None} for k in rows])
            columns = {"picture": pictures, "kind": [labels[k] for k in rows]}
            columns |= {name: [own[k] for k in rows] for name, own in more.items()}
            table = pa.table(columns).replace_schema_metadata(schema_words)
            names_of_files.append(f"data-{number:05}-of-00002.arrow")
            path = str(root / split / names_of_files[-1])
            with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table, max_chunksize=2)
        state = {"_data_files": [{"filename": name} for name in names_of_files], "_split": split}
        (root / split / "state.json").write_text(json.dumps(state))
    (root / "dataset_dict.json").write_text(json.dumps({"splits": list(splits)}))
    return root


def values(name: str) -> tuple[list[int], list[str], list[int]]:
    """The training images' first pixels, their classes, and the test images' first pixels."""
    found = load(DataConfig(name=name))
    classes = [found.class_names[label] for label in found.train.labels]
    return found.train.images[:, 0, 0, 0].tolist(), classes, found.test.images[:, 0, 0, 0].tolist()


def test_tar_shards(tmp_path: Path) -> None:
    tar(tmp_path / "w/train-0.tar", samples(["cat", "dog"]))
    tar(tmp_path / "w/train-1.tar", {**samples(["dog"], 2), "s2.txt": "a caption", "__index__.json": "{}"})
    tar(tmp_path / "w/val-0.tar", samples(["cat"], 9))
    assert values(f"webdataset:{tmp_path / 'w'}") == ([0, 1, 2], ["cat", "dog", "dog"], [9])
    assert open_source(f"webdataset:{tmp_path / 'w'}").labelled().items[2] == "train-1.tar/s2"


def test_a_label_and_a_site_in_json(tmp_path: Path) -> None:
    members: dict[str, bytes | str] = {}
    for k in range(10):
        about = {"label": k % 2, "site": "nord" if k < 6 else "süd"}
        members |= {f"a/{k}.seg.png": b"unused", f"a/{k}.PNG": encoded(k), f"a/{k}.json": json.dumps(about)}
    source = open_source(f"webdataset:{tar(tmp_path / 'x.tar', members)}")
    assert source.clients() == ("nord", "süd")
    raw = source.labelled()
    assert (raw.items[3], raw.labels.tolist(), raw.class_names) == ("a/3", [0, 1] * 5, None)
    done("data", f"webdataset:{tmp_path / 'x.tar'}")


@pytest.mark.parametrize(
    ("members", "line"),
    [
        ({**samples(["0", "1"]), "s1.pyd": b"\x80\x04."}, "holds s1.pyd, a pickle, which may run code"),
        ({**samples(["0", "1"]), "s1.meta.pkl": b""}, "holds s1.meta.pkl, a pickle"),
        ({**samples(["0", "1"]), "s2.cls": "0"}, "s2 has no picture"),
        ({**samples(["0", "1"]), "s2.png": b""}, "s2 has no label (.cls, or .json)"),
        ({**samples(["0", "1"]), "s2.png": encoded(1), "s2.json": "{"}, "s2 has a .json that can't be read"),
        ({**samples(["0", "1"]), "s1.jpg": encoded(1)}, "s1 has two pictures; keep one"),
        ({**samples(["0", "1"]), "s2.png": b"no", "s2.cls": "1"}, "s2 can't be read as an image"),
    ],
)
def test_what_is_wrong_in_a_tar_is_one_line(tmp_path: Path, members: dict[str, bytes | str], line: str) -> None:
    with pytest.raises(UserError) as error:
        load(DataConfig(name=f"webdataset:{tar(tmp_path / 'x.tar', members)}"))
    assert line in str(error.value)


def test_files_that_are_no_tars(tmp_path: Path) -> None:
    whole = tar(tmp_path / "a.tar", samples(["0", "1"])).read_bytes()
    (tmp_path / "half.tar").write_bytes(whole[:1200])
    (tmp_path / "noise.tar").write_bytes(b"noise" * 500)
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz"):
        pass
    (tmp_path / "w").mkdir()
    (tmp_path / "w/train.tar.gz").touch()
    for name in ("half.tar", "noise.tar", "b.tar.gz"):
        with pytest.raises(UserError, match="can't be read as an uncompressed tar file"):
            load(DataConfig(name=f"webdataset:{tmp_path / name}"))
    with pytest.raises(UserError, match=r"unpack train.tar.gz to a .tar first"):
        load(DataConfig(name=f"webdataset:{tmp_path / 'w'}"))


def test_a_saved_dataset(tmp_path: Path) -> None:
    """The columns are found by their kinds; a validation set stands in for a test set."""
    root = saved(tmp_path / "d", {"train": [0, 1, 1, 0, 1], "validation": [0, 1], "extra": [1, 1]})
    assert values(f"hf:{root}") == ([0, 1, 2, 3, 4], ["no", "yes", "yes", "no", "yes"], [0, 1])
    assert open_source(f"hf:{root}").listing().train.notices == ["the split 'extra' is not used"]  # type: ignore[attr-defined]
    one = open_source(f"hf:{root / 'train'}").listing()
    assert (len(one.train.items), one.test) == (5, None)


def test_a_saved_dataset_with_sites(tmp_path: Path) -> None:
    root = saved(tmp_path / "d", {"train": [0, 1, 1, 0]}, site=["a", "b", "a", "b"])
    assert open_source(f"hf:{root}").clients() == ("a", "b")


@pytest.mark.parametrize(
    ("file", "content", "line"),
    [
        ("dataset_dict.json", '{"splits": ["test"]}', "lists no split 'train'"),
        ("dataset_dict.json", None, "give the folder that save_to_disk wrote"),
        ("train/state.json", "{", "can't be read"),
        ("train/state.json", "{}", "names no Arrow file"),
        ("train/state.json", '{"_data_files": [{"filename": "../../secret"}]}', "has no file secret"),
        ("train/state.json", '{"_indices_files": [1]}', "flatten_indices()"),
        ("train/data-00000-of-00002.arrow", "noise", "can't be read as an Arrow file"),
    ],
)
def test_a_damaged_saved_dataset_is_one_line(tmp_path: Path, file: str, content: str | None, line: str) -> None:
    root = saved(tmp_path / "d", {"train": [0, 1, 1, 0]})
    (root / file).unlink() if content is None else (root / file).write_text(content)
    with pytest.raises(UserError) as error:
        load(DataConfig(name=f"hf:{root}"))
    assert line in str(error.value)


@pytest.mark.parametrize("struct", [False, True])
def test_paths_in_a_parquet_file(tmp_path: Path, struct: bool) -> None:
    """The copy that is kept of decoded pictures follows their files."""
    for k in range(4):
        (tmp_path / f"{k}.png").write_bytes(encoded(k))
    paths = [f"{k}.png" for k in range(4)]
    column = {"image": pa.array([{"bytes": None, "path": own} for own in paths])} if struct else {"path": paths}
    name = f"parquet:{tmp_path / 'list.parquet'}"
    pq.write_table(pa.table({**column, "label": ["a", "b", "a", "b"]}), tmp_path / "list.parquet")
    assert values(name)[:2] == ([0, 1, 2, 3], ["a", "b", "a", "b"])
    (tmp_path / "2.png").write_bytes(encoded(77))
    assert values(name)[0] == [0, 1, 77, 3]
    (tmp_path / "3.png").unlink()
    with pytest.raises(UserError, match=r"3\.png can't be read as an image"):
        values(name)


@pytest.mark.parametrize("kind", ["webdataset", "hf"])
def test_relabelled_copies(tmp_path: Path, kind: str) -> None:
    if kind == "hf":
        data, item = saved(tmp_path / "d", {"train": [0, 1, 1, 0], "test": [0, 1]}), "3"
    else:
        data, item = tmp_path / "d", "train.tar/s3"
        tar(data / "train.tar", {**samples(["no", "yes", "yes", "no"]), "s3.json": '{"label": "no", "x": 1}'})
        tar(data / "test.tar", samples(["no", "yes"]))
    drop = item.replace("3", "2")
    index = {"hf": ("3", "2"), "webdataset": ("", "")}[kind]
    (tmp_path / "decisions.csv").write_text(
        f"{HEAD},{item},{index[0]},no,change,yes\n,{drop},{index[1]},yes,drop,\n", encoding="utf-8"
    )
    words = ("--data", f"{kind}:{data}", "--decisions", tmp_path / "decisions.csv", "--out", tmp_path / "copy")
    done("relabel", *words)
    assert values(f"{kind}:{tmp_path / 'copy'}") == ([0, 1, 3], ["no", "yes", "yes"], [0, 1])
    assert values(f"{kind}:{data}")[1] == ["no", "yes", "yes", "no"]
    if kind == "webdataset":
        with tarfile.open(tmp_path / "copy/train.tar") as file:
            member = file.extractfile("s3.json")
            assert member is not None
            assert json.loads(member.read()) == {"label": "yes", "x": 1}


def test_decisions_about_other_data(tmp_path: Path) -> None:
    data = tar(tmp_path / "x.tar", samples(["no", "yes"]))
    (tmp_path / "decisions.csv").write_text(f"{HEAD},s9,,no,drop,\n")
    words = ("--data", f"webdataset:{data}", "--decisions", tmp_path / "decisions.csv", "--out", tmp_path / "c.tar")
    assert "has no sample 's9'" in refused("relabel", *words)
