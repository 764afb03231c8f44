"""The contract of a learner: how one client learns from its own data.

Your own learner needs `plan` and `step`; the other five have defaults that suit most:

    roles    the networks that a client works with; by default one, `model`
    init     tensors for one turn, such as a threshold of this round
    plan     the steps of whole epochs, as tensors drawn ahead: who is in which batch, how it is augmented
    views    the images of a batch
    step     the loss of a batch
    final    what the turn leaves: for the server, for the client's next turn, for metrics
    predict  the logits that the model is scored with

An executor calls them in this order; `step` once for each batch, the others once a turn, or once for many batches:

    state  = learner.init(nets, client, keep, turn)
    phases = learner.plan(nets, client, state, turn, epochs)
    batch |= learner.views(client.pool, batch)
    loss   = learner.step(nets, client.pool, batch, state, kind)
    final  = learner.final(nets, client, state, turn)

Inside `step`: static shapes, full batches, no waiting for the host. A network there can be called and has `params`,
`grads`, `memory` (the optimiser's) and `others`, but no `module`; its `params` are for reading. All random numbers are
drawn in `init` and `plan` from `turn.seed`. One learner serves all clients, many at once: what belongs to a client or a
round is in `state`, never in an attribute of the learner. Given labels are all a learner can see; true labels are not
part of any of these types.

A learner that has more to do between these steps, or can do something faster, says so by having one of the methods in
`fednoil.learners.capabilities`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from fednoil.models.network import Network
from fednoil.plugins import About
from fednoil.section import Section
from fednoil.seeds import Seed
from fednoil.tensors import Numbers, Tensors

Nets = Mapping[str, Network]
LABELS = "labels"  # what a client keeps under this name replaces its labels, int64 [n]


def chunks(count: int, pool: Tensor, views: int = 1) -> list[slice]:
    """Spans of samples for one forward pass of all their views without gradients, by the size of the images `pool`.

    A GPU is fastest with many at once, a CPU while activations stay in its cache. Spans of large images are shorter, or
    activations would fill the memory.
    """
    pixels = pool.shape[-1] * pool.shape[-2] if pool.dim() == 4 else pool.shape[-1]
    most = (128 if pool.dim() == 4 else 1000) if pool.device.type == "cpu" else 5000
    fits = (1000 * 4096 if pool.device.type == "cpu" else 5000 * 1024) // pixels
    size = max(1, min(most, fits) // views)
    return [slice(start, start + size) for start in range(0, count, size)]


class LearnerConfig(Section):
    """The keys every learner has; a method adds its own."""

    follows_rounds: ClassVar[bool] = False  # whether what it does in a round depends on the total number of rounds

    name: str = "erm"

    def lost_class_advice(self) -> str:
        """What may help if a run ended without a correct answer for some class, in a few words, or ""."""
        return ""


@dataclass(frozen=True)
class Task:
    """What a learner or server knows about the experiment besides its own settings."""

    num_classes: int
    image_shape: tuple[int, ...]  # channels, height, width; of vectors the number of columns alone
    batch_size: int
    lr: float
    rounds: int
    pad: int = 4  # largest shift of a weak view, in pixels; of vectors, how many kinds of noise there are
    flip: bool = True  # whether half of the weak views are mirrored
    parameters: frozenset[str] = frozenset()  # names of the model's trainable parameters
    # Samples of each client at the start. A federation's site knows number and sum alone: there all are equal.
    sizes: tuple[int, ...] = ()
    large: bool = False  # whether the model is a large one (`fednoil.scale.is_large`)
    # Local epochs that a client makes in the whole run, on average; fewer where a server visits clients one by one.
    passes: float = math.inf


@dataclass(frozen=True)
class Client:
    """One client's data: `index` [n] into the resident `pool`, uint8 images or float32 vectors, and the given `labels`
    [n]."""

    id: int
    pool: Tensor
    index: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def corrected(self, keep: Tensors) -> Client:
        """The client with the labels that it has corrected, if it keeps any (`LABELS`)."""
        return replace(self, labels=keep[LABELS].to(self.labels.device)) if LABELS in keep else self


def together(clients: Sequence[Client]) -> Client:
    """The samples of several clients, one client after another, as if one had them."""
    if len(clients) == 1:
        return clients[0]
    index, labels = (torch.cat([getattr(c, name) for c in clients]) for name in ("index", "labels"))
    return Client(-1, clients[0].pool, index, labels)


@dataclass(frozen=True)
class Turn:
    """One client's turn in one round: `round_idx` from 1, local `epochs`, the seed of both, and what the server says
    to this client (`fednoil.servers.base.Server.signals`)."""

    round_idx: int
    epochs: int
    seed: Seed
    signals: Mapping[str, float] = field(default_factory=dict)


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
    is neither, or is kept but has no state yet, starts as a copy of the network `start`. The optimiser moves it if it
    is trained; a moving average is not.
    """

    name: str
    shared: bool = True
    kept: bool = False
    start: str = "model"
    trained: bool = True


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
    """What a turn leaves: `numbers` go to the server, `keep` stays in the client's state until its next turn (labels
    that it has corrected stay until it corrects them again), `evidence` stays on the client and is there for metrics
    and audits."""

    numbers: Numbers = field(default_factory=dict)
    keep: Tensors = field(default_factory=dict)
    evidence: Tensors = field(default_factory=dict)


