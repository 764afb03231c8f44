"""FedNoiL's client side (Wang et al., 2022): sample the labels that look clean, use the rest as unlabelled data.

Once a round the received global model gives each sample's confidence in its given label. Every epoch a labelled
set D^x is drawn by these confidences without replacement; the rest is the unlabelled set D^u, whose pseudo-labels
come from the same global model and are trained on strong views where they are certain enough (FixMatch, Sohn
et al., NeurIPS 2020).

The paper leaves open and we read: the batch mix (`epoch`), ξ = 0.95, λ_u = 1, two weak views, hard pseudo-labels, weak
views of D^x; keys let each be read otherwise. `frac = "auto"` is ours: each client estimates its own share of clean
labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fednoil.augment import plain, strong, strong_plan, weak, weak_plan
from fednoil.errors import UserError
from fednoil.learners import pseudo_labels
from fednoil.learners.base import (
    Client,
    Final,
    Learner,
    LearnerConfig,
    Nets,
    Phase,
    Task,
    Trainee,
    Turn,
    chunks,
    together,
)
from fednoil.learners.batches import shuffled_anew, side_by_side, weak_views
from fednoil.learners.clean_share import calibrated_share, clean_share
from fednoil.learners.fednoil_config import FedNoilConfig
from fednoil.learners.labelled_set import drawn_order
from fednoil.plugins import About
from fednoil.seeds import Seeds
from fednoil.tensors import Tensors, joined

_FLOOR = 0.5  # of a class's share of D^x, with draw = "floor"


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

    def __init__(self, config: LearnerConfig, task: Task) -> None:
        super().__init__(config, task)
        frac = self.config.frac
        if isinstance(frac, tuple) and len(frac) > len(task.sizes):
            raise UserError(
                f"learner.frac = {list(frac)}: {len(frac)} shares for {len(task.sizes)} clients; give one share, or at "
                "most one for each client"
            )

    @property
    def uses_unlabelled(self) -> bool:
        return self.config.ssl and self.config.lambda_u > 0

    def trains_on_unlabelled(self, round_idx: int) -> bool:
        return self.uses_unlabelled and round_idx >= self.config.ssl_start

    def asks(self, client: Client, turn: Turn) -> Tensors:
        asked: Tensors = {}
        if self.config.teacher == "global" and self.trains_on_unlabelled(turn.round_idx):
            keys = turn.seed.child("teacher").keys(range(self.config.views), client.index.device)
            asked["weak"] = weak_plan(keys, len(client), self.task.pad).transpose(0, 1)
        if self.config.frac == "auto" and self.config.estimate == "strong":
            one_epoch, everything = range(1), torch.arange(len(client), device=client.index.device)
            asked["strong"] = self._strong_views(Seeds((turn.seed.child("estimate"),)), one_epoch, everything)
        return asked

    def survey(self, nets: Nets, client: Client, asked: Tensors) -> Tensors:
        confidence, probabilities = self.look(nets, client, self.config.temperature)
        found = {"confidence": confidence}
        if probabilities is not None:
            found["probabilities"] = probabilities
        if "weak" in asked:
            temperature, mean = self.config.pseudo_temperature, self.config.views_as == "mean"
            found["taught"] = pseudo_labels.taught(nets["model"], client, asked["weak"], temperature, mean=mean)
        if "strong" in asked:
            found["strongly"] = self.strongly(nets, client, asked["strong"])
        return found

    @torch.no_grad()
    def strongly(self, nets: Nets, client: Client, plans: Tensor) -> Tensor:
        """The class probabilities of one strong view of each sample, which tells labels learnt by heart: [n, C]."""
        views = (strong(client.pool, client.index[rows], plans[rows]) for rows in chunks(len(client), client.pool))
        return torch.cat([torch.softmax(nets["model"](images).float(), dim=1) for images in views])

    def judged(self, client: Client, state: Tensors) -> Tensors:
        """What a plan needs to know of each sample: its `weight` in the draw of D^x and, with a global teacher, the
        probabilities of its pseudo-label, `taught` (as `pseudo_labels.taught` has them)."""
        weight = state["confidence"]
        if self.config.local_sampling == "uniform":
            weight = torch.ones_like(weight)
        return {"weight": weight, **({"taught": state["taught"]} if "taught" in state else {})}

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        state = {"drawn": torch.zeros_like(client.labels)}
        if self.uses_unlabelled:
            shape = (len(client), self.task.num_classes)
            state["votes"] = torch.zeros(shape, dtype=torch.int64, device=client.labels.device)
        return state

    def set_aside(self, count: int, device: torch.device) -> Tensor:
        """Positions of the labels that never get into D^x, spread evenly over a client's samples."""
        share = self.config.aside if self.config.frac == "auto" else 0.0
        numbers = torch.arange(int(share * count), device=device)
        return ((numbers + 0.5) / share).long() if share else numbers

    def clean_share(self, client: Client, state: Tensors) -> float:
        """The client's estimate of its share of clean labels: by strong views if the survey has them, and by those
        labels alone that are set aside, if some are. Either way what was learnt by heart doesn't count."""
        aside = self.set_aside(len(client), client.labels.device)
        chosen = aside if len(aside) else slice(None)
        probabilities = state.get("strongly", state.get("probabilities") if len(aside) else None)
        if probabilities is None:
            return clean_share(state["confidence"][chosen], self.task.num_classes)
        return calibrated_share(probabilities[chosen], client.labels[chosen])

    def labelled_size(self, client: Client, state: Tensors, round_idx: int) -> int:
        """|D^x| = round(frac · n), at least one; everything during the warm-up. n is without what is set aside.

        `auto` leaves room for `explore` of the labels thought wrong: a sample that θ finds hard and whose label is
        right after all gets a chance to say so. That pays in short runs; in long ones it lets too many wrong labels in.
        """
        count, frac = len(client) - len(self.set_aside(len(client), client.labels.device)), self.config.frac
        if round_idx <= self.config.warmup:
            return count
        if frac == "auto":
            share = self.clean_share(client, state)
            frac = share + self.config.explore * (1 - share)
        elif isinstance(frac, tuple):
            frac = frac[client.id * len(frac) // len(self.task.sizes)]
        return min(count, max(1, int(float(frac) * count + 0.5)))

    def unlabelled_weight(self, labelled: int, unlabelled: int, round_idx: int) -> float:
        """λ_u, as published; with `auto` times at most |D^u|/|D^x|, lest the last few hard samples outweigh all
        others."""
        so_far = round_idx - self.config.ssl_start + 1
        weight = self.config.lambda_u * (min(1.0, so_far / self.config.ramp) if self.config.ramp else 1.0)
        if self.config.frac != "auto" or not self.config.balance:
            return weight
        return weight * min(1.0, unlabelled / labelled)

    def split(self, weight: Tensor, labels: Tensor, size: int, seeds: Seeds, epochs: range) -> tuple[Tensor, Tensor]:
        """D^x [K · E, size] and D^u [K · E, n − size] of K clients, drawn by weights [K, n] without replacement, anew
        each epoch (Eq. 6); samples are numbered one client after another. Labels [K, n] are the given ones; what is set
        aside comes last."""
        names = epochs if self.config.redraw == "epoch" else [0] * len(epochs)
        lead = {"client": 0, "class": weight.shape[1], "floor": int(_FLOOR * size + 0.5)}[self.config.draw]
        aside = self.set_aside(weight.shape[1], weight.device)
        order = drawn_order(weight, labels, seeds, names, aside, lead, self.task.num_classes)
        return order[:, :size], order[:, size:]

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        return self._plans([client], [state], [turn], epochs, self.labelled_size(client, state, turn.round_idx))[0]

    def plans(self, trainees: Sequence[Trainee], epochs: range) -> list[list[Phase]]:
        """All at once where the clients have equally many samples and labelled ones."""
        if type(self).plan is not FedNoil.plan:
            return super().plans(trainees, epochs)
        _, clients, states, turns = zip(*trainees, strict=True)
        sizes = [
            self.labelled_size(client, state, turn.round_idx)
            for client, state, turn in zip(clients, states, turns, strict=True)
        ]
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
        judged = side_by_side([self.judged(client, state) for client, state in zip(clients, states, strict=True)])
        seeds = Seeds(tuple(turn.seed for turn in turns))
        weight, labels = (t.view(len(clients), -1) for t in (judged["weight"], everyone.labels))
        labelled, unlabelled = self.split(weight, labels, size, seeds, epochs)
        drawn = torch.zeros_like(everyone.index)
        drawn.scatter_add_(0, labelled.flatten(), torch.ones_like(labelled).flatten())
        found = {"drawn": drawn}
        steps, batch_x, batch_u = self.epoch_shape(size, count - size, self.trains_on_unlabelled(round_idx))
        batch = self.labelled_plan(everyone, labelled, seeds, epochs, (steps, batch_x))
        if batch_u:
            weight = self.unlabelled_weight(size, count - size, round_idx)
            batch["u_weight"] = torch.full((len(batch["x_index"]),), weight, device=drawn.device)
            more, votes = self._unlabelled_plan(everyone, unlabelled, seeds, epochs, (steps, batch_u), judged)
            batch |= more
            found |= votes
        for name, total in found.items():
            for state, part in zip(states, total.split(count), strict=True):
                state[name] += part
        parts = {name: tensor.unflatten(0, (len(clients), -1)).unbind(0) for name, tensor in batch.items()}
        return [[Phase({name: part[place] for name, part in parts.items()})] for place in range(len(clients))]

    def labelled_plan(
        self, client: Client, labelled: Tensor, seeds: Seeds, epochs: range, shape: tuple[int, int]
    ) -> Tensors:
        """Batches of D^x [K · E, size]: `shape` is the steps of an epoch and the size of a batch."""
        x = shuffled_anew(labelled, seeds.child("order x"), epochs, *shape)
        batch = {"x_index": client.index[x], "x_labels": client.labels[x]}
        if self.config.x_augment == "weak":
            batch["x_weak"] = weak_views(seeds.child("weak x"), epochs, x, self.task.pad)
        elif self.config.x_augment == "strong":
            batch["x_strong"] = self._strong_views(seeds.child("strong x"), epochs, x)
        return batch

    def _unlabelled_plan(
        self, client: Client, unlabelled: Tensor, seeds: Seeds, epochs: range, shape: tuple[int, int], judged: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Batches of D^u [K · E, n − size] with their pseudo-labels, and the votes these give each sample; with a local
        teacher what makes the pseudo-labels instead."""
        u = shuffled_anew(unlabelled, seeds.child("order u"), epochs, *shape)
        batch = {"u_index": client.index[u], "u_strong": self._strong_views(seeds.child("strong u"), epochs, u)}
        clients, count = len(seeds.members), len(client) // len(seeds.members)
        if self.config.teacher == "local":
            keys, views = seeds.child("weak u").keys(epochs, u.device), self.config.views
            plans = weak_plan(keys, u.numel() // len(keys) * views, self.task.pad).view(*u.shape, views, -1)
            first = pseudo_labels.first_time(u, len(keys))
            return batch | {"u_position": u % count, "u_first": first, "u_weak": plans}, {}
        taught = judged["taught"]
        labels, accepted = pseudo_labels.decided(taught, self.config.xi)
        batch["u_labels"] = self._of(taught if self.config.soft else labels, u, epochs, clients)
        batch["u_mask"] = self._of(accepted, u, epochs, clients)
        votes = torch.zeros(len(client), self.task.num_classes, dtype=torch.int64, device=u.device)
        found = (self._of(table, unlabelled, epochs, clients).flatten() for table in (labels, accepted))
        pseudo_labels.count_votes(votes, unlabelled.flatten(), *found)
        return batch, {"votes": votes}

    def _of(self, table: Tensor, rows: Tensor, epochs: range, clients: int) -> Tensor:
        """What a table [K · n, …], or [K · n, views, …] of views in turns, has of the samples `rows` [K · E · k, m]."""
        if self.config.views_as == "mean":
            return table[rows]
        turns = torch.arange(epochs.start, epochs.stop, device=rows.device).repeat(clients) % self.config.views
        return table[rows, turns.repeat_interleave(len(rows) // len(turns))[:, None]]

    def _strong_views(self, seeds: Seeds, epochs: range, chosen: Tensor) -> Tensor:
        """Parameters of a strong view for each sample of the batches `chosen` [K · E · steps, size]."""
        keys = seeds.keys(epochs, chosen.device)
        size, ops, prob = self.task.image_shape[1:], self.config.ra_ops, self.config.ra_prob
        return strong_plan(keys, chosen.numel() // len(keys), size, self.task.pad, ops, prob).view(*chosen.shape, -1)

    def epoch_shape(self, labelled: int, unlabelled: int, teaches: bool) -> tuple[int, int, int]:
        """Steps of an epoch and the sizes of its labelled and unlabelled batches, the latter 0 if nothing `teaches`."""
        size, form = self.task.batch_size, self.config.epoch
        steps = -(-(labelled + unlabelled if form == "whole" else labelled) // size)
        if not teaches or unlabelled == 0:
            return steps, size, 0
        if form == "max_cover":
            steps = -(-max(labelled, unlabelled) // size)
        batch_u = -(-unlabelled // steps) if form == "proportional" else size
        if self.config.mu is not None:
            batch_u = max(1, int(self.config.mu * size + 0.5))
        return steps, size, batch_u

    def views(self, pool: Tensor, batch: Tensors) -> Tensors:
        if "x_weak" in batch:
            images = {"x": weak(pool, batch["x_index"], batch["x_weak"])}
        elif "x_strong" in batch:
            images = {"x": strong(pool, batch["x_index"], batch["x_strong"])}
        else:
            images = {"x": plain(pool, batch["x_index"])}
        if "u_index" in batch:
            images["u"] = strong(pool, batch["u_index"], batch["u_strong"])
        if "u_weak" in batch:
            views = [weak(pool, batch["u_index"], plan) for plan in batch["u_weak"].unbind(-2)]
            images["u_taught"] = torch.stack(views, dim=-5)
        return images

    def evened(self, batches: Sequence[Tensors]) -> Sequence[Tensors] | None:
        """By samples of D^u that are masked, up to half as many as there are."""
        if self.config.teacher == "local" or any("u_index" not in batch for batch in batches):
            return None
        return pseudo_labels.alike(batches)

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        x = self.labelled_inputs(batch)
        if "u" not in batch:
            return self.labelled_loss(nets["model"](x), batch)
        if self.config.teacher == "global":
            labels, mask = batch["u_labels"], batch["u_mask"]
        else:
            probs = pseudo_labels.taught_now(nets["model"], batch["u_taught"], self.config.pseudo_temperature)
            labels, mask = pseudo_labels.decided(probs, self.config.xi)
            pseudo_labels.count_votes(state["votes"], batch["u_position"], labels, mask & batch["u_first"])
            labels = probs if self.config.soft else labels
        logits = nets["model"](joined([x, batch["u"].to(x.dtype)]))
        labelled, unlabelled = logits.split([len(x), len(batch["u"])])
        loss = self.labelled_loss(labelled, batch)
        return loss + batch["u_weight"] * pseudo_labels.unlabelled_loss(unlabelled, labels, mask)

    def labelled_inputs(self, batch: Tensors) -> Tensor:
        """The images of D^x as the network sees them."""
        return batch["x"]

    def labelled_loss(self, logits: Tensor, batch: Tensors) -> Tensor:
        """L_x of the logits of D^x [B, C]."""
        return F.cross_entropy(logits, batch["x_labels"])

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        evidence = {name: state[name] for name in ("probabilities", "drawn", "votes") if name in state}
        return Final(evidence=evidence)
