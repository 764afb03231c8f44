"""Which clients train in a round."""

from __future__ import annotations

from collections.abc import Mapping

from fednoil.executors.base import Job
from fednoil.experiment import Experiment
from fednoil.rounds.played import Selection
from fednoil.rounds.policy import Policy
from fednoil.sampling import Scoring


def select(experiment: Experiment, policy: Policy, everyone: Mapping[int, Job], round_idx: int) -> Selection:
    """Draw the clients of this round from those who can be asked or, where clients are sampled by score, from those
    who have sent one."""
    sampling = experiment.sampling
    candidates, scores, looks = list(everyone), None, {}
    if isinstance(sampling, Scoring):
        found = policy.scores(list(everyone.values()), sampling)
        looks = {k: look.logits for k, look in found.items() if look.logits is not None}
        candidates = [k for k in everyone if k in found]
        scores = [found[k].score for k in candidates]
    if not candidates:
        return Selection([], [], [], scores)
    p = sampling.shares(scores if scores is not None else [1.0] * len(candidates))
    count = min(sampling.count(len(everyone)), len(candidates))
    drawn = sampling.draw(p, count, experiment.seed.child("round", round_idx, "select"))
    return Selection([candidates[place] for place in sorted(drawn)], candidates, p, scores, looks)
