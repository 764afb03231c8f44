"""Plain cross-entropy on the given labels (empirical risk minimisation): the learner of vanilla FedAvg.

The paper calls it 'vanilla' and gives 30 local epochs; that its images are weakly augmented is our reading.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from fednoil.augment import plain, weak
from fednoil.learners.base import Client, Learner, LearnerConfig, Nets, Phase, Turn
from fednoil.learners.batches import shuffled, weak_views
from fednoil.plugins import About
from fednoil.tensors import Tensors


class ErmConfig(LearnerConfig):
    name: Literal["erm"] = "erm"


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
        chosen = shuffled(client, turn.seed.child("order"), epochs, self.task.batch_size)
        return [Phase(self.batches(client, chosen, turn, epochs))]

    def batches(self, client: Client, chosen: Tensor, turn: Turn, epochs: range) -> Tensors:
        """The batches of samples `chosen` [E · steps, size], numbered among the client's own."""
        batch = {"index": client.index[chosen], "labels": client.labels[chosen]}
        if self.task.pad or self.task.flip:
            batch["weak"] = weak_views(turn.seed.child("weak"), epochs, chosen, self.task.pad, flip=self.task.flip)
        return batch

    def views(self, pool: Tensor, batch: Tensors) -> Tensors:
        if "weak" in batch:
            return {"images": weak(pool, batch["index"], batch["weak"])}
        return {"images": plain(pool, batch["index"])}

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        return F.cross_entropy(nets["model"](batch["images"]), batch["labels"])
