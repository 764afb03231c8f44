"""How much one client can do to a round, whatever it sends.

What a client reports of itself can't be checked, but compared with the others: a change of the model longer than a
multiple of the round's median is shortened to that, a score counts at most as a multiple of the median, and an update
that has come before is left out. With honest clients none of it happens, or little; against a majority it is no help.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from fednoil.executors.base import Job, Result
from fednoil.tensors import Tensors, digest

LENGTH = 3.0  # times the median length of the round's updates
SHARE = 2.0  # times the median score per sample
_FEWEST = 3  # clients of which a median says something


@dataclass
class Limits:
    """The limits of a run, and what they have seen: digests of all updates so far, and what was done in this round."""

    trained: frozenset[str]  # names of trained parameters
    _seen: set[str] = field(default_factory=set)
    _done: dict[int, list[str]] = field(default_factory=dict)

    def updates(self, jobs: Sequence[Job], results: Sequence[Result]) -> list[Result]:
        """The results that count, none with a change much longer than the others'."""
        sent = {job.client: job.received for job in jobs}
        kept = [result for result in results if self._is_new(result, sent[result.client])]
        lengths = {r.client: self._length(sent[r.client], r.tensors) for r in kept}
        if len(kept) < _FEWEST:
            return kept
        most = LENGTH * statistics.median_low(lengths.values())
        return [self._shortened(r, sent[r.client], lengths[r.client], most) for r in kept]

    def scores(self, relative: Mapping[int, float]) -> dict[int, float]:
        """Scores as shares of the largest possible, none far above the others'."""
        if len(relative) < _FEWEST:
            return dict(relative)
        most = SHARE * statistics.median(relative.values())
        for client, score in relative.items():
            if score > most:
                self._note(client, f"its score counts as {SHARE:g} times the median")
        return {client: min(score, most) for client, score in relative.items()}

    def report(self) -> dict[int, str]:
        """What was done since the last report, by client."""
        done, self._done = self._done, {}
        return {client: "; ".join(words) for client, words in sorted(done.items())}

    def _note(self, client: int, words: str) -> None:
        self._done.setdefault(client, []).append(words)

    def _is_new(self, result: Result, sent: Tensors) -> bool:
        if all(name in sent and torch.equal(tensor, sent[name].to(tensor)) for name, tensor in result.tensors.items()):
            return True  # of a turn without a step, as several clients may have had
        name = digest(result.tensors)
        new = name not in self._seen
        self._seen.add(name)
        if not new:
            self._note(result.client, "its update was sent before, and is left out")
        return new

    def _length(self, sent: Tensors, update: Tensors) -> float:
        """The Euclidean length of a change of the model, of what is trained."""
        names = [name for name in update if name in sent and name.split("/", 1)[-1] in self.trained]
        squares = [(update[n].double() - sent[n].double()).square().sum() for n in names]
        return float(torch.stack(squares).sum().sqrt()) if squares else 0.0

    def _shortened(self, result: Result, sent: Tensors, length: float, most: float) -> Result:
        if not length > most > 0:
            return result
        self._note(result.client, f"its update is shortened to 1/{length / most:.3g}")
        return replace(result, tensors=_toward(sent, result.tensors, most / length))


def _toward(sent: Tensors, update: Tensors, share: float) -> Tensors:
    """The model that is this share of the way from `sent` to `update`; whole numbers stay as updated."""
    moves = {name for name, tensor in update.items() if name in sent and tensor.is_floating_point()}
    return {n: torch.lerp(sent[n].to(t), t, share) if n in moves else t for n, t in update.items()}
