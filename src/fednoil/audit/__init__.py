"""Which labels are wrong, judging by what the final model and earlier rounds say about them; nothing leaves the
client."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fednoil.audit import files, page, peer
from fednoil.audit.cases import Case, Cases
from fednoil.errors import UserError
from fednoil.estimation import Estimate, estimate
from fednoil.estimation.belief import soft
from fednoil.seeds import Seed

ESTIMATORS = {"channel": estimate, "cleanlab": peer.peer_estimate}

__all__ = ["ESTIMATORS", "estimates", "run_audit", "write"]


def estimates(cases: Cases, method: str = "channel") -> list[Estimate]:
    """The estimate for each client's labels."""
    for case in cases.clients:
        if not np.isfinite(case.probabilities).all():
            raise UserError("the model's class probabilities contain NaN: it has diverged; audit with another model")
    return [_estimate(case, method, seen=not cases.folds) for case in cases.clients]


def _estimate(case: Case, method: str, *, seen: bool) -> Estimate:
    """One client's; the interval covers all probabilities that are as good."""

    def by(probabilities: np.ndarray) -> Estimate:
        rng = Seed(0).child("audit", case.client or "").numpy()
        return ESTIMATORS[method](probabilities, case.given, rng, case.accuracy, case.per_class, seen=seen)

    found = by(case.probabilities)
    low, high = zip(found.interval, *(by(soft(case.probabilities, at)).interval for at in case.others), strict=True)
    return replace(found, interval=(min(low), max(high)))


def run_audit(cases: Cases, out: Path, method: str = "channel") -> dict[str, Any]:
    """Estimate, and write the results and their page to `out`; returns the summary."""
    found = estimates(cases, method)
    table, summary = files.make_table(cases, found), files.summarise(cases, found, method)
    write(cases, table, summary, out)
    return summary


def write(cases: Cases, table: pa.Table, summary: dict[str, Any], out: Path) -> None:
    """Write the results and their page."""
    out.mkdir(parents=True, exist_ok=True)
    (out / files.SUMMARY).unlink(missing_ok=True)  # its presence says that the audit is complete
    page.write_page(out, table, summary, cases.images, originals=cases.originals)
    files.write_audit(out, table, summary)
