"""What is measured: accuracy, loss, convergence, noise. Accuracies and ratios are in percent.

This is the only stage that sees true labels. What can't be known (no true labels) is absent, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fednoil.executors.base import HeldOut
from fednoil.history import AGREEMENT, RoundRecord
from fednoil.labels import NO_CLASS, Labels, Truth, open_truth
from fednoil.measures import Measures, mean_measures, measure


@dataclass(frozen=True)
class Score:
    """Accuracy and mean loss on the test set, and accuracy class by class (None: no such test image).

    `shifted` is the accuracy against the labels (y + 1) mod C: what a learner reaches that took pair noise with
    one shared map for the truth.
    """

    accuracy: float
    loss: float
    per_class: tuple[float | None, ...]
    shifted: float = 0.0
    measures: Measures | None = None


def noise_ratios(labels: Labels, truth: Truth, clients: Sequence[int] | None = None) -> np.ndarray | None:
    """The share of wrong labels of each client, or of these: float64 [K], or None if the truth is unknown."""
    known, given = open_truth(truth), labels.given
    if known is None:
        return None
    if clients is not None:
        known, given = [known[k] for k in clients], [given[k] for k in clients]
    sizes = np.array([len(true) for true in known])
    owners = np.repeat(np.arange(len(sizes)), sizes)
    wrong = np.concatenate(given) != np.concatenate(known)  # at once: there may be many clients
    return np.bincount(owners[wrong], minlength=len(sizes)) / np.maximum(sizes, 1)


def outvoted(labels: Labels, truth: Truth, num_classes: int) -> dict[int, int]:
    """Classes with samples that are mostly labelled as another class, over all clients, and as which.

    Nothing in such labels says which class is meant. A lead that may be chance, of less than three standard
    deviations, doesn't count.
    """
    true = open_truth(truth)
    if true is None:
        return {}
    counts, both = (
        np.zeros((num_classes, num_classes), dtype=np.int64),
        (np.concatenate(true), np.concatenate(labels.given)),
    )
    np.add.at(counts, tuple(one[both[0] != NO_CLASS] for one in both), 1)
    own, most = np.diag(counts), counts.argmax(1)
    largest = counts[np.arange(num_classes), most]
    clear = np.flatnonzero(largest - own > 3 * np.sqrt(largest + own))
    return {int(label): int(most[label]) for label in clear}


def score_logits(logits: Tensor, labels: Tensor) -> Score:
    """Score one model's logits [N, C] against true labels [N]."""
    labels, classes = labels.to(logits.device), logits.shape[1]
    predicted = logits.argmax(1)
    counts = torch.bincount(labels, minlength=classes)
    hits = torch.bincount(labels[predicted == labels], minlength=classes)
    shifted = (predicted == (labels + 1) % classes).sum()
    loss = F.cross_entropy(logits.double(), labels)
    # one transfer from the device for everything
    numbers = torch.cat([hits, counts, shifted[None], loss[None]]).tolist()
    per_class = [100.0 * h / c if c else None for h, c in zip(numbers[:classes], numbers[classes:-2], strict=True)]
    right, wrong_by_one = sum(numbers[:classes]), numbers[-2]
    shifted = 100.0 * wrong_by_one / len(labels)
    return Score(100.0 * right / len(labels), numbers[-1], tuple(per_class), shifted, measure(logits, labels))


def mean_score(scores: Sequence[Score], weights: Sequence[float]) -> Score:
    """The weighted mean of several models' scores."""
    if len(scores) == 1:
        return scores[0]
    shares = [w / sum(weights) for w in weights]

    def mean(values: Sequence[float]) -> float:
        return sum(s * v for s, v in zip(shares, values, strict=True))

    per_class = []
    for column in zip(*(s.per_class for s in scores), strict=True):
        known = [v for v in column if v is not None]
        per_class.append(mean(known) if len(known) == len(column) else None)
    return Score(
        mean([s.accuracy for s in scores]),
        mean([s.loss for s in scores]),
        tuple(per_class),
        mean([s.shifted for s in scores]),
        mean_measures([s.measures for s in scores if s.measures is not None], weights),
    )


