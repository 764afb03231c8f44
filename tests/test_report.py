"""Reports: seeds put together, the paper's values beside them, clients and labels."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import fednoil, refused
from made_runs import change_rounds, made_run, results_of, site_run

from fednoil.report.html import page_data, paired_rows, render
from fednoil.report.latex import latex
from fednoil.report.results import Results, load_results, paired
from fednoil.report.runs import load_run
from fednoil.report.sheets import sheets
from fednoil.report.text import markdown
from fednoil.study.claims import UNTESTED, judge
from fednoil.study.report import STUDY

# ---- seeds together


def test_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    """Final accuracies 70, 72, 77: mean 73, squares 9 + 1 + 16 = 26, deviation sqrt(26 / 2) = 3.6056."""
    for seed, last in enumerate((70, 72, 77)):
        made_run(tmp_path / str(seed), accuracies=[last] * 8, seed=seed)
    (row,) = results_of(tmp_path).rows
    value = row.value("accuracy")
    assert value is not None
    assert (value.mean, value.std) == (73.0, pytest.approx(3.6056, abs=1e-4))
    assert str(value) == "73.00 ± 3.61"


def test_one_seed_that_does_not_converge_stars_the_cell(tmp_path: Path) -> None:
    """The last five changes of the second seed hold one of 2.0; best rounds are then 72 and 80, mean 76."""
    made_run(tmp_path / "a", accuracies=[70, 71, 70.5, 72, 71, 70], seed=0)
    made_run(tmp_path / "b", accuracies=[80, 70, 71, 70.5, 72.5, 71, 70], seed=1)
    found = results_of(tmp_path)
    (row,) = found.rows
    assert str(row.value("accuracy")) == "76.00*"
    assert str(row.last_round()) == "70.00 ± 0.00"
    assert any("not converged (seed 1)" in w for w in found.warnings)


@pytest.mark.parametrize("data", ["fashion-mnist", "npz:mine.npz"])
def test_the_best_of_a_column_is_that_of_the_last_round(tmp_path: Path, data: str) -> None:
    """FedAvg, unsettled, is shown with its best round, 80, and ends with 50; two that end with 70.00 are both bold."""
    ends = {"fedavg": [60, 80, 50, 60, 50, 60, 50], "fedprox": [70] * 8, "krum+josrc": [70.004] * 8}
    for method, accuracies in ends.items():
        made_run(tmp_path / method, method, accuracies, changes={"data": {"name": data}})
    text = markdown(results_of(tmp_path))
    assert (text.count("**70.00**"), text.count("| 80.00* ")) == (2, 1)
    assert "Bold: the best of a column, in accuracy by the last round." in text


def test_figures_over_rounds(tmp_path: Path) -> None:
    made_run(tmp_path / "a", selected_noise=60.0)
    # 68, the others 60: mean 61, squares 49 + 7 = 56, deviation sqrt(56 / 7)
    change_rounds(tmp_path / "a", lambda records: [records[0] | {"selected_noise": 68.0}, *records[1:]])
    value = results_of(tmp_path).rows[0].value("selected_noise")
    assert value is not None
    assert (value.mean, value.std) == (61.0, pytest.approx(8**0.5))


def test_the_paired_test(tmp_path: Path) -> None:
    """Differences 1, 2, 3: t = 2 / (1 / sqrt 3) = 3.4641 with two degrees of freedom, p = 0.0742."""
    for seed in range(3):
        made_run(tmp_path / f"a{seed}", accuracies=[71 + 2 * seed] * 7, seed=seed)
        made_run(tmp_path / f"b{seed}", "fedavg", accuracies=[70 + seed] * 7, seed=seed)
    made_run(tmp_path / "c", "fedprox", accuracies=[70] * 7, seed=9)
    by_method = {row.place.method: row for row in results_of(tmp_path).rows}
    found = paired(by_method["fednoil-logarithm"], by_method["fedavg"])
    assert found is not None
    assert (found.seeds, found.mean, found.std) == ((0, 1, 2), 2.0, pytest.approx(1.0))
    assert found.p == pytest.approx(0.0742, abs=1e-4)
    assert paired(by_method["fedprox"], by_method["fedavg"]) is None


def test_a_run_that_diverged_is_distinguished_from_one_that_was_stopped(tmp_path: Path) -> None:
    for name, method, after in (("stopped", "fedavg", 2), ("diverged", "fedprox", 3)):
        noted = {"at": "now", "after_round": after, "reason": "training diverged: …"}
        made_run(tmp_path / name, method, [60, 50, 40], finished=False, about={"diverged": noted})
    found = results_of(tmp_path)
    ends = {row.place.method: row.progress for row in found.rows}
    assert ends == {"fedavg": "at round 3 of 150", "fedprox": "diverged after round 3 of 150"}
    assert any("seed 0: diverged after round 3 of 150; shown as far as it got" in line for line in found.warnings)


def test_runs_of_another_precision_have_a_row_of_their_own(tmp_path: Path) -> None:
    """Two seeds in float32 and two in bfloat16 are two separate rows of two, never tested against each other."""
    for seed in range(2):
        made_run(tmp_path / f"cpu{seed}", accuracies=[70 + seed] * 8, seed=seed, precision="float32")
        made_run(tmp_path / f"gpu{seed}", accuracies=[80 + seed] * 8, seed=seed, precision="bfloat16")
        made_run(tmp_path / f"other{seed}", "fedavg", accuracies=[60 + seed] * 8, seed=seed, precision="bfloat16")
    found = results_of(tmp_path)
    titles = {row.title: str(row.value("accuracy")) for row in found.rows}
    assert titles == {
        "FedNoiL(Logarithm), float32": "70.50 ± 0.71",
        "FedNoiL(Logarithm), bfloat16": "80.50 ± 0.71",
        "Vanilla FedAvg": "60.50 ± 0.71",
    }
    (sheet,) = sheets(found)
    assert sorted(sheet.methods) == sorted(titles)
    assert "Computed in: bfloat16; float32." in sheet.note
    assert [(r["best"].title, r["other"].title) for r in paired_rows(found)] == [
        ("FedNoiL(Logarithm), bfloat16", "Vanilla FedAvg")
    ]
    ahead = judge(found)[0]
    assert len(ahead.support) == 1
    assert any("separate rows" in w for w in found.warnings)
    commands = {run["command"] for run in page_data(found)["runs"]}
    assert sum("--set run.precision=bfloat16" in command for command in commands) == 4


@pytest.mark.parametrize("data", ["fashion-mnist", "npz:mine.npz"])
def test_another_kept_round_is_another_method(tmp_path: Path, data: str) -> None:
    """Seed 0 is there for each choice and is no repetition; their mean would be 70."""
    for select, last in (("last", 60), ("best", 70), ("early", 80)):
        changes = {"data": {"name": data, "validation": 0.1}, "run": {"select": select}}
        made_run(tmp_path / select, "fedavg", accuracies=[last] * 8, changes=changes)
    found = results_of(tmp_path)
    titles = {row.title.split(", ")[-1]: str(row.value("accuracy")) for row in found.rows}
    plain = "run.select=last" if ":" in data else "Vanilla FedAvg"
    assert titles == {plain: "60.00", "run.select=best": "70.00", "run.select=early": "80.00"}
    assert "left out" not in str(found.warnings)
    page = render(found, "t")
    assert ("--set run.select=early" if plain == "Vanilla FedAvg" else '"row">run.select</th>') in page


def test_what_a_run_computed_in(tmp_path: Path) -> None:
    auto = load_run(made_run(tmp_path / "auto"))
    assert (auto.precision, auto.conduct) == ("", ("precision not recorded",))
    assert load_run(made_run(tmp_path / "asked", changes={"run": {"precision": "bfloat16"}})).precision == "bfloat16"
    assert load_run(made_run(tmp_path / "cpu", clients=True)).precision == "float32"  # by its device
    about = {"resumed": [{"at": "later", "after_round": 3, "precision": "bfloat16"}]}
    assert load_run(made_run(tmp_path / "moved", precision="float32", about=about)).precision == "float32 then bfloat16"


def test_a_federation_with_noise_is_no_seed_of_a_simulation(tmp_path: Path) -> None:
    made_run(tmp_path / "a", precision="float32")
    noise = {"privacy": {"sees": "noise", "clip": 1.0, "noise": 8.0}}
    made_run(tmp_path / "b", precision="float32", seed=1, changes=noise, nodes=["x"])  # type: ignore[arg-type]
    plain, noisy = sorted(row.title for row in results_of(tmp_path).rows)
    assert plain == "FedNoiL(Logarithm)"
    assert noisy == "FedNoiL(Logarithm), privacy.sees=noise, privacy.clip=1.0, privacy.noise=8.0"
    commands = [run["command"] for run in page_data(results_of(tmp_path))["runs"]]
    assert any(command.startswith("fednoil federation run ") for command in commands)


def test_unfinished_runs_are_shown_and_not_judged(tmp_path: Path) -> None:
    """One row has no finished run; another has one seed finished, and the other seed is left out of its mean."""
    made_run(tmp_path / "a", accuracies=[90, 91, 92], finished=False)
    made_run(tmp_path / "b0", "fedavg", accuracies=[60] * 8, seed=0)
    made_run(tmp_path / "b1", "fedavg", accuracies=[10, 11], seed=1, finished=False)
    made_run(tmp_path / "c", "fedprox", accuracies=[61] * 8)
    found = results_of(tmp_path)
    (sheet,) = sheets(found)
    cells = {method: entry for method, (entry,) in zip(sheet.methods, sheet.entries, strict=True) if entry}
    stopped, mixed, whole = cells["FedNoiL(Logarithm)"], cells["Vanilla FedAvg"], cells["Vanilla FedProx"]
    assert (str(stopped.ours), stopped.difference, stopped.best) == ("92.00", None, False)
    assert "at round 3 of 150" in stopped.beside
    assert (str(mixed.ours), mixed.row.progress) == ("60.00", "")
    assert (whole.best, whole.difference is not None) == (True, True)
    ahead = judge(found)[0]
    assert ahead.status == UNTESTED
    assert paired(stopped.row, mixed.row) is None
    assert sum("stopped after round" in w for w in found.warnings) == 2
    for text in (markdown(found), latex(found), render(found, "t")):
        assert "at round 3 of 150" in text


def test_a_run_given_twice_counts_once(tmp_path: Path) -> None:
    made_run(tmp_path / "a", finished=False, accuracies=[10, 11])
    made_run(tmp_path / "b")
    found = results_of(tmp_path, tmp_path / "b")
    assert [run.path.name for run in found.runs] == ["b"]
    assert any("configuration and seed" in w for w in found.warnings)


# ---- beside the paper


def test_a_report_needs_no_study(tmp_path: Path) -> None:
    """Without the study the same runs are like any others, and the paper isn't mentioned."""
    made_run(tmp_path / "ours", accuracies=[84.96] * 7)
    made_run(tmp_path / "fedavg", "fedavg", accuracies=[60] * 7)
    found = load_results([tmp_path])
    (sheet,) = sheets(found)
    assert sheet.title == "Results, fashion-mnist"
    assert sorted(entry.ours.mean for (entry,) in sheet.entries if entry) == [60, pytest.approx(84.96)]
    assert found.sections() == ()
    made_run(tmp_path / "own/a", accuracies=[84.96] * 7, changes={"data": {"name": "npz:mine.npz"}})
    own = results_of(tmp_path / "own")  # and a study says nothing of runs that are not its own
    assert own.sections() == []
    for one in (found, own):
        for text in (markdown(one), latex(one), render(one, "t").split("<script>")[0]):
            assert "84.96" in text
            assert "paper" not in text.lower()


