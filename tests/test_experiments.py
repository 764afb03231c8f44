"""The pages of the studies: each is short, and its table is what its record says."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fednoil.bench.ranking import ranking
from fednoil.bench.record import figures_in, key_of, read_record
from fednoil.pages.marked import fill
from fednoil.report.chance import CHANCE, sample_of, unpaired_p

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENTS = ROOT / "experiments"
STUDIES = sorted(path.parent for path in EXPERIMENTS.glob("*/README.md"))


def script(path: Path, name: str) -> ModuleType:
    """A script of the experiments as a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


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
    """Below 6 MB, as `du -h` counts."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a Git checkout")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert sum(path.stat().st_size for path in files if path.is_file()) < 6 * 2**20


@pytest.mark.parametrize("study", ["cifar", "levels", "protocols", "demo"])
def test_a_table_is_what_its_record_says(record: ModuleType, study: str) -> None:
    """`python experiments/record.py pages` writes them."""
    path, text = record.page(study)
    assert path.read_text(encoding="utf-8") == text
    rows, table = record.read(EXPERIMENTS / study / "results.csv"), record.TABLES[study]
    assert tuple(rows[0]) == record.FIELDS
    assert set(table.methods) <= {row["method"] for row in rows}
    assert not any("non-iid" in row["setting"] for row in rows)  # made with a split that was wrong


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
    assert f"{high[0]:.1f} (mean of ten rounds) where step 20 has {high[1]:.1f}" in text
    assert f"it is {pair[0]:.1f} where step 20 has {pair[1]:.1f}" in text
    assert f"says the same ({tried.measure(new[1]):.1f}, {tried.measure(old[1]):.1f})" in text
    lines = {line.split(" | ")[0]: line.split(" | ")[1:] for line in tried.sites(rows).splitlines()[2:]}
    none, aside = ([float(cell.split()[0]) for cell in lines[name]] for name in ("| none set aside", "| **set aside**"))
    gain = 100 * statistics.mean(a / n - 1 for a, n in zip(aside, none, strict=True))
    assert f"{gain:.1f} % above none" in text


def quoted(study: str, *sentences: str) -> None:
    """The page has these sentences; their numbers are differences that no table has."""
    text = " ".join((EXPERIMENTS / study / "README.md").read_text(encoding="utf-8").split())
    for sentence in sentences:
        assert sentence in text, (study, sentence)


def mean(rows: list[dict[str, str]], figure: str, **where: str) -> float:
    return statistics.mean(float(r[figure]) for r in rows if all(r[key] == value for key, value in where.items()))


def test_the_demos_sentences_quote_its_record(record: ModuleType) -> None:
    rows = record.read(EXPERIMENTS / "demo/results.csv")

    def ahead(setting: str, method: str = "fednoil") -> int:
        ours, fedavg = (mean(rows, "final", setting=setting, method=m) for m in (method, "fedavg"))
        return round(ours - fedavg)

    high, few = "50 to 80 % wrong", "50 to 80 % wrong, pad 4"
    quoted(
        "demo",
        f"The default by {ahead(high, 'default')} points, FedNoiL as published by {ahead(high)}.",
        f"with 4 pixels the leads are {ahead(few, 'default')} and {ahead(few)} points.",
        f"the published share of 0.55 loses {-ahead('clean')} points to FedAvg",
        f'`frac = "auto"` loses {-ahead("clean", "auto")}, and the default is within chance of it.',
    )
    ours, fedavg = (
        [float(row["final"]) for row in rows if (row["setting"], row["method"]) == ("clean", method)]
        for method in ("default", "fedavg")
    )
    chance = unpaired_p(sample_of(ours), sample_of(fedavg))
    assert chance is not None
    assert chance > CHANCE


def test_the_sentences_about_protocols_quote_their_record(record: ModuleType) -> None:
    rows = record.read(EXPERIMENTS / "protocols/results.csv")
    late = {row["method"]: float(row["last10"]) for row in rows if row["setting"] == "fnbench/cifar10"}
    order = sorted(late, key=late.__getitem__, reverse=True)
    assert (order[0], order.index("fednoil-plus"), len(order)) == ("fedcorr", 3, 8)
    corr, own_fednoil, gce = (late[method] - late["fednoil-plus"] for method in ("fedcorr", "fednoil", "gce"))
    (own,) = (row for row in rows if row["setting"] == "fedcorr/cifar10")
    pseudo = float(next(row["pseudo_accuracy"] for row in rows if row["method"] == "fednoil"))
    quoted(
        "protocols",
        f"{corr:.1f} points behind FedCorr, {own_fednoil:.1f} behind FedNoiL and {gce:.1f} behind GCE",
        f"FedAvg is {late['fednoil-plus'] - late['fedavg']:.0f} points behind the default",
        f"of FedNoiL's pseudo-labels {pseudo:.0f} % are correct",
        f"its best round is {92.50 - float(own['best']):.1f} points below 92.50",
        f"after round {own['rounds']} of {int(own['planned']):,}",
    )
    ranked = re.findall(
        r"^\| ([a-z-]+) \|", (EXPERIMENTS / "ranking/README.md").read_text(encoding="utf-8"), flags=re.M
    )
    assert (ranked.index("fedlsr"), ranked.index("fedcorr")) == (2, 6)  # the first is the heading


def test_the_sentences_about_levels_quote_their_record(record: ModuleType) -> None:
    rows = record.read(EXPERIMENTS / "levels/results.csv")

    def gains(figure: str, digits: int, other: str = "fedavg") -> str:
        found = []
        for level in (20, 40, 60, 80):
            ours, theirs = (mean(rows, figure, setting=f"{level} %", method=m) for m in ("default", other))
            found.append(f"{ours - theirs:.{digits}f}")
        return f"{', '.join(found[:-1])} and {found[-1]} points"

    quoted("levels", f"{gains('final', 0)} above FedAvg at 20, 40, 60 and 80 % wrong ones")
    quoted("levels", f"and {gains('final', 1, 'published')} above FedNoiL")
    quoted("levels", f"gains are {gains('chosen', 1)}")


def test_the_sentences_about_the_default_quote_its_record() -> None:
    module = script(EXPERIMENTS / "default/table.py", "default_table")
    rows, counted, slower = module.read(), {"whole-fedavg": 0, "whole-fednoil": 0}, set()
    cells = [("fashion-mnist", s, n) for s in module.SPLITS for n in module.NOISES]
    cells += [("fashion-mnist", split, "symmetric-high") for split in module.OTHERS]
    for cell in cells:
        ours = [row for row in rows if tuple(row[name] for name in module.KEY[:4]) == (*cell, "whole")]
        for variant in counted:
            own = [row for row in rows if tuple(row[name] for name in module.KEY[:4]) == (*cell, variant)]
            if theirs := own or module.elsewhere(*cell, module.METHODS[variant]):
                counted[variant] += 1
                assert mean(ours, "final") > mean(theirs, "final")
                slower |= {cell[1]} if mean(ours, "batches") > mean(theirs, "batches") else set()
    assert slower == {"clients100"}

    def final(split: str, noise: str, dataset: str = "fashion-mnist") -> list[float]:
        where = {"dataset": dataset, "split": split, "noise": noise, "variant": "whole"}
        return [float(row["final"]) for row in rows if where.items() <= row.items()]

    missed = {cell: float(goal) - statistics.mean(final(*cell[1:], cell[0])) for cell, goal in module.GOALS.items()}
    behind = {cell: by for cell, by in missed.items() if by > 0}
    assert list(behind) == [("fashion-mnist", split, "symmetric-high") for split in ("iid", "b1")]
    iid, beta = behind.values()
    seeds = final("b.1", "pair-high")
    high = [final(split, "symmetric-high") for split in module.SPLITS]  # seeds 0 to 5
    first, fresh = (" / ".join(f"{statistics.mean(of[k : k + 3]):.1f}" for of in high) for k in (0, 3))
    quoted(
        "default",
        f"(FedAvg in {counted['whole-fedavg']} of {len(cells)}, FedNoiL in {counted['whole-fednoil']}, many with",
        f"it is {iid:.1f} points (IID) and {beta:.1f} points (β = 1) below DivideMix",
        f"seeds end between {min(seeds):.0f} and {max(seeds):.0f}",
        f"the first three: {fresh} with high noise where these have {first}.",
        f"seed 4 ends at {final('b.1', 'clean')[4]:.1f} even with clean labels.",
    )
    concept = " ".join((ROOT / "docs/fednoil.md").read_text(encoding="utf-8").split())
    assert f"seeds end up to {max(seeds) - min(seeds):.0f} points apart on Fashion-MNIST" in concept
    uneven, alike = (final(split, "symmetric-high", "cifar10")[0] for split in ("b.1", "iid"))
    assert f"had {uneven:.0f} % after half of its rounds, where IID clients end at {alike:.0f}." in concept


def test_the_sentences_about_sites_quote_their_record(record: ModuleType) -> None:
    rows = record.read(EXPERIMENTS / "sites/results.csv")
    digits, table, icons, pages = dict.fromkeys(row["data"] for row in rows)

    def of(figure: str, data: str) -> float:
        return mean(rows, figure, data=data)

    precision = [of("precision", data) for data in (digits, table, icons, pages)]
    gains = [of("fedavg_after", data) - of("fedavg", data) for data in (table, pages, icons)]
    leads = [of("fednoil", data) - of("fedavg", data) for data in (icons, table, pages)]
    own = [of("fednoil_after", data) - of("fednoil", data) for data in (table, icons, pages)]
    assert (round(min(own), 1), round(of("fednoil_after", digits) - of("fednoil", digits), 1)) == (0.5, -0.5)
    assert all(of("precision", data) > of("cleanlab_precision", data) for data in (digits, table, icons, pages))
    assert min(of("recall", data) for data in (digits, table, icons)) > 89.5 > of("recall", pages) > 50
    first, second, third = (f"{gain:.0f}" for gain in gains)
    quoted(
        "sites",
        f"{min(precision):.0f} to {max(precision):.0f} % of the flags are correct",
        f"by {first} points on the table, by {second} on the manual pages and by {third} on the icons",
        f"gains half a point to {max(own):.1f}, and loses half a point on the digits",
        "{:.0f}, {:.0f} and {:.0f} points ahead on the icons, the table and the manual pages".format(*leads),
    )


def test_the_sentences_about_the_ranking_quote_its_record() -> None:
    rows = read_record(EXPERIMENTS / "ranking/results.csv")
    methods, settings = ([*dict.fromkeys(row[name] for row in rows)] for name in ("method", "setting"))
    ranked = ranking({key_of(row): figures_in(row) for row in rows}, methods, settings, dict.fromkeys(methods, False))
    first = next(row for row in ranked if row.method == "fednoil-plus")
    assert all(first.steps < row.steps for row in ranked if row is not first)
    assert first.worst is not None
    setting, by = first.worst
    best = {row.method: found.mean for row in ranked if (found := row.by_setting.get(setting))}
    assert (setting, max(best, key=best.__getitem__)) == ("iid/two-level", "fedcorr")
    late = [found.mean for row in ranked if (found := row.accuracy["best"])]
    quoted(
        "ranking",
        f"iid/two-level (some clients are clean), where FedCorr is {by:.1f} points ahead",
        f"all methods lie within {max(late) - min(late):.1f} points",
    )
    for row in ranked[1:]:
        assert all(row.by_setting[name].mean < first.by_setting[name].mean for name in settings if name != setting)


def test_the_sentences_about_cifar_quote_their_record(record: ModuleType) -> None:
    rows, high = record.read(EXPERIMENTS / "cifar/results.csv"), "cifar10 iid symmetric-high"

    def early(method: str, figure: str = "final") -> float:
        return mean(rows, figure, setting=f"{high}, half held out", method=method, rounds="30")

    def late(method: str, figure: str = "final") -> float:
        return mean(rows, figure, setting=high, method=method)

    base = "x-strong+wd-2e-3"
    quoted(
        "cifar",
        f"{early('no-ssl+x-strong'):.0f} instead of {early('no-ssl'):.0f} after 30 rounds without pseudo-labels.",
        f"{early(base, 'pseudo_accuracy'):.0f} % of those accepted over 30 rounds are correct",
        f"the run ends at {early(base):.0f} instead of {early(f'no-ssl+{base}'):.0f}.",
        f"From round 161 on, {late(f'{base}+ssl-160+by-class', 'pseudo_accuracy'):.0f} % are correct",
        f"they add {late(f'{base}+ssl-160') - late(f'no-ssl+{base}'):.0f} points.",
    )


def test_the_sentences_about_cleaning_quote_their_record(record: ModuleType) -> None:
    rows = record.read(EXPERIMENTS / "cleaning/results.csv")
    budgets = ("10.0", "20.0", "40.0", "60.0")

    def found(percent: str) -> float:
        """Wrong labels found in the audit's order, as a multiple of those found in random order."""
        before = mean(rows, "noise_ratio", order="none")
        ours, random = (mean(rows, "noise_ratio", order=o, percent=percent) for o in ("suspicious", "random"))
        return (before - ours) / (before - random)

    def gains(method: str) -> list[int]:
        before = mean(rows, "final_accuracy", method=method, order="none")
        after = [mean(rows, "final_accuracy", method=method, order="suspicious", percent=p) for p in budgets]
        return [round(accuracy - before) for accuracy in after]

    assert [round(found(percent)) for percent in budgets[:2]] == [2, 2]
    quoted(
        "cleaning",
        "twice as many wrong labels as random order if 10 or 20 % of the labels are checked",
        f"and {found('60.0'):.1f} times as many at 60 %",
        f"FedAvg gains most, up to {max(gains('FedAvg'))} points",
        f"gains {min(gains('FedNoiL'))} to {max(gains('FedNoiL'))}.",
    )


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
    assert line == "| FedAvg | – | 62.5 ± 3.5, 70.0 ± 0.0 (2) | – | – | – |"
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
