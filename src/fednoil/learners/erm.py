"""Plain cross-entropy on the given labels (empirical risk minimisation): the learner of vanilla FedAvg.

The paper calls it 'vanilla' and gives 30 local epochs; that its images are weakly augmented is our reading.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from fednoil.augment import plain, weak, weak_plan
from fednoil.learners.base import Client, Learner, LearnerConfig, Nets, Phase, Turn
from fednoil.learners.batches import full_batches
from fednoil.plugins import About
from fednoil.seeds import permutations
from fednoil.tensors import Tensors


class ErmConfig(LearnerConfig):
    name: Literal["erm"] = "erm"
    augment: Literal["weak", "none"] = "weak"


class Erm(Learner):
    Config = ErmConfig
    config: ErmConfig
    about = About(
        title="Cross-entropy on the given labels",
        paper="McMahan et al., AISTATS 2017",
        keeps="nothing",
        sends="model",
        cost="1",
    )

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        device = client.index.device
        keys = turn.seed.child("order").keys(epochs, device)
        chosen = full_batches(permutations(keys, len(client)), self.task.batch_size).flatten(0, 1)
        batch = {"index": client.index[chosen], "labels": client.labels[chosen]}
        if self.config.augment == "weak":
            views = weak_plan(
                turn.seed.child("weak").keys(epochs, device), chosen.numel() // len(epochs), self.task.pad
            )
            batch["weak"] = views.view(*chosen.shape, -1)
        return [Phase(batch)]

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        if self.config.augment == "weak":
            images = weak(pool, batch["index"], batch["weak"])
        else:
            images = plain(pool, batch["index"])
        return F.cross_entropy(nets["model"](images), batch["labels"])