def test_batches_stand_beside_own_results_where_they_differ(tmp_path: Path) -> None:
    own = {"data": {"name": "folder:photos"}}
    made_run(tmp_path / "a", "fedavg", batches=100, changes=own)
    made_run(tmp_path / "b", "fednoil-logarithm", batches=100, changes=own)
    assert "batches" not in markdown(results_of(tmp_path))
    made_run(tmp_path / "c", "krum+dividemix", batches=1234, changes=own)
    text = markdown(results_of(tmp_path))
    assert text.count("800 batches") == 2
    assert "9,872 batches" in text


def test_cells_stand_beside_the_papers(tmp_path: Path) -> None:
    made_run(tmp_path / "ours", accuracies=[84.96] * 7)
    made_run(tmp_path / "fedavg", "fedavg", accuracies=[60] * 7)
    made_run(tmp_path / "low", accuracies=[86] * 7, where=("paper", "fashion-mnist", "iid", "symmetric-low"))
    (sheet,) = sheets(results_of(tmp_path))
    assert (sheet.table, [c.noise for c in sheet.columns]) == ("1", ["symmetric-high", "symmetric-low"])
    assert sheet.methods == ["Vanilla FedAvg", "FedNoiL(Logarithm)"]
    (entry, _), (_, missing) = sheet.entries[::-1]
    assert entry
    assert (entry.beside, entry.gap, entry.best) == (["paper 82.46 ± 0.54"], "+2.50", True)
    assert missing is None