class Asks(Protocol):
    """The part of `capabilities.Surveys` that this module needs."""

    def asks(self, client: Client, turn: Turn) -> Tensors: ...


def one_by_one(learner: Learner, trainees: Sequence[Trainee], epochs: range) -> list[list[Phase]]:
    """The plan of each of several clients of a round."""
    return [learner.plan(*trainee, epochs) for trainee in trainees]


def asked_one_by_one(learner: Asks, clients: Sequence[Client], turns: Sequence[Turn]) -> list[Tensors]:
    """What each of several clients of a round is asked before its turn (`capabilities.Surveys`)."""
    return [learner.asks(client, turn) for client, turn in zip(clients, turns, strict=True)]


class Learner(ABC):
    """Base class of all learners; see the module's text for the contract."""

    Config: ClassVar[type[LearnerConfig]] = LearnerConfig
    about: ClassVar[About | None] = None
    # Names of the numbers in `Final.numbers`: what a federation lets out of a client besides its networks.
    sends: tuple[str, ...] = ()
    # The same for the answer to a server that has the clients review their labels (`capabilities.Reviews`).
    reports: tuple[str, ...] = ()

    def __init__(self, config: LearnerConfig, task: Task) -> None:
        self.config = config
        self.task = task

    def __init_subclass__(cls, **keys: object) -> None:
        """A class with its own plan, or its own questions, doesn't inherit how several clients are planned or asked at
        once."""
        super().__init_subclass__(**keys)
        if "asks" in vars(cls) and "asks_all" not in vars(cls) and hasattr(cls, "asks_all"):
            cls.asks_all = asked_one_by_one
        if "plan" in vars(cls) and "plans" not in vars(cls) and hasattr(cls, "plans"):
            cls.plans = one_by_one

    @property
    def roles(self) -> tuple[Role, ...]:
        return (Role("model"),)

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        """Tensors for this turn; `keep` is what the client's last turn left."""
        return {}

    @abstractmethod
    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        """The steps of the given epochs (numbered from 0), in order, whatever happens in the epochs before; only a
        learner that adapts (`fednoil.learners.capabilities.Adapts`) may look at `nets`."""

    def views(self, pool: Tensor, batch: Tensors) -> Tensors:
        """The images that `step` finds in its batch, by name; `batch` has any number of leading dimensions.

        An executor may ask for those of many steps and clients at once, which is far faster on a GPU than inside
        `step`. It sees the plan only: what depends on the networks belongs to `step`.
        """
        return {}

    @abstractmethod
    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        """The scalar loss of one batch."""

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        return Final()

    def predict(self, nets: Nets, images: Tensor, own: Tensors) -> Tensor:
        """Logits of the model that the experiment is scored with; `own` is what else the scored model has."""
        return nets["model"](images)
