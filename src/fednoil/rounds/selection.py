"""Which clients train in a round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from fednoil.errors import UserError, few_of
from fednoil.executors.base import Job
from fednoil.experiment import Experiment
from fednoil.rounds.played import Selection
from fednoil.rounds.policy import Policy
from fednoil.rounds.state import RunState
from fednoil.sampling import Scoring


def select(experiment: Experiment, policy: Policy, state: RunState, everyone: Mapping[int, Job]) -> Selection:
    """Draw the clients of the round after `state` from those who can be asked or, where clients are sampled by score,
    from those who have sent one; the server may change their chances and how many there are."""
    sampling, server, round_idx = experiment.sampling, experiment.server, state.round_idx + 1
    candidates, scores, counted, looks = list(everyone), None, None, {}
    if isinstance(sampling, Scoring):
        found = policy.scores(list(everyone.values()), sampling)
        looks = {k: look.logits for k, look in found.items() if look.logits is not None}
        candidates = [k for k in everyone if k in found]
        scores = [found[k].score for k in candidates]
        counted = policy.bounded(dict(zip(candidates, scores, strict=True)), sampling)
    if not candidates:
        return Selection([], [], [], scores)
    p = sampling.shares(counted if counted is not None else [1.0] * len(candidates))
    count = min(sampling.count(len(everyone)), len(candidates))
    if all(map(math.isfinite, counted or ())):  # a model that has diverged gives scores that are no numbers
        p = _checked(p, len(candidates), experiment.config.sampling.name)
    if (most := server.most(state.server, round_idx)) is not None:
        count = min(count, most)
    if (chances := server.chances(state.server, round_idx, candidates)) is not None:
        p = _multiplied(p, chances)
        count = min(count, sum(share > 0 for share in p))
    drawn = sampling.draw(p, count, policy.private.draw(experiment.seed.child("round", round_idx, "select")))
    drawn = drawn.tolist() if isinstance(drawn, np.ndarray | torch.Tensor) else drawn  # of the user's own class
    places = [place for place in range(len(candidates)) if isinstance(drawn, Sequence) and place in drawn]
    if not isinstance(drawn, Sequence) or (count and not places) or len(places) != len(drawn):
        name = experiment.config.sampling.name
        raise UserError(
            f"sampling.name = '{name}': its draw must return different places of {len(candidates)}, from 0, not {drawn}"
        )
    return Selection([candidates[place] for place in places], candidates, p, scores, looks)


def _checked(shares: Sequence[float], count: int, name: str) -> list[float]:
    """Chances as a user's own class gives them."""
    try:
        found = [float(share) for share in shares]
    except (TypeError, ValueError):
        found = []
    if len(found) != count or not all(share >= 0 for share in found) or not math.isclose(sum(found), 1, abs_tol=1e-6):
        got = few_of([f"{share:g}" for share in found], 5) or repr(shares)[:80]
        raise UserError(
            f"sampling.name = '{name}': its shares must return a chance for each of {count} clients, not negative, "
            f"with sum 1, not {got}"
        )
    return found


def _multiplied(shares: Sequence[float], chances: Sequence[float]) -> list[float]:
    """The shares times the server's chances; where all of these products are 0, the chances alone."""
    products = [share * chance for share, chance in zip(shares, chances, strict=True)]
    found = products if sum(products) > 0 else list(chances)
    return [value / sum(found) for value in found]
