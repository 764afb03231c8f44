"""Step 14: the default, which from half of the rounds on also trains on pseudo-labels.

    PYTHONPATH=experiments/default fednoil run … --set learner.name=late:Late

Each client takes as many as D^x has labels: of the samples whose given label the received model contradicts those with
the most certain predictions, which D^x then leaves out. A number instead of a threshold, because mixup makes models
unsure and memorised labels make them too sure. Their loss has the weight |D^x| / (n − |D^x|), is taken on strong views
and adjusted by how often each class is among them, as that of D^x is.

The recorded run (d2b1c94) took the predictions from two weak views and passed all other samples through the
network, too, without using them.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fednoil.augment import strong
from fednoil.learners import pseudo_labels
from fednoil.learners.base import Client, Final, Nets, Turn
from fednoil.learners.fednoil_plus import FedNoilPlus, FedNoilPlusConfig, adjustment
from fednoil.learners.labelled import Batches
from fednoil.learners.lot import Lot
from fednoil.tensors import Tensors, joined


class LateConfig(FedNoilPlusConfig):
    follows_rounds: ClassVar[bool] = True

    name: str = "late:Late"  # pyright: ignore[reportIncompatibleVariableOverride]
    late: float = Field(default=0.5, ge=0, le=1, description="share of the rounds without pseudo-labels; 1: never any")


class Late(FedNoilPlus):
    Config = LateConfig
    config: LateConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def look(self, logits: Tensor, client: Client) -> Tensors:
        found = super().look(logits, client)
        certainty, guess = found["probabilities"].max(1)
        return found | {"guess": guess, "against": certainty.where(guess != client.labels, 0.0)}

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        state = super().init(nets, client, keep, turn)
        state["votes"] = torch.zeros(len(client), self.task.num_classes, dtype=torch.int64, device=client.labels.device)
        return state

    def known(self, state: Tensors, round_idx: int) -> Tensors:
        """Also the pseudo-labels, and which of them are used; those samples have no weight in the draw of D^x."""
        known = super().known(state, round_idx)
        if round_idx <= self.config.late * self.task.rounds:
            return known
        against = state["against"]
        used = torch.zeros_like(against, dtype=torch.bool)
        used[against.topk(int(state["size"])).indices] = True
        used &= against > 0
        return {"weight": known["weight"].where(~used, 0.0), "guess": state["guess"], "used": used}

    def rest_plan(self, lot: Lot, order: Tensor, known: Tensors) -> tuple[Batches, Tensors]:
        if "used" not in known:
            return {}, {}
        used, guess, own = known["used"], known["guess"], lot.among(lot.none, lot.counts)[:, 0]
        rows = (lot.spread(used) & own).long()
        counts = tuple(rows.sum(1).tolist())
        places = rows.argsort(dim=1, descending=True, stable=True)[:, None].expand(-1, len(lot.epochs), -1)
        widths = [lot.batch_size] * len(counts)
        u = lot.batches(lot.numbered(places), lot.none, [max(1, count) for count in counts], widths, "order u")
        plan = {"u_index": lot.client.index[u], "u_labels": guess[u], "u_strong": self.strong_views(lot, u, "strong u")}
        batch = {name: lot.cut(tensor, widths) for name, tensor in plan.items()}
        shares = [count / max(1, n - size) for count, n, size in zip(counts, lot.counts, lot.sizes, strict=True)]
        lengths = [len(index) for index in batch["u_index"]]
        batch["u_weight"] = [torch.full((n,), s, device=u.device) for n, s in zip(lengths, shares, strict=True)]
        if self.config.adjust:
            parts = zip(guess.split(lot.counts), used.split(lot.counts), strict=True)
            priors = [adjustment(labels, self.task.num_classes, among) for labels, among in parts]
            batch["u_prior"] = [prior.expand(n, -1) for n, prior in zip(lengths, priors, strict=True)]
        votes = torch.zeros(len(lot.client), self.task.num_classes, dtype=torch.int64, device=u.device)
        pseudo_labels.count_votes(votes, torch.arange(len(votes), device=u.device), guess, used)
        return batch, {"votes": votes * len(lot.epochs)}

    def views(self, pool: Tensor, batch: Tensors) -> Tensors:
        images = super().views(pool, batch)
        if "u_index" in batch:
            images["u"] = strong(pool, batch["u_index"], batch["u_strong"])
        return images

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        if "u" not in batch:
            return super().step(nets, pool, batch, state, kind)
        x = self.labelled_inputs(batch)
        logits = nets["model"](joined([x, batch["u"].to(x.dtype)]))
        labelled, unlabelled = logits.split([len(x), len(batch["u"])])
        if "u_prior" in batch:
            unlabelled = unlabelled + batch["u_prior"]
        loss_u = torch.nn.functional.cross_entropy(unlabelled, batch["u_labels"])
        return self.labelled_loss(labelled, batch) + batch["u_weight"] * loss_u

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        found = super().final(nets, client, state, turn)
        found.evidence["votes"] = state["votes"]
        return found