def mean_held_out(found: Sequence[HeldOut]) -> tuple[float, float]:
    """Accuracy in percent and mean loss over all samples that the clients hold out."""
    samples = sum(h.samples for h in found)
    return 100.0 * sum(h.right for h in found) / samples, sum(h.loss * h.samples for h in found) / samples


def converged(accuracies: Sequence[float]) -> bool | None:
    """Whether the last five changes of accuracy are all under 2 points; None with fewer than six rounds."""
    if len(accuracies) < 6:
        return None
    last = accuracies[-6:]
    return all(round(abs(b - a), 9) < 2.0 for a, b in pairwise(last))  # 2.00 points is not under 2


def selection(
    drawn: np.ndarray, votes: np.ndarray | None, given: np.ndarray, true: np.ndarray, epochs: int
) -> dict[str, float]:
    """How good one client's choice of training labels was, over the epochs of one turn.

    `drawn` [n] counts the epochs in which a sample was in D^x, `votes` [n, C] those in which it was in D^u and trained
    with each pseudo-label. Precision and recall of D^x; the effective ones, where there are votes, count pseudo-labels
    as well. Images of no class never count as correct, and the share of them that was left out is reported. A ratio
    with an empty denominator is absent.
    """
    clean, outside = given == true, true == NO_CLASS
    right_x, total_x = float(drawn[clean].sum()), float(drawn.sum())
    ratios = {"label_precision": (right_x, total_x), "label_recall": (right_x, float(epochs * clean.sum()))}
    if outside.any():
        total = float(epochs * outside.sum())
        ratios["outliers_rejected"] = (total - float(drawn[outside].sum()), total)
    if votes is not None:
        right_u, total_u = float(votes[~outside, true[~outside]].sum()), float(votes.sum())
        ratios |= {
            "effective_precision": (right_x + right_u, total_x + total_u),
            "effective_recall": (right_x + right_u, float(epochs * len(true))),
            "pseudo_accept": (total_u, epochs * len(true) - total_x),
            "pseudo_accuracy": (right_u, total_u),
        }
    return {name: 100.0 * part / whole for name, (part, whole) in ratios.items() if whole > 0}


def mean_selection(
    labels: Labels, truth: Truth, counts: Mapping[int, tuple[np.ndarray, np.ndarray | None]], epochs: int
) -> dict[str, float]:
    """`selection`, averaged over clients by their `drawn` and `votes`; nothing if the truth is unknown."""
    true = open_truth(truth)
    if true is None:
        return {}
    return mean_of([selection(*both, labels.given[k], true[k], epochs) for k, both in counts.items()])


def agreement(predicted: Sequence[np.ndarray], given: Sequence[np.ndarray], num_classes: int) -> dict[str, Any]:
    """What a model makes of the clients' given labels, one array [n] a client of each.

    `given_predicted` [C][C] counts samples by given and predicted label; `agreement` is each client's share of
    samples for which they are the same. Both need no true labels.
    """
    cells = np.concatenate(given) * num_classes + np.concatenate(predicted)
    counts = np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)
    shares = [100.0 * float(np.mean(p == g)) for p, g in zip(predicted, given, strict=True)]
    return {"given_predicted": counts.tolist(), "agreement": [round(share, 4) for share in shares]}


