"""The method to use when nobody knows the noise: FedNoiL's labelled set, with nothing that needs to be known or tuned.

What a client believes: the model it receives judges its labels, and its confidence in them gives the most probable
share c of clean ones (`fednoil.learners.clean_share`). Where a few clients make the model it memorises their labels,
which then look clean: they estimate c on a tenth that is never trained on, unless that is fewer than 30 labels. What
the model says is corrected for the classes that the client holds, which follow from its labels and c
(`fednoil.learners.held`). D^x has a share c of the samples and is drawn anew each epoch by the confidence in the given
labels. In the second half of the rounds a client with many labels draws it by the squared odds o² that a label is
correct (`fednoil.learners.odds`), and it has the size that o²/(1 + o²) adds up to: labels that the model finds correct,
and few others to fill up a number. From the first round on this can end with one class, because a model that knows
nothing prefers some classes.

How it trains: pairs of D^x are mixed (`mix`, mixup, Zhang et al., ICLR 2018), which makes wrong labels harder to
memorise; a client with few labels mixes none, because it would learn too slowly. The loss is CE(z + s log π, y), with π
the frequencies of classes in the D^x that is drawn (`adjust`, logit adjustment, Menon et al., ICLR 2021; in a
federation FedLC, Zhang et al., ICML 2022): so a client teaches how classes look, not how many of each it has, and no
class is lost. The strength s = |D^x| / (|D^x| + 100) is low while D^x is small: a site with one class has other labels
only by mistake, and with s = 1 they would weigh as much as all the rest.
Tests and confidences use z alone.

A large network (`fednoil.scale.is_large`) memorises a small labelled set. Half of its views are therefore strong, as
they are where labels are few; in short runs, where it learns faster from weak ones, they are weak, as all others are.
In the second half of the rounds it also trains on pseudo-labels: at most as many as D^x has labels, where the client is
surest that a sample has another class than its label. A network that can't memorise would learn its own mistakes from
them.

What goes with it in the presets: clients drawn uniformly, local epochs and weight decay by the size of the network, an
average of the models over rounds (`server.average`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fednoil.learners import pseudo_labels
from fednoil.learners.base import Client, Trainee
from fednoil.learners.held import local_probabilities
from fednoil.learners.labelled import Batches, LabelledConfig, LabelledLearner
from fednoil.learners.lot import Lot
from fednoil.learners.odds import believed, odds, sharpened
from fednoil.plugins import About
from fednoil.scale import MANY
from fednoil.seeds import permutations
from fednoil.tensors import Tensors

_ASIDE = 0.1  # share of the labels that is set aside
_FEW = 30  # labels tell a share within 9 points, one standard deviation, at best
_CLIENTS = 10  # at most: so few have each made much of the model, which may have memorised their labels
_HALF = 100  # samples of D^x with which logits are adjusted by half
_LONG = 200  # local epochs of a client in the whole run, from which on a large network needs strong views
_EARLY = 0.5  # share of the rounds after which the model is believed


class FedNoilPlusConfig(LabelledConfig):
    follows_rounds: ClassVar[bool] = True

    name: Literal["fednoil-plus"] = "fednoil-plus"
    x_augment: Literal["auto", "none", "weak", "strong", "both"] = Field(
        default="auto",
        description="views of D^x; both: half of a batch each; auto: weak, but both at clients with fewer than "
        f"{MANY} labels, and for a large network if clients make at least {_LONG} local epochs each in the whole run, "
        "on average",
    )
    classes: bool = Field(
        default=True,
        description="with auto: labels are judged by how often the client holds each class, which its labels tell if "
        "any wrong class is equally likely; false where mistakes go one way, as from ill to well",
    )
    mix: float = Field(
        default=1.0,
        ge=0,
        description="α of the Beta distribution that mixes pairs of D^x at clients with at least "
        f"{MANY} labels; 0: none",
    )
    adjust: bool = Field(
        default=True,
        description="logits of D^x are adjusted by how often its labels have each class: a client teaches how classes "
        "look, not how many of each it has",
    )
    weight: Annotated[float, Field(ge=0)] | Literal["auto"] = Field(
        default="auto",
        description="with frac = auto: weight of the loss on pseudo-labels in the second half of the rounds, times "
        "their number over that of D^x or, if larger, of all others; auto: 1 for a large network, else 0",
    )


class FedNoilPlus(LabelledLearner):
    Config = FedNoilPlusConfig
    config: FedNoilPlusConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    about = About(
        title="The default: D^x by the odds that a label is correct, mixup, logit adjustment",
        paper="this package",
        keeps="nothing",
        sends="model",
        cost="less than 1 an epoch (D^x alone; twice that with pseudo-labels), and 1 pass over the data a round",
    )

    def views_for(self, count: int) -> str:
        if self.config.x_augment != "auto":
            return self.config.x_augment
        strong = self.task.large and self.task.passes >= _LONG
        return "both" if strong or count < MANY else "weak"

    @property
    def pseudo_weight(self) -> float:
        """Weight of the loss on pseudo-labels; 0: there are none."""
        if self.config.frac != "auto":
            return 0.0
        return float(self.task.large) if self.config.weight == "auto" else self.config.weight

    def believes(self, round_idx: int, count: int) -> bool:
        """Whether a client with `count` labels believes the model in this round."""
        return self.config.frac == "auto" and count >= MANY and round_idx > _EARLY * self.task.rounds

    @property
    def has_pseudo_labels(self) -> bool:
        return self.pseudo_weight > 0

    @property
    def mixes_from(self) -> int:
        """The number of labels from which on a client mixes pairs."""
        return MANY

    def set_aside(self, count: int, device: torch.device) -> Tensor:
        """Where there are few clients a tenth, spread evenly over the samples."""
        few = self.config.frac == "auto" and len(self.task.sizes) <= _CLIENTS
        numbers = torch.arange(int(_ASIDE * count) if few else 0, device=device)
        return ((numbers + 0.5) / _ASIDE).long() if len(numbers) >= _FEW else numbers[:0]

    def labelled_sizes(self, trainees: Sequence[Trainee], shares: Sequence[float]) -> list[int]:
        sizes = super().labelled_sizes(trainees, shares)
        if self.config.frac != "auto":
            return sizes
        for place, (_, client, state, turn) in enumerate(trainees):
            local = state["probabilities"]
            if self.config.classes:
                local = local_probabilities(local, client.labels, shares[place])
            local = sharpened(local, self.temperature)
            state["weight"] = local.gather(1, client.labels[:, None])[:, 0]
            if self.believes(turn.round_idx, len(client)):
                sizes[place] = self._judged(client, state, local, shares[place])
        return sizes

    def _judged(self, client: Client, state: Tensors, probabilities: Tensor, share: float) -> int:
        """|D^x| by the odds of its labels, given probabilities [n, C] at this client; the state gets the weights of the
        draw and the pseudo-labels."""
        weight = odds(probabilities, client.labels, share).square()
        aside = self.set_aside(len(client), client.labels.device)
        chance = (weight / (1 + weight)).index_fill(0, aside, 0.0)
        size = min(len(client) - len(aside), max(1, int(chance.sum() + 0.5)))
        if self.has_pseudo_labels:
            guess, certainty = believed(probabilities, client.labels, share)
            against = certainty.where(guess != client.labels, 0.0).index_fill(0, aside, 0.0)
            used = torch.zeros_like(client.labels, dtype=torch.bool)
            used[against.topk(size).indices] = True
            used &= against > 0
            state["guess"], state["used"], weight = guess, used, weight.where(~used, 0.0)
            size = max(1, min(size, len(client) - len(aside) - int(used.sum())))
        state["weight"] = weight
        return size

    def weights(self, state: Tensors) -> Tensor:
        return state.get("weight", state["confidence"])

    def known(self, state: Tensors, round_idx: int) -> Tensors:
        """With the pseudo-labels, and which of them are used, where they are trained on."""
        more = {name: state[name] for name in ("guess", "used") if name in state}
        return super().known(state, round_idx) | more

    def rest_plan(self, lot: Lot, order: Tensor, known: Tensors) -> tuple[Batches, Tensors]:
        """Batches of pseudo-labels as large as those of D^x, the same samples in each epoch, and the votes these give
        each sample. If there are fewer than one batch has, others fill it, which the mask leaves out of the loss."""
        if "used" not in known:
            return {}, {}
        used, guess, own = known["used"], known["guess"], lot.among(lot.none, lot.counts)[:, 0]
        rows = (lot.spread(used) & own).long()
        counts: list[int] = rows.sum(1).tolist()
        places = rows.argsort(dim=1, descending=True, stable=True)[:, None].expand(-1, len(lot.epochs), -1)
        widths = [lot.batch_size] * len(counts)
        chosen = [max(count, min(lot.batch_size, n)) for count, n in zip(counts, lot.counts, strict=True)]
        u = lot.batches(lot.numbered(places), lot.none, chosen, widths, "order u")
        plan = {"u_index": lot.client.index[u], "u_labels": guess[u], "u_mask": used[u]}
        plan["u_strong"] = self.strong_views(lot, u, "strong u")
        batch = {name: lot.cut(tensor, widths) for name, tensor in plan.items()}
        lengths = [len(index) for index in batch["u_index"]]
        sizes = zip(chosen, lot.counts, lot.sizes, lengths, strict=True)
        batch["u_weight"] = [
            torch.full((length,), self.pseudo_weight * count / max(size, n - size), device=u.device)
            for count, n, size, length in sizes
        ]
        if self.config.adjust:
            parts = zip(guess.split(lot.counts), used.split(lot.counts), lengths, strict=True)
            batch["u_prior"] = [
                adjustment(labels, self.task.num_classes, among).expand(length, -1) for labels, among, length in parts
            ]
        votes = torch.zeros(len(lot.client), self.task.num_classes, dtype=torch.int64, device=u.device)
        pseudo_labels.count_votes(votes, torch.arange(len(votes), device=u.device), guess, used)
        return batch, {"votes": votes * len(lot.epochs)}

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
            return self.loss_of(logits, labels)
        share = batch["x_share"]
        other = self.loss_of(logits, labels[batch["x_partner"]])
        return share * self.loss_of(logits, labels) + (1 - share) * other

    def loss_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of adjusted logits [B, C] and labels [B], of which two are mixed."""
        return F.cross_entropy(logits, labels)


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
