"""`fednoil audit` of a run: what it writes, what it says, and which options go together."""

from __future__ import annotations

import csv as plain
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
from conftest import fednoil, refused
from pyarrow import csv

from fednoil import evidence
from fednoil.audit import files
from fednoil.audit.cases import Case, Cases, load_state, of_state
from fednoil.audit.decisions import unguard
from fednoil.config import load_config, preset
from fednoil.errors import UserError
from fednoil.estimation.wrong import Estimate
from fednoil.runner import Silent, run

COLUMNS = ["client", "item", "index", "given", "suggested", "p_wrong", "flagged", "rank"]


def test_a_run(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "audit"
    status, printed, err = fednoil("audit", trained / "run", "--out", out)
    assert status == 0, err
    assert "against true labels: AUROC" in printed
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
        assert (trained / "photos" / row["item"]).is_file()  # the paths name the pictures themselves, umlauts and all
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


def test_the_measures_of_two_clients_by_hand() -> None:
    """Four labels with one wrong and estimated 50 %, and one right label estimated 0 %: 2 of 5 by the estimate; the
    ratios are off by 25 and 0 points, and only the second is in its interval."""

    def case(client: str, given: list[int], true: list[int]) -> Case:
        labels = torch.tensor(given)
        bundle = evidence.add_looks(evidence.start([labels], 2), [len(given)], {0: torch.full((len(given), 2), 0.5)})
        items = tuple(map(str, range(len(given))))
        return Case(client, items, np.arange(len(given)), labels.numpy(), bundle, np.array(true))

    def found(p: list[float], ratio: float, interval: tuple[float, float]) -> Estimate:
        wrong = np.array(p)
        return Estimate(wrong, wrong > 0.5, np.zeros(len(p), int), np.eye(2), ratio, interval)

    clients = [case("a", [0, 1, 1, 0], [1, 1, 1, 0]), case("b", [0], [0])]
    cases = Cases("made", ("x", "y"), clients, lambda row: np.zeros((1, 1, 1), np.uint8))
    estimates = [found([0.9, 0.8, 0.2, 0.1], 0.5, (0.3, 0.7)), found([0.0], 0.0, (0.0, 0.1))]
    clients[0].bundle.update(evidence.add_draws(clients[0].bundle, [4], {0: torch.tensor([4, 2, 1, 0])}, 4))
    rows = files.make_table(cases, estimates).to_pylist()
    assert [(row["client"], row["item"], row["drawn"]) for row in rows] == [
        *(("a", item, drawn) for item, drawn in zip("0123", (1.0, 0.5, 0.25, 0.0), strict=True)),
        ("b", "0", None),
    ]
    summary = files.summarise(cases, estimates, "channel")
    assert [entry["true_noise_ratio"] for entry in summary["clients"]] == [0.25, 0.0]
    overall = summary["overall"]
    assert (overall["noise_ratio"], overall["flagged"]) == (0.4, 2)
    assert overall["ratio_error"] == {"mean": 0.125, "largest": 0.25, "in_interval": 1}
    assert overall["quality"] == {"auroc": 1.0, "average_precision": 1.0, "f1": pytest.approx(2 / 3, abs=1e-6)}


def test_given_labels_are_those_of_the_run(trained: Path, tmp_path: Path) -> None:
    experiment, state = load_state(trained / "run")
    fednoil("audit", trained / "run", "--client", "2", "--out", tmp_path / "audit")
    rows = pq.read_table(tmp_path / "audit" / "labels.parquet").to_pylist()
    names = experiment.setting.dataset.class_names
    wanted = dict(zip(experiment.setting.parts[2].tolist(), experiment.setting.labels.given[2].tolist(), strict=True))
    assert {row["index"]: names.index(row["given"]) for row in rows} == wanted
    assert {row["client"] for row in rows} == {"2"}
    assert state.evidence["looks"].tolist() == [6, 6, 6, 6]
    for k, case in enumerate(of_state(experiment, state, None, torch.device("cpu")).clients):
        assert case.bundle["given"].tolist() == experiment.setting.labels.given[k].tolist() == case.given.tolist()


def test_one_clients_audit_leaves_that_of_all_alone(trained: Path, tmp_path: Path) -> None:
    run_folder = tmp_path / "run"
    shutil.copytree(trained / "run", run_folder)
    assert fednoil("audit", run_folder)[0] == 0
    before = (run_folder / "audit" / "labels.csv").read_bytes()
    assert "--client 9: " in refused("audit", run_folder, "--client", 9)
    for force in ((), ("--force",)):
        status, printed, _ = fednoil("audit", run_folder, "--client", 2, *force)
        assert (status, f"wrote {run_folder / 'audit-client-2'}; " in printed) == (0, True)
    assert (run_folder / "audit" / "labels.csv").read_bytes() == before


def test_true_labels_change_nothing_but_the_measures(trained: Path, tmp_path: Path) -> None:
    from fednoil.audit import cases, run_audit

    found = cases.of_run(trained / "run", None, None, torch.device("cpu"))
    blind = [replace(case, true=None) for case in found.clients]
    run_audit(found, tmp_path / "a")
    run_audit(cases.Cases(found.data, found.class_names, blind, found.images), tmp_path / "b")
    assert (tmp_path / "a" / "labels.csv").read_bytes() == (tmp_path / "b" / "labels.csv").read_bytes()
    assert "quality" not in json.loads((tmp_path / "b" / "summary.json").read_text())["overall"]


def test_options_that_do_not_go_together(trained: Path, tmp_path: Path) -> None:
    run_folder, out = trained / "run", tmp_path / "out"
    assert "RUN, or --data and --model" in refused("audit")
    assert "--data needs --model, too" in refused("audit", "--data", "folder:x")
    assert "either RUN" in refused("audit", run_folder, "--data", "folder:x")
    assert "--client 9" in refused("audit", run_folder, "--client", 9, "--out", out)
    assert "--method magic is unknown" in refused("audit", run_folder, "--method", "magic")
    assert "--resize is for --data" in refused("audit", run_folder, "--resize")
    assert "--trust is for --data" in refused("audit", run_folder, "--trust", "a:b")
    at_site = ("audit", "--data", "folder:x", "--model", "m")
    assert "--data-dir d is for the named dataset of a RUN" in refused(*at_site, "--data-dir", "d")
    assert "--device 'gpu' is unknown; choose auto, cpu or cuda" in refused(*at_site, "--device", "gpu")
    assert "is not a run folder" in refused("audit", tmp_path / "nothing")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    assert "holds no audit" in refused("audit", run_folder, "--out", tmp_path / "mine", "--force")
    assert fednoil("audit", run_folder, "--out", out)[0] == 0
    assert "holds an audit already; add --force" in refused("audit", run_folder, "--out", out)
    assert fednoil("audit", run_folder, "--out", out, "--force")[0] == 0


def test_budget(trained: Path, tmp_path: Path) -> None:
    """Looking at everything corrects everything; suspicious labels hold more wrong ones than random ones."""
    status, _, err = fednoil("audit", trained / "run", "--budget", "25,100", "--out", tmp_path / "out")
    assert status == 0, err
    with (tmp_path / "out" / "budget.csv").open() as file:
        rows = {(row["order"], float(row["percent"])): row for row in plain.DictReader(file)}
    assert [key[0] for key in rows] == ["none", "suspicious", "random", "suspicious", "random"]
    assert float(rows["suspicious", 100.0]["noise_ratio"]) == 0
    assert rows["suspicious", 100.0]["final_accuracy"] == rows["random", 100.0]["final_accuracy"]
    assert int(rows["suspicious", 25.0]["looked_at"]) == 20
    assert int(rows["suspicious", 25.0]["corrected"]) > int(rows["random", 25.0]["corrected"])
    summary = json.loads((trained / "run" / "summary.json").read_text())
    assert float(rows["none", 0.0]["final_accuracy"]) == pytest.approx(summary["final_accuracy"], abs=1e-3)
    assert (tmp_path / "out" / "budget-curve.png").is_file()
    (tmp_path / "file").touch()
    assert "is a file" in refused("audit", trained / "run", "--budget", "5", "--out", tmp_path / "file")
    for bad in ("0", "x", "5,200"):
        assert f"--budget {bad} must be percentages" in refused("audit", trained / "run", "--budget", bad)
    assert "give RUN" in refused("audit", "--data", "folder:x", "--model", "m", "--budget", "5")


def test_a_budget_leaves_the_folder_of_the_audit_alone(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "run", tmp_path / "run")
    assert fednoil("audit", tmp_path / "run", "--budget", "100")[0] == 0
    assert (tmp_path / "run" / "budget" / "budget.csv").is_file()
    assert "budget.csv already exists; add --force" in refused("audit", tmp_path / "run", "--budget", "100")
    status, printed, _ = fednoil("audit", tmp_path / "run", "--budget", "100", "--force", "--json")
    assert status == 0
    assert [row["order"] for row in json.loads(printed)] == ["none", "suspicious", "random"]
    assert fednoil("audit", tmp_path / "run")[0] == 0


def test_a_budget_that_is_stopped_leaves_what_was_done(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fednoil.audit import budget

    trained_once, played = budget._trained, []

    def stopped(*args: Any) -> budget.Bought:
        if len(played) == 2:
            raise UserError("no memory left")
        played.append(args)
        return trained_once(*args)

    monkeypatch.setattr(budget, "_trained", stopped)
    assert fednoil("audit", trained / "run", "--budget", "50", "--out", tmp_path / "out")[0] == 2
    with (tmp_path / "out" / "budget.csv").open() as file:
        assert [row["order"] for row in plain.DictReader(file)] == ["none", "suspicious"]


def test_a_budget_that_can_not_be_written_is_reported_before_it_trains(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fednoil.audit import budget

    monkeypatch.setattr(budget, "_trained", lambda *_: pytest.fail("trained in vain"))
    (tmp_path / "file").touch()
    said = refused("audit", trained / "run", "--budget", "50", "--out", tmp_path / "file" / "out")
    assert "Not a directory" in said


def test_an_unfinished_run_is_reported(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def early(path: Path, *options: Any) -> tuple[Any, Any]:
        experiment, state = load_state(path, *options)
        return experiment, replace(state, round_idx=2)

    monkeypatch.setattr("fednoil.audit.cases.load_state", early)
    status, printed, _ = fednoil("audit", trained / "run", "--out", tmp_path / "audit")
    assert status == 0
    assert "the run is unfinished: this audit uses round 2 of 6" in printed


def test_samples_held_out_are_reported_and_clean_labels_need_no_budget(values: dict[str, Any], tmp_path: Path) -> None:
    """A quarter of each client's samples is not trained on, so that no round has looked at them."""
    values["data"]["validation"], values["noise"] = 0.25, {"kind": "none"}
    run(load_config(values), tmp_path / "run", Silent())
    status, printed, err = fednoil("audit", tmp_path / "run", "--json")
    assert status == 0, err
    for entry in json.loads(printed)["clients"]:
        held = round(entry["samples"] / 3)
        assert f"{held} samples held out by data.validation are not audited" in entry["notices"]
    assert "this run has none (noise.kind)" in refused("audit", tmp_path / "run", "--budget", "10")
    assert not (tmp_path / "run" / "budget").exists()


def test_a_budget_needs_test_images(tmp_path: Path) -> None:
    """Two rows of a class are too few to hold one out."""
    rows = [f"{k % 2}.{k},{k},{'ab'[k % 2]}" for k in range(4)]
    (tmp_path / "few.csv").write_text("\n".join(["x,y,label", *rows]) + "\n")
    values = preset("demo/fedavg") | {"data": {"name": f"table:{tmp_path / 'few.csv'}"}, "model": {"name": "linear"}}
    values |= {"partition": {"clients": 2}, "noise": {"kind": "symmetric", "ratios": [0.5]}}
    values["train"] |= {"rounds": 1}
    run(load_config(values), tmp_path / "run", Silent())
    assert "--budget measures accuracy on test images" in refused("audit", tmp_path / "run", "--budget", "50")


def test_a_model_that_has_diverged_is_refused(trained: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fednoil.audit.cases.Case.probabilities", np.full((3, 4), np.nan))
    assert "has diverged" in refused("audit", trained / "run", "--out", tmp_path / "audit")
    assert not (tmp_path / "audit").exists()


def test_the_csv_runs_no_formula(tmp_path: Path) -> None:
    """A spreadsheet that opens labels.csv must not run what a name says; parquet holds the names as they are."""
    texts = ["=cmd|'x'", "-2", "@a", "'+b", "cat"]
    rows = [{f.name: text if f.type == pa.string() else None for f in files.SCHEMA} for text in texts]
    table = pa.Table.from_pylist(rows, schema=files.SCHEMA)
    files.write_audit(tmp_path, table, {})
    with (tmp_path / "labels.csv").open(newline="") as file:
        rows = list(plain.DictReader(file))
    for name in ("client", "item", "given", "suggested"):
        assert [unguard(row[name]) for row in rows] == texts
        assert not any(row[name].startswith(("=", "+", "-", "@")) for row in rows)
    assert pq.read_table(tmp_path / "labels.parquet").column("item").to_pylist() == texts


def test_notices_that_clients_share_are_reported_once(trained: Path, tmp_path: Path) -> None:
    status, printed, _ = fednoil("audit", trained / "run", "--out", tmp_path / "audit")
    assert status == 0
    summary = json.loads((tmp_path / "audit" / "summary.json").read_text())
    assert "flags and noise ratios are unreliable" in summary["clients"][1]["notices"][0]  # the tiny model is weak
    assert printed.count("unreliable") == 1
    assert "unreliable" in (tmp_path / "audit" / "audit.html").read_text()