def mean_of(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of each figure over the clients that have it (macro average)."""
    names = dict.fromkeys(name for row in rows for name in row)
    means = {}
    for name in names:
        known = [row[name] for row in rows if name in row]
        means[name] = sum(known) / len(known)
    return means


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    """Spearman's rank correlation, ties by their mean rank; None where one side is constant."""
    ranks = [_ranks(x) - (len(x) - 1) / 2 for x in (a, b)]
    size = float(np.sqrt((ranks[0] ** 2).sum() * (ranks[1] ** 2).sum()))
    return float((ranks[0] * ranks[1]).sum()) / size if size > 0 else None


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0 [n], ties by their mean."""
    _, which, equal = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(equal) - equal + (equal - 1) / 2)[which]


def client_ranking(probabilities: Sequence[float], ratios: np.ndarray | None) -> dict[str, float]:
    """How well the clients' shares p_k follow their true noise, where that is known."""
    if ratios is None:
        return {}
    p = np.asarray(probabilities)
    found = {
        "best_client_share": 100.0 * float(p[int(np.argmin(ratios))]),
        "worst_client_share": 100.0 * float(p[int(np.argmax(ratios))]),
    }
    correlation = rank_correlation(p, ratios)
    return found if correlation is None else {"rank_correlation": correlation, **found}


def summarise(records: Sequence[RoundRecord], per_class: Sequence[float | None]) -> dict[str, Any]:
    """The summary of a run from its round records."""
    accuracies = [r.test_accuracy for r in records if r.test_accuracy is not None]  # of a federation not all
    last = accuracies[-10:]
    agreed = [(r.val_accuracy, r) for r in records if r.val_accuracy is not None]
    validated: dict[str, Any] = {}
    if agreed:
        validated = {"val_accuracy": agreed[-1][0], "last10_val_accuracy": fmean(value for value, _ in agreed[-10:])}
    agreed = agreed or [(r.test_accuracy, r) for r in records if r.held_out and r.test_accuracy is not None]
    if agreed:
        _, best = max(agreed, key=lambda pair: pair[0])  # the first of equals
        validated["best_by_validation"] = {"round": best.round, "test_accuracy": best.test_accuracy}
    return {
        "final_accuracy": accuracies[-1] if last else None,
        "best_accuracy": max(accuracies, default=None),
        "last10_accuracy": sum(last) / len(last) if last else None,
        **({"measure": AGREEMENT} if any(r.measure == AGREEMENT for r in records) else {}),
        **validated,
        "converged": converged(accuracies),
        **_last_measures(records),
        "per_class_accuracy": list(per_class),
        "rounds": len(records),
        "train_batches": records[-1].train_batches,
        "bytes_down": sum(r.bytes_down for r in records),
        "bytes_up": sum(r.bytes_up for r in records),
        "wall_s": round(sum(r.wall_s for r in records), 3),
    }


MEASURE_NAMES = ("balanced_accuracy", "macro_f1", "auroc", "calibration_error")


def _last_measures(records: Sequence[RoundRecord]) -> dict[str, float]:
    """The measures of the last round that has any."""
    return next((found for record in reversed(records) if (found := measures_of(record))), {})


def measures_of(record: RoundRecord) -> dict[str, float]:
    """What a round's record has of the measures beside accuracy."""
    return {name: value for name in MEASURE_NAMES if (value := getattr(record, name)) is not None}


def detection(p_wrong: np.ndarray, flagged: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    """How well wrong labels [n] (bool) were found: by their chances, AUROC and average precision; by the flags, F1.

    All in 0..1; what has no meaning, because no label is wrong or all are, is absent.
    """
    found: dict[str, float] = {}
    count = int(wrong.sum())
    if 0 < count < len(wrong):
        ranks = _ranks(p_wrong) + 1
        found["auroc"] = float((ranks[wrong].sum() - count * (count + 1) / 2) / (count * (len(wrong) - count)))
    if count:
        order = np.argsort(-p_wrong, kind="stable")
        hits, level = np.cumsum(wrong[order]), np.append(np.diff(p_wrong[order]) != 0, True)  # ties count as one
        gained = np.diff(hits[level], prepend=0)
        found["average_precision"] = float((gained * hits[level] / (np.flatnonzero(level) + 1)).sum() / count)
    if count or flagged.any():
        found["f1"] = float(2 * (flagged & wrong).sum() / (flagged.sum() + count))
    return found
