"""FedNoiL with our own additions: what helps and stays simple.

D^x has as many samples as a client has clean labels (`frac = "auto"`). A tenth of the labels, never trained on, is used
to estimate how many these are (`aside`), and there is no room for more: so D^x doesn't grow with wrong labels that have
been memorised. A client with few labels needs them all, and uses all of them for the estimate.

`mix` mixes the images and labels of D^x in pairs (mixup, Zhang et al., ICLR 2018), which makes wrong labels harder to
memorise. `draw` can make sure that a class which the model finds hard is not lost from D^x. `adjust` is for
clients with different classes: the labelled loss is CE(z + log π, y), with π the frequencies of classes among the
labels of the D^x that is drawn (logit adjustment, Menon et al., ICLR 2021; in a federation FedLC, Zhang et al., ICML
2022), and tests, confidences and pseudo-labels use z alone. The averaged global model that goes with it in the presets
is the server's (`server.average`).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fednoil.learners.base import Client
from fednoil.learners.clean_share import beliefs, calibrated_share
from fednoil.learners.two_sets import TwoSets, TwoSetsConfig
from fednoil.plugins import About
from fednoil.seeds import Seeds, permutations
from fednoil.tensors import Tensors

_FEW = 30  # labels tell a share within 9 points, one standard deviation, at best
_FLOOR = 0.5  # of a class's share of D^x, with draw = "floor"


class FedNoilPlusConfig(TwoSetsConfig):
    name: Literal["fednoil-plus"] = "fednoil-plus"
    aside: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="with auto: share of the labels kept out of D^x, by which alone the clean ones are counted; fewer "
        f"than {_FEW} aren't kept out",
    )
    draw: Literal["client", "class", "floor"] = Field(
        default="client",
        description="D^x is drawn of all samples; class: of each given class, by its frequency; floor: of all samples, "
        "but no class less than half as often as class draws it",
    )
    mix: float = Field(default=1.0, ge=0, description="α of the Beta that mixes pairs of D^x; 0: none are mixed")
    ssl_start: int = Field(default=1, ge=1, description="first round that trains on pseudo-labels")
    targets: Literal["given", "believed"] = Field(
        default="given",
        description="what D^x is trained on: its given labels; believed: the probability of each class given the "
        "image, the label and the client's estimated share of clean ones, by which D^x is drawn too",
    )
    adjust: bool = Field(
        default=False,
        description="logits of D^x are adjusted by how often its labels have each class: a client teaches how classes "
        "look, not how many of each it has",
    )

    def lost_class_advice(self) -> str:
        return "--set learner.draw=class may help" if self.draw != "class" else ""


class FedNoilPlus(TwoSets):
    Config = FedNoilPlusConfig
    config: FedNoilPlusConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    about = About(
        title="FedNoiL with mixup, and a D^x whose size is estimated on labels set aside",
        paper="this package",
        keeps="nothing",
        sends="model",
        cost="about 1 an epoch, and 3 passes over the data a round",
    )

    @property
    def believes(self) -> bool:
        return self.config.targets == "believed"

    def trains_on_unlabelled(self, round_idx: int) -> bool:
        return self.uses_unlabelled and round_idx >= self.config.ssl_start

    def set_aside(self, count: int, device: torch.device) -> Tensor:
        """Spread evenly over the samples."""
        share = self.config.aside if self.config.frac == "auto" or self.believes else 0.0
        numbers = torch.arange(int(share * count), device=device)
        return ((numbers + 0.5) / share).long() if len(numbers) >= _FEW else numbers[:0]

    def lead(self, size: int, count: int) -> int:
        return {"client": 0, "class": count, "floor": int(_FLOOR * size + 0.5)}[self.config.draw]

    def clean_share(self, client: Client, state: Tensors) -> float:
        """By the labels that are set aside, if some are: what was memorised doesn't count."""
        return self._calibration(client, state)[0]

    def _calibration(self, client: Client, state: Tensors) -> tuple[float, float]:
        """The share of clean labels, and the temperature at which the model is as sure as it is right."""
        aside = self.set_aside(len(client), client.labels.device)
        if len(aside):
            return calibrated_share(state["probabilities"][aside], client.labels[aside])
        return super().clean_share(client, state), 1.0

    def known(self, client: Client, state: Tensors) -> Tensors:
        known = super().known(client, state)
        if self.believes:
            belief = beliefs(state["probabilities"], client.labels, *self._calibration(client, state))
            known |= {"belief": belief, "weight": belief.gather(1, client.labels[:, None])[:, 0]}
        return known

    def labelled_plan(
        self, client: Client, labelled: Tensor, seeds: Seeds, epochs: range, shape: tuple[int, int], known: Tensors
    ) -> Tensors:
        batch, (steps, size) = super().labelled_plan(client, labelled, seeds, epochs, shape, known), shape
        if self.config.adjust:
            classes = self.task.num_classes
            rows = known["belief"] if self.believes else F.one_hot(client.labels, classes)
            prior = class_prior(rows[labelled]).log()
            batch["x_prior"] = prior.repeat_interleave(steps, dim=0)
        if self.config.mix:
            generators = (seed.child("mix", e).numpy() for seed in seeds.members for e in epochs)
            beta = [generator.beta(self.config.mix, self.config.mix, steps) for generator in generators]
            share = np.maximum(beta, 1 - np.array(beta)).astype(np.float32).ravel()
            keys = seeds.child("partner").keys_of([(e, s) for e in epochs for s in range(steps)], labelled.device)
            batch |= {"x_share": torch.from_numpy(share).to(labelled.device), "x_partner": permutations(keys, size)}
        return batch

    def labelled_inputs(self, batch: Tensors) -> Tensor:
        if "x_share" not in batch:
            return batch["x"]
        x, share = batch["x"].float(), batch["x_share"]
        return share * x + (1 - share) * x[batch["x_partner"]]

    def labelled_loss(self, logits: Tensor, batch: Tensors) -> Tensor:
        labels = batch["x_labels"]
        if "x_prior" in batch:
            logits = logits + batch["x_prior"]
        if "x_share" not in batch:
            return F.cross_entropy(logits, labels)
        share = batch["x_share"]
        other = F.cross_entropy(logits, labels[batch["x_partner"]])
        return share * F.cross_entropy(logits, labels) + (1 - share) * other


def class_prior(rows: Tensor) -> Tensor:
    """How often each class is among labels [R, n, C] (rows that sum up to 1), with one more of each: float32 [R, C]."""
    return (rows.sum(1) + 1).float() / (rows.shape[1] + rows.shape[2])
