"""What a run's folder says about each of its clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fednoil.history import RoundRecord
from fednoil.manifest import label_counts
from fednoil.records.folder import Roster


@dataclass(frozen=True)
class Clients:
    """What is known about each client, one entry per client; None: unknown. Shares and ratios in percent."""

    selected: list[int]  # rounds in which it was trained
    samples: list[int] | None = None
    noise: list[float] | None = None  # realised noise ratio
    clean_share: Sequence[float | None] | None = None  # estimated from the clients' scores, mean of the last ten rounds
    agreement: list[float] | None = None  # given labels that the final model predicts
    names: list[str] | None = None  # of a federation's clients
    held_out: list[float | None] | None = None  # accuracy on what each holds out, as last reported
    tested: list[float | None] | None = None  # accuracy on its own test samples
    balanced: list[float | None] | None = None  # the mean over their classes
    wrong: list[float | None] | None = None  # labels that are wrong, by the run's own estimate
    founders: dict[str, int] | None = None  # samples by name of the sites that were there at the start


def simulated_clients(
    path: Path,
    values: dict[str, Any],
    records: list[RoundRecord],
    summary: dict[str, Any],
    confusion: dict[str, Any],
) -> Clients:
    """What is known about the clients of a simulation."""
    samples, noise = _truth(path, str(summary.get("noise_hash") or path))
    last = [r.client_scores for r in records[-10:] if r.client_scores]
    count = len(samples or (last[0] if last else [])) or 1 + max(k for r in records for k in r.selected)
    selected = np.bincount([k for r in records for k in r.selected], minlength=count)
    share = None
    if last and values["sampling"]["name"] == "score_mean":
        share = 100.0 * np.mean(last, axis=0)
    elif last and samples:
        share = 100.0 * np.mean(last, axis=0) / samples
    # A model that has diverged scores its clients with NaN.
    shares = None if share is None else [float(s) if np.isfinite(s) else None for s in share]
    names = summary.get("clients")
    named = names if isinstance(names, list) and len(names) == count else None
    wrong = _estimated(summary, named or [str(k) for k in range(count)])
    return Clients(selected.tolist(), samples, noise, shares, confusion.get("agreement"), named, wrong=wrong)


def _estimated(summary: dict[str, Any], names: list[str]) -> list[float | None] | None:
    """The share of wrong labels that a run or its nodes have estimated for each client, in percent."""
    ratios = summary.get("noise_ratios")
    if not isinstance(ratios, dict) or not ratios.keys() & set(names):
        return None
    found = [ratios.get(name) for name in names]
    return [100.0 * ratio if isinstance(ratio, int | float) else None for ratio in found]


def site_clients(
    values: dict[str, Any], records: list[RoundRecord], summary: dict[str, Any], roster: Roster
) -> Clients:
    """What a federation's sites reported about themselves."""
    count = 1 + max(roster.names)
    selected = np.bincount([k for r in records for k in r.selected], minlength=count)
    shares: list[float | None] = []
    held_out: list[float | None] = []
    for k in range(count):
        name, size = roster.names.get(k, ""), roster.samples.get(k, 1)
        scores = [r.scores[name] for r in records[-10:] if r.scores and name in r.scores]
        most = 1 if values["sampling"]["name"] == "score_mean" else size
        shares.append(100.0 * float(np.mean(scores)) / most if scores else None)
        tested = [r.held_out[name]["accuracy"] for r in records if r.held_out and name in r.held_out]
        held_out.append(tested[-1] if tested else None)
    names = [roster.names.get(k, str(k)) for k in range(count)]
    return Clients(
        selected.tolist(),
        [roster.samples.get(k, 0) for k in range(count)],
        clean_share=shares if any(share is not None for share in shares) else None,
        names=names,
        wrong=_estimated(summary, names),
        held_out=held_out if any(accuracy is not None for accuracy in held_out) else None,
        founders=roster.founders,
    )


def tested(clients: Clients, measures: dict[str, Any]) -> Clients:
    """The clients with what the final model was measured to be worth to each."""
    each = measures.get("clients", {})
    names = clients.names or [str(k) for k in range(len(clients.selected))]
    if not each.keys() & set(names):
        return clients
    found = [[each.get(name, {}).get(key) for name in names] for key in ("accuracy", "balanced_accuracy")]
    if "held-out" in measures.get("clients_on", ""):
        return replace(clients, held_out=found[0])
    return replace(clients, tested=found[0], balanced=found[1])


def _truth(path: Path, noise_hash: str) -> tuple[list[int] | None, list[float] | None]:
    """Samples and realised noise of each client; read once for runs with the same split and noise."""
    file = path / "noise.parquet"
    if not file.is_file():
        return None, None
    if noise_hash not in _TRUTHS:
        _TRUTHS[noise_hash] = label_counts(file)
    return _TRUTHS[noise_hash]


_TRUTHS: dict[str, tuple[list[int], list[float] | None]] = {}
