"""The pages of the studies: each is short, and its table is what its record says."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from studies import EXPERIMENTS, ROOT, script

from fednoil.pages.marked import fill

STUDIES = sorted(path.parent for path in EXPERIMENTS.glob("*/README.md"))


@pytest.fixture(scope="module")
def record() -> ModuleType:
    return script(EXPERIMENTS / "record.py", "experiments_record")


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.name)
def test_a_page_is_short_and_has_one_record(study: Path) -> None:
    text = (study / "README.md").read_text(encoding="utf-8")
    prose = re.sub(r"```.*?```", "", re.sub(r"^\|.*$", "", text, flags=re.M), flags=re.S)
    assert len(prose.split()) <= 1000
    assert len(re.findall(r"^\|---", text, flags=re.M)) <= 1
    assert {path.name for path in study.glob("*.csv")} <= {"results.csv"}
    assert f"]({study.name}/README.md)" in (EXPERIMENTS / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.name)
def test_a_page_of_several_versions_says_so(study: Path) -> None:
    if not (study / "results.csv").is_file():
        pytest.skip("it has no record")
    with (study / "results.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    column = "version" if "version" in rows[0] else "commit"
    made_with = {row[column].split()[0] for row in rows if row[column]}
    if len(made_with) < 2:
        return
    text = (study / "README.md").read_text(encoding="utf-8")
    assert "`commit` in `results.csv`" in text or all(version in text for version in made_with)


def test_the_tree_stays_small() -> None:
    """Below 6.2 MB, as `du -h` counts; 1.4 are the images that come with the package."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a Git checkout")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert sum(path.stat().st_size for path in files if path.is_file()) < 6.2 * 2**20


@pytest.mark.parametrize("study", ["cifar", "levels", "protocols", "demo"])
def test_a_table_is_what_its_record_says(record: ModuleType, study: str) -> None:
    """`python experiments/record.py pages` writes them."""
    path, text = record.page(study)
    assert path.read_text(encoding="utf-8") == text
    rows, table = record.read(EXPERIMENTS / study / "results.csv"), record.TABLES[study]
    assert tuple(rows[0]) == record.FIELDS
    assert set(table.methods) <= {row["method"] for row in rows}
    old = [row for row in rows if row["version"].startswith("0.1.0")]
    assert not any("non-iid" in row["setting"] for row in old)  # made with a split that was wrong


def test_the_tables_of_scripts_are_what_their_results_say() -> None:
    privacy = script(EXPERIMENTS / "privacy/study.py", "privacy_study")
    assert privacy.page() == privacy.PAGE.read_text(encoding="utf-8")
    liars = script(EXPERIMENTS / "liars/study.py", "liars_study")
    assert liars.page() == liars.PAGE.read_text(encoding="utf-8")
    for study in ("cleaning/study.py", "readings/table.py", "default/table.py", "sites/study.py", "journey/study.py"):
        module = script(EXPERIMENTS / study, study.replace("/", "_"))
        assert module.page(module.read()) == module.PAGE.read_text(encoding="utf-8")


