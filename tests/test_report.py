"""Reports: where a run belongs, seeds put together, the paper's values, claims, and files for readers."""

from __future__ import annotations

import json
import re
import shlex
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import fednoil, refused
from made_runs import made_run

from fednoil.config import load_config, merge, preset, preset_names
from fednoil.report.claims import UNTESTED, judge
from fednoil.report.html import page_data, paired_rows, render
from fednoil.report.places import Place, command_of, place_of, schedule_methods, values_of
from fednoil.report.record import read_record
from fednoil.report.results import Results, paired
from fednoil.report.runs import load_run, load_runs
from fednoil.report.sheets import sheets
from fednoil.report.text import latex, markdown


def place(name: str, changes: dict | None = None) -> Place:
    return place_of(load_config(merge(preset(name), changes or {})).model_dump(mode="json"))


def results(*paths: Path) -> Results:
    return Results(*load_runs(paths))


# ---- places


@pytest.mark.parametrize("name", [n for n in preset_names() if n.split("/")[0] != "demo"][::17])
def test_a_preset_is_its_own_place(name: str) -> None:
    found = place(name)
    family = ("paper", found.dataset) if found.family == "paper" else ("small",)
    assert "/".join((*family, found.setting, found.noise, found.method)) == name
    assert (found.setting_changes, found.method_changes) == ((), ())


def test_what_a_run_changes_is_told_as_set_takes_it() -> None:
    found = place("paper/cifar10/non-iid/pair-low/krum+dividemix", {"train": {"rounds": 30}, "server": {"f": 0}})
    assert found.setting_changes == ("train.rounds=30",)
    assert found.method_changes == ("server.f=0",)
    assert found.title == "cifar10 non-iid pair-low, train.rounds=30"
    assert found.method_title == "Krum+DMix, server.f=0"


def test_schedules_of_the_figures_are_methods() -> None:
    for method in schedule_methods():
        values = values_of("paper", "cifar10", "iid", "symmetric-high", method)
        assert place_of(load_config(values).model_dump(mode="json")).method == method
    # with fewer rounds a constant schedule matches the total over those
    values = values_of("paper", "cifar10", "iid", "symmetric-high", "fednoil-constant-as-cosine(40)", 50)
    values = merge(values, {"train": {"rounds": 50}})
    assert place_of(load_config(values).model_dump(mode="json")).method == "fednoil-constant-as-cosine(40)"


def test_own_data_and_own_methods_have_a_place_in_words() -> None:
    demo = place("demo")
    assert (demo.family, demo.dataset, demo.method) == ("", "fashion-mnist-mini", "fedavg+fednoil (cosine)")
    own = place("demo", {"data": {"name": "npz:mine of 2024.npz"}})
    assert own.dataset == "npz:mine of 2024.npz"
    assert place("paper/cifar10/iid/clean/fedavg", {"server": {"name": "median"}}).method == "median"
    assert command_of(load_config(preset("demo")).model_dump(mode="json")) is None


# ---- seeds together


def test_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    """Final accuracies 70, 72, 77: mean 73, squares 9 + 1 + 16 = 26, deviation sqrt(26 / 2) = 3.6056."""
    for seed, last in enumerate((70, 72, 77)):
        made_run(tmp_path / str(seed), accuracies=[last] * 8, seed=seed)
    (row,) = results(tmp_path).rows
    figure = row.figure("accuracy")
    assert figure is not None
    assert (figure.mean, figure.std) == (73.0, pytest.approx(3.6056, abs=1e-4))
    assert str(figure) == "73.00 ± 3.61"


def test_one_seed_that_does_not_converge_stars_the_cell(tmp_path: Path) -> None:
    """The last five changes of the second seed hold one of 2.0; best rounds are then 72 and 80, mean 76."""
    made_run(tmp_path / "a", accuracies=[70, 71, 70.5, 72, 71, 70], seed=0)
    made_run(tmp_path / "b", accuracies=[80, 70, 71, 70.5, 72.5, 71, 70], seed=1)
    found = results(tmp_path)
    (row,) = found.rows
    assert str(row.figure("accuracy")) == "76.00*"
    assert str(row.last_round()) == "70.00 ± 0.00"
    assert any("not converged (seeds 1)" in w for w in found.warnings)


