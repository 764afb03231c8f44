"""From finished runs to a ranking: four ways to read a run's accuracy, ranks over settings, and what it cost.

A run ends with its last round; papers also report the mean of the last ten, or the best round, which nobody knows
without true labels. The fourth is the round that labels held out by the clients would choose, wrong ones among them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from fednoil.history import RoundRecord
from fednoil.learners import AXIS

READINGS = {
    "last": "last round",
    "last_ten": "mean of the last few",
    "best": "best round",
    "chosen": "round that held-out labels choose",
}
RANKED_BY = "last_ten"
POINTS = 100  # of a curve


@dataclass(frozen=True)
class RunFigures:
    """What one run came to: accuracies in percent, and its cost."""

    last: float
    last_ten: float
    best: float
    chosen: float | None
    steps: int  # optimiser steps of all clients
    traffic: int  # bytes, both ways
    seconds: float


def figures_of(records: Sequence[RoundRecord], guesses: float | None = None) -> RunFigures:
    """The outcome of a run's rounds, all of which were tested. One that diverged, maybe in its first round, has no
    model: it ends with the accuracy of `guesses`, whatever it was before."""
    accuracy = [float(r.test_accuracy) for r in records if r.test_accuracy is not None]
    held = [(r.val_accuracy, -place) for place, r in enumerate(records) if r.val_accuracy is not None]
    chosen = None if not held else records[-max(held)[1]].test_accuracy
    if guesses is not None:
        accuracy += [guesses] * 10
    return RunFigures(
        accuracy[-1],
        float(np.mean(accuracy[-10:])),
        max(accuracy),
        chosen,
        records[-1].train_batches if records else 0,
        sum(r.bytes_down + r.bytes_up for r in records),
        sum(r.wall_s for r in records),
    )


def curve_of(records: Sequence[RoundRecord]) -> list[float]:
    """The test accuracy after 1, 2, … 100 % of a run's steps: that of the last round by then, at least the first."""
    steps = np.array([r.train_batches for r in records]) / max(1, records[-1].train_batches)
    rounds = np.searchsorted(steps, np.arange(1, POINTS + 1) / POINTS + 1e-9, side="right") - 1
    accuracy = [r.test_accuracy for r in records]
    return [float(accuracy[max(0, place)] or 0.0) for place in rounds]


def mean_curves(records: Mapping[tuple[str, str, int], Sequence[RoundRecord]]) -> dict[tuple[str, str], list[float]]:
    """The mean over seeds of `curve_of`, by method and setting, from the rounds of runs by method, setting and seed."""
    found: dict[tuple[str, str], list[list[float]]] = {}
    for (method, setting, _), rounds in records.items():
        if rounds:
            found.setdefault((method, setting), []).append(curve_of(rounds))
    return {key: np.mean(curves, axis=0).tolist() for key, curves in found.items()}


def uneven(records: Mapping[tuple[str, str, int], Sequence[RoundRecord]]) -> str:
    """Sentences if some method has trained less than two thirds as much as another, in epochs of clients, over the
    rounds of runs by method, setting and seed; otherwise "". Fewer clients may train where few are clean."""
    found: dict[str, list[int]] = {}
    for (method, _, _), rounds in records.items():
        found.setdefault(method, []).append(sum(len(r.selected) * r.local_epochs for r in rounds))
    means = {method: float(np.mean(epochs)) for method, epochs in found.items()}
    if not means or 3 * min(means.values()) >= 2 * max(means.values()):
        return ""
    least, most = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    return (
        f"Not one budget: a run of {most} trains {means[most]:,.0f} epochs of clients, one of {least} "
        f"{means[least]:,.0f}. Methods that visit clients one by one need more rounds for the same budget. "
    )


@dataclass(frozen=True)
class Spread:
    """A mean and half the width of its 95 % confidence interval over seeds; None with fewer than three."""

    mean: float
    half: float | None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.half is None else f"{self.mean:.2f} ± {self.half:.2f}"


def spread(values: Sequence[float]) -> Spread:
    """Student's interval of a mean."""
    count, mean = len(values), float(np.mean(values))
    if count < 3:
        return Spread(mean, None)
    return Spread(mean, float(stdtrit(count - 1, 0.975) * np.std(values, ddof=1)) / math.sqrt(count))