def test_the_tables_of_what_was_tried_are_what_the_record_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "table", script(EXPERIMENTS / "default/table.py", "default_table"))
    tried = script(EXPERIMENTS / "default/tried.py", "default_tried")
    rows, text = tried.read(), tried.PAGE.read_text(encoding="utf-8")
    assert tried.page(rows) == text
    text = " ".join(text.split())

    def late(variant: str, noise: str) -> dict[str, str]:
        where = {"dataset": "fashion-mnist", "split": "b.1", "noise": noise, "variant": variant, "seed": "1"}
        (found,) = (row for row in rows if where.items() <= row.items())
        return found

    new, old = ((late(v, "symmetric-high"), late(v, "pair-high")) for v in ("aligned", "network"))
    high, pair = ([float(one[k]["last10"]) for one in (new, old)] for k in (0, 1))
    found = [(float(one[1]["label_precision"]) + float(one[1]["label_recall"])) / 2 for one in (new, old)]
    assert f"{high[0]:.1f} (mean of ten rounds) where step 20 has {high[1]:.1f}" in text
    assert f"it is {pair[0]:.1f} where step 20 has {pair[1]:.1f}" in text
    assert f"says the same ({found[0]:.1f}, {found[1]:.1f})" in text
    agreed = {row["variant"]: float(row["val_accuracy"]) for row in rows if row["dataset"] == "cifar10-50"}
    pairs = (("weak", "default"), ("ten-weak", "ten"), ("neither", "weak"), ("ten", "default"))
    weak, longer, mixup, steps = (f"{abs(100 * (agreed[new] / agreed[old] - 1)):.1f}" for new, old in pairs)
    assert f"they gain {weak} and {longer} %." in text
    assert f"leaving it out costs {mixup} %." in text
    assert f"twice the epochs gain {steps} %." in text
    assert f"(Weak views do, by {weak} %, and ten epochs by {steps}." in text


def made_run(folder: Path, seed: int, rounds: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f"[run]\nseed = {seed}\n[train]\nrounds = 4\n")
    environment = {"device": "cpu", "precision": "float32", "config_hash": "a" * 64, "packages": {"fednoil": "9.9"}}
    environment |= {"commit": "abc", "origin": {"preset": "demo", "set": ["train.pad=4"]}}
    (folder / "environment.json").write_text(json.dumps(environment))
    rest = {"local_epochs": 1, "train_batches": 2, "selected": [0], "bytes_down": 0, "bytes_up": 0, "wall_s": 1.5}
    lines = [{"round": i, **rest, **row} for i, row in enumerate(rounds, start=1)]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_runs_are_added_and_replaced(record: ModuleType, tmp_path: Path) -> None:
    """The chosen round is the first of those that agree best with held-out labels: 70; the last has 60."""
    study = tmp_path / "levels"
    study.mkdir()
    record.write(study / "results.csv", [])
    rounds = [{"test_accuracy": a, "val_accuracy": v} for a, v in ((50, 40.0), (70, 45.0), (65, 45.0), (60, 30.0))]
    record.add(study, "20 %", "fedavg", [made_run(tmp_path / "a", 0, rounds), made_run(tmp_path / "b", 1, rounds[:2])])
    record.add(study, "20 %", "fedavg", [made_run(tmp_path / "c", 1, rounds[:3])])
    first, second = record.read(study / "results.csv")
    assert (first["final"], first["best"], first["chosen"], first["validation"]) == ("60", "70", "70", "30.00")
    assert (first["rounds"], first["planned"], first["seconds"], first["version"]) == ("4", "4", "6.00", "9.9 abc")
    assert (second["seed"], second["rounds"], second["final"], second["changes"]) == ("1", "3", "65", "train.pad=4")
    line = record.TABLES["levels"].text([first, second]).splitlines()[2]
    assert line == "| Fashion-MNIST, FedAvg | – | 62.5 ± 3.5, 70.0 ± 0.0 (2) | – | – | – |"
    with pytest.raises(SystemExit, match="settings: 0 %, 20 %"):
        record.add(study, "25 %", "fedavg", [])


def test_the_papers_values_stand_below(record: ModuleType) -> None:
    assert record.printed("cifar10 iid symmetric-high", "FedNoiL(Logarithm)") == "74.62 ± 0.69"
    assert record.printed("cifar100 iid symmetric-high", "FedNoiL†") == "–"


def test_a_page_without_its_place_is_refused() -> None:
    with pytest.raises(ValueError, match="0 places for 'results'"):
        fill("", {"results": ""})


def test_every_recorded_result_says_which_version_made_it() -> None:
    for path in sorted(ROOT.glob("experiments/*/results.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        unknown = [row for row in rows if not row.get("commit") and len(row.get("version", "").split()) < 2]
        assert unknown == [], path
    for path in sorted(ROOT.glob("benchmarks/results/*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        assert found.get("version") or found.get("commit"), path
