"""What FedNoiL and its successor share: a labelled set D^x, drawn again in each epoch by confidence in the given
labels.

An epoch goes through D^x once. What differs between the learners are methods that a subclass overrides: the weights of
the draw, what is set aside, the labelled loss, what is done with the rest. If that is trained on with pseudo-labels,
the names in its batches begin with `u`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fednoil.augment import plain, strong, strong_plan, weak, weak_plan, weakened
from fednoil.errors import UserError
from fednoil.learners import pseudo_labels
from fednoil.learners.base import Client, Final, Learner, LearnerConfig, Nets, Phase, Task, Trainee, Turn, together
from fednoil.learners.batches import side_by_side
from fednoil.learners.clean_share import clean_shares
from fednoil.learners.labelled_set import drawn_order
from fednoil.learners.looks import TEMPERATURE, confidences
from fednoil.learners.lot import Lot, lots
from fednoil.seeds import Seeds
from fednoil.tensors import Tensors, joined

Share = Annotated[float, Field(gt=0, le=1)]
Batches = dict[str, list[Tensor]]  # of each client of a lot, [E · steps, …]


class LabelledConfig(LearnerConfig):
    """The keys of every learner with a D^x."""

    fitted = frozenset({"frac"})

    frac: Share | Literal["auto"] | Annotated[tuple[Share, ...], Field(min_length=1)] = Field(
        default="auto",
        description="share of a client's samples in D^x; auto: each client estimates it; a list: one share for each "
        "of equal groups of clients",
    )
    x_augment: Literal["none", "weak", "strong", "both"] = Field(
        default="weak", description="views of D^x; both: half of a batch each"
    )


class LabelledLearner(Learner):
    config: LabelledConfig
    temperature: ClassVar[float] = TEMPERATURE  # τ of the confidences that draw D^x
    # With `frac = "auto"`: share of the labels thought wrong that D^x has room for.
    room: ClassVar[float] = 0.0

    def __init__(self, config: LearnerConfig, task: Task) -> None:
        super().__init__(config, task)
        frac = self.config.frac
        if isinstance(frac, tuple) and len(frac) > len(task.sizes):
            raise UserError(
                f"learner.frac = {list(frac)}: {len(frac)} shares for {len(task.sizes)} clients; give one share, or at "
                "most one for each client"
            )

    @property
    def rand_augment(self) -> tuple[int, float]:
        """Operations of a strong view, and the chance of each."""
        return 2, 0.5

    def views_for(self, count: int) -> str:
        """Which views of D^x the network of a client with `count` samples sees."""
        return self.config.x_augment

    def look(self, logits: Tensor, client: Client) -> Tensors:
        confidence = confidences(logits, client.labels, self.temperature)
        return {"confidence": confidence, "probabilities": torch.softmax(logits, dim=1)}

    @property
    def has_pseudo_labels(self) -> bool:
        """Whether some rounds train on them."""
        return False

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        state = {"drawn": torch.zeros_like(client.labels)}
        if self.has_pseudo_labels:
            state["votes"] = state["drawn"].new_zeros(len(client), self.task.num_classes)
        return state

    def weights(self, state: Tensors) -> Tensor:
        """The weight of each sample in the draw of D^x [n]."""
        return state["confidence"]

    def set_aside(self, count: int, device: torch.device) -> Tensor:
        """Places among a client's samples of the labels that never get into D^x."""
        return torch.arange(0, device=device)

    def clean_shares(self, clients: Sequence[Client], states: Sequence[Tensors]) -> list[float]:
        """Each client's estimate of its share of clean labels: by those set aside, if there are some, because what was
        memorised looks clean."""
        confidences = []
        for client, state in zip(clients, states, strict=True):
            aside = self.set_aside(len(client), client.labels.device)
            confidences.append(state["confidence"][aside] if len(aside) else state["confidence"])
        return clean_shares(confidences, self.task.num_classes)

    def shares(self, clients: Sequence[Client], states: Sequence[Tensors]) -> list[float]:
        """The share of each client's samples that D^x has.

        `auto` leaves `room` for labels thought wrong: a hard sample whose label is correct after all gets a chance to
        show it. This helps in short runs; in long ones it lets too many wrong labels in.
        """
        frac, groups = self.config.frac, len(self.task.sizes)
        if frac == "auto":
            return [share + self.room * (1 - share) for share in self.clean_shares(clients, states)]
        if isinstance(frac, tuple):
            last = groups - 1  # sites that come later have higher numbers
            return [frac[min(client.id, last) * len(frac) // groups] for client in clients]
        return [frac] * len(clients)

    def labelled_sizes(self, trainees: Sequence[Trainee], shares: Sequence[float]) -> list[int]:
        """|D^x| = round(share · n) of each client, at least one; n is without what is set aside."""
        sizes = [len(one.client) for one in trainees]
        counts = [n - len(self.set_aside(n, torch.device("cpu"))) for n in sizes]
        return [min(n, max(1, int(share * n + 0.5))) for n, share in zip(counts, shares, strict=True)]

    def _sizes(self, trainees: Sequence[Trainee]) -> list[int]:
        """The same, once a turn: the state keeps it."""
        new = [one for one in trainees if "size" not in one.state]
        shares = self.shares([one.client for one in new], [one.state for one in new]) if new else []
        sizes = self.labelled_sizes(new, shares) if new else []
        for one, size in zip(new, sizes, strict=True):
            one.state["size"] = torch.tensor(size)  # on the host, which alone uses it
        return [int(one.state["size"]) for one in trainees]

    def order(self, lot: Lot, weight: Tensor) -> Tensor:
        """Orders [K, E, n] of each client's samples, in which D^x comes first: drawn by weights [K, n] without
        replacement, again in each epoch (Eq. 6)."""
        return drawn_order(weight, lot.keys("draw"), self._late(lot))

    def _late(self, lot: Lot) -> Tensor | None:
        """What never gets into D^x [K, n]: labels that are set aside, and at the very end what is no sample."""
        late = torch.zeros(len(lot.counts), max(lot.counts), dtype=torch.uint8)
        for row, count in zip(late, lot.counts, strict=True):
            row[self.set_aside(count, late.device)] = 1
            row[count:] = 2
        return late.to(lot.device, non_blocking=True) if bool(late.any()) else None

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        return LabelledLearner.plans(self, [Trainee(nets, client, state, turn)], epochs)[0]

    def plans(self, trainees: Sequence[Trainee], epochs: range) -> list[list[Phase]]:
        """Clients of about the same size, with the same kind of views and knowledge, at once."""
        sizes = self._sizes(trainees)
        counts = [len(one.client) for one in trainees]
        known = [self.known(one.state, one.turn.round_idx) for one in trainees]
        kinds = [(self.views_for(count), *own) for count, own in zip(counts, known, strict=True)]
        found: dict[int, Phase] = {}
        for places in lots(counts, sizes, kinds):
            ones, own = [trainees[place] for place in places], tuple(sizes[place] for place in places)
            planned = self._planned(ones, own, side_by_side([known[place] for place in places]), epochs)
            found |= dict(zip(places, planned, strict=True))
        return [[found[place]] for place in range(len(trainees))]

    def _planned(
        self, trainees: Sequence[Trainee], sizes: tuple[int, ...], known: Tensors, epochs: range
    ) -> list[Phase]:
        _, clients, states, turns = zip(*trainees, strict=True)
        seeds, counts = Seeds(tuple(turn.seed for turn in turns)), tuple(map(len, clients))
        lot = Lot(together(clients), counts, sizes, seeds, epochs, self.task.batch_size)
        order = lot.numbered(self.order(lot, lot.spread(known["weight"])))
        drawn, labelled = torch.zeros_like(lot.client.index), order[..., : max(sizes)]
        chosen = lot.among(lot.none, sizes).long().expand(labelled.shape)
        drawn.scatter_add_(0, labelled.flatten(), chosen.flatten())
        batch = self.labelled_plan(lot, order)
        more, found = self.rest_plan(lot, order, known)
        batch |= more
        found["drawn"] = drawn
        for name, total in found.items():
            for state, part in zip(states, total.split(counts), strict=True):
                state[name] += part
        return [Phase({name: parts[place] for name, parts in batch.items()}) for place in range(len(clients))]

    def known(self, state: Tensors, round_idx: int) -> Tensors:
        """What a plan needs to know about each sample: its weight."""
        return {"weight": self.weights(state)}

    def rest_plan(self, lot: Lot, order: Tensor, known: Tensors) -> tuple[Batches, Tensors]:
        """Batches of what is not in D^x, in as many steps an epoch, and what is counted for each sample [N, …]; here
        neither."""
        return {}, {}

    def labelled_plan(self, lot: Lot, order: Tensor) -> Batches:
        """Batches of D^x, the beginning of the orders [K, E, n] of numbered samples."""
        widths, task = [self.task.batch_size] * len(lot.counts), self.task
        x = lot.batches(order, lot.none, lot.sizes, widths, "order x")
        batch = {"x_index": lot.client.index[x], "x_labels": lot.client.labels[x]}
        augment = self.views_for(lot.counts[0])  # the same for all of them (`plans`)
        if augment == "weak":
            batch["x_weak"] = weak_plan(lot.keys("weak x"), x.shape[2], task.pad, flip=task.flip)
        elif augment != "none":
            views = self.strong_views(lot, x, "strong x")
            if augment == "both":  # samples are in random order, so every other one is a random half
                even = (torch.arange(x.shape[2], device=x.device) % task.batch_size % 2 == 0)[:, None]
                views = torch.where(even, weakened(views), views)
            batch["x_strong"] = views
        return {name: lot.cut(plan, widths) for name, plan in batch.items()}

    def strong_views(self, lot: Lot, chosen: Tensor, name: str) -> Tensor:
        """Parameters of a strong view for each of the samples `chosen` [K, E, P]."""
        size, task = self.task.image_shape[1:], self.task
        return strong_plan(lot.keys(name), chosen.shape[2], size, task.pad, *self.rand_augment, flip=task.flip)

    def views(self, pool: Tensor, batch: Tensors) -> Tensors:
        if "x_weak" in batch:
            images = {"x": weak(pool, batch["x_index"], batch["x_weak"])}
        elif "x_strong" in batch:
            images = {"x": strong(pool, batch["x_index"], batch["x_strong"])}
        else:
            images = {"x": plain(pool, batch["x_index"])}
        if "u_index" in batch:
            images["u"] = strong(pool, batch["u_index"], batch["u_strong"])
        return images

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        x = self.labelled_inputs(batch)
        if "u" not in batch:
            return self.labelled_loss(nets["model"](x), batch)
        logits = nets["model"](joined([x, batch["u"].to(x.dtype)]))
        labelled, unlabelled = logits.split([len(x), len(batch["u"])])
        if "u_prior" in batch:
            unlabelled = unlabelled + batch["u_prior"]
        loss_u = pseudo_labels.unlabelled_loss(unlabelled, batch["u_labels"], batch["u_mask"])
        return self.labelled_loss(labelled, batch) + batch["u_weight"] * loss_u

    def labelled_inputs(self, batch: Tensors) -> Tensor:
        """The images of D^x as the network sees them."""
        return batch["x"]

    def labelled_loss(self, logits: Tensor, batch: Tensors) -> Tensor:
        """L_x of the logits of D^x [B, C]."""
        return F.cross_entropy(logits, batch["x_labels"])

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        """The votes are those that pseudo-labels gave each sample [n, C]."""
        return Final(evidence={name: state[name] for name in ("probabilities", "drawn", "votes") if name in state})
