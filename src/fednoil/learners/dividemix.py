"""DivideMix (Li et al., ICLR 2020): two networks split the data for each other and train on it as semi-supervised.

Every epoch each network's losses are modelled by two Gaussians; the *other* network takes the samples of the lower one
as labelled and the rest as unlabelled, refines and guesses labels, and trains on mixtures of images (MixMatch). As
published except: the paper's optimiser and batch of 32; λ_u = 25 everywhere, where its authors choose it by noise, and
no penalty on confident predictions; shifted views are filled by reflection, as all views here, not with zeros. In a
federation both networks are shared and averaged, warm-up and the ramp of λ_u follow the round, and the two are scored
together. A client whose labelled set has under two samples trains that epoch by cross-entropy; without unlabelled
samples it mixes the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fednoil.augment import plain, weak, weak_plan
from fednoil.learners.base import (
    Client,
    Final,
    Learner,
    LearnerConfig,
    Nets,
    Phase,
    Role,
    Trainee,
    Turn,
    chunks,
    one_by_one,
    together,
)
from fednoil.learners.dividemix_plan import Division, draw, fill, parts_of
from fednoil.learners.mixmatch import mixed, mixmatch_loss, negative_entropy, refine, sharpen
from fednoil.learners.mixture import low_component, normalise
from fednoil.plugins import About
from fednoil.seeds import Seeds, permutations
from fednoil.tensors import Tensors, joined

_OTHER = {"a": "b", "b": "a"}
_LOOK = 512  # samples of one pass of a look, at most: clients of different sizes have few that don't count


class DivideMixConfig(LearnerConfig):
    name: Literal["dividemix"] = "dividemix"
    warmup: int = Field(default=10, ge=0, description="rounds of plain cross-entropy")
    weight: float = Field(default=25.0, ge=0, description="λ_u: final weight of the unlabelled loss")
    ramp: int = Field(default=16, ge=1, description="rounds after the warm-up until `weight` is reached")
    mix: float = Field(default=4.0, gt=0, description="α of the Beta distribution that mixes images")


class DivideMix(Learner):
    """The number of labelled samples decides how many steps an epoch has, so the host must know it before it can plan
    one.

    What that takes is done on the device, for all clients at once: by a survey before the first epoch, by phases that
    observe after each. Losses and what follows from them lie in tables as wide as the largest client needs.
    """

    Config = DivideMixConfig
    config: DivideMixConfig
    threshold: ClassVar[float] = 0.5  # lowest probability of a clean label
    sharpening: ClassVar[float] = 0.5  # temperature T of guessed labels
    entropy_penalty: ClassVar[bool] = False  # in the warm-up, on confident predictions; its authors' for pair noise
    about = About(
        title="Two networks, co-divide by loss, MixMatch",
        paper="Li et al., ICLR 2020",
        keeps="nothing",
        sends="2 models",
        cost="2 in the warm-up, then 0.7 + 12 × the labelled share",
    )

    @property
    def roles(self) -> tuple[Role, ...]:
        return (Role("a"), Role("b"))

    def predict(self, nets: Nets, images: Tensor, own: Tensors) -> Tensor:
        return nets["a"](images) + nets["b"](images)

    def weight_unlabelled(self, round_idx: int) -> float:
        """λ(e) of a round, e = round − 1."""
        over = (round_idx - 1 - self.config.warmup) / self.config.ramp
        return self.config.weight * min(1.0, max(0.0, over))

    def in_warmup(self, turn: Turn) -> bool:
        return turn.round_idx - 1 < self.config.warmup

    def adapts(self, turn: Turn) -> bool:
        return not self.in_warmup(turn)

    def asks(self, client: Client, turn: Turn) -> Tensors:
        return {} if self.in_warmup(turn) else {"labels": client.labels}

    def survey(self, nets: Nets, client: Client, asked: Tensors) -> Tensors:
        if "labels" not in asked:
            return {}
        spans = chunks(len(client), client.pool)
        parts = [self._losses(nets, client.pool[client.index[rows]], asked["labels"][rows]) for rows in spans]
        return {"received": torch.cat(parts, 1).T}

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        device = client.index.device
        if self.in_warmup(turn):
            return {}
        most = max(2, len(client), *self.task.sizes)
        parts = -(-most // _LOOK)
        size = -(-most // parts)
        own = torch.arange(-(-len(client) // size) * size, device=device).view(-1, size) % len(client)
        table = torch.zeros(2, parts * size, device=device)
        return {
            "lambda": torch.full((), self.weight_unlabelled(turn.round_idx), device=device),
            "samples": torch.full((1,), len(client), device=device),
            "look/part": torch.arange(len(own), device=device),
            "look/index": client.index[own],
            "look/labels": client.labels[own],
            "losses": table,
            "chance": table.clone(),
            "order": torch.zeros_like(table, dtype=torch.int64),  # the labelled ones first, by the losses of each
            "counts": torch.zeros(2, dtype=torch.int64, device=device),  # how many those are
            "drawn": torch.zeros(parts * size, dtype=torch.int64, device=device),
        }

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        return self._plans([client], [state], [turn], epochs)[0]

    def plans(self, trainees: Sequence[Trainee], epochs: range) -> list[list[Phase]]:
        """All at once if their tables have the same width and, in the warm-up, they have the same number of samples."""
        _, clients, states, turns = zip(*trainees, strict=True)
        warmup = self.in_warmup(turns[0])
        widths = {len(c) if warmup else state["order"].shape[1] for c, state in zip(clients, states, strict=True)}
        if len(widths) > 1:
            return one_by_one(self, trainees, epochs)
        return self._plans(clients, states, turns, epochs)

    def _plans(
        self, clients: Sequence[Client], states: Sequence[Tensors], turns: Sequence[Turn], epochs: range
    ) -> list[list[Phase]]:
        if self.in_warmup(turns[0]):
            both = (self._plain(clients, net, turns, epochs) for net in ("a", "b"))
            return [list(phases) for phases in zip(*both, strict=True)]
        if epochs.start == 0:
            self._divide_first(clients, states)
        plans = self._divided(clients, states, turns, epochs)
        for phases, state, turn in zip(plans, states, turns, strict=True):
            if epochs.stop < turn.epochs:
                look = {name: state[f"look/{name}"] for name in ("part", "index", "labels")}
                phases += [Phase(look, "look", ()), Phase({"samples": state["samples"]}, "divide", ())]
        return plans

    def _losses(self, nets: Nets, images: Tensor, labels: Tensor) -> Tensor:
        """The cross-entropy of each sample in `a` and in `b`, both in eval mode: [2, n]."""
        found = []
        for name in ("a", "b"):
            nets[name].eval()
            found.append(F.cross_entropy(nets[name](images), labels, reduction="none"))
        return torch.stack(found)

    def observe(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> None:
        if kind == "look":
            found = self._losses(nets, batch["images"], batch["labels"])
            # By comparison: a scatter in place would go client by client, and wait for the host in deterministic runs.
            parts = state["losses"].unflatten(1, (-1, found.shape[1]))
            here = torch.arange(parts.shape[1], device=found.device)[:, None] == batch["part"]
            state["losses"].copy_(torch.where(here, found[:, None], parts).flatten(1))
        else:
            self._divide(state, batch["samples"])

    def _divide_first(self, clients: Sequence[Client], states: Sequence[Tensors]) -> None:
        """Divide by the losses of the received networks; the clients' tables become parts of those of all."""
        tables = _stacked(states, ("losses", "chance", "order", "counts", "drawn"))
        for place, (client, state) in enumerate(zip(clients, states, strict=True)):
            tables["losses"][place, :, : len(client)] = state["received"].T
        self._divide(tables, torch.stack([state["samples"] for state in states])[:, None])
        for name, table in tables.items():
            for state, own in zip(states, table.unbind(0), strict=True):
                state[name] = own

    def _divide(self, state: Tensors, samples: Tensor) -> None:
        """Which labels are clean by the losses [..., 2, n] of each network, the first `samples` [..., 1] of them:
        chances, order, counts, and who is drawn by `b`."""
        losses = state["losses"]
        each = samples.expand(*losses.shape[:-1], 1).flatten(0, -2)
        chance = self.clean_chances(losses.flatten(0, -2), each).view_as(losses)
        inside = torch.arange(losses.shape[-1], device=losses.device) < samples
        chosen = (chance > self.threshold) & inside
        state["chance"].copy_(chance)
        state["drawn"].add_(chosen[..., 1, :])
        state["counts"].copy_(chosen.sum(-1))
        # Members first, then the others, both in their order.
        rank = torch.where(inside, (~chosen).byte(), 2)
        state["order"].copy_(torch.argsort(rank, dim=-1, stable=True))

    def clean_chances(self, losses: Tensor, samples: Tensor) -> Tensor:
        """How probably each label is clean, by the losses [R, n] of R networks, of which the first `samples` [R, 1]
        count: [R, n]."""
        scaled = normalise(losses, samples)
        flat = scaled.amax(1, keepdim=True) == 0  # all losses equal: nothing distinguishes the labels
        return torch.where(flat, torch.ones_like(scaled), low_component(scaled, samples))

    def _plain(self, clients: Sequence[Client], net: str, turns: Sequence[Turn], epochs: range) -> list[Phase]:
        """Epochs of cross-entropy on everything, with batches of twice the size, of clients with n samples each."""
        everyone, size, n = together(clients), 2 * self.task.batch_size, len(clients[0])
        count = -(-n // size) * size
        cycles = -(-count // n)  # a client with fewer samples than a batch is reshuffled until that is full
        names = [("epoch", e, "plain", net) for e in epochs]
        paths = [(*name, "order", cycle) for name in names for cycle in range(cycles)]
        paths += [(*name, "first", 0) for name in names]
        keys = Seeds(tuple(turn.seed for turn in turns)).keys_of(paths, everyone.index.device).view(len(clients), -1)
        of_orders, of_views = keys.tensor_split([cycles * len(epochs)], 1)
        places = permutations(of_orders, n).view(len(clients), len(epochs), -1)[:, :, :count]
        first = torch.arange(0, len(everyone), n, device=places.device)[:, None, None]
        places = (places + first).reshape(len(clients), -1, size)
        views = weak_plan(of_views, count, self.task.pad, flip=self.task.flip).view(*places.shape, -1)
        batch = {"index": everyone.index[places], "labels": everyone.labels[places], "first": views}
        parts = (dict(zip(batch, own, strict=True)) for own in zip(*batch.values(), strict=True))
        return [Phase(part, kind=f"plain-{net}", trains=(net,)) for part in parts]

    def _divided(
        self, clients: Sequence[Client], states: Sequence[Tensors], turns: Sequence[Turn], epochs: range
    ) -> list[list[Phase]]:
        """One epoch of each network over the samples that the other finds labelled, with as many unlabelled ones
        beside them; a client's two phases."""
        size, everyone = self.task.batch_size, together(clients)
        parts = parts_of(clients, turns, epochs.start)
        task = self.task
        draws = draw(parts, size, task.pad, self.config.mix, everyone.index.device, flip=task.flip)
        tables = {name: table.flatten(0, 1) for name, table in _stacked(states, ("order", "chance", "counts")).items()}
        counts = tables["counts"].tolist()  # the only wait for the GPU
        splits = [Division(part, own, counts[part.row]) for part, own in zip(parts, draws, strict=True)]
        batches = iter(fill([split for split in splits if split.labelled >= 2], everyone, tables, size))
        plans: list[list[Phase]] = [[] for _ in clients]
        for part, _, labelled in splits:
            client, net = part.client, part.net
            if labelled < 2:
                plans[client] += self._plain([clients[client]], net, [turns[client]], epochs)
            else:
                batch = next(batches)
                form = "mix" if "u_index" in batch else "labelled"
                plans[client].append(Phase(batch, kind=f"{form}-{net}", trains=(net,)))
        return plans

    def views(self, pool: Tensor, batch: Tensors) -> Tensors:
        if "part" in batch:
            return {"images": plain(pool, batch["index"])}
        indices = {"first": "index", "second": "index", "u_first": "u_index", "u_second": "u_index"}
        return {
            f"{view}/images": weak(pool, batch[index], batch[view]) for view, index in indices.items() if view in batch
        }

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        form, name = kind.split("-")
        net, other = nets[name], nets[_OTHER[name]]
        net.train()
        if form == "plain":
            logits = net(batch["first/images"])
            loss = F.cross_entropy(logits, batch["labels"])
            return loss + negative_entropy(logits) if self.entropy_penalty else loss
        other.eval()
        images = [batch["first/images"], batch["second/images"]]
        guessed = [batch["u_first/images"], batch["u_second/images"]] if form == "mix" else []
        with torch.no_grad():
            probs = [torch.softmax(logits, 1) for logits in net.each(*images, *guessed)]
            own = torch.stack(probs[:2]).mean(0)
            targets = [refine(own, batch["labels"], batch["chance"], self.sharpening)] * 2
            if guessed:
                probs = probs[2:] + [torch.softmax(logits, 1) for logits in other.each(*guessed)]
                targets += [sharpen(torch.stack(probs).mean(0), self.sharpening)] * 2
                images += guessed
        inputs, wanted, share = joined(images).float(), torch.cat(targets), batch["share"]
        inputs, wanted = (mixed(t, share, batch["partner"]) for t in (inputs, wanted))
        return mixmatch_loss(net(inputs), wanted, 2 * len(batch["labels"]), state["lambda"])

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        return Final() if self.in_warmup(turn) else Final(evidence={"drawn": state["drawn"][: len(client)]})


def _stacked(states: Sequence[Tensors], names: Sequence[str]) -> Tensors:
    """Tensors of several clients' states, stacked along a first dimension."""
    return {name: torch.stack([state[name] for state in states]) for name in names}
