"""What FedNoiL and its successor share: a labelled set D^x, drawn again in each epoch by confidence in the given
labels.

An epoch goes through D^x once. What differs between the learners are methods that a subclass overrides: the weights of
the draw, what is set aside, the labelled loss, what is done with the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fednoil.augment import plain, strong, strong_plan, weak, weakened
from fednoil.errors import UserError
from fednoil.learners.base import Client, Final, Learner, LearnerConfig, Nets, Phase, Task, Trainee, Turn, together
from fednoil.learners.batches import shuffled_anew, side_by_side, weak_views
from fednoil.learners.clean_share import clean_share
from fednoil.learners.labelled_set import drawn_order
from fednoil.learners.looks import TEMPERATURE, confidences
from fednoil.seeds import Seeds
from fednoil.tensors import Tensors

Share = Annotated[float, Field(gt=0, le=1)]


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

    def look(self, logits: Tensor, client: Client) -> Tensors:
        confidence = confidences(logits, client.labels, self.temperature)
        return {"confidence": confidence, "probabilities": torch.softmax(logits, dim=1)}

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        return {"drawn": torch.zeros_like(client.labels)}

    def weights(self, state: Tensors) -> Tensor:
        """The weight of each sample in the draw of D^x [n]."""
        return state["confidence"]

    def set_aside(self, count: int, device: torch.device) -> Tensor:
        """Places among a client's samples of the labels that never get into D^x."""
        return torch.arange(0, device=device)

    def clean_share(self, client: Client, state: Tensors) -> float:
        """The client's estimate of its share of clean labels."""
        return clean_share(state["confidence"], self.task.num_classes)

    def labelled_size(self, client: Client, state: Tensors) -> int:
        """|D^x| = round(frac · n), at least one; n is without what is set aside.

        `auto` leaves `room` for labels thought wrong: a hard sample whose label is correct after all gets a chance to
        show it. This helps in short runs; in long ones it lets too many wrong labels in.
        """
        count, frac = len(client) - len(self.set_aside(len(client), client.labels.device)), self.config.frac
        if frac == "auto":
            share = self.clean_share(client, state)
            frac = share + self.room * (1 - share)
        elif isinstance(frac, tuple):
            frac = frac[client.id * len(frac) // len(self.task.sizes)]
        return min(count, max(1, int(float(frac) * count + 0.5)))

    def _size(self, client: Client, state: Tensors) -> int:
        """The same, once a turn: the state keeps it."""
        if "size" not in state:
            state["size"] = torch.tensor(self.labelled_size(client, state))  # on the host, which alone uses it
        return int(state["size"])

    def split(self, weight: Tensor, labels: Tensor, size: int, seeds: Seeds, epochs: range) -> tuple[Tensor, Tensor]:
        """D^x [K · E, size] and the rest [K · E, n − size] of K clients, drawn by weights [K, n] without replacement,
        again in each epoch (Eq. 6); samples are numbered one client after another. Labels [K, n] are the given ones;
        what is set aside comes last."""
        order = drawn_order(weight, seeds, epochs, self.set_aside(weight.shape[1], weight.device))
        return order[:, :size], order[:, size:]

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        return LabelledLearner.plans(self, [Trainee(nets, client, state, turn)], epochs)[0]

    def plans(self, trainees: Sequence[Trainee], epochs: range) -> list[list[Phase]]:
        """All at once if the clients have the same number of samples and of labelled ones."""
        _, clients, states, turns = zip(*trainees, strict=True)
        sizes = [self._size(client, state) for client, state in zip(clients, states, strict=True)]
        if len({(len(client), size) for client, size in zip(clients, sizes, strict=True)}) == 1:
            return self._plans(clients, states, turns, epochs, sizes[0])
        alone = zip(clients, states, turns, sizes, strict=True)
        return [self._plans([client], [state], [turn], epochs, size)[0] for client, state, turn, size in alone]

    def _plans(
        self, clients: Sequence[Client], states: Sequence[Tensors], turns: Sequence[Turn], epochs: range, size: int
    ) -> list[list[Phase]]:
        """The plans of clients with n samples, `size` of them labelled. Tensors have the clients' epochs as rows, one
        client after another, and their samples are numbered in the same way."""
        everyone, count = together(clients), len(clients[0])
        known = side_by_side([self.known(state, turns[0].round_idx) for state in states])
        seeds = Seeds(tuple(turn.seed for turn in turns))
        weight, labels = (t.view(len(clients), -1) for t in (known["weight"], everyone.labels))
        labelled, rest = self.split(weight, labels, size, seeds, epochs)
        drawn = torch.zeros_like(everyone.index)
        drawn.scatter_add_(0, labelled.flatten(), torch.ones_like(labelled).flatten())
        steps = -(-size // self.task.batch_size)
        batch = self.labelled_plan(everyone, labelled, seeds, epochs, (steps, self.task.batch_size))
        more, found = self.rest_plan(everyone, rest, seeds, epochs, steps, known)
        batch |= more
        found["drawn"] = drawn
        for name, total in found.items():
            for state, part in zip(states, total.split(count), strict=True):
                state[name] += part
        parts = {name: tensor.unflatten(0, (len(clients), -1)).unbind(0) for name, tensor in batch.items()}
        return [[Phase({name: part[place] for name, part in parts.items()})] for place in range(len(clients))]

    def known(self, state: Tensors, round_idx: int) -> Tensors:
        """What a plan needs to know about each sample: its weight."""
        return {"weight": self.weights(state)}

    def rest_plan(
        self, client: Client, rest: Tensor, seeds: Seeds, epochs: range, steps: int, known: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Batches of what is not in D^x [K · E, n − size], in as many steps per epoch, and what is counted for each
        sample; here neither."""
        return {}, {}

    def labelled_plan(
        self, client: Client, labelled: Tensor, seeds: Seeds, epochs: range, shape: tuple[int, int]
    ) -> Tensors:
        """Batches of D^x [K · E, size]: `shape` is the steps of an epoch and the size of a batch."""
        x = shuffled_anew(labelled, seeds.child("order x"), epochs, *shape)
        batch = {"x_index": client.index[x], "x_labels": client.labels[x]}
        if self.config.x_augment == "weak":
            batch["x_weak"] = weak_views(seeds.child("weak x"), epochs, x, self.task.pad, flip=self.task.flip)
        elif self.config.x_augment != "none":
            views = self.strong_views(seeds.child("strong x"), epochs, x)
            if self.config.x_augment == "both":  # samples are in random order, so every other one is a random half
                views[:, ::2] = weakened(views[:, ::2])
            batch["x_strong"] = views
        return batch

    def strong_views(self, seeds: Seeds, epochs: range, chosen: Tensor) -> Tensor:
        """Parameters of a strong view for each sample of the batches `chosen` [K · E · steps, size]."""
        keys, size = seeds.keys(epochs, chosen.device), self.task.image_shape[1:]
        count, task = chosen.numel() // len(keys), self.task
        plans = strong_plan(keys, count, size, task.pad, *self.rand_augment, flip=task.flip)
        return plans.view(*chosen.shape, -1)

    def views(self, pool: Tensor, batch: Tensors) -> Tensors:
        if "x_weak" in batch:
            return {"x": weak(pool, batch["x_index"], batch["x_weak"])}
        if "x_strong" in batch:
            return {"x": strong(pool, batch["x_index"], batch["x_strong"])}
        return {"x": plain(pool, batch["x_index"])}

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        return self.labelled_loss(nets["model"](self.labelled_inputs(batch)), batch)

    def labelled_inputs(self, batch: Tensors) -> Tensor:
        """The images of D^x as the network sees them."""
        return batch["x"]

    def labelled_loss(self, logits: Tensor, batch: Tensors) -> Tensor:
        """L_x of the logits of D^x [B, C]."""
        return F.cross_entropy(logits, batch["x_labels"])

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        return Final(evidence={name: state[name] for name in ("probabilities", "drawn")})
