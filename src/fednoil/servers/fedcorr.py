"""FedCorr (Xu et al., CVPR 2022): find noisy clients, correct their labels, then train on all.

It works with any learner; its authors use `mixup`. Stage 1: `passes` over all clients, one a round. Each reports how
many dimensions its predictions have; after a pass two Gaussians over the sums of these split the clients, and the noisy
ones estimate their noise from their losses and relabel the worst samples where the model is confident. A proximal term
holds noisy clients near the received model. Stage 2: `warmup` rounds of clients with little noise; then noisy clients
relabel all samples that the model is confident about. Stage 3: the remaining rounds, FedAvg over all.
`version = "code"` follows the authors' code: losses treat a softmax as logits, and the proximal distance isn't squared.
Our choices: predictions and losses use plain views; the proximal term holds in all batches, where the code leaves out
each epoch's first; if no client has little noise, stage 2 takes those with the least.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fednoil.learners.base import LABELS, Client, Final, Learner, Nets, Turn
from fednoil.learners.capabilities import ChangesGradients, Wrapped, capability
from fednoil.learners.looks import logits_of
from fednoil.learners.mixture import upper_values
from fednoil.plugins import About
from fednoil.servers.base import Server, ServerConfig, ServerState, Update
from fednoil.servers.lid import dimensions
from fednoil.servers.visits import after_visits, unvisited_first
from fednoil.tensors import Numbers, Tensors

_LOSSES, _NOISE = "fedcorr/losses", "fedcorr/noise"  # what a client keeps


class FedCorrConfig(ServerConfig):
    name: Literal["fedcorr"] = "fedcorr"
    passes: int = Field(
        default=5, ge=1, description="passes over all clients, one client a round, before anything else"
    )
    warmup: int = Field(
        default=500, ge=0, description="rounds after the passes in which clients with little noise train alone"
    )
    mu: float = Field(default=5.0, ge=0, description="weight of the proximal term")
    version: Literal["code", "paper"] = Field(
        default="code", description="which to follow where its authors' code and paper differ"
    )


def modelled_losses(probabilities: Tensor, labels: Tensor, version: str) -> Tensor:
    """The losses [n] that reveal wrong labels: cross-entropy, which the authors' code computes from probabilities taken
    for logits."""
    if version == "code":
        return F.cross_entropy(probabilities, labels, reduction="none")
    return -probabilities.gather(1, labels[:, None])[:, 0].clamp_min(1e-12).log()


def worst(losses: Tensor, wrong: int, share: float) -> Tensor:
    """Places of the floor(share · wrong) largest losses."""
    count = math.floor(share * wrong + 1e-9)
    return losses.argsort(descending=True, stable=True)[:count]


def relabelled(labels: Tensor, probabilities: Tensor, rows: Tensor, confidence: float) -> Tensor:
    """The labels [n], in which `rows` have the likeliest class where its probability is above `confidence`."""
    sure, guess = probabilities.max(1)
    may = torch.zeros_like(labels, dtype=torch.bool)
    may[rows] = True
    return torch.where(may & (sure > confidence), guess, labels)


def pull(away: Tensor, version: str) -> Tensor:
    """The gradient of ‖w − θ‖ by w, or of its square, which the paper has; 0 where both are equal."""
    return 2 * away if version == "paper" else away / away.norm().clamp_min(1e-12)


class Corrects(Wrapped):
    """Any learner, with a proximal term in stage 1, whose clients report a dimension and correct their labels."""

    share: ClassVar[float] = 0.5  # π: of the labels thought wrong, how many may change
    confidence: ClassVar[float] = 0.5  # the probability that a new label must exceed

    def __init__(self, inner: Learner, config: FedCorrConfig) -> None:
        super().__init__(inner)
        self.corr = config
        self.sends, self.reports = (*inner.sends, "dimension"), ("noise",)

    def _shared(self) -> list[str]:
        return [role.name for role in self.roles if role.shared]

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        state = self.inner.init(nets, client, keep, turn)
        noise = keep.get(_NOISE, torch.zeros((), device=client.index.device))
        holds = turn.signals.get("stage") == 1 and bool(turn.signals.get("noisy"))
        weight = {_NOISE: noise, "fedcorr/weight": self.corr.mu * noise * holds}
        return state | weight | {f"fedcorr/{name}": nets[name].params.clone() for name in self._shared()}

    def gradients(self, nets: Nets, batch: Tensors, state: Tensors, kind: str) -> None:
        if inner := capability(self.inner, ChangesGradients):
            inner.gradients(nets, batch, state, kind)
        for name in self._shared():
            away = nets[name].params - state[f"fedcorr/{name}"]
            nets[name].grads.add_(state["fedcorr/weight"] * pull(away, self.corr.version))

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        final, found = self.inner.final(nets, client, state, turn), 0.0
        keep = dict(final.keep)
        if turn.signals.get("stage") == 1:
            probabilities = torch.softmax(logits_of(self, nets, client), 1)
            small = 1e-6 if self.corr.version == "code" else 0.0
            found = float(dimensions(probabilities, epsilon=small).mean())
            losses = modelled_losses(probabilities, client.labels, self.corr.version)
            keep |= {_LOSSES: losses, _NOISE: state[_NOISE]}
        return replace(final, numbers={**final.numbers, "dimension": found}, keep=keep)

    def review(self, logits: Tensor, client: Client, keep: Tensors, turn: Turn) -> Final:
        probabilities = torch.softmax(logits, 1)
        if not turn.signals.get("noisy"):
            return Final(numbers={"noise": 0.0})
        if turn.signals.get("stage") == 3:
            rows = torch.arange(len(client), device=logits.device)
            labels = relabelled(client.labels, probabilities, rows, self.confidence)
            return Final(numbers={"noise": float(keep.get(_NOISE, torch.zeros(())))}, keep={LABELS: labels})
        losses = keep.get(_LOSSES)
        if losses is None:  # it has missed the pass
            return Final(numbers={"noise": 0.0})
        wrong = int(upper_values(losses).sum())
        rows = worst(losses, wrong, self.share)
        labels = relabelled(client.labels, probabilities, rows, self.confidence)
        noise = torch.tensor(wrong / len(client), device=logits.device)
        return Final(numbers={"noise": wrong / len(client)}, keep={LABELS: labels, _NOISE: noise})


class FedCorr(Server):
    Config = FedCorrConfig
    config: FedCorrConfig
    little: ClassVar[float] = 0.1  # κ: most estimated noise of a client of stage 2
    about = About(
        title="Noisy clients found by dimension, labels corrected in stages",
        paper="Xu et al., CVPR 2022",
        keeps="corrected labels, losses",
        sends="model, a dimension, in stage 1 its noise",
        cost="1 + 2/(3E)",
    )

    def wrap(self, learner: Learner) -> Learner:
        return Corrects(learner, self.config)

    @property
    def _first(self) -> int:
        """Rounds of stage 1."""
        return self.config.passes * len(self.task.sizes)

    def stage(self, round_idx: int) -> int:
        if round_idx <= self._first:
            return 1
        return 2 if round_idx <= self._first + self.config.warmup else 3

    def signals(self, state: ServerState, client: int, round_idx: int) -> Numbers:
        noisy = client in state.values.get("noisy", ())
        return {"stage": float(self.stage(round_idx)), "noisy": float(noisy)}

    def most(self, state: ServerState, round_idx: int) -> int | None:
        return 1 if self.stage(round_idx) == 1 else None

    def chances(self, state: ServerState, round_idx: int, clients: Sequence[int]) -> Sequence[float] | None:
        stage = self.stage(round_idx)
        if stage == 1:
            return unvisited_first(state.values, clients)
        if stage == 3:
            return None
        noise = [state.values.get("noise", {}).get(str(client), 0.0) for client in clients]
        limit = max(self.little, min(noise))
        return [float(ratio <= limit) for ratio in noise]

    def reviews(self, state: ServerState, round_idx: int) -> bool:
        done = round_idx - 1
        ends = done <= self._first and done % len(self.task.sizes) == 0
        return bool(state.values.get("noisy")) and (ends or done == self._first + self.config.warmup)

    def reviewed(self, state: ServerState, round_idx: int, answers: Mapping[int, Numbers]) -> ServerState:
        noise = {**state.values.get("noise", {}), **{str(k): n["noise"] for k, n in sorted(answers.items())}}
        return replace(state, values={**state.values, "noise": noise})

    def aggregate(self, state: ServerState, round_idx: int, updates: Sequence[Update]) -> ServerState:
        after, values = super().aggregate(state, round_idx, updates), dict(state.values)
        if self.stage(round_idx) == 1:
            sums, everyone = dict(values.get("dimensions", {})), len(self.task.sizes)
            for update in updates:
                name = str(update.client)
                sums[name] = sums.get(name, 0.0) + update.numbers.get("dimension", 0.0)
            values |= {"dimensions": sums, "visited": after_visits(values, [u.client for u in updates], everyone)}
            if round_idx % everyone == 0:
                values |= {"noisy": noisy_clients(sums), "noise": {}, "visited": []}
        return replace(after, values=values)

    def notes(self, state: ServerState, keep: Mapping[int, Tensors]) -> dict[str, Any]:
        """The clients that count as noisy, and their estimated noise."""
        known = ("noisy", "noise")
        return {f"{name}_clients": state.values[name] for name in known if name in state.values}


def noisy_clients(sums: Mapping[str, float]) -> list[int]:
    """The clients whose sum of dimensions belongs to the upper of two Gaussians."""
    names = sorted(sums, key=int)
    upper = upper_values(torch.tensor([sums[name] for name in names], dtype=torch.float64))
    return [int(name) for name, bad in zip(names, upper.tolist(), strict=True) if bad]
