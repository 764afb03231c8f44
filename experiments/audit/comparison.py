"""From what was collected to rows: how well each method finds the wrong labels, and the tables of the README."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from fednoil import metrics
from fednoil.audit import estimate, peer

OURS = "ours"


def compare_all(names: list[str], jobs: int) -> list[dict[str, Any]]:
    """The rows of all collected files, and of those in folders."""
    paths = [p for name in names for p in ([Path(name)] if Path(name).is_file() else sorted(Path(name).glob("*.npz")))]
    with ProcessPoolExecutor(jobs) as pool:
        rows = [row for found in pool.map(compare, paths) for row in found]
    return sorted(rows, key=lambda r: (r["setting"], r["run_method"], r["seed"]))


def compare(path: Path) -> list[dict[str, Any]]:
    """One row a method: AUROC, average precision and F1 over all samples and as the mean over clients, noise ratios."""
    data = _load(path)
    given, true = data["given"].astype(np.int64), data["true"].astype(np.int64)
    spans = np.split(np.arange(len(given)), np.cumsum(data["sizes"])[:-1])
    wrong = given != true

    def per_client(method: Any, probabilities: np.ndarray) -> list[Any]:
        rng = np.random.default_rng
        return [method(probabilities[rows], given[rows], rng(0), float(data["accuracy"])) for rows in spans]

    mean, final = (data[name].astype(np.float64) for name in ("mean", "final"))
    found: dict[str, list[Any]] = {
        OURS: per_client(estimate.estimate, mean),
        "ours, final model alone": per_client(estimate.estimate, final),
        "(a) cleanlab, final model": per_client(peer.estimate, final),
    }
    rows = [_measured(name, spans, wrong, parts) for name, parts in found.items()]
    references = path.parent / "references" / str(data["references"])
    if references.is_file():
        other = _load(references)
        pooled = peer.estimate(other["cv"].astype(np.float64), given, np.random.default_rng(0))
        both = [(pooled.p_wrong[s], pooled.flagged[s]) for s in spans]
        rows.append(_measured("(b) cleanlab, 5-fold on pooled data", spans, wrong, both))
        loss = other["local"].astype(np.float64)
        rows.append(_measured("(c) loss of local models", spans, wrong, [(loss[s], None) for s in spans]))
    about = {
        "setting": str(data["setting"]),
        "run_method": str(data["method"]),
        "seed": int(data["seed"]),
        "accuracy": round(float(data["accuracy"]), 2),
    }
    return [{**about, **row} for row in rows]


def _load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def _measured(name: str, spans: list[np.ndarray], wrong: np.ndarray, parts: list[Any]) -> dict[str, Any]:
    scores = [part[0] if isinstance(part, tuple) else part.p_wrong for part in parts]
    flags = [part[1] if isinstance(part, tuple) else part.flagged for part in parts]
    known = flags[0] is not None
    flags = flags if known else [np.zeros(len(s), bool) for s in spans]
    overall = metrics.detection(np.concatenate(scores), np.concatenate(flags), wrong)
    clients = metrics.mean_of([metrics.detection(s, f, wrong[r]) for s, f, r in zip(scores, flags, spans, strict=True)])
    row: dict[str, Any] = {"method": name}
    for figure in ("auroc", "average_precision", "f1"):
        row |= {figure: overall.get(figure), f"{figure}_clients": clients.get(figure)}
    if not known:
        row |= {"f1": None, "f1_clients": None}
    if not isinstance(parts[0], tuple):
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


def table(rows: list[dict[str, Any]]) -> str:
    """The README's table: a line for each setting and method, the mean over seeds."""
    lines = [
        "| run (accuracy, seeds) | method | AUROC | of clients | avg. precision | F1 "
        "| noise ratio off by, mean (largest) | clients in their interval (its mean width) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["setting"], row["run_method"], row["method"]), []).append(row)
    for (setting, run_method, method), same in groups.items():
        lines.append(_line(f"{setting}, {run_method}", method, same))
    return "\n".join(lines)


def _line(run: str, method: str, rows: list[dict[str, Any]]) -> str:
    def mean(name: str) -> float:
        return float(np.mean([row[name] for row in rows]))

    ratio, inside = "–", "–"
    if "ratio_error" in rows[0]:
        ratio = f"{mean('ratio_error'):.1f} ({max(row['ratio_error_largest'] for row in rows):.1f})"
        inside = f"{sum(r['in_interval'] for r in rows)} of {sum(r['clients'] for r in rows)}"
        inside += f" ({mean('interval_width'):.0f} points)"
    f1 = f"{mean('f1'):.3f}" if rows[0]["f1"] is not None else "–"
    return (
        f"| {run} ({mean('accuracy'):.1f}, {len(rows)}) | {method} | {mean('auroc'):.4f} "
        f"| {mean('auroc_clients'):.4f} | {mean('average_precision'):.4f} | {f1} | {ratio} | {inside} |"
    )
