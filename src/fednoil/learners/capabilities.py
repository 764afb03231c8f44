"""What a learner may do besides its contract. It has a capability if it has the methods; nothing else is declared.

An executor asks for each with `capability`, which also finds those of a learner inside another (`Wrapped`). The order
in which all methods are called in a turn:

    Looks.look                   once, with what the received model says of the client's samples
    Surveys.asks, survey         once, for other questions to the received networks
    Learner.init
    Adapts.adapts                whether the epochs are planned one by one
    Learner.plan, PlansTogether.plans
    EvensBatches.evened          on a GPU
    IndexesState.indexed         on a GPU
    Learner.views, step          for each batch; then the gradients
    ChangesGradients.gradients   before the optimiser
    FollowsUp.after              after the optimiser
    Observes.observe             in place of the last four in a phase that trains nothing
    Learner.final

Reviews.review is called between turns, when the server asks all clients about their labels.

`gradients`, `after` and `observe` are bound by the same rules as `step`; random numbers are drawn in `asks`, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar, runtime_checkable

from torch import Tensor

from fednoil.learners.base import Client, Final, Learner, Nets, Phase, Role, Trainee, Turn, asked_one_by_one, one_by_one
from fednoil.tensors import Tensors

C = TypeVar("C")


@runtime_checkable
class Looks(Protocol):
    """Uses the received model's logits of the client's own samples, which are computed once a round."""

    def look(self, logits: Tensor, client: Client) -> Tensors:
        """What the turn's state keeps of the logits [n, C] of its samples, un-augmented and in eval mode."""
        ...


@runtime_checkable
class Surveys(Protocol):
    """Asks the received networks something else about each sample before the turn begins."""

    def asks(self, client: Client, turn: Turn) -> Tensors:
        """What a survey needs besides the client's samples (random views, say): one row for each sample.

        Clients may be asked different things; those with the same questions may be surveyed together.
        """
        ...

    def survey(self, nets: Nets, client: Client, asked: Tensors) -> Tensors:
        """What the received networks say about each sample on its own, in eval mode: one row for each sample.

        It becomes part of the turn's state. An executor may put the samples of all clients that received the same
        networks together and ask once, so it may look only at single samples of a client.
        """
        ...


@runtime_checkable
class AsksTogether(Protocol):
    """Asks for several clients of a round in as many operations as for one, which matters on a GPU."""

    def asks_all(self, clients: Sequence[Client], turns: Sequence[Turn]) -> list[Tensors]:
        """Each client's questions (`Surveys.asks`)."""
        ...


@runtime_checkable
class Adapts(Protocol):
    """Plans an epoch by what the networks or the state have become in the epochs before."""

    def adapts(self, turn: Turn) -> bool:
        """Whether it does so in this turn: `plan` is then asked epoch by epoch."""
        ...


@runtime_checkable
class PlansTogether(Protocol):
    """Plans several clients in as many operations as one, which matters on a GPU."""

    def plans(self, trainees: Sequence[Trainee], epochs: range) -> list[list[Phase]]:
        """`plan` for each of several clients of a round. If it adapts, all steps before are done."""
        ...


@runtime_checkable
class EvensBatches(Protocol):
    """Lets clients of different sizes train as one on a GPU."""

    def evened(self, batches: Sequence[Tensors]) -> Sequence[Tensors] | None:
        """The plans of several clients with batches of different sizes, with batches of one size, or a few, and the
        same losses.

        None if that is impossible. It is called only for networks in which samples don't affect each other, so any
        sample that doesn't count may be added.
        """
        ...


@runtime_checkable
class IndexesState(Protocol):
    """Has state with a row for each sample; clients of different sizes can then train as one on a GPU, too."""

    def indexed(self) -> tuple[str, ...]:
        """The names of this state. A step may only read and write it by row, so that more rows change nothing."""
        ...


@runtime_checkable
class ChangesGradients(Protocol):
    """Changes the gradients before the optimiser uses them: a term of the loss on parameters, for example."""

    def gradients(self, nets: Nets, batch: Tensors, state: Tensors, kind: str) -> None: ...