def test_other_scales_show_the_paper_without_a_difference(tmp_path: Path) -> None:
    made_run(tmp_path / "a", accuracies=[70] * 7, where=("small", "", "iid", "symmetric-high"))
    made_run(tmp_path / "b", accuracies=[70] * 7, changes={"train": {"rounds": 7}})
    for sheet in sheets(results_of(tmp_path)):
        ((entry,),) = sheet.entries
        assert entry
        assert (entry.beside, entry.gap) == (["paper 82.46 ± 0.54"], "")
        assert "Not the paper's scale" in sheet.note


def test_values_of_another_dataset_say_so(tmp_path: Path) -> None:
    """Table 4 has CIFAR-10 alone; beside small runs on Fashion-MNIST its numbers carry the name."""
    for method in ("fednoil-logarithm", "fednoil-no-ssl"):
        made_run(tmp_path / method, method, where=("small", "", "iid", "symmetric-high"), label_precision=80.0)
    found = results_of(tmp_path)
    for text in (markdown(found), latex(found), render(found, "t")):
        assert "paper, CIFAR-10: " in text


def test_ablations_have_tables_of_their_own(tmp_path: Path) -> None:
    for method in ("fednoil-logarithm", "fednoil-uniform-local", "fednoil-no-ssl", "fednoil-cosine(40)"):
        made_run(tmp_path / method, method, selected_noise=60.0, label_precision=80.0, label_recall=75.0)
    tables = {sheet.table: sheet for sheet in sheets(results_of(tmp_path))}
    assert set(tables) == {"3", "4", "schedules"}  # Table 1 would only repeat FedNoiL(Logarithm)
    assert [c.metric for c in tables["3"].columns] == ["accuracy", "selected_noise", "precision", "recall"]
    assert tables["3"].methods == ["FedNoiL(Logarithm)", "FedNoiL(Uniform Local-Data Sampling)"]
    original = tables["3"].entries[0][1]
    assert original
    assert original.beside[-1] == "paper 62.29 ± 2.82"
    assert tables["4"].methods == ["FedNoiL(Logarithm)", "FedNoiL†"]
    assert tables["schedules"].methods == ["FedNoiL(Logarithm)", "FedNoiL Cosine(40)"]


