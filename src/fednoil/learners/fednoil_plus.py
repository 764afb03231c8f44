"""FedNoiL with ingredients of our own, each a key that can be switched on or off: what may help and stays simple.

D^x has as many samples as a client has clean labels (`frac = "auto"`). A tenth of the labels, never trained on, tells
how many these are (`aside`), and there is no room for more (`explore`): so D^x doesn't grow with the wrong labels that
are learnt by heart. A client with few labels needs them all, and estimates by all.

`mix` mixes the images and labels of D^x in pairs (mixup, Zhang et al., ICLR 2018), which makes wrong labels harder to
learn by heart. What FedNoiL leaves out of D^x is not a random rest but what the global model contradicts, and it
trains on exactly the model's opinion of it. `posterior` lets the given label have its say in the pseudo-label: with a
client's share of clean labels c, estimated as for `frac = "auto"`, each class's probability is multiplied by the
chance that such a sample would have been labelled so, c for the given class and (1 − c)/(C − 1) for others.
`balanced` draws D^x so that a class which the model finds hard is not drawn less for it. `align` moves pseudo-labels
towards the frequency of classes among the given labels (distribution alignment, Berthelot et al., ICLR 2020). The
averaged global model that goes with it in the presets is the server's (`server.average`).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fednoil.learners.base import Client
from fednoil.learners.fednoil import FedNoil
from fednoil.learners.fednoil_config import FedNoilConfig
from fednoil.plugins import About
from fednoil.seeds import Seeds, permutations
from fednoil.tensors import Tensors

_FEW = 30  # labels tell a share within 9 points, one standard deviation, at best


class FedNoilPlusConfig(FedNoilConfig):
    name: Literal["fednoil-plus"] = "fednoil-plus"  # pyright: ignore[reportIncompatibleVariableOverride]
    explore: float = Field(default=0.0, ge=0, lt=1, description=FedNoilConfig.model_fields["explore"].description)
    aside: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description=f"{FedNoilConfig.model_fields['aside'].description}; fewer than {_FEW} aren't kept out",
    )
    posterior: bool = Field(default=False, description="the given label has its say in a pseudo-label")
    balanced: bool = Field(default=False, description="D^x has each given class by its frequency, hard or not")
    mix: float = Field(default=1.0, ge=0, description="α of the Beta that mixes pairs of D^x; 0: none are mixed")
    align: bool = Field(default=False, description="pseudo-labels have classes as often as given labels")

    def at_rest(self) -> frozenset[str]:
        """Nothing was set aside before there was the key, whatever is by default."""
        rest = super().at_rest() - {"aside"}
        return rest if self.aside else rest | {"aside"}


class FedNoilPlus(FedNoil):
    Config = FedNoilPlusConfig
    config: FedNoilPlusConfig
    about = About(
        title="FedNoiL with mixup, and a D^x of the size that labels set aside tell",
        paper="this package",
        keeps="nothing",
        sends="model",
        cost="about 1 an epoch, and 3 passes over the data a round",
    )

    def set_aside(self, count: int, device: torch.device) -> Tensor:
        aside = super().set_aside(count, device)
        return aside if len(aside) >= _FEW else aside[:0]

    def judged(self, client: Client, state: Tensors) -> Tensors:
        judged = super().judged(client, state)
        if self.config.balanced:
            judged["weight"] = balanced(judged["weight"], client.labels, self.task.num_classes)
        if "taught" in judged:
            share = self.clean_share(client, state) if self.config.posterior else None
            each = judged["taught"].unbind(1) if judged["taught"].dim() == 3 else [judged["taught"]]
            each = [self._corrected(probs, client.labels, share) for probs in each]
            judged["taught"] = torch.stack(each, 1) if judged["taught"].dim() == 3 else each[0]
        return judged

    def _corrected(self, probs: Tensor, labels: Tensor, share: float | None) -> Tensor:
        """Probabilities of pseudo-labels [n, C] by what is known of the client."""
        if self.config.align:
            probs = aligned(probs, labels)
        return probs if share is None else posterior(probs, labels, share)

    def labelled_plan(
        self, client: Client, labelled: Tensor, seeds: Seeds, epochs: range, shape: tuple[int, int]
    ) -> Tensors:
        batch = super().labelled_plan(client, labelled, seeds, epochs, shape)
        if self.config.mix:
            steps, size = shape
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
        if "x_share" not in batch:
            return F.cross_entropy(logits, labels)
        share = batch["x_share"]
        other = F.cross_entropy(logits, labels[batch["x_partner"]])
        return share * F.cross_entropy(logits, labels) + (1 - share) * other


def balanced(weight: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Weights [n] scaled so that those of each given class sum up to its number of samples."""
    totals = weight.new_zeros(num_classes).scatter_add(0, labels, weight)
    counts = torch.bincount(labels, minlength=num_classes)
    return weight * (counts / totals.clamp_min(1e-12))[labels]


def posterior(probs: Tensor, labels: Tensor, share: float) -> Tensor:
    """P(class | image, given label) [n, C] from P(class | image), if a label is right with chance `share` and
    otherwise any wrong class."""
    likelihood = torch.full_like(probs, (1 - share) / (probs.shape[1] - 1)).scatter_(1, labels[:, None], share)
    return F.normalize(probs * likelihood, p=1.0, dim=1)


def aligned(probs: Tensor, labels: Tensor) -> Tensor:
    """Probabilities [n, C] whose mean is moved to the classes' frequencies among the labels [n], one more of each."""
    classes = probs.shape[1]
    wanted = (torch.bincount(labels, minlength=classes) + 1) / (len(labels) + classes)
    return F.normalize(probs * wanted / probs.mean(0).clamp_min(1e-12), p=1.0, dim=1)
