"""FedGR's local training (Tian et al., ICML 2026): the received model reviews labels, teaches, and holds features.

A client keeps the running mean of each label's loss under the received models, and fits two Gaussians to these after a
turn: c is the probability that a label is clean. After the server's first visits (`server.name = "fedgr"`) labels are
weighted by c, and a confident prediction of the received model (`xi`) replaces a wrong one; a client with over four
fifths wrong labels uses only predictions. A moving average of the client's network, kept between turns, teaches by its
logits, and features stay near the received model's. `version = "code"` follows its authors' code, where a broadcast
mixes both losses by the mean of c and not sample by sample. Different from it: unless the server pools them
(`server.version`), the Gaussians are fitted by each client to its own losses (an ablation of theirs), so that no loss
leaves it; distillation begins when the visits end; strong views are ours. Under other servers the visits are over from
the start.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fednoil.augment import strong, strong_plan, weak, weak_plan
from fednoil.learners.base import Client, Final, LearnerConfig, Nets, Phase, Role, Turn, chunks
from fednoil.learners.erm import Erm
from fednoil.learners.looks import logits_of
from fednoil.learners.mixture import fitted, lower_posterior
from fednoil.plugins import About
from fednoil.tensors import Tensors

SIEVE = tuple(f"sieve {k}" for k in range(6))  # what the server sends: shares, means and variances of two Gaussians
_KEPT = ("mean loss", "visits", "chance", "pseudo-labels", "moves")


class FedGrConfig(LearnerConfig):
    name: Literal["fedgr"] = "fedgr"
    xi: float = Field(default=0.9, ge=0, lt=1, description="lowest certainty at which a pseudo-label is used")
    weight: float = Field(
        default=0.1, ge=0, description="weight of the term that keeps features near the received model's"
    )
    version: Literal["code", "paper"] = Field(
        default="code", description="which to follow where its authors' code and paper differ"
    )


def running_mean(mean: Tensor, losses: Tensor, visits: Tensor) -> Tensor:
    """The mean of all losses [n] of a sample after `visits` earlier ones."""
    return mean + (losses - mean) / (visits + 1)


def both_losses(given: Tensor, pseudo: Tensor, chance: Tensor, version: str) -> Tensor:
    """The losses [B] of given and of pseudo-labels, by the chance [B] of the given one: of each sample, or (`code`) by
    the batch's means."""
    if version == "code":
        return chance.mean() * given.mean() + (1 - chance).mean() * pseudo.mean()
    return (chance * given + (1 - chance) * pseudo).mean()


def apart(taught: Tensor, own: Tensor, temperature: float) -> Tensor:
    """KL(softmax(taught / T) ‖ softmax(own / T)), summed over dimensions, the mean over the batch."""
    log_q, log_p = torch.log_softmax(taught / temperature, 1), torch.log_softmax(own / temperature, 1)
    return (log_q.exp() * (log_q - log_p)).sum(1).mean()


def follow(moves: Tensor) -> Tensor:
    """β_j of the moving average after `moves` steps: 1 − 1/(1 + j), at most 0.99."""
    return (1 - 1 / (1 + moves)).clamp(0.0, 0.99)


def clean_chances(losses: Tensor) -> Tensor:
    """The probability [n] that each label is clean, from two Gaussians over the losses; 1 if all are equal."""
    if len(losses) < 2 or bool((losses == losses[0]).all()):
        return torch.ones_like(losses)
    return lower_posterior(losses, fitted(losses)).float()


