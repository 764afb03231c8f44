"""Before a round: the clients review their labels, where the server asks for it."""

from __future__ import annotations

from dataclasses import replace

from fednoil.experiment import Experiment
from fednoil.rounds.played import Review
from fednoil.rounds.policy import Policy
from fednoil.rounds.state import RunState, make_job


def reviewed(experiment: Experiment, policy: Policy, state: RunState) -> tuple[RunState, Review | None]:
    """The state with what the clients have reported and what they keep of it, and who was asked; None: nobody was."""
    server, round_idx = experiment.server, state.round_idx + 1
    if not server.reviews(state.server, round_idx):
        return state, None
    jobs = [make_job(experiment, state, k, 0) for k in policy.members(round_idx)]
    results = sorted(policy.review(jobs), key=lambda r: r.client)
    answers = {r.client: r.numbers for r in results}
    keep = {**state.keep, **{r.client: r.keep for r in results if r.keep}}
    after = server.reviewed(state.server, round_idx, answers)
    return replace(state, server=after, keep=keep), Review(jobs, results)
