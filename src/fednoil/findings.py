"""What a finished run reports to its user: the estimated noise of each client's labels, which classes are hard, and
whether the model was still improving."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fednoil import evidence
from fednoil.errors import counted, few_of
from fednoil.estimation import ratio_of
from fednoil.estimation.belief import soft
from fednoil.estimation.doubts import unreliable
from fednoil.estimation.temperature import temperatures
from fednoil.experiment import Experiment
from fednoil.history import ACCURACY, AGREEMENT, RoundRecord
from fednoil.rounds import RunState
from fednoil.rounds.final import final_bundle, known_accuracy
from fednoil.rounds.memorised import agreements, alike

_MOST = 100  # clients whose noise is estimated at the end of a run; the audit does it for more
_WORK = 5_000  # clients times classes squared, up to which a temperature is fitted for that
_HARD = 15.0  # points below the mean over classes
_LEAST = 0.2  # points by which a mean must change to be worth mentioning
_SHOWN = 5  # classes in one line
_HOW_SURE = "; an audit shows how sure"


def estimated_ratios(experiment: Experiment, state: RunState, device: torch.device) -> dict[str, float] | None:
    """The estimated share of wrong labels at each client, in 0..1 and by name, as in an audit of the run; clients for
    which the model is too weak are left out. Where no test set shows how good it is, so are all of them if it may have
    learnt wrong labels. None where finding that out would take long."""
    setting, sizes = experiment.setting, experiment.task.sizes
    if experiment.server.pools or len(sizes) > _MOST:
        return None
    (accuracy, per_class), bundle = known_accuracy(experiment, state), final_bundle(experiment, state, device)
    looks = [evidence.of_client(bundle, sizes, client)["probabilities"].numpy() for client in range(len(sizes))]
    if accuracy is None and (shares := agreements(experiment, state, bundle)) is not None:
        if len(sizes) * experiment.task.num_classes**2 > _WORK:
            return None
        if not alike(shares) or not all(np.isfinite(look).all() for look in looks):
            return {}
        best, *_ = temperatures(list(zip(looks, setting.labels.given, strict=True)))
        looks = [soft(look, best) for look in looks]
    found = {}
    for client, (probabilities, given) in enumerate(zip(looks, setting.labels.given, strict=True)):
        if np.isfinite(probabilities).all() and not unreliable(probabilities, given, accuracy):
            name = setting.names[client] if setting.names else str(client)
            found[name] = round(ratio_of(probabilities, given, accuracy, per_class), 6)
    return found


def recent_trend(records: Sequence[RoundRecord]) -> dict[str, Any] | None:
    """How the agreement with held-out given labels changed in the last eighth of the rounds, at least four, compared
    with as many before, or how the accuracy changed if nothing is held out. None with too few rounds."""
    held_out = any(record.val_accuracy is not None for record in records)
    of = "val_accuracy" if held_out else "test_accuracy"
    values = [value for record in records if (value := getattr(record, of)) is not None]
    rounds = max(4, len(values) // 8)
    if len(values) < 2 * rounds:
        return None
    before, late = values[-2 * rounds : -rounds], values[-rounds:]
    change = statistics.fmean(late) - statistics.fmean(before)
    chance = 2 * math.sqrt((statistics.variance(before) + statistics.variance(late)) / rounds)
    moved = abs(change) > max(chance, _LEAST)
    found = "steady" if not moved else "rising" if change > 0 else "falling"
    return {"of": of, "rounds": rounds, "change": round(change, 3), "is": found}


def largest_class(experiment: Experiment) -> dict[str, Any]:
    """The most frequent class of the test samples, and its share in percent."""
    test = experiment.setting.dataset.test
    counts = np.bincount(test.labels) if test is not None and len(test.labels) else np.zeros(0)
    if not len(counts):
        return {}
    return {
        "largest_class": {"class": int(counts.argmax()), "percent": round(100 * float(counts.max() / counts.sum()), 3)}
    }


def sentences(summary: Mapping[str, Any], advice: str = "") -> list[str]:
    """The findings in a summary, one line each, first the classes that are lost."""
    lost = filter(None, [lost_classes(summary, advice)])
    ratios, clients = summary.get("noise_ratios"), len(summary.get("clients") or ())
    return [
        *lost,
        *_untested(summary),
        *_beaten(summary),
        *([] if ratios is None else _noise(ratios, clients)),
        *_hard_classes(summary),
        *_trend(summary),
    ]


def lost_classes(summary: Mapping[str, Any], advice: str = "") -> str:
    """Which classes have no correct answer at a run's end, by name if they have one, and the learner's advice; "" if
    none is lost."""
    numbers = [c for c, right in enumerate(summary.get("per_class_accuracy") or ()) if right == 0]
    if not numbers:
        return ""
    lost = _called(summary, numbers)
    which = f"class {lost[0]}" if len(lost) == 1 else f"the classes {few_of(lost)}"
    return "; ".join(filter(None, [f"no test sample of {which} is classified correctly", advice]))


def _called(summary: Mapping[str, Any], classes: Sequence[int]) -> list[str]:
    """Classes by name, if they have one."""
    named = dict(enumerate(summary.get("classes") or ()))
    return [f"'{named[c]}'" if named.get(c, str(c)) != str(c) else str(c) for c in classes]


def _untested(summary: Mapping[str, Any]) -> list[str]:
    """Classes without a test sample, where others have some."""
    known = summary.get("per_class_accuracy") or ()
    without = _called(summary, [c for c, right in enumerate(known) if right is None])
    if not without or len(without) == len(known):
        return []
    return [f"no test sample is of class {few_of(without, _SHOWN)}: how well it is recognised is not known"]


def _beaten(summary: Mapping[str, Any]) -> list[str]:
    """Where answering the largest class every time would be right more often."""
    largest, accuracy = summary.get("largest_class"), summary.get("final_accuracy")
    if largest is None or accuracy is None or round(accuracy, 3) >= largest["percent"]:
        return []
    name = [*(summary.get("classes") or ()), *map(str, range(largest["class"] + 1))][largest["class"]]
    balanced = summary.get("balanced_accuracy")
    both = "" if balanced is None else f"; with all classes counting alike, {balanced:.1f} % of its answers are right"
    return [
        f"always answering '{name}' is right for {largest['percent']:.1f} % of the test samples, the model for "
        f"{accuracy:.1f} %{both}"
    ]


def _noise(ratios: Mapping[str, float], clients: int) -> list[str]:
    """The estimates, of a number of clients that is 0 if they have no names."""
    if not ratios:
        return ["wrong labels: no estimate is reliable; an audit shows more"]
    rest = f", not known at {counted(clients - len(ratios), 'other client')}" if clients > len(ratios) else ""
    least, most = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
    if len(ratios) == 1:
        alone = f" (client {most})" if rest or (most != "0" and clients != 1) else ""
        return [f"wrong labels, estimated: {100 * ratios[most]:.0f} %{alone}{rest}{_HOW_SURE}"]
    if f"{100 * ratios[least]:.0f}" == f"{100 * ratios[most]:.0f}":
        where = f" at {len(ratios)} clients" if rest else " at every client"
        return [f"wrong labels, estimated: {100 * ratios[most]:.0f} %{where}{rest}{_HOW_SURE}"]
    span = f"{100 * ratios[least]:.0f} % (client {least}) to {100 * ratios[most]:.0f} % (client {most})"
    median = f"{100 * statistics.median(ratios.values()):.0f} %"
    return [f"wrong labels, estimated: {span}, median {median}{rest}{_HOW_SURE}"]


def _hard_classes(summary: Mapping[str, Any]) -> list[str]:
    """Classes far below the others; those without a single correct answer are reported as lost."""
    names = summary.get("classes") or ()
    known = {c: right for c, right in enumerate(summary.get("per_class_accuracy") or ()) if right is not None}
    if not known:
        return []
    mean = statistics.fmean(known.values())
    hard = sorted((right, c) for c, right in known.items() if 0 < right <= mean - _HARD)
    if not hard:
        return []
    shown = few_of([f"{names[c] if c < len(names) else c} {right:.0f} %" for right, c in hard], _SHOWN)
    return [f"hard classes: {shown} (mean over classes {mean:.0f} %)"]


def _trend(summary: Mapping[str, Any]) -> list[str]:
    trend = summary.get("trend")
    if trend is None or trend["is"] == "steady":
        return []
    what = AGREEMENT if trend["of"] == "val_accuracy" else summary.get("measure", ACCURACY)
    change = (
        f"{what} was still {trend['is']}, by {abs(trend['change']):.1f} points over the last {trend['rounds']} rounds"
    )
    return [f"{change}: {'more' if trend['is'] == 'rising' else 'fewer'} rounds may help"]
