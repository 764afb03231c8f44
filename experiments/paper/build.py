"""From run folders to the committed results: the record, the table of this page and of the project's.

    python experiments/paper/build.py [RUNS ...]

Given runs are added to `results.parquet`, in place of earlier ones with the same configuration and seed. Recorded runs
stay as they were written: their configurations are never rewritten with today's keys. `results.csv` has a line for
each run, for readers and for `git diff`.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fednoil.pages.marked import fill
from fednoil.report.chance import CHANCE, SampleStats, sample_of, unpaired_p
from fednoil.report.places import Place
from fednoil.report.record import MEANS, SCHEMA, read_record, write_record
from fednoil.report.results import Results, Row
from fednoil.report.runs import RecordedRun, load_runs
from fednoil.study.claims import judge
from fednoil.study.paper import METHOD_NAMES, Printed
from fednoil.study.presets import PAPER_NOISES, SETTINGS
from fednoil.study.report import STUDY
from fednoil.study.tables import paper_value

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECORD = HERE / "results.parquet"
LEFT_OUT = ("selected_noise", "label_precision", "label_recall")  # curves of which the record has the means
COLUMNS = pa.schema([field for field in SCHEMA if field.name not in LEFT_OUT] + [(MEANS, pa.string())])
PAPERS_SEEDS = 5  # of the paper's means and deviations
SMALL: dict[str, Any] = {
    "compression": "brotli",
    "compression_level": 11,
    "use_dictionary": False,
    "column_encoding": {f"{curve}.list.element": "BYTE_STREAM_SPLIT" for curve in ("test_accuracy", "train_batches")},
    "store_decimal_as_integer": True,
    "write_statistics": False,
}
PAD_4 = ("train.pad=4",)
LOGARITHM = "fednoil-logarithm"
Finals = dict[tuple[str, str], list[float]]  # accuracies by setting and noise


def collect(given: Sequence[Path], record: Path = RECORD) -> pa.Table:
    """The record with the given runs added, each configuration and seed once."""
    tables, runs = [], []
    if given:
        with tempfile.TemporaryDirectory() as folder:
            write_record(load_runs(given, STUDY)[0], path := Path(folder) / "new.parquet")
            tables, runs = [pq.read_table(path)], read_record(path, STUDY)
    if record.is_file():
        tables.append(pq.read_table(record, schema=COLUMNS))
        runs += read_record(record, STUDY)
    chosen = {id(run) for run in Results(runs).runs}
    rows = [row for table in tables for row in table.to_pylist()]
    kept = [row | summed_up(run) for row, run in zip(rows, runs, strict=True) if id(run) in chosen]
    return pa.Table.from_pylist(sorted(kept, key=lambda row: (row["name"], row["config"])), COLUMNS)


def small(table: pa.Table) -> pa.Table:
    """The same with accuracies as hundredths, which take a third less room."""
    place = table.schema.get_field_index("test_accuracy")
    hundredths = table["test_accuracy"].cast(pa.list_(pa.decimal128(5, 2)))
    return table.set_column(place, "test_accuracy", hundredths)


def summed_up(run: RecordedRun) -> dict[str, str]:
    """Mean and deviation over rounds of the curves that are left out; nothing here shows which labels are confused."""
    known = {key: run.over_rounds(key) for key in LEFT_OUT}
    found = {key: [value and round(value, 4) for value in both] for key, both in known.items() if both}
    return {MEANS: json.dumps(found, separators=(",", ":")), "confusion": "null"}


def csv_text(runs: Sequence[RecordedRun]) -> str:
    """One line per run: its configuration and results."""
    text = io.StringIO()
    names = ["setting", "method", "seed", "rounds", "finished", "final", "best", "last10", "converged"]
    names += ["selected_noise", "label_precision", "label_recall", "batches", "seconds", "device"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, "version"])
    for run in sorted(runs, key=lambda run: (run.place.title, run.place.method_title, run.conduct, run.seed)):
        s = run.summary
        start = [run.place.title, run.place.method_title, run.seed, run.rounds, run.finished]
        accuracies = [f"{s[key]:.2f}" for key in ("final_accuracy", "best_accuracy", "last10_accuracy")]
        means = [_mean(run, key) for key in ("selected_noise", "label_precision", "label_recall")]
        about = [s["train_batches"], f"{s['wall_s']:.1f}", run.environment.get("device", "")]
        writer.writerow([*start, *accuracies, s["converged"], *means, *about, version(run)])
    return text.getvalue()


def _mean(run: RecordedRun, key: str) -> str:
    """The mean over rounds, or nothing if no round has the number."""
    known = run.over_rounds(key)
    return "" if known is None else f"{known[0]:.2f}"


def version(run: RecordedRun) -> str:
    """The package's version and commit that made a run, or of the commit that recorded it."""
    known = (run.environment.get("packages", {}).get("fednoil"), run.environment.get("commit"))
    return " ".join(filter(None, known)) or run.environment.get("recorded", "")


