"""Tables and features: what is read, how it is scaled, what views are, and the way from a run to relabelled rows."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import done, fednoil, refused

import fednoil as package
from fednoil.augment import plain, strong, strong_plan, weak, weak_plan, weakened
from fednoil.augment.vectors import BLANKED, NOISE, NOISE_DRAWS
from fednoil.config import Config, load_config
from fednoil.data import load
from fednoil.data.vectors import FURTHEST, Scale, aligned, measured, pooled, scaled, united
from fednoil.errors import UserError
from fednoil.experiment import make_experiment
from fednoil.records.model_file import load_model
from fednoil.seeds import Seed
from fednoil.testing import cases, check_method, check_noise_kind

TINY = ("--set=model.name=mlp", "--set=model.width=32", "--set=train.rounds=5", "--set=run.device=cpu", "--quiet")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder of runs is there before."""
    monkeypatch.chdir(tmp_path)


def rows_in(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def patients(path: Path, count: int = 160, seed: int = 0, *, sites: bool = True, wrong: float = 0.2) -> Path:
    """Two classes that two columns of numbers tell apart, a colour that says nothing, and some empty cells."""
    rng = np.random.default_rng(seed)
    true = np.arange(count) % 2
    given = np.where(rng.random(count) < wrong, 1 - true, true)
    rows = []
    for k in range(count):
        age = 50_000 + 3_000 * (2 * true[k] - 1) + 1_000 * rng.normal()
        level = 0.001 * (2 * true[k] - 1) + 0.0005 * rng.normal()
        colour = ["red", "blue", ""][k % 3]
        site = [f"s{k // 2 % 4}"] if sites else []
        split = "test" if k >= 3 * count // 4 else "train"
        label = ["ill", "well"][true[k] if split == "test" else given[k]]
        rows.append(["" if k % 20 == 7 else age, level, colour, label, split, *site])
    return write(path, ["age", "level", "colour", "label", "split", *(["site"] if sites else [])], rows)


def test_a_table_by_hand(tmp_path: Path) -> None:
    """Ages 1, 3 and a missing one: mean 2, std 1. Categories are 0 and 1 in the order of the alphabet."""
    rows = [[1, "red", "a", "train"], [3, "blue", "b", "train"], ["", "", "a", "train"], [2, "green", "b", "test"]]
    path = write(tmp_path / "t.csv", ["age", "colour", "class", "split"], rows)
    dataset = load(f"table:{path}")
    assert dataset.about.columns == ("age", "colour=blue", "colour=green", "colour=red")
    assert dataset.class_names == ("a", "b")
    assert (dataset.mean, dataset.std) == ((2.0, 0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 1.0))
    assert dataset.train.images.tolist() == [[-1, 0, 0, 1], [1, 1, 0, 0], [0, 0, 0, 0]]
    assert dataset.test.images.tolist() == [[0, 0, 1, 0]]
    assert dataset.image_shape == (4,)
    assert dataset.about.items == ("0", "1", "2")


def test_parquet_tables_and_features_are_read_alike(tmp_path: Path) -> None:
    rows = np.array([[1.5, -2.0], [0.0, 4.0], [3.0, 1.0], [2.0, 2.0]], np.float32)
    labels = ["x", "y", "x", "y"]
    table = pa.table({"a": rows[:, 0], "b": rows[:, 1], "label": pa.array(labels).dictionary_encode()})
    pq.write_table(table, tmp_path / "t.parquet")
    lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 2)
    pq.write_table(pa.table({"features": lists, "label": labels}), tmp_path / "f.parquet")
    np.savez(tmp_path / "f.npz", x_train=rows, y_train=np.array(labels))
    write(tmp_path / "t.csv", ["a", "b", "label"], [[*row, label] for row, label in zip(rows, labels, strict=True)])
    names = ("table:t.csv", "table:t.parquet", "features:f.parquet", "features:f.npz")
    found = [load(name.replace(":", f":{tmp_path}/")) for name in names]
    for other in found[1:]:
        assert np.array_equal(found[0].train.images, other.train.images)
        assert found[0].hash == other.hash
    assert found[0].about.held_out == len(found[0].test) == 0  # 20 % of two rows a class