def test_figures_over_rounds(tmp_path: Path) -> None:
    made_run(tmp_path / "a", noise_ratio=60.0)
    records = [json.loads(line) for line in (tmp_path / "a/rounds.jsonl").read_text().splitlines()]
    records[0]["noise_ratio"] = 68.0  # the others 60: mean 61, squares 49 + 7 = 56, deviation sqrt(56 / 7)
    (tmp_path / "a/rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    figure = results(tmp_path).rows[0].figure("noise_ratio")
    assert figure is not None
    assert (figure.mean, figure.std) == (61.0, pytest.approx(8**0.5))


def test_the_paired_test(tmp_path: Path) -> None:
    """Differences 1, 2, 3: t = 2 / (1 / sqrt 3) = 3.4641 with two degrees of freedom, p = 0.0742."""
    for seed in range(3):
        made_run(tmp_path / f"a{seed}", accuracies=[71 + 2 * seed] * 7, seed=seed)
        made_run(tmp_path / f"b{seed}", "fedavg", accuracies=[70 + seed] * 7, seed=seed)
    made_run(tmp_path / "c", "fedprox", accuracies=[70] * 7, seed=9)
    by_method = {row.place.method: row for row in results(tmp_path).rows}
    found = paired(by_method["fednoil-logarithm"], by_method["fedavg"])
    assert found is not None
    assert (found.seeds, found.mean, found.std) == (3, 2.0, pytest.approx(1.0))
    assert found.p == pytest.approx(0.0742, abs=1e-4)
    assert paired(by_method["fedprox"], by_method["fedavg"]) is None


def test_runs_of_another_precision_have_a_row_of_their_own(tmp_path: Path) -> None:
    """Two seeds in float32 and two in bfloat16 are two rows of two, told apart, and never tested against each other."""
    for seed in range(2):
        made_run(tmp_path / f"cpu{seed}", accuracies=[70 + seed] * 8, seed=seed, precision="float32")
        made_run(tmp_path / f"gpu{seed}", accuracies=[80 + seed] * 8, seed=seed, precision="bfloat16")
        made_run(tmp_path / f"other{seed}", "fedavg", accuracies=[60 + seed] * 8, seed=seed, precision="bfloat16")
    found = results(tmp_path)
    titles = {row.title: str(row.figure("accuracy")) for row in found.rows}
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
    (ahead,) = [v for v in judge(found) if v.claim.said.startswith("FedNoiL is ahead")]
    assert len(ahead.evidence) == 1
    assert any("rows of their own" in w for w in found.warnings)
    commands = {run["command"] for run in page_data(found)["runs"]}
    assert sum("--set run.precision=bfloat16" in command for command in commands) == 4


def test_what_a_run_computed_in(tmp_path: Path) -> None:
    auto = load_run(made_run(tmp_path / "auto"))
    assert (auto.precision, auto.conduct) == ("", ("precision not recorded",))
    assert load_run(made_run(tmp_path / "asked", changes={"run": {"precision": "bfloat16"}})).precision == "bfloat16"
    assert load_run(made_run(tmp_path / "cpu", clients=True)).precision == "float32"  # by its device
    moved = made_run(tmp_path / "moved", precision="float32")
    about = json.loads((moved / "environment.json").read_text())
    about["resumed"] = [{"at": "later", "after_round": 3, "precision": "bfloat16"}]
    (moved / "environment.json").write_text(json.dumps(about))
    assert load_run(moved).precision == "float32 then bfloat16"


def test_a_federation_with_noise_is_no_seed_of_a_simulation(tmp_path: Path) -> None:
    made_run(tmp_path / "a", precision="float32")
    noise = {"federation": {"update_clip": 1.0, "update_epsilon": 8.0}}
    made_run(tmp_path / "b", precision="float32", seed=1, changes=noise, nodes=["x"])  # type: ignore[arg-type]
    a, b = results(tmp_path).rows
    assert a.title == "FedNoiL(Logarithm)"
    assert b.title.startswith(
        "FedNoiL(Logarithm), in a federation, federation.update_clip=1, federation.update_epsilon=8"
    )
    commands = [run["command"] for run in page_data(results(tmp_path))["runs"]]
    assert any(command.startswith("fednoil federation run ") for command in commands)


def test_unfinished_runs_are_shown_and_not_judged(tmp_path: Path) -> None:
    """One row has no finished run; another has one seed finished, and the other seed is left out of its mean."""
    made_run(tmp_path / "a", accuracies=[90, 91, 92], finished=False)
    made_run(tmp_path / "b0", "fedavg", accuracies=[60] * 8, seed=0)
    made_run(tmp_path / "b1", "fedavg", accuracies=[10, 11], seed=1, finished=False)
    made_run(tmp_path / "c", "fedprox", accuracies=[61] * 8)
    found = results(tmp_path)
    (sheet,) = sheets(found)
    cells = {method: entries[0] for method, entries in zip(sheet.methods, sheet.entries, strict=True)}
    stopped, mixed, whole = cells["FedNoiL(Logarithm)"], cells["Vanilla FedAvg"], cells["Vanilla FedProx"]
    assert stopped
    assert mixed
    assert whole
    assert (str(stopped.ours), stopped.difference, stopped.best) == ("92.00", None, False)
    assert "at round 3 of 150" in stopped.beside
    assert (str(mixed.ours), mixed.row.progress) == ("60.00", "")
    assert (whole.best, whole.difference is not None) == (True, True)
    (ahead,) = [v for v in judge(found) if v.claim.said.startswith("FedNoiL is ahead")]
    assert ahead.status == UNTESTED
    assert paired(stopped.row, mixed.row) is None
    assert sum("stopped after round" in w for w in found.warnings) == 2
    for text in (markdown(found), latex(found), render(found, "t")):
        assert "at round 3 of 150" in text


def test_a_run_given_twice_counts_once(tmp_path: Path) -> None:
    made_run(tmp_path / "a", finished=False, accuracies=[10, 11])
    made_run(tmp_path / "b")
    found = results(tmp_path, tmp_path / "b")
    assert [run.path.name for run in found.runs] == ["b"]
    assert any("configuration and seed" in w for w in found.warnings)


# ---- beside the paper


def test_cells_stand_beside_the_papers(tmp_path: Path) -> None:
    made_run(tmp_path / "ours", accuracies=[84.96] * 7)
    made_run(tmp_path / "fedavg", "fedavg", accuracies=[60] * 7)
    made_run(tmp_path / "low", accuracies=[86] * 7, where=("paper", "fashion-mnist", "iid", "symmetric-low"))
    (sheet,) = sheets(results(tmp_path))
    assert (sheet.table, [c.noise for c in sheet.columns]) == ("1", ["symmetric-high", "symmetric-low"])
    assert sheet.methods == ["Vanilla FedAvg", "FedNoiL(Logarithm)"]
    entry = sheet.entries[1][0]
    assert entry is not None
    assert str(entry.paper) == "82.46 ± 0.54"
    assert entry.difference == pytest.approx(2.5)
    assert entry.best
    assert sheet.entries[0][1] is None


def test_other_scales_show_the_paper_without_a_difference(tmp_path: Path) -> None:
    made_run(tmp_path / "a", accuracies=[70] * 7, where=("small", "", "iid", "symmetric-high"))
    made_run(tmp_path / "b", accuracies=[70] * 7, changes={"train": {"rounds": 7}})
    for sheet in sheets(results(tmp_path)):
        entry = sheet.entries[0][0]
        assert entry is not None
        assert str(entry.paper) == "82.46 ± 0.54"
        assert entry.difference is None
        assert "Not the paper's scale" in sheet.note


def test_values_of_another_dataset_say_so(tmp_path: Path) -> None:
    """Table 4 has CIFAR-10 alone; beside small runs on Fashion-MNIST its numbers carry the name."""
    for method in ("fednoil-logarithm", "fednoil-no-ssl"):
        made_run(tmp_path / method, method, where=("small", "", "iid", "symmetric-high"), label_precision=80.0)
    found = results(tmp_path)
    tables = {sheet.table: sheet for sheet in sheets(found)}
    entry = tables["4"].entries[0][0]
    assert entry
    assert entry.beside[-1].startswith("paper, CIFAR-10: ")
    for text in (markdown(found), latex(found), render(found, "t")):
        assert "paper, CIFAR-10: " in text


def test_ablations_have_tables_of_their_own(tmp_path: Path) -> None:
    for method in ("fednoil-logarithm", "fednoil-uniform-local", "fednoil-no-ssl", "fednoil-cosine(40)"):
        made_run(tmp_path / method, method, noise_ratio=60.0, label_precision=80.0, label_recall=75.0)
    tables = {sheet.table: sheet for sheet in sheets(results(tmp_path))}
    assert set(tables) == {"3", "4", "schedules"}  # Table 1 would only repeat FedNoiL(Logarithm)
    assert [c.metric for c in tables["3"].columns] == ["accuracy", "noise_ratio", "precision", "recall"]
    assert tables["3"].methods == ["FedNoiL(Logarithm)", "FedNoiL(Uniform Local-Data Sampling)"]
    original = tables["3"].entries[0][1]
    assert original is not None
    assert str(original.paper) == "62.29 ± 2.82"
    assert tables["4"].methods == ["FedNoiL(Logarithm)", "FedNoiL†"]
    assert tables["schedules"].methods == ["FedNoiL(Logarithm)", "FedNoiL Cosine(40)"]


def test_colours_say_who_wins(tmp_path: Path) -> None:
    """Less noise than the paper's 62.29 is better, less precision than its 84.74 is not."""
    made_run(tmp_path / "a", accuracies=[50] * 7, noise_ratio=50.0, label_precision=50.0, label_recall=99.0)
    made_run(tmp_path / "b", "fednoil-uniform-local", [50] * 7, noise_ratio=50.0)
    page = render(results(tmp_path), "t")
    line = page[page.index('<th scope="row">FedNoiL(Logarithm)') :].split("</tr>")[0]
    assert [re.findall("ahead|behind", cell) for cell in re.findall('class="([^"]*)"', line) if "diff" not in cell] == [
        ["behind"],
        ["ahead"],
        ["behind"],
        ["ahead"],
    ]


# ---- clients and labels


def test_what_is_known_of_clients(tmp_path: Path) -> None:
    clients = load_run(made_run(tmp_path / "a", clients=True)).clients
    assert clients.samples == [10, 10, 10]
    assert clients.noise == pytest.approx([10, 40, 70])
    assert clients.clean_share == pytest.approx([90, 60, 30])
    assert clients.agreement == pytest.approx([90, 60, 30])
    assert clients.selected == [8 + 2, 3, 3]  # client 0 every round, and again in rounds 3 and 6


def site_run(path: Path, samples: dict[str, int], seed: int = 0) -> Path:
    """A federation's run on its sites' own data; the last site came late and told no score."""
    run = made_run(path, accuracies=[60, 70], seed=seed, changes={"data": {"name": "sites"}, "noise": {"kind": "auto"}})
    names = list(samples)
    roster = {"run": "0" * 32, "clients": {n: k for k, n in enumerate(names)}, "sizes": samples, "agreement": {}}
    (run / "roster.json").write_text(json.dumps(roster | {"founders": names[:-1]}))
    records = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    for record, share in zip(records, (0.4, 0.6), strict=True):
        record["scores"] = {name: share * samples[name] for name in names[:-1]}
        record["held_out"] = {names[0]: {"accuracy": 100 * share, "samples": 5, "loss": 1.0}}
    (run / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    command = ["fednoil", "federation", "run", "demo", "--set", "a='b c'"]
    (run / "environment.json").write_text(json.dumps({"command": command}))
    return run


def test_a_federations_sites_are_told_as_they_are(tmp_path: Path) -> None:
    """Not as the partition and the noise of the configuration, which say nothing of them."""
    site_run(tmp_path / "a", {"north": 30, "south": 20, "west": 10})
    site_run(tmp_path / "b", {"north": 30, "south": 20, "west": 10}, seed=1)
    site_run(tmp_path / "c", {"north": 30, "south": 21, "west": 10})
    found = results(tmp_path)
    title = found.rows[0].place.title
    assert title.startswith("federation 2 sites (50 samples, ")
    assert [len(row.runs) for row in found.rows] == [2, 1]  # other samples, another setting
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
    run = load_run(made_run(tmp_path / "a"))
    assert (run.clients.noise, run.confusion, run.environment) == (None, None, {})
    page = render(Results([run]), "t").split('id="data"')[0]
    assert "Computed in: precision not recorded." in page
    assert page.count("not recorded") == 2  # there, and where the mouse points at the cell


# ---- files


def test_the_files(tmp_path: Path) -> None:
    for seed in range(2):
        made_run(tmp_path / f"runs/a{seed}", seed=seed, clients=True)
        made_run(tmp_path / f"runs/b{seed}", "fedavg", [60] * 8, seed=seed)
    files = [tmp_path / f"report.{ending}" for ending in ("html", "md", "tex")]
    options = ["--html", files[0], "--markdown", files[1], "--latex", files[2]]
    status, out, err = fednoil("report", tmp_path / "runs", *options)
    assert (status, err) == (0, "")
    assert [line for line in out.splitlines() if line] == [f"wrote {path}" for path in files]
    page, text, tex = (path.read_text() for path in files)
    assert "82.46 ± 0.54" in page
    assert re.search(r"https?://(?!github\.com/leeoniya|www\.w3\.org)", page) is None, (
        "nothing is loaded from a network"
    )
    assert "| FedNoiL(Logarithm) | **73.00 ± 0.00** (n = 2) [paper 82.46 ± 0.54, -9.46] |" in text
    assert "\\textbf{73.00 $\\pm$ 0.00}" in tex
    assert tex.count("\\begin{table}") == tex.count("\\end{table}") == 1


def test_wide_tables_fit_a_page_and_say_over_how_many_seeds(tmp_path: Path) -> None:
    for noise in ("symmetric-high", "symmetric-low", "pair-high", "pair-low"):
        made_run(tmp_path / noise, where=("paper", "fashion-mnist", "iid", noise))
    made_run(tmp_path / "again", seed=1)
    narrow = latex(results(tmp_path))
    assert "1 to 2 seeds.}" in narrow
    assert "resizebox" not in narrow
    made_run(tmp_path / "fifth", where=("paper", "fashion-mnist", "non-iid", "pair-low"))
    wide = latex(results(tmp_path))
    assert "\\begin{table*}" in wide
    assert "\\resizebox{\\textwidth}{!}{%\n\\begin{tabular}{lccccc}" in wide
    assert "\\end{tabular}}\n\\end{table*}" in wide
    assert wide.count("{") == wide.count("}")


def test_tables_are_printed_without_a_file(tmp_path: Path) -> None:
    made_run(tmp_path / "a")
    status, out, err = fednoil("report", tmp_path)
    assert (status, err) == (0, "")
    assert "FedNoiL(Logarithm)" in out
    assert "warning: fewer than 3 seeds" in out


def test_a_record_says_what_the_runs_say(tmp_path: Path) -> None:
    """Tables, claims, page and figures are the same from one small file; it names no folder of this machine."""
    for seed in range(2):
        made_run(tmp_path / f"runs/a{seed}", seed=seed, clients=True, noise_ratio=60.0, precision="bfloat16")
        made_run(tmp_path / f"runs/b{seed}", "fedavg", [60.25] * 8, seed=seed, precision="bfloat16")
    about = tmp_path / "runs/a0/environment.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "command": ["fednoil", "--out", str(tmp_path)]}))
    record = tmp_path / "record.parquet"
    assert fednoil("report", tmp_path / "runs", "--record", record) == (0, f"wrote {record}\n", "")
    whole, packed = results(tmp_path / "runs"), Results(read_record(record))
    assert markdown(packed) == markdown(whole)
    assert [row.conduct for row in packed.rows] == [row.conduct for row in whole.rows]
    for a, b in zip(whole.rows, packed.rows, strict=True):
        assert np.allclose(a.runs[0].curves["test_accuracy"], b.runs[0].curves["test_accuracy"], atol=1e-5)
    assert packed.rows[-1].runs[0].clients == whole.rows[-1].runs[0].clients
    assert not any("command" in run.environment for run in packed.runs)
    before = record.read_bytes()
    assert fednoil("report", record, "--record", record)[0] == 0
    assert record.read_bytes() == before
    (tmp_path / "other.parquet").write_bytes(b"PAR1")
    assert "not a record of runs" in refused("report", tmp_path / "other.parquet")


def test_names_from_outside_are_text(tmp_path: Path) -> None:
    nasty = "<script>alert(1)</script>|&%_$"
    made_run(tmp_path / "a", changes={"data": {"name": f"npz:{nasty}.npz"}})
    found = results(tmp_path)
    page = render(found, nasty)
    assert "<script>alert" not in page
    assert "</script>|" not in page
    assert "\\|&%" in markdown(found)
    assert "<script" not in markdown(found)
    assert "\\&\\%\\_\\$" in latex(found)


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    assert "no run in" in refused("report", tmp_path)
    assert "is not a folder" in refused("report", tmp_path / "none")
    made_run(tmp_path / "a")
    assert "doesn't exist" in refused("report", tmp_path, "--html", tmp_path / "none/page.html")
    (tmp_path / "a/rounds.jsonl").write_text("")
    assert "no finished round" in refused("report", tmp_path)


def test_code_that_a_run_names_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text("from pathlib import Path\nPath('was here').touch()\n")
    config = made_run(tmp_path / "runs/a") / "config.toml"
    config.write_text(config.read_text().replace('name = "fednoil"', 'name = "evil:Learner"\nown_key = 3'))
    made_run(tmp_path / "runs/b", "fedavg")
    (sheet,) = sheets(results(tmp_path / "runs"))
    assert sheet.methods == ["Vanilla FedAvg", "fedavg+evil:Learner (logarithm)"]
    assert not Path("was here").exists()


def test_a_damaged_run_is_left_out_with_its_reason(tmp_path: Path) -> None:
    made_run(tmp_path / "good")
    (made_run(tmp_path / "bad", seed=1) / "summary.json").write_text("{}")
    (made_run(tmp_path / "worse", seed=2) / "config.toml").write_text("[train]\nrounds = 'x'\n")
    found = results(tmp_path)
    assert [run.path.name for run in found.runs] == ["good"]
    assert sum("summary" in w or "train.rounds" in w for w in found.warnings) == 2


def test_a_record_keeps_federations_apart(tmp_path: Path) -> None:
    site_run(tmp_path / "a", {"north": 30, "south": 20, "west": 10})
    site_run(tmp_path / "b", {"north": 30, "south": 21, "west": 10})
    assert fednoil("report", tmp_path, "--record", tmp_path / "r.parquet")[0] == 0
    packed, folders = Results(read_record(tmp_path / "r.parquet")), results(tmp_path)
    assert [row.place for row in packed.rows] == [row.place for row in folders.rows]
    assert len(packed.rows) == 2
    assert packed.runs[0].clients == folders.runs[0].clients


def test_commands_can_be_pasted(tmp_path: Path) -> None:
    run = made_run(tmp_path / "it's; mine $HOME", changes={"data": {"name": "npz:my data.npz"}})
    command = page_data(results(run))["runs"][0]["command"]
    assert shlex.split(command) == ["fednoil", "run", str(run / "config.toml"), "--out", run.name]


def test_a_thousand_runs(tmp_path: Path) -> None:
    """Curves are thinned so that the page stays small; building it is a matter of seconds."""
    source = load_run(made_run(tmp_path / "a", accuracies=list(np.linspace(20, 80, 150)), clients=True))
    runs = []
    for seed in range(1000):
        values = {**source.values, "run": {**source.values["run"], "seed": seed}}
        runs.append(type(source)(**{**vars(source), "values": values, "path": Path(f"runs/{seed}")}))
        runs[-1].__dict__.pop("key", None)
    began = time.process_time()
    found = Results(runs)
    page = render(found, "thousand")
    assert time.process_time() - began < 20
    assert len(page) < 4_000_000
    data = page_data(found)
    assert len(data["runs"]) == 1000
    assert len(data["configs"]) == len(data["methods"]) == 1
    assert data["runs"][0]["curves"]["round"][-1] == 150