def within_chance(row: Row, paper: Printed) -> bool:
    """Whether a row's accuracy can't be distinguished from the paper's; never if one of them has no spread."""
    ours = row.value("accuracy")
    assert ours is not None  # every run has an accuracy
    return not ours.starred and near(SampleStats(ours.mean, ours.std, len(row.runs)), paper)


def near(ours: SampleStats, paper: Printed) -> bool:
    """Whether Welch's test on means and deviations can't distinguish ours from the paper's."""
    p = unpaired_p(ours, SampleStats(paper.mean, paper.std, PAPERS_SEEDS))
    return None not in (ours.std, paper.std) and p is not None and p >= CHANCE


def cell(row: Row | None, paper: Printed | None) -> str:
    """`84.46 ± 0.62 (5; paper 82.46 ± 0.54)`; ≈: no more than chance between them."""
    if row is None:
        return "–"
    value = row.value("accuracy")
    assert value is not None
    beside = [str(len(row.runs)), *([row.progress] if row.progress else [])]
    beside += [f"last {row.last_round()}"] if value.starred else []
    fallen = not value.starred and row.finished and any(run.fallen for run in row.runs)
    beside += [f"best {row.best_round()}"] if fallen or not row.finished else []
    chance = paper is not None and row.finished and within_chance(row, paper)
    beside += [f"paper {'≈ ' if chance else ''}{paper}"] if paper else []
    return f"{value if row.finished else row.last_round()} ({'; '.join(beside)})"


class Cells:
    """The rows of one dataset by setting, noise, method and changes."""

    def __init__(self, results: Results, dataset: str) -> None:
        self.rows = {}
        for row in results.rows:
            place = row.place
            if place.family == "paper" and place.dataset == dataset and not place.method_changes:
                self.rows[place.setting, place.noise, place.method, place.setting_changes] = row

    def columns(self) -> list[tuple[str, str]]:
        """Settings and noises that were run, in the paper's order."""
        found = {key[:2] for key in self.rows}
        return [(s, n) for s in SETTINGS for n in PAPER_NOISES if (s, n) in found and not n.endswith("-shared")]

    def line(self, title: str, method: str, changes: tuple[str, ...] = ()) -> str | None:
        """A line of the table; None where nothing was run. FedNoiL with non-IID clients is in the readings' record."""
        found = {spot: self.rows.get((*spot, method, changes)) for spot in self.columns()}
        if not any(found.values()):
            return None
        other = {} if changes else readings("each", method)
        said = [cell(row, _paper(row)) if row else _other(other.get(spot), spot, method) for spot, row in found.items()]
        return f"| {' | '.join([title, *said])} |"


def _paper(row: Row | None) -> Printed | None:
    """The paper's value for this place, wherever it prints one."""
    if row is None:
        return None
    tables = ("2",) if row.place.setting in ("100-clients", "imbalanced") else ("1", "3", "4")
    return next((found for table in tables if (found := paper_value(table, row.place, "accuracy"))), None)


def _other(values: list[float] | None, spot: tuple[str, str], method: str) -> str:
    """A cell of the last rounds' accuracies."""
    if not values:
        return "–"
    paper = paper_value("1", Place("paper", "fashion-mnist", *spot, method), "accuracy")
    chance = "≈ " if near_all(values, paper) else ""
    return f"{mean_of(values)} ({len(values)}; paper {chance}{paper})"


def table(results: Results, dataset: str) -> str:
    """All methods in all settings that were run, ours beside the paper's."""
    cells = Cells(results, dataset)
    head = ["", *(f"{setting} {noise}" for setting, noise in cells.columns())]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    titles = {ours: paper for paper, ours in reversed(METHOD_NAMES.items())} | {LOGARITHM: "FedNoiL(Logarithm)"}
    for method in dict.fromkeys(METHOD_NAMES.values()):
        lines += [line] if (line := cells.line(titles[method], method)) else []
    lines += [line] if (line := cells.line("FedNoiL(Logarithm), 4-pixel shifts", LOGARITHM, PAD_4)) else []
    return "\n".join(lines)


