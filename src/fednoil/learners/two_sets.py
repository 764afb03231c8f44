"""What FedNoiL and its successors share: a labelled set D^x drawn by confidence, the rest as unlabelled data D^u.

An epoch goes through D^x once, and through D^u beside it. What differs between the learners are methods that a subclass
overrides: the weights of the draw, what is set aside, the views, the labelled loss.
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
from fednoil.learners.batches import shuffled_anew, side_by_side, weak_views
from fednoil.learners.clean_share import clean_share
from fednoil.learners.labelled_set import drawn_order
from fednoil.learners.looks import TEMPERATURE, confidences
from fednoil.seeds import Seeds
from fednoil.tensors import Tensors, joined

Share = Annotated[float, Field(gt=0, le=1)]


class TwoSetsConfig(LearnerConfig):
    """The keys of every learner with a D^x and a D^u."""

    fitted = frozenset({"frac"})

    frac: Share | Literal["auto"] | Annotated[tuple[Share, ...], Field(min_length=1)] = Field(
        default="auto",
        description="share of a client's samples in D^x; auto: each client estimates it; a list: one share for each "
        "of equal groups of clients",
    )
    x_augment: Literal["none", "weak", "strong", "both"] = Field(
        default="weak", description="views of D^x; both: half of a batch each"
    )
    xi: float = Field(default=0.95, gt=0, le=1, description="least certainty of a pseudo-label that is used")
    lambda_u: float = Field(default=1.0, ge=0, description="weight of the unlabelled loss; 0: no pseudo-labels")


class TwoSets(Learner):
    config: TwoSetsConfig
    temperature: ClassVar[float] = TEMPERATURE  # τ of the confidences that draw D^x
    teachers: ClassVar[int] = 2  # weak views whose mean is a pseudo-label
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

    @property
    def uses_unlabelled(self) -> bool:
        return self.config.lambda_u > 0

    def trains_on_unlabelled(self, round_idx: int) -> bool:
        return self.uses_unlabelled

    def look(self, logits: Tensor, client: Client) -> Tensors:
        confidence = confidences(logits, client.labels, self.temperature)
        return {"confidence": confidence, "probabilities": torch.softmax(logits, dim=1)}

    def asks(self, client: Client, turn: Turn) -> Tensors:
        if not self.trains_on_unlabelled(turn.round_idx):
            return {}
        keys = turn.seed.child("teacher").keys(range(self.teachers), client.index.device)
        return {"weak": weak_plan(keys, len(client), self.task.pad, flip=self.task.flip).transpose(0, 1)}

    def survey(self, nets: Nets, client: Client, asked: Tensors) -> Tensors:
        return {"taught": pseudo_labels.taught(nets["model"], client, asked["weak"])} if asked else {}

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        state = {"drawn": torch.zeros_like(client.labels)}
        if self.uses_unlabelled:
            shape = (len(client), self.task.num_classes)
            state["votes"] = torch.zeros(shape, dtype=torch.int64, device=client.labels.device)
        return state

    def weights(self, state: Tensors) -> Tensor:
        """The weight of each sample in the draw of D^x [n]."""
        return state["confidence"]

    def set_aside(self, count: int, device: torch.device) -> Tensor:
        """Places among a client's samples of the labels that never get into D^x."""
        return torch.arange(0, device=device)

    def lead(self, size: int, count: int) -> int:
        """How many of the first samples of D^x, of `size` among `count`, have each given class by its frequency."""
        return 0

    def clean_share(self, client: Client, state: Tensors) -> float:
        """The client's estimate of its share of clean labels."""
        return clean_share(state["confidence"], self.task.num_classes)

    def labelled_size(self, client: Client, state: Tensors) -> int:
        """|D^x| = round(frac · n), at least one; n is without what is set aside.

        `auto` leaves `room` for labels thought wrong: a sample that θ finds hard and whose label is right after all
        gets a chance to say so. That pays in short runs; in long ones it lets too many wrong labels in.
        """
        count, frac = len(client) - len(self.set_aside(len(client), client.labels.device)), self.config.frac
        if frac == "auto":
            share = self.clean_share(client, state)
            frac = share + self.room * (1 - share)
        elif isinstance(frac, tuple):
            frac = frac[client.id * len(frac) // len(self.task.sizes)]
        return min(count, max(1, int(float(frac) * count + 0.5)))

    def unlabelled_weight(self, labelled: int, unlabelled: int) -> float:
        """λ_u, as published; with `auto` times at most |D^u|/|D^x|, lest the last few hard samples outweigh all
        others."""
        return self.config.lambda_u * (min(1.0, unlabelled / labelled) if self.config.frac == "auto" else 1.0)

    def split(self, weight: Tensor, labels: Tensor, size: int, seeds: Seeds, epochs: range) -> tuple[Tensor, Tensor]:
        """D^x [K · E, size] and D^u [K · E, n − size] of K clients, drawn by weights [K, n] without replacement, anew
        each epoch (Eq. 6); samples are numbered one client after another. Labels [K, n] are the given ones; what is set
        aside comes last."""
        aside = self.set_aside(weight.shape[1], weight.device)
        lead = self.lead(size, weight.shape[1])
        order = drawn_order(weight, labels, seeds, epochs, aside, lead, self.task.num_classes)
        return order[:, :size], order[:, size:]

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        return TwoSets.plans(self, [Trainee(nets, client, state, turn)], epochs)[0]

    def plans(self, trainees: Sequence[Trainee], epochs: range) -> list[list[Phase]]:
        """All at once where the clients have equally many samples and labelled ones."""
        _, clients, states, turns = zip(*trainees, strict=True)
        sizes = [self.labelled_size(client, state) for client, state in zip(clients, states, strict=True)]
        if len({(len(client), size) for client, size in zip(clients, sizes, strict=True)}) == 1:
            return self._plans(clients, states, turns, epochs, sizes[0])
        alone = zip(clients, states, turns, sizes, strict=True)
        return [self._plans([client], [state], [turn], epochs, size)[0] for client, state, turn, size in alone]

    def _plans(
        self, clients: Sequence[Client], states: Sequence[Tensors], turns: Sequence[Turn], epochs: range, size: int
    ) -> list[list[Phase]]:
        """The plans of clients with n samples, `size` of them labelled. Tensors have the clients' epochs as rows, one
        client after another, and their samples are numbered in the same way."""
        everyone, count, round_idx = together(clients), len(clients[0]), turns[0].round_idx
        known = side_by_side([self.known(client, state) for client, state in zip(clients, states, strict=True)])
        seeds = Seeds(tuple(turn.seed for turn in turns))
        weight, labels = (t.view(len(clients), -1) for t in (known["weight"], everyone.labels))
        labelled, unlabelled = self.split(weight, labels, size, seeds, epochs)
        drawn = torch.zeros_like(everyone.index)
        drawn.scatter_add_(0, labelled.flatten(), torch.ones_like(labelled).flatten())
        found = {"drawn": drawn}
        steps, batch_x, batch_u = self.epoch_shape(size, count - size, self.trains_on_unlabelled(round_idx))
        batch = self.labelled_plan(everyone, labelled, seeds, epochs, (steps, batch_x), known)
        if batch_u:
            more, votes = self._unlabelled_plan(everyone, unlabelled, seeds, epochs, (steps, batch_u), known["taught"])
            weight = self.unlabelled_weight(size, count - size)
            batch |= more | {"u_weight": torch.full((len(batch["x_index"]),), weight, device=drawn.device)}
            found["votes"] = votes
        for name, total in found.items():
            for state, part in zip(states, total.split(count), strict=True):
                state[name] += part
        parts = {name: tensor.unflatten(0, (len(clients), -1)).unbind(0) for name, tensor in batch.items()}
        return [[Phase({name: part[place] for name, part in parts.items()})] for place in range(len(clients))]

    def known(self, client: Client, state: Tensors) -> Tensors:
        """What a plan needs to know of each sample: its weight, and the probabilities of its pseudo-label."""
        return {"weight": self.weights(state), **{n: state[n] for n in ("taught",) if n in state}}

    def epoch_shape(self, labelled: int, unlabelled: int, teaches: bool) -> tuple[int, int, int]:
        """Steps of an epoch and the sizes of its labelled and unlabelled batches, the latter 0 if nothing `teaches`."""
        steps = -(-labelled // self.task.batch_size)
        return steps, self.task.batch_size, -(-unlabelled // steps) if teaches else 0

    def labelled_plan(
        self, client: Client, labelled: Tensor, seeds: Seeds, epochs: range, shape: tuple[int, int], known: Tensors
    ) -> Tensors:
        """Batches of D^x [K · E, size]: `shape` is the steps of an epoch and the size of a batch."""
        x = shuffled_anew(labelled, seeds.child("order x"), epochs, *shape)
        labels = known.get("belief", client.labels)
        batch = {"x_index": client.index[x], "x_labels": labels[x]}
        if self.config.x_augment == "weak":
            batch["x_weak"] = weak_views(seeds.child("weak x"), epochs, x, self.task.pad, flip=self.task.flip)
        elif self.config.x_augment != "none":
            views = self._strong_views(seeds.child("strong x"), epochs, x)
            if self.config.x_augment == "both":  # samples are in random order, so every other one is a random half
                views[:, ::2] = weakened(views[:, ::2])
            batch["x_strong"] = views
        return batch

    def _unlabelled_plan(
        self, client: Client, unlabelled: Tensor, seeds: Seeds, epochs: range, shape: tuple[int, int], taught: Tensor
    ) -> tuple[Tensors, Tensor]:
        """Batches of D^u [K · E, n − size] with their pseudo-labels by the probabilities `taught` [K · n, C], and the
        votes these give each sample."""
        u = shuffled_anew(unlabelled, seeds.child("order u"), epochs, *shape)
        batch = {"u_index": client.index[u], "u_strong": self._strong_views(seeds.child("strong u"), epochs, u)}
        labels, accepted = pseudo_labels.decided(taught, self.config.xi)
        batch |= {"u_labels": labels[u], "u_mask": accepted[u]}
        votes = torch.zeros(len(client), self.task.num_classes, dtype=torch.int64, device=u.device)
        rows = unlabelled.flatten()
        pseudo_labels.count_votes(votes, rows, labels[rows], accepted[rows])
        return batch, votes

    def _strong_views(self, seeds: Seeds, epochs: range, chosen: Tensor) -> Tensor:
        """Parameters of a strong view for each sample of the batches `chosen` [K · E · steps, size]."""
        keys, size = seeds.keys(epochs, chosen.device), self.task.image_shape[1:]
        count, task = chosen.numel() // len(keys), self.task
        plans = strong_plan(keys, count, size, task.pad, *self.rand_augment, flip=task.flip)
        return plans.view(*chosen.shape, -1)

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

    def evened(self, batches: Sequence[Tensors]) -> Sequence[Tensors] | None:
        """By samples of D^u that are masked, up to half as many as there are."""
        return None if any("u_index" not in batch for batch in batches) else pseudo_labels.alike(batches)

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        x = self.labelled_inputs(batch)
        if "u" not in batch:
            return self.labelled_loss(nets["model"](x), batch)
        logits = nets["model"](joined([x, batch["u"].to(x.dtype)]))
        labelled, unlabelled = logits.split([len(x), len(batch["u"])])
        loss = self.labelled_loss(labelled, batch)
        loss_u = pseudo_labels.unlabelled_loss(unlabelled, batch["u_labels"], batch["u_mask"])
        return loss + batch["u_weight"] * loss_u

    def labelled_inputs(self, batch: Tensors) -> Tensor:
        """The images of D^x as the network sees them."""
        return batch["x"]

    def labelled_loss(self, logits: Tensor, batch: Tensors) -> Tensor:
        """L_x of the logits of D^x [B, C]."""
        return F.cross_entropy(logits, batch["x_labels"])

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        return Final(evidence={name: state[name] for name in ("probabilities", "drawn", "votes") if name in state})
