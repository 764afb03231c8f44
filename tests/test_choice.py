"""Columns that are named behind a file: which are the labels, the sites and the split, and which are left out."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import done, refused
from PIL import Image

from fednoil.data.choice import Choice, chosen

NAMES = ["nr", "age", "label", "befund", "ward"]


def rows(count: int = 40) -> list[list[str]]:
    """Ages tell who is ill; `label` is one more feature, and `ward` is the site."""
    return [[f"p{k}", str(30 + 30 * (k % 2) + k % 3), "AB"[k % 3 > 0], ("ill", "well")[k % 2], f"w{k % 4}"]
            for k in range(count)]  # fmt: skip


def table(path: Path) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.table({name: [row[k] for row in rows()] for k, name in enumerate(NAMES)}), path)
    else:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([NAMES, *rows()])
    return path


def read_back(path: Path) -> list[list[str]]:
    if path.suffix == ".parquet":
        return [list(row.values()) for row in pq.read_table(path).to_pylist()]
    return [line.split(",") for line in path.read_text().splitlines()[1:]]


def test_what_stands_behind_a_path() -> None:
    assert chosen(Path("a/b.csv")) == (Path("a/b.csv"), Choice())
    assert chosen(Path("C:/b.csv:label=x y:drop=id, visit")) == (
        Path("C:/b.csv"),
        Choice({"label": "x y"}, ("id, visit",)),
    )
    assert chosen(Path("at:drop=utc:time:site=s")) == (Path("at"), Choice({"site": "s"}, ("utc:time",)))
    assert chosen(Path("a.csv:other=b"))[1] == Choice()


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_labels_and_sites_of_other_names(tmp_path: Path, name: str) -> None:
    path = f"{table(tmp_path / name)}:label=befund:site=ward:drop=nr"
    found = json.loads(done("data", f"table:{path}", "--json"))
    assert found["columns"] == ["age", "label=A", "label=B"]
    assert not any("nr" in line or "ward" in line for line in found["notices"])
    out = tmp_path / "run"
    values = ("--set", f"data.name=table:{path}", "--set", "model.name=linear", "--set", "train.rounds=1")
    said = done("run", "demo", *values, "--out", str(out))
    assert "4 clients (w0, w1, w2, w3)" in said
    # A new file has the column `label`, too, which is no label there either.
    done("predict", str(out / "model.safetensors"), str(tmp_path / name))


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_rows_are_called_by_their_ids(tmp_path: Path, name: str) -> None:
    path = table(tmp_path / name)
    data = f"table:{path}:label=befund:id=ward"
    assert "has the id 'w0' twice" in refused("data", data)
    data, out = f"table:{path}:label=befund:id=nr:drop=ward", tmp_path / "run"
    done("run", "demo", "--set", f"data.name={data}", "--set", "model.name=linear", "--set", "train.rounds=1",
         "--set", "partition.clients=2", "--out", str(out), "-q")  # fmt: skip
    model = str(out / "model.safetensors")
    found = json.loads(done("predict", model, f"{path}:id=nr", "--json"))
    assert [row["image"] for row in found] == [f"p{k}" for k in range(40)]
    assert "label= means nothing to a model" in refused("predict", model, f"{path}:label=befund")
    done("audit", "--data", data, "--model", model, "--out", str(tmp_path / "audit"))
    audited = (tmp_path / "audit" / "labels.csv").read_text().splitlines()[1:]
    assert {line.split(",")[1].strip('"') for line in audited} == {f"p{k}" for k in range(40)}
    (tmp_path / "decisions.csv").write_text("client,item,index,given,decision,label\n,p3,7,well,change,ill\n")
    options = ("--decisions", str(tmp_path / "decisions.csv"), "--out", str(tmp_path / f"new{path.suffix}"))
    assert "1 changed" in done("relabel", "--data", data, *options)
    changed = rows()
    changed[3][3] = "ill"
    assert read_back(tmp_path / f"new{path.suffix}") == changed
    assert "has no row 'p3'" in refused("relabel", "--data", f"table:{path}:label=befund", *options[:-1], "other")


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_copy_changes_the_column_of_labels(tmp_path: Path, name: str) -> None:
    path = table(tmp_path / name)
    (tmp_path / "decisions.csv").write_text("client,item,index,given,decision,label\n,0,0,ill,change,well\n")
    out = tmp_path / f"new{path.suffix}"
    done("relabel", "--data", f"table:{path}:label=befund", "--decisions", str(tmp_path / "decisions.csv"),
         "--out", str(out))  # fmt: skip
    said = f"a copy of {path.name} is of the same format; end its name in {path.suffix}\n"
    assert said in refused("relabel", "--data", f"table:{path}:label=befund", "--decisions",
                           str(tmp_path / "decisions.csv"), "--out", str(tmp_path / "new.npz"))  # fmt: skip
    assert read_back(out) == [["p0", "30", "A", "well", "w0"], *rows()[1:]]


def test_pictures_in_a_list(tmp_path: Path) -> None:
    lines = ["scan,what,who"]
    for k in range(12):
        Image.new("L", (8, 8), 20 * k).save(tmp_path / f"{k}.png")
        lines.append(f"{k}.png,{'ab'[k % 2]},{'xy'[k % 3 > 0]}")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    path = f"csv:{tmp_path / 'list.csv'}:path=scan:label=what:site=who"
    assert [row["class"] for row in json.loads(done("data", path, "--json"))["classes"]] == ["a", "b"]
    said = done("run", "demo", "--set", f"data.name={path}", "--set", "train.rounds=1", "--out", str(tmp_path / "run"))
    assert "2 clients (x, y)" in said


def test_columns_with_commas_files_with_colons_and_a_column_that_stands_twice(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('"dose, mg",y,z,label\n1,2,3,a\n4,5,6,b\n')
    found = json.loads(done("data", f"table:{tmp_path / 't.csv'}:drop=dose, mg:drop=y", "--json"))
    assert found["columns"] == ["z"]
    (tmp_path / "t:label=z.csv").write_text("x,label\n1,a\n2,b\n")  # a file may be called so
    assert json.loads(done("data", f"table:{tmp_path / 't:label=z.csv'}", "--json"))["columns"] == ["x"]
    (tmp_path / "t.csv").write_text("x,x,label\n1,2,a\n3,4,b\n")
    assert "has 2 columns 'x'; keep one" in refused("data", f"table:{tmp_path / 't.csv'}:drop=x")


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (":label=befun", "has no column 'befun'; its columns are nr, age, label, befund, ward; did you mean 'befund'?"),
        (":drop=age,id", "has no column 'id'; its columns are nr, age, label, befund, ward"),
        (":path=age", "path= means nothing here; use label, site, split, id or drop"),
        (":label=befund:id=label", "has the id 'B' twice in column 'label'; rows need their own"),
        (":label=", "label= names no column; write label=COLUMN"),
        (":label=age:label=befund", "has label= twice; give it once"),
        (":lable=befund", "lable= means nothing; use path, label, site, split, id or drop"),
        (":drop=age:drop=nr,age", "names the column 'age' twice; give it one meaning"),
        (":label=befund:drop=befund", "names the column 'befund' twice; give it one meaning"),
        (":drop=label", "has no column 'label'; its columns are nr, age, label, befund, ward; call one of them label "
         "or class or target, or add :label=COLUMN"),
    ],
)  # fmt: skip
def test_choices_that_cannot_be(tmp_path: Path, choice: str, said: str) -> None:
    assert said in refused("data", f"table:{table(tmp_path / 't.csv')}{choice}")
