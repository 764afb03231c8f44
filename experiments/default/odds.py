"""Step 15: the default, which believes its model more from half of the rounds on.

    PYTHONPATH=experiments/default fednoil run … --set learner.name=odds:Odds

With c the estimated share of clean labels and g the model's confidence in a label (τ = 0.5), the label is correct with
odds o = c·g / ((1 − c)(1 − g)/(C − 1)). From then on D^x is drawn by o² and has as many samples as o²/(1 + o²) adds up
to (`sharp`): the labels that the model finds correct, and few others to fill up a number. From the first round on this
ends with one class, because a model that knows nothing prefers some classes.

With `pseudo` as many pseudo-labels as D^x has labels are trained on from then on, as in step 14, but chosen by what a
client believes: the probabilities times the chance of the given label.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from late import Late, LateConfig
from pydantic import Field

from fednoil.learners.base import Client, Trainee
from fednoil.tensors import Tensors


class OddsConfig(LateConfig):
    name: str = "odds:Odds"  # pyright: ignore[reportIncompatibleVariableOverride]
    sharp: bool = Field(default=True, description="D^x by odds")
    pseudo: bool = Field(default=True, description="pseudo-labels")


class Odds(Late):
    Config = OddsConfig
    config: OddsConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def _sizes(self, trainees: Sequence[Trainee]) -> list[int]:
        first = all("size" not in one.state for one in trainees)
        sizes = super()._sizes(trainees)
        if not first or trainees[0].turn.round_idx <= self.config.late * self.task.rounds:
            return sizes
        shares = self.clean_shares([one.client for one in trainees], [one.state for one in trainees])
        for one, share in zip(trainees, shares, strict=True):
            self._believe(one.client, one.state, share)
        return [int(one.state["size"]) for one in trainees]

    def _believe(self, client: Client, state: Tensors, share: float) -> None:
        share = min(max(share, 1e-3), 1 - 1e-3)
        other = (1 - share) / (self.task.num_classes - 1)
        p = torch.softmax(state["probabilities"].double().clamp_min(1e-300).log() / self.temperature, 1)
        g = p.gather(1, client.labels[:, None])[:, 0].clamp(1e-9, 1 - 1e-9)
        weight = (share * g / (other * (1 - g))) ** 2
        belief = p * torch.full_like(p, other).scatter(1, client.labels[:, None], share)
        certainty, state["guess"] = (belief / belief.sum(1, keepdim=True)).max(1)
        state["against"] = certainty.where(state["guess"] != client.labels, 0.0).float()
        if not self.config.pseudo:
            state["against"] = torch.zeros_like(state["against"])
        if self.config.sharp:
            state["confidence"] = weight.clamp(1e-9, 1e9).float()
            chance = weight / (1 + weight)
            aside = self.set_aside(len(client), client.labels.device)
            chance[aside] = 0
            size = min(len(client) - len(aside), max(1, int(chance.sum() + 0.5)))
            state["size"] = torch.tensor(size)

    def known(self, state: Tensors, round_idx: int) -> Tensors:
        known = super().known(state, round_idx)
        return known if self.config.pseudo else {"weight": known["weight"]}