def headline(results: Results) -> str:
    """The default, FedNoiL(Logarithm) and FedAvg on Fashion-MNIST, next to the paper's FedNoiL."""
    cells, known, ours = Cells(results, "fashion-mnist"), readings("total"), of_default()
    each = readings("each")  # non-IID clients; IID ones are in the record of this study
    head = ["Fashion-MNIST", "FedAvg: last (best) round", "FedNoiL, told the share of clean labels"]
    head += ["FedNoiL, told it for each client", "`fednoil-plus`, told nothing", "FedNoiL in the paper"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for setting, noise in dict.fromkeys([*known, *cells.columns()]):
        published = cells.rows.get((setting, noise, LOGARITHM, ()))
        average = cells.rows.get((setting, noise, "fedavg", ()))
        printed = paper_value("1", Place("paper", "fashion-mnist", setting, noise, LOGARITHM), "accuracy")
        shown = ["–" if average is None else f"{average.last_round()} ({average.best_round()})"]
        alike = _spread(each.get((setting, noise), []), printed)
        shown.append(alike if published is None else _short(published, printed))
        shown += [_spread(found.get((setting, noise), []), printed) for found in (known, ours)]
        name = f"{setting}, {noise}" if setting == "iid" else f"{setting} (β = 1), {noise}"
        lines.append(f"| {' | '.join([name, *shown, str(printed or '–')])} |")
    return "\n".join(lines)


def readings(reading: str, method: str = LOGARITHM) -> Finals:
    """FedNoiL's runs with D^x the same share of all clients (each), or as large as their noise allows (total)."""
    wanted = {"dataset": "fashion-mnist", "method": method, "reading": reading, "changes": ""}
    found = finals("readings", "setting", {"iid": "iid", "non-iid-1": "non-iid"}, wanted)
    order = [(s, n) for s in SETTINGS for n in PAPER_NOISES]
    return dict(sorted(found.items(), key=lambda item: order.index(item[0])))


def of_default() -> Finals:
    """The default's runs."""
    wanted = {"dataset": "fashion-mnist", "variant": "whole"}
    return finals("default", "split", {"iid": "iid", "b1": "non-iid"}, wanted)


def finals(study: str, column: str, settings: Mapping[str, str], wanted: Mapping[str, str]) -> Finals:
    """Final accuracies of the whole runs in a study's record with these values, by setting and noise."""
    found: Finals = {}
    with (HERE.parent / study / "results.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            known = row[column] in settings and row["rounds"] == row["planned"]
            if known and wanted.items() <= row.items():
                found.setdefault((settings[row[column]], row["noise"]), []).append(float(row["final"]))
    return found


def _spread(values: list[float], paper: Printed | None) -> str:
    if not values:
        return "–"
    return f"{mean_of(values)} (n = {len(values)}){' ≈' if near_all(values, paper) else ''}"


def mean_of(values: list[float]) -> str:
    """`84.46 ± 0.62`, without a deviation where there is one value."""
    return f"{np.mean(values):.2f}" + (f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else "")


def near_all(values: list[float], paper: Printed | None) -> bool:
    """Whether accuracies can't be distinguished from the paper's; never one alone."""
    return paper is not None and near(sample_of(values), paper)


def _short(row: Row, paper: Printed | None) -> str:
    chance = " ≈" if paper and within_chance(row, paper) else ""
    return f"{row.value('accuracy')} (n = {len(row.runs)}){chance}"


def about(results: Results) -> str:
    """How many runs, where, by which versions."""
    runs = results.runs
    devices = sorted({str(run.environment.get("device", "not recorded")) for run in runs})
    versions = sorted({version(run) or "not recorded" for run in runs})
    conducts = sorted({", ".join(run.conduct) for run in runs})
    hours = sum(run.summary["wall_s"] for run in runs) / 3600
    return (
        f"{len(runs)} runs, {hours:.1f} hours of computing. Device: {', '.join(devices)}. "
        f"Computed in: {', '.join(conducts)}. Version of fednoil: {', '.join(versions)}."
    )


def parts(results: Results) -> dict[str, str]:
    """What stands between `<!-- NAME -->` and `<!-- end -->` on the pages."""
    return {
        "about": about(results),
        "results": table(results, "fashion-mnist"),
        "headline": headline(results),
        "claims": claims(results),
    }


def claims(results: Results) -> str:
    """The paper's claims by verdict, and how many comparisons hold."""
    found: dict[str, list[str]] = {}
    for verdict in judge(results):
        count = f" ({verdict.held} of {len(verdict.support)})" if verdict.support else ""
        found.setdefault(verdict.status, []).append(f"{verdict.claim.said}{count}")
    return "\n".join(f"- **{status[:1].upper()}{status[1:]}**: {'; '.join(said)}." for status, said in found.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="run folders, or folders of them, to add to the record")
    pq.write_table(small(collect(parser.parse_args().runs)), RECORD, **SMALL)
    results = Results(read_record(RECORD, STUDY), study=STUDY)
    (HERE / "results.csv").write_text(csv_text(results.runs), encoding="utf-8")
    for readme in (HERE / "README.md", ROOT / "README.md"):
        readme.write_text(fill(readme.read_text(encoding="utf-8"), parts(results), once=False), encoding="utf-8")


if __name__ == "__main__":
    main()
