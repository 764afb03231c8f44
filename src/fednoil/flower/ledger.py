"""The noisy scores that a client has reported, and the ε they cost: its own account, which no message can change.

The noise on a score is R/ε, and R comes from the server. So the node records, for each run, the R and ε it started
with, every score before it is sent, and the ε spent over all runs; a request that would exceed the budget is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fednoil.errors import UserError
from fednoil.flower.messages import Refusal
from fednoil.flower.state import make_own
from fednoil.records.files import read_json, write_json

_FILE, _LOCK = "scores.json", "scores.lock"


@dataclass(frozen=True)
class Terms:
    """R and ε of a run's scores: each costs ε/R. `budget` is the most ε that all runs together may cost here."""

    rounds: int
    epsilon: float
    budget: float | None = None


class ScoreLedger:
    """The account of one client, in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def reported(self, run: str, round_idx: int, terms: Terms) -> float | None:
        """The score reported in this round; None if there is none yet and one is allowed."""
        return self._check(self._runs(), run, round_idx, terms)

    def record(self, run: str, round_idx: int, terms: Terms, score: float) -> float:
        """Record a noisy score; only the first one of a round may be sent."""
        make_own(self.folder)
        with self._locked():
            runs = self._runs()
            before = self._check(runs, run, round_idx, terms)
            if before is not None:
                return before
            account = runs.setdefault(run, {"rounds": terms.rounds, "epsilon": terms.epsilon, "told": {}})
            account["told"][str(round_idx)] = score
            write_json(self.folder / _FILE, {"spent": _spent(runs), "runs": runs}, private=True, for_good=True)
        return score

    def last(self, run: str) -> float | None:
        """The last score reported in this run; using it again costs nothing."""
        scores = self._runs().get(run, {}).get("told", {})
        return float(scores[max(scores, key=int)]) if scores else None

    def check_plain(self, run: str) -> None:
        """Refuse a score without noise in a run that began with it."""
        if run in self._runs():
            raise Refusal("its scores in this run have noise; one without would cost privacy")

    def _check(self, runs: dict[str, Any], run: str, round_idx: int, terms: Terms) -> float | None:
        account = runs.get(run)
        if account is not None:
            began = account["rounds"], account["epsilon"]
            if began != (terms.rounds, terms.epsilon):
                raise Refusal(
                    f"its scores in this run share ε = {began[1]:g} over {began[0]} rounds, "
                    f"but the request has ε = {terms.epsilon:g} over {terms.rounds}"
                )
            if str(round_idx) in account["told"]:
                return float(account["told"][str(round_idx)])  # a second noisy answer would reveal more
        if not 1 <= round_idx <= terms.rounds:
            raise Refusal(f"round {round_idx} is not one of {terms.rounds}; each further score would cost privacy")
        spent, cost = _spent(runs), terms.epsilon / terms.rounds
        if terms.budget is not None and spent + cost > terms.budget * (1 + 1e-9):
            # Not how much is spent: that would reveal other servers' requests. The account is in the node's folder.
            raise Refusal(f"another score would exceed its budget of ε = {terms.budget:g} for all runs")
        return None

    def _runs(self) -> dict[str, Any]:
        path = self.folder / _FILE
        if not path.is_file():
            return {}
        try:
            runs = read_json(path)["runs"]
            _spent(runs)
        except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
            raise UserError(f"{path} is damaged ({error!r}); without it no score can be reported") from None
        return runs

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes of this node out: two runs may ask at once."""
        try:
            import fcntl
        except ImportError:  # a system without such locks
            yield
            return
        with (self.folder / _LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _spent(runs: dict[str, Any]) -> float:
    """The ε of all scores ever reported."""
    return float(sum(len(a["told"]) * a["epsilon"] / a["rounds"] for a in runs.values()))
