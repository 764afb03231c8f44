"""From run folders to the committed results: the record, README.md's tables, and the figures.

    python experiments/reproduce/build.py [RUNS ...]

Runs that are given are added to `results.parquet`; the newer one of the same configuration and seed stays. Without any
the record alone is read. `results.csv` has a line for each run, for readers and for `git diff`. What a table lacks is
said as "not run", by comparing the record with the plan of `fednoil reproduce all`.
"""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path

from beyond import beyond, is_papers, schedules

from fednoil.config.presets import NOISES
from fednoil.figures import draw
from fednoil.pages.marked import fill
from fednoil.report.places import Place
from fednoil.report.record import read_record, write_record
from fednoil.report.results import Results, Row
from fednoil.report.runs import Run, load_runs
from fednoil.report.sheets import paper_value, sheets
from fednoil.report.text import markdown_claims, markdown_sheet
from fednoil.reproduce.plan import GOALS, Wanted, make_plan

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECORD = HERE / "results.parquet"
FIGURES = ("efficiency", "tradeoff", "ablation")
_HEADLINE = ("fednoil-cosine", "fednoil-logarithm")
# Goals that the paper has on CIFAR alone and this page on Fashion-MNIST as well.
_BESIDE = dict.fromkeys(("efficiency", "tradeoff", "ablation", "clean"), ("fashion-mnist",))


def collect(given: list[Path]) -> list[Run]:
    """The runs that were given and those of the record, each configuration and seed once."""
    new = load_runs(given)[0] if given else []
    old = read_record(RECORD) if RECORD.is_file() else []
    return Results([*new, *old]).runs


def csv_text(runs: list[Run]) -> str:
    """One line a run: what it was and what came out."""
    text = io.StringIO()
    names = ["setting", "method", "seed", "rounds", "finished", "final", "best", "last10", "converged", "batches"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, "seconds", "computed_in", "device", "config_hash"])
    for run in sorted(runs, key=lambda run: (run.place.title, run.place.method_title, run.conduct, run.seed)):
        s = run.summary
        accuracies = [f"{s[key]:.2f}" for key in ("final_accuracy", "best_accuracy", "last10_accuracy")]
        about = [s["converged"], s["train_batches"], f"{s['wall_s']:.1f}", ", ".join(run.conduct)]
        start = [run.place.title, run.place.method_title, run.seed, run.rounds, run.finished]
        device = run.environment.get("device", "")
        writer.writerow([*start, *accuracies, *about, device, s.get("config_hash", "")[:12]])
    return text.getvalue()


def at_paper_scale(row: Row) -> bool:
    """A finished row of one of the paper's own cells, nothing changed."""
    place = row.place
    return place.family == "paper" and not place.setting_changes and not place.method_changes and row.finished


