"""What a learner may do besides its contract: found by its methods, through wrappers, and refused by halves; and the
one pass over the clients' samples that everything is made from."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from fednoil import rounds
from fednoil.config import load_config, merge
from fednoil.errors import UserError
from fednoil.executors.cuda import CudaGraphs
from fednoil.experiment import make_bench, make_executor, make_experiment
from fednoil.learners.base import Client, Nets, Phase, Trainee, Turn
from fednoil.learners.capabilities import (
    CAPABILITIES,
    Adapts,
    AsksTogether,
    ChangesGradients,
    EvensBatches,
    FollowsUp,
    Looks,
    Observes,
    PlansTogether,
    Surveys,
    Wrapped,
    adapts,
    capability,
    plans,
)
from fednoil.learners.erm import Erm
from fednoil.learners.fednoil import FedNoil
from fednoil.seeds import Seed
from fednoil.tensors import Tensors

CPU = torch.device("cpu")
HAVE: dict[str, set[type]] = {
    "erm": set(),
    "coteaching": set(),
    "fednoil": {Looks, Surveys, AsksTogether, PlansTogether, EvensBatches},
    "josrc": {ChangesGradients, FollowsUp},
    "dividemix": {Surveys, Adapts, PlansTogether, Observes},
}


@pytest.mark.parametrize("server", ["fedavg", "fedprox", "apfl"])
@pytest.mark.parametrize("name", HAVE)
def test_what_a_learner_can_do_is_found_through_a_server(values: dict[str, Any], server: str, name: str) -> None:
    """FedProx and APFL change gradients, and APFL plans."""
    values |= {"server": {"name": server}, "learner": {"name": name}}
    learner = make_experiment(load_config(values)).learner
    more = {"fedavg": set(), "fedprox": {ChangesGradients}, "apfl": {ChangesGradients, PlansTogether}}[server]
    assert {kind for kind in CAPABILITIES if capability(learner, kind)} == HAVE[name] | more


def test_the_outermost_that_can_is_asked(values: dict[str, Any]) -> None:
    values |= {"server": {"name": "fedprox"}, "learner": {"name": "josrc"}}
    learner = make_experiment(load_config(values)).learner
    assert isinstance(learner, Wrapped)
    assert capability(learner, ChangesGradients) is learner
    assert capability(learner, FollowsUp) is learner.inner
    assert not adapts(learner, Turn(1, 1, Seed(0)))


class PlansNothing(FedNoil):
    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        return []


class WrapsNothing(Wrapped):
    plan = PlansNothing.plan


def test_a_plan_of_ones_own_is_that_of_several_clients_too(values: dict[str, Any]) -> None:
    """FedNoiL plans several clients at once; a class or a wrapper that plans otherwise doesn't inherit that."""
    values["learner"] = {"name": "fednoil", "frac": 0.5}
    inner = make_experiment(load_config(values)).learner
    assert isinstance(inner, PlansTogether)
    everyone = [Trainee({}, Client(0, *[torch.zeros(0)] * 3), {}, Turn(1, 1, Seed(0)))] * 2
    for learner in (PlansNothing(inner.config, inner.task), WrapsNothing(inner)):
        assert plans(learner, everyone, range(1)) == [[], []]


class HalfASurvey(Erm):
    def survey(self, nets: Nets, client: Client, asked: Tensors) -> Tensors:
        return {}


class OtherGradients(Erm):
    def gradients(self, nets: Nets) -> None: ...


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("HalfASurvey", "has survey but no asks: fednoil.learners.capabilities says what it is for"),
        ("OtherGradients", r"its gradients\(self, nets\) must take \(self, nets, batch, state, kind\)"),
    ],
)
def test_half_a_capability_is_refused(values: dict[str, Any], name: str, message: str) -> None:
    values["learner"] = {"name": f"test_capabilities:{name}"}
    with pytest.raises(UserError, match=message):
        load_config(values)


class Counting(FedNoil):
    """Counts the samples that it is asked about as they are."""

    asked: ClassVar[list[int]] = []

    def predict(self, nets: Nets, images: Tensor, own: Tensors) -> Tensor:
        if not own:
            self.asked.append(len(images))
        return super().predict(nets, images, own)


@pytest.mark.parametrize("sampling", ["score", "uniform"])
@pytest.mark.parametrize("kind", ["sequential", "stacked"])
def test_samples_are_asked_about_once_a_round(values: dict[str, Any], sampling: str, kind: str) -> None:
    """With scores all four clients of 20 samples, whoever is selected; without them the two that are selected."""
    values |= {"learner": {"name": "test_capabilities:Counting", "frac": 0.5}, "sampling": {"name": sampling}}
    values["sampling"]["fraction"] = 0.5
    experiment = make_experiment(load_config(values))
    executor = make_executor(experiment, CPU)
    if kind == "stacked":
        executor = CudaGraphs(lambda: make_bench(experiment, CPU), executor.clients, executor.test_images, 2)
    Counting.asked.clear()
    state, _ = rounds.play(experiment, executor, rounds.start(experiment))
    assert sum(Counting.asked) == (80 if sampling == "score" else 40)
    assert int(state.evidence["looks"].max()) == 1


def test_what_a_preset_fits_to_its_noise_is_the_learners_to_say() -> None:
    base = {"learner": {"name": "fednoil", "frac": 0.35, "xi": 0.9}}
    own = {"data": {"name": "npz:mine.npz"}}
    assert merge(base, own)["learner"] == {"name": "fednoil", "xi": 0.9}
    assert merge(base, own | {"learner": {"frac": 0.5}})["learner"]["frac"] == 0.5
    assert merge({"learner": {"name": "jocor", "ramp": 3}}, own)["learner"] == {"name": "jocor", "ramp": 3}
