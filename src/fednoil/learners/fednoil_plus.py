"""The method to use when nobody knows the noise: FedNoiL's labelled set, with nothing that needs to be known or tuned.

What a client believes: the model it receives judges its labels. A tenth of them, never trained on (`aside`), says how
many of the labels are clean, and D^x has as many samples: so it doesn't grow with wrong labels that were memorised. A
client with few labels needs them all, and uses all of them for the estimate.

How it trains: D^x is drawn anew each epoch by the model's confidence in the given labels. Half of its views are weak,
half strong, and pairs of them are mixed (`mix`, mixup, Zhang et al., ICLR 2018), which makes wrong labels harder to
memorise; a client with few labels mixes none, because it would learn too slowly. The loss is CE(z + s log π, y), with π
the frequencies of classes in the D^x that is drawn (`adjust`, logit adjustment, Menon et al., ICLR 2021; in a
federation FedLC, Zhang et al., ICML 2022): so a client teaches how classes look, not how many of each it has, and no
class is lost. The strength s = |D^x| / (|D^x| + 100) is low while D^x is
small: a site with one class has other labels by mistake alone, and with s = 1 they would weigh as much as all the rest.
Tests and confidences use z alone. Labels that are not drawn are not used.

What goes with it in the presets: clients drawn uniformly, local epochs by agreement, an average of the models over
rounds (`server.average`), a weight decay of 2e-3.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fednoil.learners.base import Client
from fednoil.learners.clean_share import calibrated_share
from fednoil.learners.labelled import LabelledConfig, LabelledLearner
from fednoil.plugins import About
from fednoil.seeds import Seeds, permutations
from fednoil.tensors import Tensors

_FEW = 30  # labels tell a share within 9 points, one standard deviation, at best
_MIXING = 500  # labels from which on a client mixes (experiments/default)
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
        description="with auto: share of the labels kept out of D^x, by which alone the clean ones are counted; fewer "
        f"than {_FEW} aren't kept out",
    )
    mix: float = Field(
        default=1.0,
        ge=0,
        description=f"α of the Beta that mixes pairs of D^x, of clients with at least {_MIXING} labels; 0: none",
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
        return _MIXING

    def set_aside(self, count: int, device: torch.device) -> Tensor:
        """Spread evenly over the samples."""
        share = self.config.aside if self.config.frac == "auto" else 0.0
        numbers = torch.arange(int(share * count), device=device)
        return ((numbers + 0.5) / share).long() if len(numbers) >= _FEW else numbers[:0]

    def clean_share(self, client: Client, state: Tensors) -> float:
        """By the labels that are set aside, if some are: what was memorised doesn't count."""
        aside = self.set_aside(len(client), client.labels.device)
        if len(aside):
            return calibrated_share(state["probabilities"][aside], client.labels[aside])
        return super().clean_share(client, state)

    def labelled_plan(
        self, client: Client, labelled: Tensor, seeds: Seeds, epochs: range, shape: tuple[int, int]
    ) -> Tensors:
        batch, (steps, size) = super().labelled_plan(client, labelled, seeds, epochs, shape), shape
        if self.config.adjust:
            prior = adjustment(client.labels[labelled], self.task.num_classes)
            batch["x_prior"] = prior.repeat_interleave(steps, dim=0)
        if self.config.mix:
            generators = (seed.child("mix", e).numpy() for seed in seeds.members for e in epochs)
            beta = [generator.beta(self.config.mix, self.config.mix, steps) for generator in generators]
            share = np.maximum(beta, 1 - np.array(beta)).astype(np.float32).ravel()
            if len(client) < self.mixes_from * len(seeds.members):  # of several clients, which have equally many
                share = np.ones_like(share)  # everything as it is
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


def adjustment(labels: Tensor, num_classes: int) -> Tensor:
    """What is added to the logits [R, C] where labels [R, n] are drawn: the less of log π, the fewer there are."""
    count = labels.shape[1]
    return count / (count + _HALF) * class_prior(labels, num_classes).log()


def class_prior(labels: Tensor, num_classes: int) -> Tensor:
    """How often each class is among labels [R, n], with one more of each: rows of float32 [R, C] that sum up to 1."""
    counts = labels.new_ones(len(labels), num_classes).scatter_add(1, labels, torch.ones_like(labels))
    return counts / (labels.shape[1] + num_classes)