def test_sites_add_up_to_the_scale_of_all_rows() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(3, 7, (40, 3))
    values[rng.random(values.shape) < 0.2] = np.nan
    values[:10, 2] = np.nan  # nothing at the first site
    parts = [measured(values[:10]), measured(values[10:])]
    whole, added = measured(values), pooled(parts)
    assert added.counts == whole.counts
    assert np.allclose(added.mean, whole.mean, rtol=1e-4)
    assert np.allclose(added.std, whole.std, rtol=1e-4)
    assert measured(np.ones((5, 1))) == Scale((5,), (1.0,), (1.0,))  # no spread to divide by


def test_scaled_values_end_somewhere_and_missing_ones_are_the_mean() -> None:
    found = scaled(np.array([[1e9, np.nan, 4.0]], np.float32), (0.0, 5.0, 2.0), (1.0, 1.0, 4.0))
    assert found.tolist() == [[FURTHEST, 0.0, 0.5]]


def test_a_column_without_a_value_is_pointed_out(tmp_path: Path) -> None:
    rows = [[k, "", "NA" if k else "red", "xy"[k % 2]] for k in range(10)]
    write(tmp_path / "t.csv", ["a", "b", "c", "label"], rows)
    pq.write_table(pa.table({"b": pa.nulls(10), "label": ["x", "y"] * 5}), tmp_path / "t.parquet")
    for name in ("t.csv", "t.parquet"):
        assert "\n1 column without a value: 'b'\n" in done("data", f"table:{tmp_path / name}")


def test_columns_that_may_not_be_what_they_seem_are_pointed_out(tmp_path: Path) -> None:
    rows = [
        [k, f"p{k}", f"2000-01-{k % 9}", 40 - k, 7 * k, k % 7, f"{k % 9},5", *(("u", "V ", "v")[k % 3], k % 2)]
        for k in range(40)
    ]
    names = ["", "patient", "day", "number", "caseID", "age", "dose", "sex", "icd", "plan", "ward", "seen", "area"]
    rows = [
        [
            *row,
            "ab"[k % 2],
            "ab"[k % 39 % 2],
            20240101 + k % 28,
            -999 if k % 9 == 0 else k % 7,
            k % 7 if k else -999,
            "xy"[k % 2],
        ]
        for k, row in enumerate(rows)
    ]
    names += ["n99", "label"]
    path = write(tmp_path / "t.csv", names, rows)
    found = json.loads(done("data", f"table:{path}", "--json"))
    assert found["notices"][:6] == [
        "without a name and left out: column 1",
        "columns that say the same as the label: 'icd', 'plan'; if they were made from it, leave them out "
        "(:drop=COLUMN)",
        "columns that may only number, name or date the rows: 'patient', 'day', 'number', 'caseID', 'seen'; if so, "
        "leave them out (:drop=COLUMN)",
        "columns with a number far from the others that may mean a missing value: 'area' (-999); if so, leave it empty",
        "columns of text that read like numbers: 'dose' (0,5); if so, write 5.1, not 5,1 or 5.1 %",
        "columns with categories that differ only in case or spaces: 'sex'; if they are one, write it alike",
    ]
    assert found["columns"][0] == "patient=p0"


def test_columns_of_sites_are_matched_by_name() -> None:
    columns = united({"a": ("age", "colour=red", "dose"), "b": ("dose", "colour=blue", "colour=red", "age")})
    assert columns == ("age", "colour=blue", "colour=red", "dose")
    values = np.array([[1, 1, 5], [2, np.nan, 6]], np.float32)
    found = aligned(values, ("age", "colour=red", "dose"), columns, "a")
    assert np.array_equal(found, [[1, 0, 1, 5], [2, np.nan, np.nan, 6]], equal_nan=True)
    with pytest.raises(UserError, match=r"site 'b' has no column 'dose', which site 'a' has"):
        united({"a": ("age", "dose"), "b": ("age",)})
    with pytest.raises(UserError, match=r"site 'a' has no column 'dose', which site 'b' has"):
        united({"a": ("age",), "b": ("age", "dose")})
    with pytest.raises(
        UserError, match=r"site 'b' has 2 features a sample and site 'a' 1; all sites need those of the"
    ):
        united({"a": ("0",), "b": ("0", "1")})
    with pytest.raises(UserError, match=r"column 'dose' has categories at site 'b' and numbers at site 'a'"):
        united({"a": ("dose",), "b": ("dose=high",)})
    assert united({"a": ("age", "dose="), "b": ("age=", "dose=high"), "c": ("age=", "dose=")}) == ("age", "dose=high")
    assert np.isnan(aligned(values[:, :2], ("age", "dose="), ("dose=high", "age="), "a")).all()  # no value, and unknown
    with pytest.raises(UserError, match=r"sites together: column 'id' has 120 different text values \('0' for example"):
        united({site: tuple(f"id={k}" for k in range(first, first + 60)) for site, first in (("a", 0), ("b", 60))})
    with pytest.raises(UserError, match=r"x has no column 'dose' of the kind"):
        aligned(values, ("age", "colour=red", "dose=high"), columns, "x")