@dataclass(frozen=True)
class RankedMethod:
    """One method in the ranking; a method that lacks runs has no rank."""

    method: str
    rank: Spread | None  # mean over settings, 1 is best
    accuracy: dict[str, Spread | None]  # by reading, mean over settings
    worst: tuple[str, float] | None  # the setting in which it is farthest below the best method, and by how much
    by_setting: dict[str, Spread]  # the reading that ranks
    ranks: dict[str, float]  # in each setting, mean over seeds
    knows: bool  # whether it was given the clients' noise
    runs: int
    steps: float  # of a run, on average, as the next two
    traffic: float
    seconds: float


Runs = Mapping[tuple[str, str, int], RunFigures]  # by method, setting and seed


def ranking(
    runs: Runs, methods: Sequence[str], settings: Sequence[str], knows: Mapping[str, bool]
) -> list[RankedMethod]:
    """The methods, best mean rank first; those that lack a run of this grid come last."""
    seeds = sorted({seed for _, _, seed in runs})
    complete = [m for m in methods if all((m, s, seed) in runs for s in settings for seed in seeds)]
    ranks: dict[str, list[dict[str, float]]] = {m: [] for m in complete}  # of each seed, by setting
    for seed in seeds if complete else []:
        each = {s: ranks_of({m: getattr(runs[m, s, seed], RANKED_BY) for m in complete}) for s in settings}
        for method in complete:
            ranks[method].append({s: found[method] for s, found in each.items()})
    means = {s: [np.mean([getattr(runs[m, s, n], RANKED_BY) for n in seeds]) for m in complete] for s in settings}
    tops = {s: float(max(found)) for s, found in means.items() if found}
    rows = [_row(runs, m, settings, ranks.get(m), tops, knows.get(m, False)) for m in methods]
    return sorted((row for row in rows if row.runs), key=lambda r: (r.rank is None, r.rank.mean if r.rank else 0.0))


def ranks_of(values: Mapping[str, float]) -> dict[str, float]:
    """Ranks from 1, the largest value first; equal values share the mean of their ranks."""
    numbers = np.array(list(values.values()))
    above = (numbers[None] > numbers[:, None]).sum(1)
    equal = (numbers[None] == numbers[:, None]).sum(1)
    return dict(zip(values, (above + (equal + 1) / 2).tolist(), strict=True))


def _row(
    runs: Runs,
    method: str,
    settings: Sequence[str],
    ranks: Sequence[Mapping[str, float]] | None,
    tops: Mapping[str, float],
    knows: bool,
) -> RankedMethod:
    own = {(s, seed): o for (m, s, seed), o in runs.items() if m == method}
    seeds = sorted({seed for _, seed in own})
    accuracy: dict[str, Spread | None] = {}
    for reading in READINGS:
        found = [[getattr(o, reading) for (_, at), o in own.items() if at == seed] for seed in seeds]
        known = bool(found) and all(v is not None for values in found for v in values)
        accuracy[reading] = spread([float(np.mean(values)) for values in found]) if known else None
    by_setting = {
        s: spread([getattr(o, RANKED_BY) for (at, _), o in own.items() if at == s])
        for s in settings
        if any(at == s for at, _ in own)
    }
    gaps = {s: tops[s] - by_setting[s].mean for s in tops} if ranks else {}
    farthest = max(gaps, key=lambda s: gaps[s]) if gaps else None
    count = max(1, len(own))
    cost = {name: sum(getattr(o, name) for o in own.values()) / count for name in ("steps", "traffic", "seconds")}
    return RankedMethod(
        method,
        spread([float(np.mean(list(of_seed.values()))) for of_seed in ranks]) if ranks else None,
        accuracy,
        None if farthest is None else (farthest, gaps[farthest]),
        by_setting,
        {s: float(np.mean([of_seed[s] for of_seed in ranks])) for s in settings} if ranks else {},
        knows,
        len(own),
        **cost,
    )


def knows_noise(values: Mapping[str, Any]) -> bool:
    """Whether a configuration gives the method the clients' noise: the share of labels to trust, unless it is the
    learner's own default, which knows nothing of them."""
    fields = AXIS.config(values["learner"]["name"]).model_fields
    return "frac" in fields and values["learner"]["frac"] != fields["frac"].default