def test_colours_say_who_wins(tmp_path: Path) -> None:
    """Less noise than the paper's 62.29 is better, less precision than its 84.74 is not."""
    made_run(tmp_path / "a", accuracies=[50] * 7, selected_noise=50.0, label_precision=50.0, label_recall=99.0)
    made_run(tmp_path / "b", "fednoil-uniform-local", [50] * 7, selected_noise=50.0)
    page = render(results_of(tmp_path), "t")
    line = page[page.index('<th scope="row">FedNoiL(Logarithm)') :].split("</tr>")[0]
    assert re.findall("ahead|behind", line) == ["behind", "ahead", "behind", "ahead"]


# ---- clients and labels


def test_what_is_known_of_clients(tmp_path: Path) -> None:
    clients = load_run(made_run(tmp_path / "a", clients=True)).clients
    assert clients.samples == [10, 10, 10]
    assert clients.noise == pytest.approx([10, 40, 70])
    assert clients.clean_share == pytest.approx([90, 60, 30])
    assert clients.agreement == pytest.approx([90, 60, 30])
    assert clients.selected == [8 + 2, 3, 3]  # client 0 every round, and again in rounds 3 and 6


def test_a_federations_sites_are_reported_as_they_are(tmp_path: Path) -> None:
    """Not as the partition and the noise of the configuration, which say nothing of them."""
    site_run(tmp_path / "a", {"north": 30, "south": 20, "west": 10})
    site_run(tmp_path / "b", {"north": 30, "south": 20, "west": 10}, seed=1)
    site_run(tmp_path / "c", {"north": 30, "south": 21, "west": 10})
    found = results_of(tmp_path)
    title = found.rows[0].place.title
    assert title.startswith("federation 2 sites (50 samples, ")
    assert [len(row.runs) for row in found.rows] == [2, 1]  # other samples, another setting
    assert fednoil("report", tmp_path, "--record", tmp_path / "r.parquet")[0] == 0
    packed = results_of(tmp_path / "r.parquet")
    assert [row.place for row in packed.rows] == [row.place for row in found.rows]
    assert packed.runs[0].clients == found.runs[0].clients
    clients = load_run(tmp_path / "a").clients
    assert (clients.names, clients.samples) == (["north", "south", "west"], [30, 20, 10])
    assert clients.clean_share == [pytest.approx(50), pytest.approx(50), None]
    assert clients.held_out == [60, None, None]
    data = page_data(found)["runs"][0]
    assert data["clients"]["names"] == ["north", "south", "west"]
    assert data["command"] == """fednoil federation run demo --set 'a='"'"'b c'"'"''"""
    status, out, _ = fednoil("compare", tmp_path / "a", tmp_path / "b")
    assert status == 0
    assert "own data of 2 sites" in out
    assert "iid" not in out
    (tmp_path / "a" / "roster.json").write_text("{}")
    assert "roster.json is damaged" in refused("compare", tmp_path / "a")


def test_a_thinned_folder_is_enough(tmp_path: Path) -> None:
    run = load_run(made_run(tmp_path / "a"), STUDY)
    assert (run.clients.noise, run.confusion, run.environment) == (None, None, {})
    page = render(Results([run], study=STUDY), "t").split('id="data"')[0]
    assert "Computed in: precision not recorded." in page
    assert page.count("not recorded") == 2  # there, and where the mouse points at the cell
