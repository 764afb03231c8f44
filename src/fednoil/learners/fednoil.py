"""FedNoiL's client side (Wang et al., 2022): sample the labels that look clean, use the rest as unlabelled data.

Once a round the received global model gives each sample's confidence in its given label. Every epoch a labelled
set D^x is drawn by these confidences without replacement; the rest is the unlabelled set D^u, whose pseudo-labels
come from the same global model and are trained on strong views where they are certain enough (FixMatch, Sohn
et al., NeurIPS 2020).

The paper leaves open and we read: the batch mix (`epoch`), ξ = 0.95, λ_u = 1, two weak views. `frac = "auto"`
is ours: each client estimates its own share of clean labels.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fednoil.augment import strong, strong_plan, weak, weak_plan
from fednoil.learners.base import Client, Final, Learner, LearnerConfig, Nets, Phase, Turn, chunks
from fednoil.learners.batches import weak_views
from fednoil.learners.clean_share import clean_share
from fednoil.plugins import About
from fednoil.seeds import Seed, gumbel, permutations
from fednoil.tensors import Tensors

_TINY = 1e-12


class FedNoilConfig(LearnerConfig):
    name: Literal["fednoil"] = "fednoil"
    temperature: float = Field(default=0.5, gt=0, description="τ of the confidences that draw D^x")
    frac: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = Field(
        default="auto", description="share of a client's samples in D^x; auto: each client estimates it"
    )
    explore: float = Field(
        default=0.2, ge=0, lt=1, description="with auto: share of the labels thought wrong that D^x has room for"
    )
    balance: bool = Field(default=True, description="with auto: a small D^u weighs less, each sample as one of D^x")
    ssl: bool = Field(default=True, description="train on pseudo-labels of D^u")
    teacher: Literal["global", "local"] = "global"
    views: int = Field(default=2, ge=1, description="weak views averaged for a pseudo-label")
    xi: float = Field(default=0.95, gt=0, le=1, description="least certainty of a pseudo-label that is used")
    lambda_u: float = Field(default=1.0, ge=0, description="weight of the unlabelled loss")
    local_sampling: Literal["confidence", "uniform"] = "confidence"
    epoch: Literal["proportional", "max_cover"] = "proportional"
    ra_prob: float = Field(default=0.5, ge=0, le=1, description="chance of each RandAugment operation")


class FedNoil(Learner):
    Config = FedNoilConfig
    config: FedNoilConfig
    about = About(
        title="Confidence-sampled clean labels, FixMatch on the rest",
        paper="Wang et al., 2022 (FedNoiL)",
        keeps="nothing",
        sends="model",
        cost="about 1 an epoch, and 3 passes over the data a round",
    )

    @property
    def uses_unlabelled(self) -> bool:
        return self.config.ssl and self.config.lambda_u > 0

    @property
    def teaches_once(self) -> bool:
        """Whether the pseudo-labels are those of the received model."""
        return self.uses_unlabelled and self.config.teacher == "global"

    def asks(self, client: Client, turn: Turn) -> Tensors:
        if not self.teaches_once:
            return {}
        keys = turn.seed.child("teacher").keys(range(self.config.views), client.index.device)
        return {"weak": weak_plan(keys, len(client), self.task.pad).transpose(0, 1)}

    def survey(self, nets: Nets, client: Client, asked: Tensors) -> Tensors:
        confidence, probabilities = self.look(nets, client, self.config.temperature)
        found = {"confidence": confidence}
        if probabilities is not None:
            found["probabilities"] = probabilities
        if "weak" in asked:
            found["pseudo"], found["accepted"] = self.pseudo_labels(nets, client, asked["weak"])
        return found

    @torch.no_grad()
    def pseudo_labels(self, nets: Nets, client: Client, plans: Tensor) -> tuple[Tensor, Tensor]:
        """ŷ [n] and whether it is certain enough [n]: the mean softmax over weak views [n, views, 3] (Eq. 7–8)."""
        views = plans.shape[1]
        labels, accepted = [], []
        for rows in chunks(len(client), client.pool, views):
            index = client.index[rows].expand(views, -1)
            images = weak(client.pool, index, plans[rows].transpose(0, 1)).flatten(0, 1)
            probs = torch.softmax(nets["model"](images).float(), dim=1).unflatten(0, index.shape)
            certainty, label = probs.mean(0).max(1)
            labels.append(label)
            accepted.append(certainty >= self.config.xi)
        return torch.cat(labels), torch.cat(accepted)

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        state = {"drawn": torch.zeros_like(client.labels)}
        if self.uses_unlabelled:
            shape = (len(client), self.task.num_classes)
            state["votes"] = torch.zeros(shape, dtype=torch.int64, device=client.labels.device)
        return state

    def labelled_size(self, state: Tensors) -> int:
        """|D^x| = round(frac · n), at least one.

        `auto` leaves room for some of the labels thought wrong: a sample that θ finds hard and whose label is right
        after all gets a chance to say so. Without it, θ is taught its own mistakes with ever more certainty.
        """
        confidence, frac = state["confidence"], self.config.frac
        if frac == "auto":
            share = clean_share(confidence, self.task.num_classes)
            frac = share + self.config.explore * (1 - share)
        return min(len(confidence), max(1, int(float(frac) * len(confidence) + 0.5)))

    def unlabelled_weight(self, labelled: int, unlabelled: int) -> float:
        """1, as published; with `auto` at most |D^u|/|D^x|, lest the last few hard samples outweigh all others."""
        if self.config.frac != "auto" or not self.config.balance:
            return 1.0
        return min(1.0, unlabelled / labelled)

    def split(self, state: Tensors, size: int, seed: Seed, epochs: range) -> tuple[Tensor, Tensor]:
        """D^x [E, size] and D^u [E, n − size], drawn anew each epoch by p_{k,i} without replacement (Eq. 6)."""
        confidence = state["confidence"]
        if self.config.local_sampling == "uniform":
            confidence = torch.ones_like(confidence)
        keys = seed.child("draw").keys(epochs, confidence.device)
        race = (confidence.double() + _TINY).log() + gumbel(keys, len(confidence))
        order = race.argsort(dim=1, descending=True, stable=True)
        return order[:, :size], order[:, size:]

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        size = self.labelled_size(state)
        labelled, unlabelled = self.split(state, size, turn.seed, epochs)
        members = labelled.flatten()
        state["drawn"].scatter_add_(0, members, torch.ones_like(members))
        steps, batch_x, batch_u = self.epoch_shape(size, len(client) - size)
        device, seed, pad = client.index.device, turn.seed, self.task.pad
        x = _batches(labelled, seed.child("order x"), epochs, steps, batch_x)
        batch = {
            "x_index": client.index[x],
            "x_labels": client.labels[x],
            "x_weak": weak_views(seed.child("weak x"), epochs, x, pad),
        }
        if batch_u:
            u = _batches(unlabelled, seed.child("order u"), epochs, steps, batch_u)
            keys = seed.child("strong u").keys(epochs, device)
            views = strong_plan(keys, steps * batch_u, self.task.image_shape[1:], pad, prob=self.config.ra_prob)
            batch |= {"u_index": client.index[u], "u_strong": views.view(*u.shape, -1)}
            weight = self.config.lambda_u * self.unlabelled_weight(size, len(client) - size)
            batch["u_weight"] = torch.full((len(u),), weight, device=device)
            if self.config.teacher == "global":
                batch |= {"u_labels": state["pseudo"][u], "u_mask": state["accepted"][u]}
                everyone = unlabelled.flatten()
                _count_votes(state["votes"], everyone, state["pseudo"][everyone], state["accepted"][everyone])
            else:
                batch |= {"u_position": u, "u_first": _first_time(u, len(epochs))}
                keys = seed.child("weak u").keys(epochs, device)
                views = weak_plan(keys, steps * batch_u * self.config.views, pad)
                batch["u_weak"] = views.view(*u.shape, self.config.views, -1)
        return [Phase(batch)]

    def epoch_shape(self, labelled: int, unlabelled: int) -> tuple[int, int, int]:
        """Steps of an epoch and the sizes of its labelled and unlabelled batches."""
        size = self.task.batch_size
        if not self.uses_unlabelled or unlabelled == 0:
            return -(-labelled // size), size, 0
        if self.config.epoch == "max_cover":
            return -(-max(labelled, unlabelled) // size), size, size
        steps = -(-labelled // size)
        return steps, size, -(-unlabelled // steps)

    def views(self, pool: Tensor, batch: Tensors) -> Tensors:
        images = {"x": weak(pool, batch["x_index"], batch["x_weak"])}
        if "u_index" in batch:
            images["u"] = strong(pool, batch["u_index"], batch["u_strong"])
        if "u_weak" in batch:
            views = [weak(pool, batch["u_index"], plan) for plan in batch["u_weak"].unbind(-2)]
            images["u_taught"] = torch.stack(views, dim=-5)
        return images

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        if "u" not in batch:
            return F.cross_entropy(nets["model"](batch["x"]), batch["x_labels"])
        if self.config.teacher == "global":
            labels, mask = batch["u_labels"], batch["u_mask"]
        else:
            labels, mask = self._local_teacher(nets, batch["u_taught"])
            _count_votes(state["votes"], batch["u_position"], labels, mask & batch["u_first"])
        logits = nets["model"](torch.cat([batch["x"], batch["u"]]))
        labelled, unlabelled = logits.split([len(batch["x"]), len(batch["u"])])
        return fixmatch_loss(labelled, batch["x_labels"], unlabelled, labels, mask, batch["u_weight"])

    @torch.no_grad()
    def _local_teacher(self, nets: Nets, views: Tensor) -> tuple[Tensor, Tensor]:
        """Pseudo-labels from the local model as it is now (FixMatch's own way), by `views` [views, B, C, H, W]."""
        nets["model"].eval()
        probs = [torch.softmax(nets["model"](view).float(), dim=1) for view in views]
        nets["model"].train()
        certainty, labels = torch.stack(probs).mean(0).max(1)
        return labels, certainty >= self.config.xi

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        evidence = {name: state[name] for name in ("probabilities", "drawn", "votes") if name in state}
        return Final(evidence=evidence)


def fixmatch_loss(
    labelled: Tensor, labels: Tensor, unlabelled: Tensor, pseudo: Tensor, mask: Tensor, lambda_u: Tensor | float
) -> Tensor:
    """L_x + λ_u L_u (Eq. 7–9); the mean of L_u counts rejected samples too."""
    loss_x = F.cross_entropy(labelled, labels)
    loss_u = (F.cross_entropy(unlabelled, pseudo, reduction="none") * mask).mean()
    return loss_x + lambda_u * loss_u


def _count_votes(votes: Tensor, position: Tensor, labels: Tensor, mask: Tensor) -> None:
    """Add one to votes[position, label] [n, C] for each sample that is trained with that pseudo-label."""
    votes.view(-1).scatter_add_(0, position * votes.shape[1] + labels, mask.long())


def _first_time(rows: Tensor, epochs: int) -> Tensor:
    """Whether a sample in the batches [E · steps, size] comes for the first time in its epoch."""
    flat = rows.view(epochs, -1)
    ordered, place = flat.sort(dim=1, stable=True)
    fresh = torch.ones_like(ordered, dtype=torch.bool)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return torch.zeros_like(fresh).scatter(1, place, fresh).view(rows.shape)


def _batches(members: Tensor, seed: Seed, epochs: range, steps: int, size: int) -> Tensor:
    """Shuffle each row of `members` [E, m] into full batches [E · steps, size].

    A set that fills fewer than `steps` batches is gone through again in a new order.
    """
    rows, count = members.shape
    cycles = -(-steps * size // count)
    keys = seed.keys_of([(e, c) for e in epochs for c in range(cycles)], members.device)
    orders = permutations(keys.view(rows, cycles), count).view(rows, cycles * count)
    return members.gather(1, orders)[:, : steps * size].reshape(rows * steps, size)