@runtime_checkable
class FollowsUp(Protocol):
    """Does something after each optimiser step: a moving average, for example."""

    def after(self, nets: Nets, batch: Tensors, state: Tensors, kind: str) -> None: ...


@runtime_checkable
class Observes(Protocol):
    """Has phases that train nothing, by which it finds out how the networks are doing."""

    def observe(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> None:
        """One of their steps: write what the networks say now into the state, in place."""
        ...


@runtime_checkable
class Reviews(Protocol):
    """Answers a server that asks all clients about their labels before a round; nothing is trained."""

    def review(self, logits: Tensor, client: Client, keep: Tensors, turn: Turn) -> Final:
        """What the client reports (`numbers`, named in `Learner.reports`) and what it keeps besides `keep`, from the
        received model's logits [n, C] of its samples, un-augmented and in eval mode."""
        ...


CAPABILITIES: tuple[type, ...] = (
    Looks,
    Surveys,
    AsksTogether,
    Adapts,
    PlansTogether,
    EvensBatches,
    IndexesState,
    ChangesGradients,
    FollowsUp,
    Observes,
    Reviews,
)


class Wrapped(Learner):
    """A learner inside another: a server's change to the local work, which the inner one knows nothing about.

    It passes on the contract. The inner learner's capabilities are found through it, so it defines a capability's
    method only if it changes what that does, and then calls the inner one's itself (`capability(self.inner, …)`).
    """

    def __init__(self, inner: Learner) -> None:
        super().__init__(inner.config, inner.task)
        self.inner = inner
        self.sends, self.reports = inner.sends, inner.reports

    def __init_subclass__(cls, **keys: object) -> None:
        """A wrapper that changes the plan doesn't leave it to the inner learner to plan several clients at once."""
        super().__init_subclass__(**keys)
        if "plan" in vars(cls) and "plans" not in vars(cls):
            cls.plans = one_by_one

    @property
    def roles(self) -> tuple[Role, ...]:
        return self.inner.roles

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        return self.inner.init(nets, client, keep, turn)

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        return self.inner.plan(nets, client, state, turn, epochs)

    def views(self, pool: Tensor, batch: Tensors) -> Tensors:
        return self.inner.views(pool, batch)

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        return self.inner.step(nets, pool, batch, state, kind)

    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        return self.inner.final(nets, client, state, turn)

    def predict(self, nets: Nets, images: Tensor, own: Tensors) -> Tensor:
        return self.inner.predict(nets, images, own)


def capability(learner: Learner, kind: type[C]) -> C | None:
    """The learner, or the one inside it, that has a capability, or None."""
    if isinstance(learner, kind):
        return learner
    return capability(learner.inner, kind) if isinstance(learner, Wrapped) else None


def adapts(learner: Learner, turn: Turn) -> bool:
    """Whether the epochs of this turn are planned one by one."""
    found = capability(learner, Adapts)
    return found is not None and found.adapts(turn)


def observer(learner: Learner, kind: str) -> Observes:
    """The learner that runs the steps of a phase that trains nothing."""
    found = capability(learner, Observes)
    if found is None:
        raise NotImplementedError(
            f"{learner.config.name} plans a phase '{kind}' that trains nothing: it needs `observe`"
        )
    return found


def asks(learner: Surveys, clients: Sequence[Client], turns: Sequence[Turn]) -> list[Tensors]:
    """What several clients of a round are asked: at once if the learner can, otherwise one by one."""
    if isinstance(learner, AsksTogether):
        return learner.asks_all(clients, turns)
    return asked_one_by_one(learner, clients, turns)


def plans(learner: Learner, trainees: Sequence[Trainee], epochs: range) -> list[list[Phase]]:
    """The plans of several clients: at once if the learner can, otherwise one by one."""
    found = capability(learner, PlansTogether)
    return found.plans(trainees, epochs) if found else one_by_one(learner, trainees, epochs)
