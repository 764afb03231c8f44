"""Step 26: `--set learner.name=step26:Judged --set learner.power=1`, with this folder on PYTHONPATH."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fednoil.augment import weak_plan
from fednoil.learners import pseudo_labels
from fednoil.learners.base import Client, Nets, Trainee, Turn
from fednoil.learners.clean_share import clean_shares
from fednoil.learners.fednoil_plus import FedNoilPlus, FedNoilPlusConfig
from fednoil.learners.held import any_class
from fednoil.learners.labelled import Batches
from fednoil.learners.lot import Lot
from fednoil.learners.odds import odds, sharpened
from fednoil.seeds import Seeds, uniform
from fednoil.tensors import Tensors

_STEPS = [2.0 ** (k / 4) for k in range(-12, 5)]  # temperatures that are tried


class JudgedConfig(FedNoilPlusConfig):
    name: Literal["step26:Judged"] = "step26:Judged"  # pyright: ignore[reportIncompatibleVariableOverride]
    power: float = Field(default=2.0, gt=0, description="of the odds that draw D^x")
    tau: float = Field(default=0.5, ge=0, description="temperature of these odds; 0: what explains the labels best")
    drawn: Literal["none", "same", "all"] = Field(
        default="none",
        description="labels drawn from what the client believes of each sample: of as many as D^x has, or of all",
    )
    fitting: bool = Field(default=False, description="fitted, with o, as far as wrong labels are any class")
    views: int = Field(default=0, ge=0, description="weak views whose mean judges the labels; 0: the image itself")


class Judged(FedNoilPlus):
    Config = JudgedConfig
    config: JudgedConfig

    def asks(self, client: Client, turn: Turn) -> Tensors:
        return self.asks_all([client], [turn])[0]

    def asks_all(self, clients: Sequence[Client], turns: Sequence[Turn]) -> list[Tensors]:
        if not self.config.views or not self.believes(turns[0].round_idx, 1_000_000):
            return [{} for _ in clients]
        seeds, device = Seeds(tuple(turn.seed.child("judge") for turn in turns)), clients[0].index.device
        keys = seeds.keys(range(self.config.views), device).view(len(clients), -1)
        plans = weak_plan(keys, max(map(len, clients)), self.task.pad, flip=self.task.flip).transpose(1, 2)
        return [{"weak": plan[: len(client)]} for client, plan in zip(clients, plans, strict=True)]

    def survey(self, nets: Nets, client: Client, asked: Tensors) -> Tensors:
        return {"taught": pseudo_labels.taught(nets["model"], client, asked["weak"])} if asked else {}

    def labelled_sizes(self, trainees: Sequence[Trainee], shares: Sequence[float]) -> list[int]:
        for one in trainees:
            if "taught" in one.state:
                one.state["probabilities"] = one.state["taught"].to(one.state["probabilities"].dtype)
        return super().labelled_sizes(trainees, shares)

    def _judged(self, client: Client, state: Tensors, probabilities: Tensor, share: float) -> int:
        if (self.config.power, self.config.tau, self.config.drawn, self.config.fitting) == (2.0, 0.5, "none", False):
            return super()._judged(client, state, probabilities, share)  # with pseudo-labels
        plain = sharpened(probabilities, 1 / self.temperature)  # as the model and the client's classes have it
        tau = self.config.tau
        if not tau:
            tau, share = _fitted(plain, client.labels)
            if path := os.environ.get("STEP26_LOG"):
                with open(path, "a") as file:  # noqa: PTH123
                    file.write(f"{client.id} {tau} {share}\n")
        power = self.config.power
        if self.config.fitting:
            fits = float(any_class(plain, client.labels))
            found, fitted = _fitted(plain, client.labels)
            tau, power = 0.5 ** (1 - fits) * found**fits, 2 - fits
            share = share ** (1 - fits) * fitted**fits
        judged = sharpened(plain, tau)
        weight = odds(judged, client.labels, share) ** power
        size = min(len(client), max(1, int((weight / (1 + weight)).sum() + 0.5)))
        state["weight"] = weight
        if self.config.drawn == "none":
            return size
        wrong = (1 - share) / (judged.shape[1] - 1)
        joint = judged * torch.full_like(judged, wrong).scatter(1, client.labels[:, None], share)
        state["belief"] = joint / joint.sum(1, keepdim=True)
        state["weight"] = torch.ones_like(weight)
        return len(client) if self.config.drawn == "all" else size

    def known(self, state: Tensors, round_idx: int) -> Tensors:
        return super().known(state, round_idx) | {name: state[name] for name in ("belief",) if name in state}

    def rest_plan(self, lot: Lot, order: Tensor, known: Tensors) -> tuple[Batches, Tensors]:
        if "belief" not in known:
            return super().rest_plan(lot, order, known)
        belief = known["belief"]
        chance = uniform(lot.keys("labels"), max(lot.counts))  # [K, E, n]
        upto = lot.spread(torch.arange(len(belief), device=belief.device))
        labels = (belief.cumsum(1)[upto][:, None] < chance[..., None]).sum(-1).clamp_max(belief.shape[1] - 1)
        widths = [self.task.batch_size] * len(lot.counts)
        x = lot.batches(order, lot.none, lot.sizes, widths, "order x")
        own = labels.gather(2, x - lot.starts)
        batch: Batches = {"x_labels": lot.cut(own, widths)}
        if self.config.adjust:
            steps = [s * len(lot.epochs) for s in lot.steps]
            batch["x_prior"] = [
                _prior(part.sum(0)).float().expand(count, -1)
                for part, count in zip(belief.split(lot.counts), steps, strict=True)
            ]
        return batch, {}


def _prior(counts: Tensor) -> Tensor:
    total = counts.sum()
    return total / (total + 100) * ((counts + 1) / (total + len(counts))).log()


def _fitted(plain: Tensor, labels: Tensor) -> tuple[float, float]:
    """The temperature and the share of correct labels that explain labels [n] best, by probabilities [n, C]."""
    given = [sharpened(plain, tau).gather(1, labels[:, None])[:, 0] for tau in _STEPS]
    shares = clean_shares(given, plain.shape[1])
    likely = torch.stack(
        [
            (c * g + (1 - c) * (1 - g) / (plain.shape[1] - 1)).clamp_min(1e-9).log().sum()
            for g, c in zip(given, shares, strict=True)
        ]
    )
    best = int(likely.argmax())
    return _STEPS[best], shares[best]
