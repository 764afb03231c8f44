"""The contract of a learner: how one client learns from its own data.

A learner's work in one round is `init / step / final` over tensors. An executor runs it: client after client
(the reference), many clients at once, or inside a real federation's client; the learner never knows which.

    found  = learner.survey(nets, client, asks(client, turn))       once a round: what the received networks say
    state  = found | learner.init(nets, client, keep, turn)         once a round
    phases = learner.plan(nets, client, state, turn, epochs)        index tensors for whole epochs, drawn ahead
    plans  = learner.evened(plans)                                  on a GPU: clients' batches made equal in size
    batch |= learner.views(client.pool, batch)                      images of one step, or of many at once
    loss   = learner.step(nets, client.pool, batch, state, kind)    one optimiser step; then loss.backward()
             learner.gradients(nets, batch, state, kind)            may change the gradients before the optimiser
             learner.after(nets, batch, state, kind)                after the optimiser (a moving average, say)
             learner.observe(nets, client.pool, batch, state, kind) in place of these in a phase that trains nothing
    final  = learner.final(nets, client, state, turn)               once a round

Inside `step`, `gradients`, `after` and `observe`: static shapes, full batches, no host synchronisation. A network there
can be called and has `params`, `grads`, `memory` (the optimiser's) and `others`, but no `module`. In `step` its
`params` are for reading (a term of the loss on them is added as its gradient, in `gradients`). All random numbers are
drawn in `asks`, `init` and `plan` from `turn.seed`. One learner serves all clients, many at once: what belongs to a
client or a round is in `state`, never in an attribute of the learner. Given labels are all a learner can see; true
labels are not part of any of these types.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fednoil.models.network import Network
from fednoil.plugins import About
from fednoil.section import Section
from fednoil.seeds import Seed
from fednoil.tensors import Numbers, Tensors

Nets = Mapping[str, Network]


def chunks(count: int, pool: Tensor, views: int = 1) -> list[slice]:
    """Spans of samples for one forward pass of all their views without gradients, by the size of the images `pool`.

    A GPU likes many at once, a CPU's cache few.
    """
    size = 1000 if pool.device.type == "cpu" else min(5000, 5000 * 1024 // (pool.shape[-1] * pool.shape[-2]))
    size = max(1, size // views)
    return [slice(start, start + size) for start in range(0, count, size)]


def _given(logits: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """softmax(logits/τ) [n, C] at the given labels [n]: float32 [n]."""
    return torch.softmax(logits / temperature, dim=1).gather(1, labels[:, None])[:, 0]


class LearnerConfig(Section):
    """The keys every learner has; a method adds its own."""

    name: str = "erm"

    def lost_class_advice(self) -> str:
        """What may help where a run ended without a right answer for some class, in a few words; "": nothing known."""
        return ""


@dataclass(frozen=True)
class Task:
    """What a learner or server knows of the experiment besides its own settings."""

    num_classes: int
    image_shape: tuple[int, int, int]
    batch_size: int
    lr: float
    rounds: int
    pad: int = 4  # largest shift of a weak view, in pixels
    parameters: frozenset[str] = frozenset()  # names of the model's trainable parameters
    sizes: tuple[int, ...] = ()  # samples of each client


@dataclass(frozen=True)
class Client:
    """One client's data: `index` [n] into the resident uint8 `pool`, and the given `labels` [n]."""

    id: int
    pool: Tensor
    index: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


def together(clients: Sequence[Client]) -> Client:
    """The samples of several clients, one client after another, as if one had them."""
    if len(clients) == 1:
        return clients[0]
    index, labels = (torch.cat([getattr(c, name) for c in clients]) for name in ("index", "labels"))
    return Client(-1, clients[0].pool, index, labels)


@dataclass(frozen=True)
class Turn:
    """One client's turn in one round: `round_idx` from 1, local `epochs`, and the seed of both."""

    round_idx: int
    epochs: int
    seed: Seed


class Trainee(NamedTuple):
    """A client in its turn: all that a plan of its epochs is made from."""

    nets: Nets
    client: Client
    state: Tensors
    turn: Turn


