"""The method to use when nobody knows the noise: FedNoiL's labelled set, with nothing that needs to be known or tuned.

What a client believes: the model it receives judges its labels. The number of clean ones is estimated on a tenth of
the labels that is never trained on (`aside`), so that it doesn't grow with wrong labels that were memorised, and by a
client with many labels also on the others; D^x has the size of the smaller estimate, because the larger one puts more
wrong labels into it. A client with few labels needs them all, and uses all of them for one estimate.

How it trains: D^x is drawn anew each epoch by the model's confidence in the given labels. Half of its views are weak,
half strong, and pairs of them are mixed (`mix`, mixup, Zhang et al., ICLR 2018), which makes wrong labels harder to
memorise; a client with few labels mixes none, because it would learn too slowly. The loss is CE(z + s log π, y), with π
the frequencies of classes in the D^x that is drawn (`adjust`, logit adjustment, Menon et al., ICLR 2021; in a
federation FedLC, Zhang et al., ICML 2022): so a client teaches how classes look, not how many of each it has, and no
class is lost. The strength s = |D^x| / (|D^x| + 100) is low while D^x is small: a site with one class has other labels
only by mistake, and with s = 1 they would weigh as much as all the rest.
Tests and confidences use z alone. Labels that are not drawn are not used.

What goes with it in the presets: clients drawn uniformly, local epochs by agreement, an average of the models over
rounds (`server.average`), a weight decay of 2e-3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fednoil.learners.base import Client
from fednoil.learners.clean_share import calibrated_shares
from fednoil.learners.labelled import Batches, LabelledConfig, LabelledLearner
from fednoil.learners.lot import Lot
from fednoil.plugins import About
from fednoil.seeds import permutations
from fednoil.tensors import Tensors

_FEW = 30  # labels tell a share within 9 points, one standard deviation, at best
_MANY = 500  # labels from which on a client mixes, and has two estimates (experiments/default)
_HALF = 100  # samples of D^x with which logits are adjusted by half


class FedNoilPlusConfig(LabelledConfig):
    name: Literal["fednoil-plus"] = "fednoil-plus"
    x_augment: Literal["none", "weak", "strong", "both"] = Field(
        default="both", description="views of D^x; both: half of a batch each"
    )
    aside: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="with auto: share of the labels kept out of D^x to estimate how many are clean; "
        f"fewer than {_FEW} aren't kept out",
    )
    mix: float = Field(
        default=1.0,
        ge=0,
        description="α of the Beta distribution that mixes pairs of D^x at clients with at least "
        f"{_MANY} labels; 0: none",
    )
    adjust: bool = Field(
        default=True,
        description="logits of D^x are adjusted by how often its labels have each class: a client teaches how classes "
        "look, not how many of each it has",
    )


class FedNoilPlus(LabelledLearner):
    Config = FedNoilPlusConfig
    config: FedNoilPlusConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    about = About(
        title="The default: D^x of an estimated size, mixup, logit adjustment",
        paper="this package",
        keeps="nothing",
        sends="model",
        cost="less than 1 an epoch (D^x alone), and 1 pass over the data a round",
    )

    @property
    def mixes_from(self) -> int:
        """The number of labels from which on a client mixes pairs."""
        return _MANY

    def set_aside(self, count: int, device: torch.device) -> Tensor:
        """Spread evenly over the samples."""
        share = self.config.aside if self.config.frac == "auto" else 0.0
        numbers = torch.arange(int(share * count), device=device)
        return ((numbers + 0.5) / share).long() if len(numbers) >= _FEW else numbers[:0]

    def clean_shares(self, clients: Sequence[Client], states: Sequence[Tensors]) -> list[float]:
        """By the labels set aside, where there are some: what was memorised doesn't count. A client with many labels
        takes the smaller one of this estimate and that by the other labels."""

        def shares(rows: dict[int, Tensor]) -> dict[int, float]:
            """The estimates of some clients, by their places, on these rows."""
            probabilities = [states[place]["probabilities"][own] for place, own in rows.items()]
            labels = [clients[place].labels[own] for place, own in rows.items()]
            return dict(zip(rows, calibrated_shares(probabilities, labels) if rows else [], strict=True))

        aside = [self.set_aside(len(client), client.labels.device) for client in clients]
        first = shares({place: rows for place, rows in enumerate(aside) if len(rows)})
        many = [place for place in first if len(clients[place]) >= _MANY]
        second = shares({place: _others(aside[place], len(clients[place])) for place in many})
        few = [place for place in range(len(clients)) if place not in first]
        one = super().clean_shares([clients[p] for p in few], [states[p] for p in few]) if few else []
        found = first | {place: min(first[place], share) for place, share in second.items()}
        found |= zip(few, one, strict=True)
        return [found[place] for place in range(len(clients))]

    def labelled_plan(self, lot: Lot, order: Tensor) -> Batches:
        batch, most = super().labelled_plan(lot, order), max(lot.steps)
        if self.config.adjust:
            drawn = order[..., : max(lot.sizes)]
            prior = adjustment(lot.client.labels[drawn], self.task.num_classes, lot.among(lot.none, lot.sizes))
            batch["x_prior"] = lot.by_step(prior[:, :, None].expand(-1, -1, most, -1))
        if self.config.mix:
            generators = (seed.child("mix", e).numpy() for seed in lot.seeds.members for e in lot.epochs)
            beta = np.array([generator.beta(self.config.mix, self.config.mix, most) for generator in generators])
            share = np.maximum(beta, 1 - beta).astype(np.float32).reshape(len(lot.counts), -1, most)
            share[[count < self.mixes_from for count in lot.counts]] = 1.0  # everything as it is
            partner = permutations(lot.keys_of("partner", most), self.task.batch_size)
            batch["x_share"] = lot.by_step(torch.from_numpy(share).to(lot.device))
            batch["x_partner"] = lot.by_step(partner)
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


def _others(rows: Tensor, count: int) -> Tensor:
    """The rows of `count` that are not among `rows`, which are in order."""
    numbers = torch.arange(count - len(rows), device=rows.device)
    return numbers + torch.searchsorted(rows - torch.arange(len(rows), device=rows.device), numbers, right=True)


def adjustment(labels: Tensor, num_classes: int, drawn: Tensor | None = None) -> Tensor:
    """What is added to the logits […, C] where labels […, n] are drawn: the less of log π, the fewer there are. Only
    those count that are `drawn` […, n]; None: all of them."""
    counts = class_counts(labels, num_classes, drawn)
    total = counts.sum(-1, keepdim=True)
    return (total - num_classes) / (total - num_classes + _HALF) * (counts / total).log()


def class_counts(labels: Tensor, num_classes: int, drawn: Tensor | None = None) -> Tensor:
    """How often each class is among those labels […, n] that are drawn, and one more of each: int64 […, C]."""
    once = torch.ones_like(labels) if drawn is None else drawn.to(labels.dtype).expand(labels.shape)
    return labels.new_ones(*labels.shape[:-1], num_classes).scatter_add(-1, labels, once)
