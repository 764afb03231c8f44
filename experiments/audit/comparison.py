"""From what was collected to rows: how well each method finds the wrong labels."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from table import NAMES

from fednoil import metrics
from fednoil.audit import peer
from fednoil.estimation import estimate


def compare_all(names: list[str], jobs: int) -> list[dict[str, Any]]:
    """The rows of all collected files, and of those in folders."""
    with ProcessPoolExecutor(jobs) as pool:
        rows = [row for found in pool.map(compare, collected(names)) for row in found]
    return sorted(rows, key=lambda r: (r["setting"], r["run_method"], r["seed"]))


def collected(names: list[str]) -> list[Path]:
    """The files with these names, and those in folders."""
    return [p for name in names for p in ([Path(name)] if Path(name).is_file() else sorted(Path(name).glob("*.npz")))]


def compare(path: Path) -> list[dict[str, Any]]:
    """One row per method: AUROC over all samples, and noise ratios."""
    data = load(path)
    given, spans = data["given"], data["spans"]
    wrong, known = given != data["true"], known_accuracies(data)

    def per_client(method: Any, probabilities: np.ndarray) -> list[Any]:
        return [method(probabilities[rows], given[rows], np.random.default_rng(0), *known) for rows in spans]

    mean, final = data["mean"], data["final"]
    found = [per_client(*pair) for pair in ((estimate, mean), (estimate, final), (peer.peer_estimate, final))]
    rows = [_measured(name, spans, wrong, parts) for name, parts in zip(NAMES, found, strict=False)]
    blind = [estimate(mean[s], given[s], np.random.default_rng(0)) for s in spans]
    rows.append(_measured(NAMES[5], spans, wrong, blind))
    references = path.parent / "references" / str(data["references"])
    if references.is_file():
        with np.load(references) as other:
            cv, loss = (other[name].astype(np.float64) for name in ("cv", "local"))
        pooled = peer.peer_estimate(cv, given, np.random.default_rng(0))
        rows.append(_measured(NAMES[3], spans, wrong, [pooled.p_wrong[s] for s in spans]))
        rows.append(_measured(NAMES[4], spans, wrong, [loss[s] for s in spans]))
    return [{**about(data), **row} for row in rows]


def load(path: Path) -> dict[str, Any]:
    """What was collected of a run, with the rows of each client as `spans`."""
    with np.load(path) as file:
        data: dict[str, Any] = {name: file[name] for name in file.files}
    data |= {name: data[name].astype(np.int64) for name in ("given", "true")}
    data |= {name: data[name].astype(np.float64) for name in ("mean", "final")}
    data["spans"] = np.split(np.arange(len(data["given"])), np.cumsum(data["sizes"])[:-1])
    return data


def known_accuracies(data: dict[str, Any]) -> tuple[float, list[float | None]]:
    """The model's accuracy on the test set, and on each class where it is known."""
    return float(data["accuracy"]), [None if np.isnan(a) else float(a) for a in data.get("per_class", ())]


def about(data: dict[str, Any]) -> dict[str, Any]:
    """Which run this is."""
    names = {"setting": str(data["setting"]), "run_method": str(data["method"]), "seed": int(data["seed"])}
    return {**names, "accuracy": round(float(data["accuracy"]), 2), "version": str(data.get("version", ""))}


def _measured(name: str, spans: list[np.ndarray], wrong: np.ndarray, parts: list[Any]) -> dict[str, Any]:
    scores = [part if isinstance(part, np.ndarray) else part.p_wrong for part in parts]
    suspicion = np.concatenate(scores)
    auroc = metrics.detection(suspicion, np.zeros(len(suspicion), bool), wrong).get("auroc")
    row: dict[str, Any] = {"method": name, "auroc": auroc}
    if not isinstance(parts[0], np.ndarray):
        true = np.array([wrong[rows].mean() for rows in spans])
        errors = np.abs(np.array([part.ratio for part in parts]) - true)
        inside = [p.interval[0] <= t <= p.interval[1] for p, t in zip(parts, true, strict=True)]
        widths = [p.interval[1] - p.interval[0] for p in parts]
        row |= {
            "ratio_error": 100 * errors.mean(),
            "ratio_error_largest": 100 * errors.max(),
            "in_interval": sum(inside),
            "clients": len(spans),
            "interval_width": 100 * float(np.mean(widths)),
        }
    return row
