"""The record of the ranking, one line a run, and the table of its page.

    python experiments/ranking/table.py [--commit COMMIT] [FOLDER ...]

FOLDER is one of `fednoil bench --scale paper`; its finished runs are added to `results.csv`, in place of earlier ones
of the same setting, method and seed. COMMIT is that of runs which don't know it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fednoil.bench.pages import answer
from fednoil.bench.plan import Grid, cells_of, finished
from fednoil.bench.ranking import RANKED_BY, RankedMethod, ranking
from fednoil.bench.record import Row, figures_in, key_of, read_record, row_of, write_record
from fednoil.bench.settings import settings_of
from fednoil.pages.marked import fill

HERE = Path(__file__).parent
PAGE, RECORD = HERE / "README.md", HERE / "results.csv"
FRONT = HERE.parents[1] / "README.md"  # which has the answer


def rows_of(folder: Path, commit: str = "") -> list[Row]:
    """What the record says of the finished runs of a ranking."""
    made, cells = finished(folder), cells_of(Grid(scale="paper"))
    return [row_of(cell, made[cell.config.hash()], commit) for cell in cells if cell.config.hash() in made]


def parts(rows: Sequence[Row]) -> dict[str, str]:
    """The parts of the page that come from the record."""
    runs = {key_of(row): figures_in(row) for row in rows}
    knows = {row["method"]: row["knows"] == "1" for row in rows}
    settings = [name for name in settings_of("paper") if any(s == name for _, s, _ in runs)]
    ranked, seeds = ranking(runs, list(knows), settings, knows), len({seed for *_, seed in runs})
    short = in_short(ranked, settings, seeds) if len(ranked) > 1 else ""
    return {
        "in short": short,
        "ranking": "\n\n".join([*filter(None, [answer(ranked, settings)]), note(seeds), table(ranked, settings)]),
    }


def note(seeds: int) -> str:
    """What the numbers are."""
    return (
        f"Accuracy is the mean of the last ten rounds and of {seeds} seed{'s' * (seeds > 1)}, under each noise for "
        "IID / non-IID clients. *Best*: the best round, which only true labels reveal. *Chosen*: the round that "
        "held-out given labels choose. *Farthest behind*: points below the best method. ±: 95 % confidence over seeds. "
        "Steps are those of all clients in a run, and megabytes go both ways."
    )


def table(ranked: Sequence[RankedMethod], settings: Sequence[str]) -> str:
    """One row a method: its rank, and its accuracy under each noise."""
    noises = list(dict.fromkeys(name.split("/")[1] for name in settings))
    head = ["method", "mean rank", "accuracy", *noises, "best", "chosen", "farthest behind", "1,000 steps", "MB"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in ranked:
        pairs = [[row.by_setting.get(name) for name in settings if name.endswith(f"/{noise}")] for noise in noises]
        cells = [
            f"{row.method} (knows the noise)" if row.knows else row.method,
            *(str(found or "–") for found in (row.rank, row.accuracy[RANKED_BY])),
            *(" / ".join(f"{found.mean:.1f}" if found else "–" for found in pair) for pair in pairs),
            *(f"{found.mean:.1f}" if (found := row.accuracy[name]) else "–" for name in ("best", "chosen")),
            f"{row.worst[1]:.1f} in {row.worst[0]}" if row.worst else "–",
            *(f"{row.steps / 1000:.0f}", f"{row.traffic / 1e6:.0f}"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def in_short(ranked: Sequence[RankedMethod], settings: Sequence[str], seeds: int) -> str:
    """The ranking in a sentence."""
    scores = {row.method: f"{found.mean:.1f}" for row in ranked if (found := row.accuracy[RANKED_BY])}
    first, second = list(scores)[:2]
    return (
        f"In a [ranking](experiments/ranking/README.md) of {len(ranked)} methods over {len(settings)} settings of "
        f"Fashion-MNIST ({seeds} seeds, five local epochs, the noise unknown) `{first}` is first with "
        f"{scores[first]} on average; `{second}` is second with {scores[second]}, and FedAvg has {scores['fedavg']}."
    )


def read() -> list[Row]:
    return read_record(RECORD) if RECORD.is_file() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", default="")
    parser.add_argument("folders", type=Path, nargs="*")
    given = parser.parse_args()
    rows = {key_of(row): row for row in read()}
    for folder in given.folders:
        rows |= {key_of(row): row for row in rows_of(folder, given.commit)}
    if not rows:
        return print("there are no runs yet")
    write_record(RECORD, list(rows.values()))
    for page in (PAGE, FRONT):
        page.write_text(fill(page.read_text(encoding="utf-8"), parts(read()), once=False), encoding="utf-8")


if __name__ == "__main__":
    main()
