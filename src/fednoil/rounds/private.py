"""A run's privacy where updates come together: short updates, noise, and the account of what it has cost."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

from fednoil.executors.base import Job, Result
from fednoil.experiment import Experiment
from fednoil.privacy import Spent, clipped, noised, shared_std, system_noise
from fednoil.privacy.accountant import check_accountant, epsilon_of, spend
from fednoil.privacy.mechanism import Normal, seeded_noise
from fednoil.rounds.played import Played
from fednoil.seeds import Seed
from fednoil.servers.base import ServerState, Update
from fednoil.tensors import weighted_mean


class Private:
    """What `privacy` asks of a round. In a federation the nodes clip and, unless the server sees each update, add the
    noise, and a secure sum comes as the mean that each of its results has; in a simulation all of it happens here."""

    def __init__(self, experiment: Experiment, *, federated: bool) -> None:
        self.keys = experiment.config.privacy
        self.experiment = experiment
        self.federated = federated
        if self.keys.noise is not None:
            check_accountant()

    @property
    def compares(self) -> bool:
        """Whether updates may be compared with each other: not in a sum, and not before noise is added to it."""
        return self.keys.sees == "noise" or (self.keys.sees == "updates" and self.keys.noise is None)

    def draw(self, seed: Seed) -> Seed:
        """The seed of a round's draw of clients. Where ε counts on others not knowing whom, every node of a federation
        knows the run's own seed, so the draw is from the system's entropy."""
        hidden = self.federated and self.keys.noise is not None and self.keys.sees == "updates"
        return Seed(secrets.randbits(128)) if hidden else seed

    def usable(self, jobs: Sequence[Job], results: Sequence[Result]) -> list[Result]:
        """The results with short updates, each with its noise where that is asked for."""
        keys, sent = self.keys, {job.client: job for job in jobs}
        if keys.clip is None or (self.federated and keys.sees != "updates"):
            return list(results)
        found = []
        for result in results:
            job, std = sent[result.client], (keys.noise or 0.0) * keys.clip
            tensors = clipped(job.received, result.tensors, keys.clip, self.experiment.task.parameters)
            if keys.sees == "noise":
                tensors = noised(tensors, std, seeded_noise(job.turn.seed.child("update noise")))
            found.append(replace(result, tensors=tensors))
        return found

    def updates(self, state: ServerState, round_idx: int, results: Sequence[Result]) -> list[Update]:
        """What the server gets: each client's update, or one that stands for all of them."""
        apart = [Update(r.client, r.tensors, r.numbers) for r in results]
        if self.compares or not results:
            return apart
        first = apart[0]
        if self.federated and self.keys.sees == "sum":
            return [first]
        if self.keys.noise is None:
            return apart
        mean = weighted_mean([u.tensors for u in apart], [1.0] * len(apart))  # sizes would weigh some more than C
        seed = self.experiment.seed.child("round", round_idx, "noise")
        return [Update(first.client, noised(mean, self._std(len(apart)), self._normal(seed)), first.numbers)]

    def _std(self, count: int) -> float:
        """The std of the noise on the mean of `count` updates."""
        assert self.keys.noise is not None
        assert self.keys.clip is not None
        whole = self.keys.noise * self.keys.clip
        return (whole if self.keys.sees == "updates" else sqrt(count) * shared_std(whole, count)) / count

    def _normal(self, seed: Seed) -> Normal:
        return system_noise if self.federated else seeded_noise(seed)

    def spent(self, before: Spent, played: Played) -> Spent:
        """The account after a round."""
        if self.keys.noise is None:
            return before
        chosen, paying = played.chosen, [r.client for r in played.results]
        if self.keys.sees != "updates":  # the server may have an update, or a sum, that it couldn't use or has lost
            paying = chosen.clients
        return spend(before, self.keys.sees, len(chosen.clients), len(chosen.candidates), paying)

    def epsilon(self, spent: Spent) -> float | None:
        """The ε of an account; None: there is no noise."""
        return None if self.keys.noise is None else epsilon_of(spent, self.keys.sees, self.keys.noise)
