"""What runs say about a claim: comparisons of rows of one setting, each with its numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from fednoil.report.chance import CHANCE, FEW_SEEDS, paired_p, sample_of, unpaired_p
from fednoil.report.places import Place
from fednoil.report.results import Row
from fednoil.report.runs import FALL
from fednoil.study.grounds import Grounds

NOISY_BASELINES = [f"{s}+{n}" for s in ("fedavg", "apfl", "krum", "cfl") for n in ("dividemix", "josrc")]
FEDNOIL = ("fednoil-cosine", "fednoil-logarithm")
MARGIN = 1.0  # points; less is a tie


@dataclass(frozen=True)
class Support:
    """One comparison with its numbers: the claim holds (True), is contradicted (False), or the difference can't be
    distinguished from chance (None)."""

    holds: bool | None
    where: Place
    text: str
    seeds: int
    fallen: bool = False  # a method settles far below its best round, which counts as stable


Judge = Callable[[Grounds], Iterator[Support]]


def alike(a: Row, b: Row) -> tuple[Row, Row, str]:
    """Two rows on their shared seeds, and these in words if a row has others; both rows whole if they share few.

    Split, noise and initial weights differ more between seeds than many methods do.
    """
    common = a.by_seed.keys() & b.by_seed.keys()
    if len(common) < 2 or a.by_seed.keys() == b.by_seed.keys():
        return a, b, ""
    return a.of_seeds(common), b.of_seeds(common), f", seeds {', '.join(map(str, sorted(common)))}"


def _compare(better: Row, worse: Row, metric: str = "accuracy", lower: bool = False) -> Support | None:
    """Whether one row is ahead of another in the same setting, by more than chance."""
    better, worse, seeds = alike(better, worse)
    a, b = better.value(metric), worse.value(metric)
    if a is None or b is None:
        return None
    found = tested(by_seed(better, metric), by_seed(worse, metric))
    text = f"{better.place.title}{seeds}: {better.title} {a}, {worse.title} {b} ({found})"
    lead = lead_of(b.mean, a.mean) if lower else lead_of(a.mean, b.mean)
    return Support(found.decided(lead), better.place, text, min(len(better.runs), len(worse.runs)))


@dataclass(frozen=True)
class Test:
    """How likely a difference is by chance; None with too few seeds."""

    p: float | None
    pairs: int  # of shared seeds; 0: the rows are compared as a whole

    def __str__(self) -> str:
        if self.p is None:
            return f"too few seeds for a test, which takes {FEW_SEEDS}"
        return f"p = {self.p:.2g}" + (f" over {self.pairs} shared seeds" if self.pairs else "")

    def decided(self, lead: float) -> bool | None:
        """Whether a claim with this lead holds; None if it is no more than chance."""
        return None if lead == 0 or self.p is None or self.p >= CHANCE else lead > 0


def tested(ours: dict[int, float], theirs: dict[int, float]) -> Test:
    """Student's paired test of values by seed on shared seeds, or Welch's on all if they share few."""
    shared = sorted(ours.keys() & theirs.keys())
    if len(shared) > 1:
        return Test(paired_p([ours[seed] - theirs[seed] for seed in shared]), len(shared))
    return Test(unpaired_p(sample_of(list(ours.values())), sample_of(list(theirs.values()))), 0)


def by_seed(row: Row, metric: str) -> dict[int, float]:
    """What a table shows for each seed: accuracy of the last round, or of the best if a seed did not converge."""
    found = {run.seed: row.of_seeds({run.seed}).value(metric) for run in row.runs}
    if metric == "accuracy" and row.starred:
        return {run.seed: float(run.summary["best_accuracy"]) for run in row.runs}
    return {seed: value.mean for seed, value in found.items() if value is not None}


def lead_of(a: float, b: float) -> float:
    """a − b of numbers as shown, with two decimals."""
    return round(round(a, 2) - round(b, 2), 2)


def pairs(ahead: tuple[str, ...], behind: tuple[str, ...], metric: str = "accuracy", lower: bool = False) -> Judge:
    """A judge of all pairs of these methods, setting by setting."""

    def judge(grounds: Grounds) -> Iterator[Support]:
        for first in grounds:
            for better in (grounds.find(first, m) for m in ahead):
                for worse in (grounds.find(first, m) for m in behind):
                    found = _compare(better, worse, metric, lower) if better and worse else None
                    if found:
                        yield found

    return judge


def beats_all(grounds: Grounds) -> Iterator[Support]:
    """FedNoiL, with the better of its two schedules, against every federated baseline."""
    behind = ("fedavg", "fedprox", *NOISY_BASELINES)
    for first in grounds:
        ours = [row for m in FEDNOIL if (row := grounds.find(first, m))]
        for worse in (grounds.find(first, m) for m in behind):
            if ours and worse:
                best = max(ours, key=lambda row, worse=worse: _mean(alike(row, worse)[0]))
                found = _compare(best, worse)
                if found:
                    yield found


def _mean(row: Row) -> float:
    value = row.value("accuracy")
    assert value is not None  # every run has an accuracy
    return value.mean


def converge(methods: tuple[str, ...], expected: bool) -> Judge:
    """A judge of whether all seeds of a method converge, or not all, as is `expected`."""

    def judge(grounds: Grounds) -> Iterator[Support]:
        for first in grounds:
            for row in (grounds.find(first, m) for m in methods):
                if row and all(run.summary["converged"] is not None for run in row.runs):
                    stars = sum(run.starred for run in row.runs)
                    text = f"{row.place.title}: {row.title} unsettled in {stars} of {len(row.runs)} seeds"
                    yield Support((stars == 0) == expected, row.place, text, len(row.runs))

    return judge


def more_stable(grounds: Grounds) -> Iterator[Support]:
    """DMix against Jo-SRC on the same server: fewer unsettled seeds, or as many and less change at the end."""
    for first in grounds:
        for server in ("fedavg", "apfl", "krum", "cfl"):
            a, b = (grounds.find(first, f"{server}+{learner}") for learner in ("dividemix", "josrc"))
            if a and b and min(a.rounds, b.rounds) >= 6:
                a, b, seeds = alike(a, b)
                stars = [sum(run.starred for run in row.runs) / len(row.runs) for row in (a, b)]
                jumps = [float(np.mean([_last_jump(run.curves["test_accuracy"]) for run in r.runs])) for r in (a, b)]
                text = (
                    f"{a.place.title}, {server}{seeds}: unsettled {100 * stars[0]:.0f} % of seeds against "
                    f"{100 * stars[1]:.0f} %; largest late change {jumps[0]:.2f} against {jumps[1]:.2f} points"
                )
                ours, theirs = ((share, round(jump, 2)) for share, jump in zip(stars, jumps, strict=True))
                fallen = [run for row in (a, b) for run in row.runs if run.fallen]
                text += f"; {len(fallen)} of the runs settle {FALL:g} points or more below their best round" * bool(
                    fallen
                )
                fewest = min(len(a.runs), len(b.runs))
                yield Support(None if ours == theirs else ours < theirs, a.place, text, fewest, fallen=bool(fallen))


def _last_jump(accuracy: np.ndarray) -> float:
    return float(np.abs(np.diff(accuracy[-6:])).max())


def no_better_server(grounds: Grounds) -> Iterator[Support]:
    for first in grounds:
        for learner in ("dividemix", "josrc"):
            base = grounds.find(first, f"fedavg+{learner}")
            for found in (grounds.find(first, f"{server}+{learner}") for server in ("apfl", "krum", "cfl")):
                if found and base:
                    other, fedavg, seeds = alike(found, base)
                    shown = ", ".join(f"{row.title} {row.value('accuracy')}" for row in (other, fedavg))
                    text = f"{other.place.title}{seeds}: {shown}"
                    allowed = {seed: value + MARGIN for seed, value in by_seed(fedavg, "accuracy").items()}
                    found_by = tested(allowed, by_seed(other, "accuracy"))
                    lead = round(MARGIN - lead_of(_mean(other), _mean(fedavg)), 2)
                    holds = True if lead == 0 else found_by.decided(lead)
                    fewest = min(len(other.runs), len(fedavg.runs))
                    yield Support(holds, other.place, f"{text} ({found_by})", fewest)