def test_views_of_vectors() -> None:
    """Noise of a tenth of a standard deviation; strong views blank a quarter of the columns as well."""
    pool, index = torch.zeros(4, 2000) + 5.0, torch.tensor([[0, 1], [2, 3]])
    keys = Seed(0).keys(range(2))
    plan = weak_plan(keys, 2, NOISE_DRAWS, flip=False)
    views = weak(pool, index, plan)
    assert views.shape == (2, 2, 2000)
    noise = views - 5.0
    assert noise.std().item() == pytest.approx(NOISE, rel=0.05)
    assert abs(noise.mean().item()) < 0.005
    assert not torch.equal(noise[0, 0], noise[0, 1])
    assert torch.equal(weak(pool, index, plan), views)
    assert torch.equal(weak(pool, index, weak_plan(keys, 2, 0, flip=False)), plain(pool, index))
    hard = strong_plan(keys, 2, (), NOISE_DRAWS, flip=False)
    blank = strong(pool, index, hard) == 0
    assert blank.float().mean().item() == pytest.approx(BLANKED, rel=0.1)
    assert torch.equal(strong(pool, index, weakened(hard)), weak(pool, index, hard[..., :3]))


@pytest.mark.parametrize(
    ("server", "learner"),
    [(server, learner) for server, learner in cases() if server["name"] == "fedavg" or learner["name"] == "fednoil"],
    ids=lambda section: section["name"],
)
def test_every_learner_and_every_server_works_on_vectors(server: dict[str, Any], learner: dict[str, Any]) -> None:
    check_method(server, learner, vectors=True)


BAD = [
    (
        "a,b,label\n1,2,x\n3,oops,y\n4,5,x\n6,no,y\n",
        "column 'b' has text ('oops') in line 3 and 1 more row, and numbers elsewhere; correct it, leave",
    ),
    ('a,b,label\n1,2,x\n3,"4,5",y\n', "('4,5') in line 3, and numbers elsewhere (a decimal point is needed)"),
    ("a,label\n1,x\n1e99,y\n", "column 'a' is too large in line 3"),
    ("label\nx\ny\n", "has no column besides label; it needs features"),
    ("a=b,label\n1,x\n", "the name of column 'a=b' has a '='; rename it"),
    ("a,a,label\n1,2,x\n", "has two columns 'a'"),
    ('a,label\n"1\n",x\n\n2,\n3,\n4,\n', "has no label in line 5 and 2 more rows; every"),
    (
        "name,label\n" + "".join(f"p{k},{k % 2}\n" for k in range(101)),
        "column 'name' has 101 different text values ('p0'",
    ),
    (
        "a,label\n" + "".join(f"{k},{k / 10}\n" for k in range(30)),
        "30 classes for 30 samples, such as 0.0 and 0.1; labels must be classes, not amounts",
    ),
    ("a,label\n", "has no row; it needs one for each sample"),
]


@pytest.mark.parametrize(("label", "rows"), [("c{:02d}", 30), ("{}", 30), ("{}.5", 60)])
def test_many_classes_are_classes(label: str, rows: int, tmp_path: Path) -> None:
    """By names, numbered from 1, or numbers with two rows each."""
    lines = "".join(f"{k},{label.format(k % 30 + 1)}\n" for k in range(rows))
    (tmp_path / "t.csv").write_text("a,label\n" + lines)
    assert load(f"table:{tmp_path / 't.csv'}").num_classes == 30