@dataclass(frozen=True)
class Role:
    """A network that a client works with.

    shared: received from the server and sent back; kept: stays with the client between rounds. A network that
    is neither, or is kept but has no state yet, starts as a copy of the network `start`.
    """

    name: str
    shared: bool = True
    kept: bool = False
    start: str = "model"


@dataclass(frozen=True)
class Phase:
    """Steps that run one after another: `tensors` have the number of steps as first dimension.

    `trains` names the networks that the optimiser moves; phases of one `kind` have the same shapes per step. A phase
    that trains none observes: its steps change the state, and the next epochs are planned with what they found.
    """

    tensors: Tensors
    kind: str = "train"
    trains: tuple[str, ...] = ("model",)

    @property
    def steps(self) -> int:
        return len(next(iter(self.tensors.values())))

    @property
    def losses(self) -> int:
        """How many of its steps have a loss."""
        return self.steps if self.trains else 0


@dataclass(frozen=True)
class Final:
    """What a turn leaves: `numbers` go to the server, `keep` stays in the client's state until its next turn,
    `evidence` stays on the client and is there for metrics and audits."""

    numbers: Numbers = field(default_factory=dict)
    keep: Tensors = field(default_factory=dict)
    evidence: Tensors = field(default_factory=dict)


class Learner(ABC):
    """Base class of all learners; see the module's text for the contract."""

    Config: ClassVar[type[LearnerConfig]] = LearnerConfig
    about: ClassVar[About | None] = None
    # True: `plan` looks at the networks or the state as the epochs before left them, so it is asked epoch by epoch.
    adaptive: ClassVar[bool] = False
    # Names of the numbers in `Final.numbers`: what a federation lets out of a client besides its networks.
    sends: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: LearnerConfig, task: Task) -> None:
        self.config = config
        self.task = task

    @property
    def roles(self) -> tuple[Role, ...]:
        return (Role("model"),)

    def asks(self, client: Client, turn: Turn) -> Tensors:
        """What a survey needs besides the client's samples (random views, say): one row for each sample.

        Clients may be asked different things; those that are asked alike may be surveyed together.
        """
        return {}

    def survey(self, nets: Nets, client: Client, asked: Tensors) -> Tensors:
        """What the received networks say of each sample, by itself and in eval mode: one row for each sample.

        It becomes part of the turn's state. An executor may put the samples of all clients that received the same
        networks together and ask once, so it may look at nothing of a client but single samples.
        """
        return {}

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        """Tensors for this turn besides those of the survey; `keep` is what the client's last turn left."""
        return {}

    def adapts(self, turn: Turn) -> bool:
        """Whether `plan` is asked epoch by epoch in this turn; an adaptive learner may have rounds without."""
        return self.adaptive

    @abstractmethod
    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        """The steps of the given epochs (numbered from 0), in order; only an adaptive learner may look at `nets`."""

    def plans(self, trainees: Sequence[Trainee], epochs: range) -> list[list[Phase]]:
        """`plan` for each of several clients of a round; a learner may plan them all in as many operations as one,
        which counts on a GPU. An adaptive one is asked when all steps before are done."""
        return [self.plan(*trainee, epochs) for trainee in trainees]

    def views(self, pool: Tensor, batch: Tensors) -> Tensors:
        """The images that `step` finds in its batch, by name; `batch` has any number of leading dimensions.

        An executor may ask for those of many steps and clients at once, which is far faster on a GPU than inside
        `step`. It sees the plan only: what depends on the networks belongs to `step`.
        """
        return {}

    def evened(self, batches: Sequence[Tensors]) -> Sequence[Tensors] | None:
        """The plans of several clients, whose batches differ in size, with batches of one size and the same losses.

        None where that can't be. It lets clients of different sizes train as one on a GPU. It is asked only for
        networks in which no sample sees another, so what is added may be any sample that doesn't count.
        """
        return None

    @abstractmethod
    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        """The scalar loss of one batch."""

    def gradients(self, nets: Nets, batch: Tensors, state: Tensors, kind: str) -> None:  # noqa: B027
        """Change the gradients before the optimiser uses them."""

    def after(self, nets: Nets, batch: Tensors, state: Tensors, kind: str) -> None:  # noqa: B027
        """Follow up on an optimiser step."""

    def observe(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> None:
        """A step of a phase that trains nothing: write what the networks say now into the state, in place."""
        raise NotImplementedError(
            f"{type(self).__name__} plans a phase '{kind}' that trains nothing: it needs `observe`"
        )

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        return Final()

    def predict(self, nets: Nets, images: Tensor, own: Tensors) -> Tensor:
        """Logits of the model that the experiment is scored with; `own` is what else the scored model has."""
        return nets["model"](images)

    @torch.no_grad()
    def logits(self, nets: Nets, client: Client) -> Tensor:
        """What the networks say of every sample, un-augmented, in eval mode: float32 [n, C]."""
        for net in nets.values():
            net.eval()
        spans = chunks(len(client), client.pool)
        return torch.cat([self.predict(nets, client.pool[client.index[rows]], {}).float() for rows in spans])

    def confidence(self, nets: Nets, client: Client, temperature: float) -> Tensor:
        """softmax(logits/τ)[given label] of every sample (Eq. 5–6): float32 [n]."""
        return _given(self.logits(nets, client), client.labels, temperature)

    def look(self, nets: Nets, client: Client, temperature: float) -> tuple[Tensor, Tensor | None]:
        """The confidences [n] and, from the same pass, the class probabilities [n, C] at τ = 1.

        A learner whose confidences are of another kind has no such probabilities.
        """
        if type(self).confidence is not Learner.confidence:
            return self.confidence(nets, client, temperature), None
        logits = self.logits(nets, client)
        return _given(logits, client.labels, temperature), torch.softmax(logits, dim=1)


class Wrapped(Learner):
    """A learner inside another: a server's change to the local work, which the inner one doesn't know of."""

    def __init__(self, inner: Learner) -> None:
        super().__init__(inner.config, inner.task)
        self.inner = inner
        self.adaptive = inner.adaptive  # pyright: ignore[reportAttributeAccessIssue]
        self.sends = inner.sends  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def roles(self) -> tuple[Role, ...]:
        return self.inner.roles

    def asks(self, client: Client, turn: Turn) -> Tensors:
        return self.inner.asks(client, turn)

    def survey(self, nets: Nets, client: Client, asked: Tensors) -> Tensors:
        return self.inner.survey(nets, client, asked)

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        return self.inner.init(nets, client, keep, turn)

    def adapts(self, turn: Turn) -> bool:
        return self.inner.adapts(turn)

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        return self.inner.plan(nets, client, state, turn, epochs)

    def plans(self, trainees: Sequence[Trainee], epochs: range) -> list[list[Phase]]:
        if type(self).plan is not Wrapped.plan:
            return super().plans(trainees, epochs)
        return self.inner.plans(trainees, epochs)

    def views(self, pool: Tensor, batch: Tensors) -> Tensors:
        return self.inner.views(pool, batch)

    def evened(self, batches: Sequence[Tensors]) -> Sequence[Tensors] | None:
        return self.inner.evened(batches)

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        return self.inner.step(nets, pool, batch, state, kind)

    def gradients(self, nets: Nets, batch: Tensors, state: Tensors, kind: str) -> None:
        self.inner.gradients(nets, batch, state, kind)

    def after(self, nets: Nets, batch: Tensors, state: Tensors, kind: str) -> None:
        self.inner.after(nets, batch, state, kind)

    def observe(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> None:
        self.inner.observe(nets, pool, batch, state, kind)

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        return self.inner.final(nets, client, state, turn)

    def predict(self, nets: Nets, images: Tensor, own: Tensors) -> Tensor:
        return self.inner.predict(nets, images, own)

    def logits(self, nets: Nets, client: Client) -> Tensor:
        return self.inner.logits(nets, client)

    def confidence(self, nets: Nets, client: Client, temperature: float) -> Tensor:
        return self.inner.confidence(nets, client, temperature)

    def look(self, nets: Nets, client: Client, temperature: float) -> tuple[Tensor, Tensor | None]:
        return self.inner.look(nets, client, temperature)


def acts(learner: Learner, method: str) -> bool:
    """Whether a learner, or one inside it, has its own version of a method that needs none."""
    if isinstance(learner, Wrapped):
        return getattr(type(learner), method) is not getattr(Wrapped, method) or acts(learner.inner, method)
    return getattr(type(learner), method) is not getattr(Learner, method)
