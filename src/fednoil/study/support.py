"""What runs say about a claim: comparisons of rows of one setting, each with its numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from fednoil.report.places import Place
from fednoil.report.results import Row, paired
from fednoil.report.runs import FALL
from fednoil.study.grounds import Grounds

NOISY_BASELINES = [f"{s}+{n}" for s in ("fedavg", "apfl", "krum", "cfl") for n in ("dividemix", "josrc")]
FEDNOIL = ("fednoil-cosine", "fednoil-logarithm")
MARGIN = 1.0  # points; less is a tie
_R_MIN = (10, 20, 40, 80)


@dataclass(frozen=True)
class Support:
    """One comparison: does the claim hold in it, and the numbers; a tie is no lead, so no claim of one holds in it."""

    holds: bool
    where: Place
    text: str
    seeds: int
    tie: bool = False
    slim: bool = False  # a lead that is no larger than the spread over seeds
    fallen: bool = False  # a method stands still far below its best round, which passes for stable


Judge = Callable[[Grounds], Iterator[Support]]


def alike(a: Row, b: Row) -> tuple[Row, Row, str]:
    """Two rows on the seeds they share, and these in words where a row has others; both whole if they share none.

    Split, noise and first weights differ from seed to seed by more than many methods do.
    """
    common = a.by_seed.keys() & b.by_seed.keys()
    if not common or a.by_seed.keys() == b.by_seed.keys():
        return a, b, ""
    return a.of_seeds(common), b.of_seeds(common), f", seeds {', '.join(map(str, sorted(common)))}"


def _compare(better: Row, worse: Row, metric: str = "accuracy", lower: bool = False) -> Support | None:
    """Whether one row is ahead of another in the same setting, with the paired test where seeds are shared."""
    better, worse, seeds = alike(better, worse)
    a, b = better.figure(metric), worse.figure(metric)
    if a is None or b is None:
        return None
    text = f"{better.place.title}{seeds}: {better.title} {a}, {worse.title} {b}"
    pair = paired(better, worse) if metric == "accuracy" else None
    if pair is not None and pair.p is not None:
        text += f" (last round {pair.mean:+.2f} over {pair.seeds} shared seeds, p = {pair.p:.2g})"
    lead = _lead(b.mean, a.mean) if lower else _lead(a.mean, b.mean)
    spread = max(a.std or 0.0, b.std or 0.0) if metric == "accuracy" else 0.0
    fewest = min(len(better.runs), len(worse.runs))
    return Support(lead > 0, better.place, text, fewest, lead == 0, 0 < lead <= spread)


def _lead(a: float, b: float) -> float:
    """a − b of numbers as they are shown: with two decimals."""
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
    figure = row.figure("accuracy")
    assert figure is not None  # every run has an accuracy
    return figure.mean


def converges(grounds: Grounds) -> Iterator[Support]:
    for first in grounds:
        for row in (grounds.find(first, m) for m in FEDNOIL):
            if row and all(run.summary["converged"] is not None for run in row.runs):
                stars = sum(run.starred for run in row.runs)
                text = f"{row.place.title}: {row.title} {len(row.runs) - stars} of {len(row.runs)} seeds"
                yield Support(stars == 0, row.place, text, len(row.runs))


def diverges(grounds: Grounds) -> Iterator[Support]:
    for first in grounds:
        for row in (grounds.find(first, m) for m in ("fedavg", "fedprox")):
            if row and all(run.summary["converged"] is not None for run in row.runs):
                stars = sum(run.starred for run in row.runs)
                text = f"{row.place.title}: {row.title} unsettled in {stars} of {len(row.runs)} seeds"
                yield Support(stars > 0, row.place, text, len(row.runs))


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
                text += (
                    f"; {len(fallen)} of the runs stand still {FALL:g} points or more below their best round"
                    * bool(fallen)
                )
                fewest = min(len(a.runs), len(b.runs))
                yield Support(ours < theirs, a.place, text, fewest, ours == theirs, fallen=bool(fallen))


def _last_jump(accuracy: np.ndarray) -> float:
    return float(np.abs(np.diff(accuracy[-6:])).max())


def no_better_server(grounds: Grounds) -> Iterator[Support]:
    for first in grounds:
        for learner in ("dividemix", "josrc"):
            base = grounds.find(first, f"fedavg+{learner}")
            for found in (grounds.find(first, f"{server}+{learner}") for server in ("apfl", "krum", "cfl")):
                if found and base:
                    other, fedavg, seeds = alike(found, base)
                    shown = ", ".join(f"{row.title} {row.figure('accuracy')}" for row in (other, fedavg))
                    text = f"{other.place.title}{seeds}: {shown}"
                    holds = _lead(_mean(other), _mean(fedavg)) <= MARGIN
                    yield Support(holds, other.place, text, min(len(other.runs), len(fedavg.runs)))


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
    """Whether both areas of one row are above the other's; slim if one is by no more than its spread over seeds."""
    a, b = efficiency(better, budget), efficiency(worse, budget)
    text = f"{names[0]} {a[0]:.2f} over rounds and {a[1]:.2f} over batches, {names[1]} {b[0]:.2f} and {b[1]:.2f}"
    leads = [_lead(*pair) for pair in zip(a, b, strict=True)]
    spreads = np.max([_area_spread(row, budget) for row in (better, worse)], axis=0)
    slim = min(leads) > 0 and any(lead <= spread for lead, spread in zip(leads, spreads, strict=True))
    fewest = min(len(better.runs), len(worse.runs))
    return Support(min(leads) > 0, better.place, text, fewest, not any(leads), slim)


def _area_spread(row: Row, budget: float) -> tuple[float, float]:
    """The standard deviations of both areas over seeds; 0 with one seed."""
    if len(row.runs) < 2:
        return 0.0, 0.0
    areas = [efficiency(row.of_seeds({run.seed}), budget) for run in row.runs]
    rounds, batches = np.std(areas, axis=0, ddof=1).tolist()
    return rounds, batches


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