def test_sites_too_small_to_hold_rows_out_keep_them(tmp_path: Path) -> None:
    lines = "".join(f"{k / 8},{'xy'[k % 2]},s{k // 4}\n" for k in range(40))
    (tmp_path / "t.csv").write_text("a,label,site\n" + lines)
    dataset = load(f"table:{tmp_path / 't.csv'}")
    assert (len(dataset.train), len(dataset.test)) == (40, 0)
    notice = "no test rows, and too few to hold some out: no class has three at any site"
    assert dataset.about.notices == (notice,)


@pytest.mark.parametrize(("text", "message"), BAD, ids=[message[:30] for _, message in BAD])
def test_bad_tables_are_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    line = refused("run", "demo", "--set", f"data.name=table:{tmp_path / 't.csv'}", "--set=model.name=mlp")
    assert message in line


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": pa.array([b"\xff", b"\xff"]).view(pa.string())}, "t.parquet can't be read as parquet (Column 1"),
        ({"a": [2**60, 1]}, "t.parquet: column 'a' has numbers beyond 2^53; make them text"),
        ({"a": [["x"], ["y"]]}, "column 'a' is list<element: string>; a table has numbers and text"),
        ({"label": [np.inf, 1.0]}, "column 'label' must have a whole number or a text in each row"),
    ],
)
def test_odd_and_damaged_parquet_files_are_one_line(columns: dict[str, Any], message: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"label": ["x", "y"], "a": [1, 2], **columns}), tmp_path / "t.parquet")
    assert message in refused("data", f"table:{tmp_path / 't.parquet'}")


def test_bad_features_are_one_line(tmp_path: Path) -> None:
    good, labels = np.eye(6, 3), np.arange(6) % 2
    hole = good.copy()
    hole[4, 1] = np.nan
    bad: dict[str, tuple[dict[str, np.ndarray], str]] = {
        "nan": (
            {"x_train": hole, "y_train": labels},
            "x_train has nan in row 4, column 1 (counted from 0); replace it or remove the row",
        ),
        "infinite": (
            {"x_train": np.where(good == 1, np.inf, good), "y_train": labels},
            "x_train has inf in row 0, column 0 (counted from 0), and 2 more such values; replace them",
        ),
        "pictures": ({"x_train": np.zeros((6, 2, 2)), "y_train": labels}, "must be numbers of shape [N, D]"),
        "short": ({"x_train": good, "y_train": labels[:5]}, "expected 6 whole numbers or text"),
        "part": ({"x_train": good, "y_train": labels, "x_test": good}, "lacks y_test"),
        "wide": (
            {"x_train": good, "y_train": labels, "x_test": good[:, :2], "y_test": labels},
            "x_test has 2 columns, x_train 3",
        ),
    }
    for name, (arrays, message) in bad.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        with pytest.raises(UserError) as error:
            load(f"features:{tmp_path / name}.npz")
        assert message in str(error.value)
    np.savez(tmp_path / "good.npz", x_train=good, y_train=labels)
    line = refused("run", "demo", f"--set=data.name=features:{tmp_path / 'good.npz'}", "--set=partition.clients=2")
    assert "model.name = 'cnn' is for pictures, and the samples are vectors of 3 numbers; use 'mlp' or 'linear'" in line
    pq.write_table(pa.table({"a": [1.0], "label": ["x"]}), tmp_path / "flat.parquet")
    with pytest.raises(UserError, match="no column of lists of numbers; it needs one"):
        load(f"features:{tmp_path / 'flat.parquet'}")