class FedGr(Erm):
    Config = FedGrConfig
    config: FedGrConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    sends = ("noise",)
    most_wrong: ClassVar[float] = 0.8  # φ: above, a client's given labels are not used
    few: ClassVar[float] = 0.5  # s: with fewer pseudo-labels such a client's teacher starts over
    decay: ClassVar[float] = 0.9  # share of the old teacher when it is revised
    temperature: ClassVar[float] = 0.5  # of features and of distillation
    about = About(
        title="The received model sieves labels, teaches and holds features",
        paper="Tian et al., ICML 2026",
        keeps="a model, losses, new labels",
        sends="model, its share of wrong labels",
        cost="1 + 1/E",
    )

    @property
    def roles(self) -> tuple[Role, ...]:
        return (Role("model"), Role("teacher", shared=False, kept=True, trained=False))

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        logits = logits_of(self, nets, client)
        own = self._remembered(client, keep)
        if SIEVE[0] in turn.signals:  # fitted by the server to these losses and those of others
            sieve = torch.tensor([turn.signals[name] for name in SIEVE], dtype=torch.float64, device=logits.device)
            own["chance"] = lower_posterior(own["mean loss"], sieve.view(3, 2)).float()
        losses = F.cross_entropy(logits, client.labels, reduction="none")
        own["mean loss"] = running_mean(own["mean loss"], losses, own["visits"])
        own["visits"] = own["visits"] + 1
        wrong = own["chance"] < 0.5
        share = float(wrong.float().mean())
        views = self._weak_views(client, turn)
        found = self._asked(nets, client, views)
        if not turn.signals.get("visiting"):
            sure, guess = torch.softmax(found["logits"], 1).max(1)
            trusted = ~wrong & (share < self.most_wrong)
            pseudo = torch.where(sure > self.config.xi, guess, own["pseudo-labels"])
            own["pseudo-labels"] = torch.where(trusted, client.labels, pseudo)
        known = float((own["pseudo-labels"] >= 0).float().mean())
        fresh = bool(turn.signals.get("visiting")) or (share > self.most_wrong and known < self.few)
        if fresh:
            own["moves"] = torch.zeros_like(own["moves"])
        revise(nets, 0.0 if fresh else self.decay)
        soft = self._asked(nets, client, views, "teacher")["logits"]
        state = {"soft": soft, "features": found["features"], "probabilities": torch.softmax(logits, 1)}
        return own | state | {"share": torch.tensor(share, device=logits.device)}

    def _remembered(self, client: Client, keep: Tensors) -> Tensors:
        """What the client has kept, or its start: no visits, all labels clean, no pseudo-labels."""
        zeros = torch.zeros(len(client), device=client.index.device)
        none, nothing = torch.full_like(client.labels, -1), torch.zeros((), device=zeros.device)
        start = dict(zip(_KEPT, (zeros, nothing, zeros + 1, none, nothing.clone()), strict=True))
        return {name: keep.get(name, tensor) for name, tensor in start.items()}

    def _weak_views(self, client: Client, turn: Turn) -> Tensor:
        """Parameters of one weak view of each sample: [n, 3]."""
        keys = turn.seed.child("look").keys([0], client.index.device)
        return weak_plan(keys, len(client), self.task.pad, flip=self.task.flip)[0]

    @torch.no_grad()
    def _asked(self, nets: Nets, client: Client, views: Tensor, name: str = "model") -> Tensors:
        """A network's logits and features of weak views, in eval mode."""
        nets[name].eval()
        spans = chunks(len(client), client.pool)
        parts = [nets[name].embedded(weak(client.pool, client.index[rows], views[rows])) for rows in spans]
        features, logits = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        return {"features": features, "logits": logits}

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        kind = "visit" if turn.signals.get("visiting") else "mix" if state["share"] <= self.most_wrong else "pseudo"
        return [replace(phase, kind=kind) for phase in super().plan(nets, client, state, turn, epochs)]

    def batches(self, client: Client, chosen: Tensor, turn: Turn, epochs: range) -> Tensors:
        keys, task = turn.seed.child("strong").keys(epochs, chosen.device), self.task
        count = chosen.numel() // len(keys)
        views = strong_plan(keys, count, task.image_shape[1:], task.pad, 2, 0.5, flip=task.flip)
        batch = {"index": client.index[chosen], "labels": client.labels[chosen], "rows": chosen}
        return batch | {"strong": views.view(*chosen.shape, -1)}

    def views(self, pool: Tensor, batch: Tensors) -> Tensors:
        return {"images": strong(pool, batch["index"], batch["strong"])}

    def indexed(self) -> tuple[str, ...]:
        return ("soft", "features", "pseudo-labels", "chance")

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        features, logits = nets["model"].embedded(batch["images"])
        rows, given = batch["rows"], F.cross_entropy(logits, batch["labels"], reduction="none")
        held = self.config.weight * apart(state["features"][rows], features, self.temperature)
        if kind == "visit":
            return given.mean() + held
        targets = state["pseudo-labels"][rows]
        pseudo = F.cross_entropy(logits, targets.clamp_min(0), reduction="none") * (targets >= 0)
        held = held + apart(state["soft"][rows], logits, self.temperature)
        if kind == "pseudo":
            return pseudo.mean() + held
        return both_losses(given, pseudo, state["chance"][rows], self.config.version) + held

    def after(self, nets: Nets, batch: Tensors, state: Tensors, kind: str) -> None:
        state["moves"].add_(1)
        model, teacher, share = nets["model"], nets["teacher"], 1 - follow(state["moves"])
        teacher.params.add_((model.params - teacher.params) * share)
        for name, tensor in teacher.others.items():
            if tensor.is_floating_point():
                tensor.add_((model.others[name] - tensor) * share)

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        chance = clean_chances(state["mean loss"])
        keep = {name: state[name] for name in _KEPT} | {"chance": chance}
        noise = float((chance < 0.5).float().mean())
        return Final({"noise": noise}, keep, {"probabilities": state["probabilities"]})


def revise(nets: Nets, decay: float) -> None:
    """The teacher is revised with the received model: a share `decay` of the old one, the rest of the new."""
    model, teacher = nets["model"], nets["teacher"]
    pairs = [(teacher.params, model.params), *((t, model.others[name]) for name, t in teacher.others.items())]
    for old, new in pairs:
        old.copy_(decay * old + (1 - decay) * new if old.is_floating_point() else new)
