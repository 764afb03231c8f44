"""A node at work: what it answers to each kind of order, and what it keeps in its state folder.

A node's process may live for a single message, so only the files in that folder outlast it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from fednoil.audit import run_audit
from fednoil.executors.base import HeldOut, Job, Result
from fednoil.experiment import resident
from fednoil.flower.folds import FoldLooks
from fednoil.flower.ledger import ScoreLedger, Terms
from fednoil.flower.memory import Memory
from fednoil.flower.messages import Refusal
from fednoil.flower.secure import fixed_point
from fednoil.flower.secure_node import SHARED, Session
from fednoil.flower.settings import NodeSettings
from fednoil.flower.state import NodeState
from fednoil.flower.work import Order, partition_work, site_work
from fednoil.learners.base import Turn
from fednoil.learners.looks import confidences
from fednoil.privacy import clipped, noised, shared_std, system_noise
from fednoil.sampling import Scoring
from fednoil.tensors import Tensors, cpu, digest


class Node:
    """One node at work on one order."""

    def __init__(self, settings: NodeSettings, order: Order) -> None:
        self.settings = settings
        self.order = order
        if settings.data is None:
            self.work = partition_work(settings, order)
        else:
            self.work = site_work(settings, order.config, order.client, order.agreement, order.founders)
        self.state = NodeState(settings.state / settings.client_id, order.run)
        self.memory = Memory(self.state, self.work.client, self.work.experiment)

    def score(self, received: Tensors) -> float:
        """How clean the received model finds the labels here; with noise if server or operator ask for it."""
        order, sampling = self.order, self.work.experiment.sampling
        rounds = self.work.experiment.config.train.rounds
        if not isinstance(sampling, Scoring):
            raise Refusal("this run samples its clients without scores, so no score is sent")
        epsilon = self._epsilon()
        ledger = ScoreLedger(self.state.folder.parent)
        if epsilon is None:
            ledger.check_plain(order.run)
            found = self._confidences(sampling, received, self.state.keep_of(order.round_idx))
            return float(sampling.score(found))
        terms = Terms(rounds, epsilon, self.settings.score_budget)
        if (before := ledger.reported(order.run, order.round_idx, terms)) is not None:
            return before
        # Without what the client keeps: its samples have shaped that, so one of them could change more than its own
        # confidence. And where the received model overflows, a NaN sum would reveal the sample despite the noise.
        bounded = self._confidences(sampling, received, keep={}).nan_to_num(0.0).clamp(0.0, 1.0)
        plain = float(sampling.score(bounded))
        # From the system's entropy: noise from the run's seed could be subtracted by anyone who knows it.
        u = (secrets.randbits(53) + 0.5) * 2.0**-53
        noisy = sampling.private(plain, len(self.work.client), rounds / terms.epsilon, u)
        return ledger.record(order.run, order.round_idx, terms, noisy)

    def _epsilon(self) -> float | None:
        """The ε of this run's scores, the smaller of the server's and the operator's; None: no noise."""
        sampling = self.work.experiment.sampling
        wanted = self.work.experiment.config.privacy.scores if isinstance(sampling, Scoring) else None
        asked = (wanted, self.settings.score_epsilon)
        return min((e for e in asked if e is not None), default=None)

    def _confidences(self, sampling: Scoring, received: Tensors, keep: Tensors) -> torch.Tensor:
        bench, job = self.work.bench, self._job(received, keep)
        bench.load(job.received, job.keep)
        logits = bench.look(self.work.client)
        if bench.looking is not None:  # it will want them if this client is selected
            self.state.save_look(logits, digest({**received, **keep}))
        self.memory.look(self.order.round_idx, torch.softmax(logits, dim=1))
        return confidences(logits, self.work.client.corrected(keep).labels, sampling.temperature)

    def review(self, received: Tensors) -> Result:
        """What the client reports about its labels; what it keeps of that stays in its state folder."""
        self._refuse_noiseless(self.work.experiment.learner.reports)
        keep = self.state.keep_before(self.order.round_idx)
        bench, client, job = self.work.bench, self.work.client.corrected(keep), self._job(received, keep)
        bench.load(job.received, job.keep)
        result = bench.review(client, job, bench.look(client))
        if result.keep:
            every = self.work.experiment.config.run.checkpoint_every
            self.state.save_review(self.order.round_idx, result.keep, every)
        return result

    def _refuse_noiseless(self, numbers: Sequence[str]) -> None:
        """Numbers made from the labels would reveal what the noise of the scores hides."""
        if numbers and self._epsilon() is not None:
            raise Refusal(f"it reports its labels only through noisy scores, and sends no '{numbers[0]}'")

    def train(self, received: Tensors) -> Result:
        """This client's turn, and the update that may leave it; what it keeps stays in its state folder."""
        keys = self.work.experiment.config.privacy
        if keys.sees == "sum" or self.settings.server_sees not in (None, keys.sees):
            sees = self.settings.server_sees or keys.sees
            raise Refusal(f"its update leaves it only as part of a secure sum or with noise (privacy.sees = '{sees}')")
        result = self._turn(received)
        if keys.sees == "noise" and keys.noise and keys.clip:
            result = replace(result, tensors=self._noisy(received, result.tensors, keys.noise * keys.clip))
        return result

    def _noisy(self, received: Tensors, update: Tensors, std: float) -> Tensors:
        """The update with noise, of which a round has one only: the mean of several would have less noise. A server
        that has lost it, and is resumed, gets the same again."""
        of, round_idx = digest(received), self.order.round_idx
        last, model, before = self.state.sent() or (0, "", {})
        if (last, model) == (round_idx, of):
            return before
        if last >= round_idx:
            raise Refusal(f"it has sent its update of round {last} with noise, and sends no other of it or before it")
        found = noised(update, std, system_noise)
        self.state.save_sent(round_idx, found, of)
        return found

    def train_in_secret(self, received: Tensors, shares: Mapping[int, str], among: int) -> tuple[Result, torch.Tensor]:
        """This client's turn for a secure sum `among` so many clients, and its vector under masks: int64 [d]."""
        keys = self.work.experiment.config.privacy
        if keys.sees != "sum" or self.settings.server_sees == "noise":
            raise Refusal("it takes part in no secure sum (privacy.sees)")
        session = Session(self.state.folder, self.order.client, self.order.round_idx)
        session.check(SHARED)
        result = self._turn(received)
        change = {name: tensor.double() - received[name].double() for name, tensor in result.tensors.items()}
        if keys.noise and keys.clip:
            change = noised(change, shared_std(keys.noise * keys.clip, among), system_noise)
        vector = fixed_point(change, 1.0 if keys.noise else len(self.work.client), among)
        if vector is None:
            raise Refusal("its update is not finite, or too large for a secure sum; privacy.clip shortens it")
        return result, torch.from_numpy(session.masked(vector, shares).view(np.int64))

    def _turn(self, received: Tensors) -> Result:
        """The result of this client's turn, its update no longer than the clip."""
        round_idx, most = self.order.round_idx, self.work.experiment.config.privacy.clip
        self._refuse_noiseless(self.work.experiment.learner.sends)
        keep = self.state.keep_of(round_idx)
        client = self.work.client.corrected(keep)
        result = self.work.bench.update(client, self._job(received, keep, self._looked(received, keep)))
        if result.keep:
            self.state.save_keep(round_idx, result.keep, self.work.experiment.config.run.checkpoint_every)
        scored = isinstance(self.work.experiment.sampling, Scoring)
        self.memory.turn(round_idx, self.order.epochs, result.evidence, scored)
        if self._epsilon() is not None or self.work.experiment.config.privacy.noise is not None:
            # FedNoiL's own number depends on the sum of the confidences: it would reveal the score without its noise.
            steps = self.order.epochs * -(-len(self.work.client) // self.work.experiment.config.train.batch_size)
            result = replace(result, numbers={**result.numbers, "steps": float(steps)})
        tensors = cpu(result.tensors)
        if most is not None:
            tensors = clipped(received, tensors, most, self.work.experiment.task.parameters)
        return replace(result, tensors=tensors)

    def _looked(self, received: Tensors, keep: Tensors) -> torch.Tensor | None:
        """The logits behind this round's score, so that the data are not passed again."""
        if self.work.bench.looking is None:
            return None
        shape = (len(self.work.client), self.work.experiment.task.num_classes)
        return self.state.take_look(digest({**received, **keep}), shape)

    def audit(self, received: Tensors) -> float:
        """Find wrong labels with the final model, write them to the client's folder, and report their share.

        If scores have noise, the share is computed from the last score, which the server has: that costs no privacy.
        """
        work, client = self.work, self.work.client
        summary = self._audited(received)
        sampling, ledger = work.experiment.sampling, ScoreLedger(self.state.folder.parent)
        if self._epsilon() is None:
            ledger.check_plain(self.order.run)
            return float(summary["overall"]["noise_ratio"])
        last = ledger.last(self.order.run)
        if last is None or not isinstance(sampling, Scoring):
            raise Refusal("it reports its noise only through noisy scores, and has not reported any")
        return 1 - last / sampling.largest(len(client))

    def _audited(self, received: Tensors) -> dict[str, Any]:
        """Write the audit of what the client trained on or, in a run that left a fold out, of all folds so far."""
        work, experiment = self.work, self.work.experiment
        name, data = self.settings.client_id, self.settings.data or experiment.config.data.name
        # Held-out training images have labels as wrong as the others: they don't show how good the model is.
        tested = len(work.test) and not experiment.setting.dataset.about.held_out
        held_out = self.evaluate(received) if tested else None
        accuracy = None if held_out is None else 100 * held_out.right / held_out.samples
        work.bench.load({name: tensor.to(work.bench.device) for name, tensor in received.items()}, {})
        look = torch.softmax(work.bench.look(work.left or work.client), dim=1)
        if work.left is None:
            case = self.memory.case(self.order.round_idx, look, name, data, experiment, accuracy)
            return run_audit(case, self.state.folder / "audit")
        folds = FoldLooks(self.state.folder.parent, experiment)
        folds.save(work.left, look, accuracy)
        return run_audit(folds.cases(name, data), folds.folder / "audit")

    def evaluate(self, received: Tensors) -> HeldOut:
        """Test the client's own model on what it holds out."""
        if not len(self.work.test):
            return HeldOut(0, 0, 0.0)
        keep = self.state.keep_before(self.order.round_idx + 1)
        model = self.work.experiment.server.own_model(received, keep)
        images = resident(self.work.test.images, self.work.bench.device)
        logits = self.work.bench.logits(model, images)
        labels = torch.from_numpy(self.work.test.labels).to(logits.device)
        loss = float(F.cross_entropy(logits.double(), labels))
        return HeldOut(int((logits.argmax(1) == labels).sum()), len(labels), loss)

    def _job(self, received: Tensors, keep: Tensors, looked: torch.Tensor | None = None) -> Job:
        order = self.order
        seed = self.work.experiment.seed.child("round", order.round_idx, "client", order.client)
        device = self.work.bench.device
        moved = {name: tensor.to(device) for name, tensor in received.items()}
        kept = {name: tensor.to(device) for name, tensor in keep.items()}
        known = None if looked is None else looked.to(device)
        return Job(order.client, moved, kept, Turn(order.round_idx, order.epochs, seed, order.signals), known)
