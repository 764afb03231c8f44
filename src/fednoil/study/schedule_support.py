"""What runs say about claims on schedules of local epochs: areas under curves, and the cost of an accuracy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fednoil.report.results import Row
from fednoil.study.grounds import Grounds
from fednoil.study.support import Judge, Support, alike, lead_of, tested

_R_MIN = (10, 20, 40, 80)


def _schedule(form: str, r_min: int) -> str:
    return f"fednoil-{form}" if r_min == 80 else f"fednoil-{form}({r_min})"


def curve(row: Row, over: str = "train_batches") -> tuple[np.ndarray, np.ndarray]:
    """Mean accuracy over seeds by round, and the mean of `over` at these rounds."""
    length = row.rounds
    accuracy = np.mean([run.curves["test_accuracy"][:length] for run in row.runs], axis=0)
    return np.mean([run.curves[over][:length] for run in row.runs], axis=0), accuracy


def efficiency(row: Row, batches: float) -> tuple[float, float]:
    """Mean accuracy over all rounds, and over training batches up to `batches`: the area under each curve."""
    spent, accuracy = curve(row)
    grid = np.linspace(spent[0], batches, 200)
    return float(accuracy.mean()), float(np.interp(grid, spent, accuracy).mean())


def _more_efficient(better: Row, worse: Row, budget: float, names: tuple[str, str]) -> Support:
    """Whether both areas of one row are larger than the other's by more than chance; one smaller area refutes it."""
    a, b = efficiency(better, budget), efficiency(worse, budget)
    text = f"{names[0]} {a[0]:.2f} over rounds and {a[1]:.2f} over batches, {names[1]} {b[0]:.2f} and {b[1]:.2f}"
    leads = [lead_of(*pair) for pair in zip(a, b, strict=True)]
    tests = [tested(*(_areas(row, budget, i) for row in (better, worse))) for i in (0, 1)]
    decided = [test.decided(lead) for test, lead in zip(tests, leads, strict=True)]
    holds = False if False in decided else None if None in decided else True
    text += f" ({'; '.join(dict.fromkeys(map(str, tests)))})"
    return Support(holds, better.place, text, min(len(better.runs), len(worse.runs)))


def _areas(row: Row, budget: float, which: int) -> dict[int, float]:
    return {run.seed: efficiency(row.of_seeds({run.seed}), budget)[which] for run in row.runs}


def largest_r_min(form: str) -> Judge:
    """r_min = 80 against each smaller one: area under accuracy over rounds and over batches."""

    def judge(grounds: Grounds) -> Iterator[Support]:
        for first in grounds:
            rows = {r: row for r in _R_MIN if (row := grounds.find(first, _schedule(form, r)))}
            if 80 not in rows or len(rows) < 2:
                continue
            budget = min(curve(row)[0][-1] for row in rows.values())
            for r in sorted(rows.keys() - {80}):
                large, small, seeds = alike(rows[80], rows[r])
                names = (f"{first.place.title}, {form}{seeds}: r_min = 80 has", f"r_min = {r} has")
                yield _more_efficient(large, small, budget, names)

    return judge


def decay_beats_constant(grounds: Grounds) -> Iterator[Support]:
    for first in grounds:
        for form in ("cosine", "logarithm"):
            for r_min in _R_MIN:
                decay = grounds.find(first, _schedule(form, r_min))
                constant = grounds.find(first, f"fednoil-constant-as-{form}({r_min})")
                if decay and constant:
                    decay, constant, seeds = alike(decay, constant)
                    budget = min(curve(decay)[0][-1], curve(constant)[0][-1])
                    names = (
                        f"{first.place.title}{seeds}: {form} r_min = {r_min} has",
                        "constant epochs of the same total",
                    )
                    yield _more_efficient(decay, constant, budget, names)


def first_reach(row: Row, target: float) -> tuple[int, float] | None:
    """The first round, and the batches so far, at which the mean accuracy reaches `target`."""
    spent, accuracy = curve(row)
    reached = np.flatnonzero(accuracy >= target)
    return (int(reached[0]) + 1, float(spent[reached[0]])) if len(reached) else None


def logarithm_cheapest(grounds: Grounds) -> Iterator[Support]:
    for first in grounds:
        logarithm = grounds.find(first, "fednoil-logarithm")
        for found in (grounds.find(first, m) for m in ("fednoil-cosine", "fednoil-constant-as-cosine(80)")):
            if not logarithm or not found:
                continue
            ours, other, seeds = alike(logarithm, found)
            target = min(float(np.nanmax(curve(row)[1])) for row in (ours, other)) - 0.5
            a, b = first_reach(ours, target), first_reach(other, target)
            if a is None or b is None:  # a round in between was not tested
                continue
            text = (
                f"{first.place.title}{seeds}: {target:.1f} % in round {a[0]} after {a[1]:.0f} batches, "
                f"{other.title} in round {b[0]} after {b[1]:.0f}"
            )
            fewest = min(len(ours.runs), len(other.runs))
            yield Support(a[0] <= b[0] and a[1] <= b[1], first.place, text, fewest)