def test_from_a_table_to_a_better_table(tmp_path: Path) -> None:
    """Run, audit, relabel, run: labels that were flipped are found, and the copy has fewer wrong ones."""
    path = patients(tmp_path / "patients.csv")
    path.write_bytes(path.read_bytes().replace(b"\r\n", b"\n"))
    run = tmp_path / "run"
    done("run", "demo", "--set", f"data.name=table:{path}", *TINY, "--out", run)
    assert json.loads((run / "summary.json").read_text())["final_accuracy"] > 90
    done("audit", run)
    assert "s0" in (run / "audit" / "audit.html").read_text()
    flagged = [row for row in rows_in(run / "audit" / "labels.csv") if row["flagged"] == "true"]
    decisions = [[r["client"], r["item"], r["index"], r["given"], "accept", r["suggested"]] for r in flagged]
    write(tmp_path / "d.csv", ["client", "item", "index", "given", "decision", "label"], decisions)
    command = ["relabel", "--data", f"table:{path}", "--decisions", tmp_path / "d.csv", "--out", tmp_path / "new.csv"]
    done(*command)
    old, new = (rows_in(file) for file in (path, tmp_path / "new.csv"))
    truth = [["ill", "well"][k % 2] for k in range(len(old))]
    wrong = [sum(row["label"] != true for row, true in zip(rows, truth, strict=True)) for rows in (old, new)]
    assert wrong[1] < wrong[0] / 2
    assert [{**row, "label": ""} for row in old] == [{**row, "label": ""} for row in new]
    ends = {path.read_bytes().count(b"\r\n") for path in (path, tmp_path / "new.csv")}
    assert ends == {0}


def test_class_numbers_with_a_gap_from_a_run_to_a_better_table(tmp_path: Path) -> None:
    rows = [[(0, 1, 3)[k % 3], k % 3 + k / 90] for k in range(90)]
    path, out = write(tmp_path / "t.csv", ["label", "a"], rows), tmp_path / "run"
    done("run", "demo", f"--set=data.name=table:{path}", *TINY, "--out", out)
    data, model = f"--data=table:{path}", out / "model.safetensors"
    assert {row["class"] for row in json.loads(done("predict", model, path, "--json"))} <= {"0", "1", "3"}
    for judge in ((out,), (data, "--model", model, "--out", tmp_path / "a")):
        assert json.loads(done("audit", *judge, "--json"))["classes"] == ["0", "1", "3"]
    write(tmp_path / "d.csv", ["client", "item", "index", "given", "decision", "label"], [["", 2, 2, 3, "change", 1]])
    done("relabel", data, "--decisions", tmp_path / "d.csv", "--out", tmp_path / "new.csv")
    assert [row["label"] for row in rows_in(tmp_path / "new.csv")[:4]] == ["0", "1", "1", "0"]
    path.write_text("label,a\n2,1\n")
    assert "which has 0, 1, 3;" in refused("audit", data, "--model", model, "--out", tmp_path / "b")


def test_a_model_file_judges_and_predicts_rows_as_they_lie(tmp_path: Path) -> None:
    """Columns are found by name, whatever their order; labels aren't needed, and others don't matter."""
    path = patients(tmp_path / "patients.csv", sites=False)
    run = package.run("demo", data=f"table:{path}", out=tmp_path / "run", set={"model.name": "mlp", "train.rounds": 2})
    table = rows_in(path)
    header = ["note", "x=y", "note", "class", "target", "colour", "level", "age"]
    turned = [[f"n{k}" if k else 0, 1, 2, "", "", r["colour"], r["level"], r["age"]] for k, r in enumerate(table)]
    write(tmp_path / "new.csv", header, turned)
    out = done("predict", run.path / "model.safetensors", tmp_path / "new.csv", "--json")
    found = json.loads(out)
    assert len(found) == len(table)
    model = load_model(tmp_path / "run" / "model.safetensors")
    assert model.columns == ("age", "level", "colour=blue", "colour=red")
    colours = {"red": (0, 1), "blue": (1, 0), "": (np.nan, np.nan)}
    values = [[float(r["age"] or "nan"), float(r["level"]), *colours[r["colour"]]] for r in table]
    mine = run.probabilities(np.array(values))
    assert np.allclose(mine[:, 0], [row["probabilities"][run.class_names[0]] for row in found], atol=1e-6)
    judged = pa.Table.from_pylist([{**r, "level": float(r["level"]), "day": date(2000, 1, 1)} for r in table])
    pq.write_table(judged, tmp_path / "t.parquet")
    data = f"--data=table:{tmp_path / 't.parquet'}"
    done("audit", data, f"--model={model_path(run)}", f"--out={tmp_path / 'a'}")
    assert len(rows_in(tmp_path / "a" / "labels.csv")) == 120
    write(tmp_path / "bad.csv", ["level", "age", "color"], [[1, 2, "red"]])
    assert "has no column 'colour'; it has level, age, color\n" in refused(
        "predict", model_path(run), tmp_path / "bad.csv"
    )
    write(tmp_path / "bad.csv", ["level", "age", "colour"], [["high", 2, "red"]])
    assert "has no column 'level' of the kind that is needed" in refused(
        "predict", model_path(run), tmp_path / "bad.csv"
    )
    (tmp_path / "empty.csv").touch()
    np.save(tmp_path / "empty.npy", np.zeros((0, 4), np.float32))
    for name in ("empty.csv", "empty.npy"):
        assert f"{name} has no row; give at least one\n" in refused("predict", model_path(run), tmp_path / name)
    for name in ("none.csv", "none.parquet"):
        line = refused("predict", model_path(run), tmp_path / name)
        assert f"{name} is not a file; give a CSV or parquet file\n" in line
    (tmp_path / "text.npy").write_text("x")
    with (tmp_path / "many.npy").open("wb") as file:
        np.savez(file, x=np.zeros((1, 4)))
    for name in ("text.npy", "many.npy"):
        assert f"{name} is no array of numbers; save one" in refused("predict", model_path(run), tmp_path / name)
    assert "save the one to classify as .npy" in refused("predict", model_path(run), tmp_path / "x.npz")