def headline(results: Results) -> str:
    """FedNoiL on Fashion-MNIST in all settings of Table 1, next to the paper."""
    rows: dict[tuple[str, ...], Row] = {}
    for row in filter(at_paper_scale, results.rows):
        place = row.place
        known = rows.get(key := (place.dataset, place.setting, place.noise, place.method))
        rows[key] = row if known is None or len(row.runs) > len(known.runs) else known
    lines = ["| Fashion-MNIST | FedNoiL(Cosine) | paper | FedNoiL(Logarithm) | paper |", "|---|---|---|---|---|"]
    for setting in ("iid", "non-iid"):
        for noise in (noise for noise in NOISES if noise != "clean" and not noise.endswith("-shared")):
            found = [rows.get(("fashion-mnist", setting, noise, method)) for method in _HEADLINE]
            cells = [f"{setting}, {noise}"]
            for method, row in zip(_HEADLINE, found, strict=True):
                cells += [_accuracy(row), _paper(setting, noise, method)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _accuracy(row: Row | None) -> str:
    return "not run" if row is None else f"{row.figure('accuracy')} (n = {len(row.runs)})"


def _paper(setting: str, noise: str, method: str) -> str:
    (cell,) = make_plan("table1", _one(setting, noise, method))
    return str(paper_value("1", cell.place, "accuracy") or "–")


def _one(setting: str, noise: str, method: str) -> Wanted:
    return Wanted(datasets=["fashion-mnist"], settings=[setting], noises=[noise], methods=[method])


def not_run(results: Results) -> str:
    """Of each goal and dataset how much has a finished run, with how many seeds, and what has none."""
    seeds: dict[tuple[str, ...], int] = {}
    for row in filter(at_paper_scale, results.rows):
        key = (row.place.dataset, row.place.setting, row.place.noise, row.place.method)
        seeds[key] = max(seeds.get(key, 0), len(row.runs))
    lines = ["| goal | dataset | cells run | seeds | not run |", "|---|---|---|---|---|"]
    for goal, spec in GOALS.items():
        datasets = (*spec.datasets, *(d for d in _BESIDE.get(goal, ()) if d not in spec.datasets))
        for dataset in datasets if spec.methods else ():
            places = [cell.place for cell in make_plan(goal, Wanted(datasets=[dataset]))]
            cells = {(p.dataset, p.setting, p.noise, p.method): p for p in places}
            done = [seeds[key] for key in cells if key in seeds]
            spread = "–" if not done else f"{min(done)} to {max(done)}" if min(done) < max(done) else str(done[0])
            missing = [place for key, place in cells.items() if key not in seeds]
            lines.append(
                f"| {goal} | {dataset} | {len(done)} of {len(cells)} | {spread} | {_missing(missing, places)} |"
            )
    return "\n".join(lines)


def _missing(missing: list[Place], places: list[Place]) -> str:
    """What has no run: the methods, or all of them, each with its settings."""
    if len(missing) in (0, len(places)):
        return "all" if missing else "nothing"
    spots: dict[str, list[str]] = {}
    for spot in dict.fromkeys((p.setting, p.noise) for p in missing):
        here = [p.method for p in missing if (p.setting, p.noise) == spot]
        every = sum((p.setting, p.noise) == spot for p in places)
        methods = "all" if len(here) == every else ", ".join(f"`{m}`" for m in sorted(here))
        spots.setdefault(methods, []).append(" ".join(spot))
    return "; ".join(f"{', '.join(where)}: {methods}" for methods, where in spots.items())


def about(results: Results) -> str:
    """How many runs, where, with what."""
    runs = results.runs
    devices = sorted({str(run.environment.get("device", "device not recorded")) for run in runs})
    conducts = sorted({", ".join(run.conduct) for run in runs})
    hours = sum(run.summary["wall_s"] for run in runs) / 3600
    where = f"on: {', '.join(devices)}; computed in: {', '.join(conducts)}"
    return f"{len(runs)} runs, {hours:.1f} hours of computing (also of runs side by side, added up), {where}."


def pictures(folder: Path) -> str:
    """The figures there are, as Markdown."""
    shown = [f"![{file.stem}](figures/{file.name})" for file in sorted(folder.glob("*.png"))]
    return "\n\n".join(shown) or "None yet: their runs were not made."


def picture(folder: Path) -> str:
    """One figure for the project's page: the two levels of sampling on Fashion-MNIST, else the first there is."""
    files = sorted(folder.glob("*.png"), key=lambda file: ("ablation-paper-fashion-mnist" not in file.name, file.name))
    return f"![{files[0].stem}](experiments/reproduce/figures/{files[0].name})" if files else ""


def parts(results: Results, folder: Path = HERE / "figures") -> dict[str, str]:
    """What stands between `<!-- NAME -->` and `<!-- end -->` in README.md."""
    papers = results.some(is_papers)
    return {
        "headline": headline(results),
        "about": about(results),
        "tables": "\n\n".join(markdown_sheet(sheet, 3) for sheet in sheets(papers)),
        "claims": markdown_claims(papers),
        "beyond": beyond(results),
        "schedules": schedules(papers),
        "figures": pictures(folder),
        "picture": picture(folder),
        "not run": not_run(results),
        "warnings": "\n".join(f"- {line}" for line in results.warnings) or "None.",
    }


def draw_all(results: Results, folder: Path) -> None:
    """All figures anew, of the settings that `fednoil reproduce` plans for them: SVG, PNG and CSV."""
    for old in folder.glob("*"):
        old.unlink()
    for figure in FIGURES:
        planned = {(cell.place.setting, cell.place.noise) for cell in make_plan(figure, Wanted())}
        wanted = results.some(lambda row, planned=planned: (row.place.setting, row.place.noise) in planned)
        for file in draw(figure, wanted, folder):
            if file.suffix == ".pdf":
                file.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="run folders, or folders of them, to add to the record")
    runs = collect(parser.parse_args().runs)
    write_record(runs, RECORD)
    (HERE / "results.csv").write_text(csv_text(runs), encoding="utf-8")
    results = Results(runs)
    draw_all(results, HERE / "figures")
    for readme in (HERE / "README.md", ROOT / "README.md"):
        readme.write_text(fill(readme.read_text(encoding="utf-8"), parts(results), once=False), encoding="utf-8")


if __name__ == "__main__":
    main()