def test_rows_from_python_and_rows_unlike_all_others(tmp_path: Path) -> None:
    """DataFrames and Arrow tables are read by the names of their columns, as files are; warnings name the caller."""
    path = patients(tmp_path / "patients.csv", sites=False)
    run = package.run("demo", data=f"table:{path}", out=tmp_path / "run", set={"model.name": "mlp", "train.rounds": 2})
    table = pa.Table.from_pylist([{**r, "level": float(r["level"]), "day": date(2000, 1, 1)} for r in rows_in(path)])
    mine, frame = run.probabilities(path), table.to_pandas()
    for new in (table, table.to_batches()[0], frame, frame[frame.columns[::-1]]):
        assert np.allclose(run.probabilities(new), mine, atol=1e-6)
    for bad, said in (
        (frame.iloc[:0], "the table has no row; give at least one"),
        (frame[["age", "level", "level", "colour"]], "the table has two columns 'level'; their names must differ"),
        (frame.assign(colour=[3, "red"] * (len(frame) // 2)), "each column needs values of one kind"),
    ):
        with pytest.raises(UserError, match=said):
            run.predict(bad)
    write(tmp_path / "one.csv", ["level", "age", "colour"], [[1, 2, "green"]])
    doubts = [
        "column 'colour': 1 of 1 rows have a category that is new to the model (green)",
        *(f"column '{name}': 1 of 1 rows are more than 10 standard deviations from the mean, where values are cut off"
          for name in ("age", "level")),
    ]  # fmt: skip
    status, out, err = fednoil("predict", model_path(run), tmp_path / "one.csv", "--json")
    assert (status, err) == (0, "".join(f"warning: {tmp_path / 'one.csv'}: {line}\n" for line in doubts))
    with warnings.catch_warnings(record=True, action="always") as warned:
        one = run.probabilities(pa.table({"level": [1], "age": [2], "colour": ["green"]}))
    assert [str(each.message) for each in warned] == [f"the table: {line}" for line in doubts]
    assert {Path(each.filename).name for each in warned} == {"test_vectors.py"}
    assert np.allclose(one, run.probabilities(np.array([[2, 1, 0, 0]])))
    assert json.loads(out)[0]["probabilities"][run.class_names[0]] == pytest.approx(one[0, 0], abs=1e-6)


def model_path(run: Any) -> Path:
    return run.path / "model.safetensors"


def test_vectors_from_a_program(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 5)), np.arange(80) % 2
    x[:, 2] += 3 * y
    x[0, 0] = np.nan
    data = {"nord": (x[:40], y[:40]), "süd": (np.asfortranarray(x[40:]), y[40:])}  # as a DataFrame has its columns
    keys = {"model.name": "linear", "train.rounds": 3}
    run = package.run("demo/fedavg", data=data, test=(x, y), out=tmp_path / "run", set=keys)
    assert run.accuracy is not None
    assert run.accuracy > 90
    assert np.array_equal(package.load(tmp_path / "run").predict(x), run.predict(x))
    assert len(run.audit().table) == 80
    with pytest.raises(UserError, match=r"samples have the shape \[4\], the model takes \[5\]"):
        run.predict(x[:, :4])
    with pytest.raises(UserError, match=r"samples have the shape \[4\], those of data\['a'\] \[5\]"):
        package.run("demo/fedavg", data={"a": (x, y), "b": (x[:, :4], y)}, set=keys)


def test_noise_that_depends_on_the_row(tmp_path: Path) -> None:
    check_noise_kind("instance")
    path = patients(tmp_path / "patients.csv", sites=False, wrong=0)
    keys = {"kind": "instance", "ratios": [0.3]}
    config = load_config({"data": {"name": f"table:{path}"}, "noise": keys, "model": {"name": "mlp"}})
    experiment = make_experiment(config)
    given = np.concatenate(experiment.setting.labels.given)
    true = experiment.setting.dataset.train.labels[np.concatenate(experiment.setting.parts)]
    assert 0.15 < (given != true).mean() < 0.45


class TestFederation:
    """Three hospitals with tables of their own."""

    @pytest.fixture
    def own(self, federated: dict[str, Any]) -> dict[str, Any]:
        federated["data"], federated["noise"] = {"name": "sites"}, {}
        federated["sampling"]["fraction"] = 1.0
        federated["model"] = {"name": "mlp", "width": 8}
        return federated

    def tables(self, folder: Path) -> dict[str, str]:
        names = {"a": 60, "b": 40, "c": 52}
        return {
            n: f"table:{patients(folder / f'{n}.csv', c, k, sites=False)}" for k, (n, c) in enumerate(names.items())
        }

    def federated(self, config: Config, data: dict[str, str], out: Path) -> list[dict[str, Any]]:
        pytest.importorskip("flwr")
        from loop_grid import LoopGrid, federate

        nodes = {
            10 + k: {"client-id": name, "data": source, "state": str(out.parent / "state")}
            for k, (name, source) in enumerate(data.items())
        }
        return federate(config, out, LoopGrid(nodes))

    def test_it_ends_as_the_simulation_of_the_same_sites(self, own: dict[str, Any], tmp_path: Path) -> None:
        data = self.tables(tmp_path)
        own["federation"] |= {"min_nodes": 3, "audit": True}
        self.federated(load_config(own), data, tmp_path / "real")
        simulated = {**own, "data": {"name": "sites", "sites": data}, "partition": {"kind": "given", "clients": 3}}
        package.run(load_config(simulated), out=tmp_path / "made")
        done("audit", tmp_path / "made")
        models = [load_model(tmp_path / place / "model.safetensors") for place in ("real", "made")]
        assert models[0].columns == models[1].columns == ("age", "level", "colour=blue", "colour=red")
        for one, other in zip(models[0].normalisation, models[1].normalisation, strict=True):
            assert np.allclose(one, other, rtol=1e-4)
        for name, tensor in models[0].tensors.items():
            assert torch.allclose(tensor, models[1].tensors[name], atol=1e-3)
        assert len(rows_in(next((tmp_path / "state").glob("a/*/audit/labels.csv")))) == 45
        for fold in range(3):
            self.federated(load_config(own).without_fold(fold, 3), data, tmp_path / f"fold-{fold}")
        rows = package.load(tmp_path / "made").audit(folds=3).table.to_arrow().to_pylist()
        for name in data:
            (audit,) = (tmp_path / "state" / name).glob("folds-*/audit/labels.csv")
            found = sorted((int(row["item"]), float(row["confidence"])) for row in rows_in(audit))
            wanted = sorted((row["sample"], row["confidence"]) for row in rows if row["client"] == name)
            assert [one for _, one in found] == pytest.approx([one for _, one in wanted], abs=1e-3)

    def test_a_fold_that_one_site_missed_is_the_others(self, own: dict[str, Any], tmp_path: Path) -> None:
        """Without site c there is one category fewer, and numbers are scaled otherwise."""
        data = self.tables(tmp_path)
        (tmp_path / "c.csv").write_text((tmp_path / "c.csv").read_text().replace("blue", "green"))
        own["federation"] |= {"audit": True}
        for fold, there in enumerate(("abc", "ab")):
            some = {name: data[name] for name in there}
            self.federated(load_config(own).without_fold(fold, 2), some, tmp_path / f"fold-{fold}")
        (audit,) = (tmp_path / "state/a").glob("folds-*/audit/labels.csv")
        assert len(rows_in(audit)) == 45

    def test_a_site_with_other_columns_is_refused(self, own: dict[str, Any], tmp_path: Path) -> None:
        said = [
            ("level", "dose", "it has no column 'level' and it has a column 'dose' that the federation lacks; all"),
            ("level", '"le\nvel"', "its introduction is invalid: its column 'le vel' is not one line of readable text"),
            ("0.00", "n0.00", "its column 'level' has categories, the federation's numbers; it must be the same at"),
        ]
        for k, (*change, why) in enumerate(said):
            data = self.tables(tmp_path)
            (tmp_path / "c.csv").write_text((tmp_path / "c.csv").read_text().replace(*change))
            records = self.federated(load_config(own), data, tmp_path / str(k))
            assert records[-1]["refused"]["c"].startswith(why)
            assert records[-1]["trained"] == ["a", "b"]

    def test_a_column_that_is_empty_at_a_site_is_of_the_kind_that_it_has_elsewhere(self, tmp_path: Path) -> None:
        pytest.importorskip("flwr")
        from fednoil.flower.terms import Site, agree, misfit

        cells = {"a": (1, "red"), "b": ("", "blue"), "c": (2, ""), "d": ("", "")}
        for name, own in cells.items():
            rows = [[own[0] and own[0] + k, own[1], "xy"[k % 2], ["train", "test"][k > 7]] for k in range(10)]
            write(tmp_path / f"{name}.csv", ["n", "colour", "label", "split"], rows)
        data = {name: f"table:{tmp_path / name}.csv" for name in cells}
        read = [load(name, site=True) for name in data.values()]
        own = [Site.of(name, None, 8, 2, dataset) for name, dataset in zip(data, read, strict=True)]
        terms = agree(own, None)
        assert [misfit(site, terms) for site in own] == [None] * 4
        whole = load(load_config({"data": {"name": "sites", "sites": data}}).data)
        assert terms.columns == whole.about.columns == ("n", "colour=blue", "colour=red")
        fitted = [terms.fitted(dataset).train.images for dataset in read]
        assert np.allclose(np.concatenate(fitted), whole.train.images, atol=1e-4)

    def test_few_values_are_not_reported(self, tmp_path: Path) -> None:
        pytest.importorskip("flwr")
        from fednoil.flower.terms import CommonTerms, Site, agree, misfit

        rows = [[k, 7 if k < 4 else "", "xy"[k % 2]] for k in range(12)]
        path = write(tmp_path / "t.csv", ["a", "rare", "label"], rows)
        dataset = load(f"table:{path}", site=True)
        site = Site.of("s", None, len(dataset.train), len(dataset.test), dataset)
        assert site.counts[1] == 0
        assert (site.mean[1], site.std[1]) == (0.0, 1.0)
        assert agree([site, site], None).mean == site.mean
        four, two = (CommonTerms(("a", "b"), (n,), (), (), tuple(map(str, range(n)))) for n in (4, 2))
        said = str(misfit(replace(site, columns=four.columns), two))
        assert said.startswith("it has 4 features a sample, the federation 2; all sites need the same features")


def test_truth_values_are_the_same_in_every_file(tmp_path: Path) -> None:
    """A CSV file has True and False, categories, where a parquet file has truth values."""
    rows = [[k, str(k % 2 == 0), "ab"[k % 2]] for k in range(20)]
    path = write(tmp_path / "t.csv", ["x", "flag", "label"], rows)
    run = package.run(
        "demo", data=f"table:{path}", set={"model.name": "linear", "train.rounds": 1, "partition.clients": 2}
    )
    new = pa.table({"x": [float(k) for k in range(20)], "flag": [k % 2 == 0 for k in range(20)]})
    assert np.allclose(run.probabilities(new), run.probabilities(path), atol=1e-6)
