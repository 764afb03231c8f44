"""Steps of other methods that their formulas don't show: what is reset, who is chosen, when a stage ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fednoil.executors.base import Result
from fednoil.learners import feddiv as feddiv_module
from fednoil.learners.base import Client, Task, Turn
from fednoil.learners.feddiv import FedDiv, FedDivConfig
from fednoil.learners.fedelc import FedElc, FedElcConfig
from fednoil.learners.fedgr import apart, both_losses
from fednoil.learners.fedlsr import FedLsr, FedLsrConfig, divergence, entropy
from fednoil.learners.mixup import blended
from fednoil.rounds import RunState
from fednoil.rounds.review import reviewed
from fednoil.seeds import Seed
from fednoil.servers import feddiv as feddiv_server
from fednoil.servers.base import ServerState, Update
from fednoil.servers.fedcorr import FedCorr, FedCorrConfig
from fednoil.servers.fednoro import FedNoRo, FedNoRoConfig

TASK = Task(2, (1, 2, 2), 2, 0.1, 50, sizes=(5,) * 4)


def client(count: int) -> Client:
    pool = torch.zeros(count, 1, 2, 2, dtype=torch.uint8)
    return Client(0, pool, torch.arange(count), torch.zeros(count, dtype=torch.int64))


def test_a_fedelc_client_begins_each_epoch_with_an_empty_sum() -> None:
    """A sum of 0.001 moves the label logits by λ = 1000 times as much, once."""
    state = {"label logits": torch.zeros(1, 2), "slope": torch.full((1, 2), 0.001)}
    learner = FedElc(FedElcConfig(), TASK)
    for _ in range(2):
        learner.after({}, {"last": torch.tensor(1.0)}, state, "correct")
    assert state["label logits"].tolist() == [[-1.0, -1.0]]


def test_mixtures_of_images() -> None:
    images = torch.tensor([[0], [100]], dtype=torch.uint8)
    assert blended(images, torch.tensor([1, 0]), torch.tensor(0.25)).tolist() == [[75.0], [25.0]]


@pytest.mark.parametrize(("version", "share"), [("code", 0.5), ("paper", 1.0)])
def test_fedlsrs_divergence_in_the_loss(version: Any, share: float) -> None:
    """In the authors' code it is also averaged over the two classes."""
    learner = FedLsr(FedLsrConfig(version=version), TASK)
    first, second, labels = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.0]]), torch.tensor([1])
    with_it, without = (
        learner.loss(first, second, labels, torch.tensor(0.5), torch.tensor(weight)) for weight in (1.0, 0.0)
    )
    apart = divergence(*(torch.softmax(learner.sharpness * logits, 1) for logits in (first, second)))
    assert float(with_it - without) == pytest.approx(share * float(apart), rel=1e-5)


def test_fedlsrs_entropy_of_a_sure_prediction() -> None:
    """−Σ (ln p + 1) of what isn't 0: its slope by the other would be infinite, and counts as 0."""
    p = torch.tensor([[1.0, 0.0]], requires_grad=True)
    found = entropy(p)
    found.sum().backward()
    assert p.grad is not None
    assert (found.tolist(), p.grad.tolist()) == ([0.0], [[-1.0, 0.0]])


def test_fedlsrs_weight_rises_over_a_fifth_of_the_rounds() -> None:
    learner = FedLsr(FedLsrConfig(weight=0.4), TASK)
    found = [float(learner.init({}, client(2), {}, Turn(r, 1, Seed(0)))["weight"]) for r in (1, 5, 10, 30)]
    assert found == pytest.approx([0.04, 0.2, 0.4, 0.4])


def test_feddiv_takes_what_both_models_agree_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four labels 0: the first is clean; the second is wrong and gets the class that the received model is sure of;
    of the third it isn't sure; on the fourth, clean too, the local model disagrees."""
    guesses = torch.tensor([[0.9, 0.1], [0.1, 0.9], [0.4, 0.6], [0.9, 0.1]])
    local = torch.tensor([[5.0, 0.0], [0.0, 5.0], [0.0, 5.0], [0.0, 5.0]])
    monkeypatch.setattr(feddiv_module, "logits_of", lambda *_: local)
    learner = FedDiv(FedDivConfig(xi=0.75), TASK)
    turn = Turn(1, 1, Seed(0))
    state = learner.init({}, client(4), {}, turn) | {"probabilities": guesses}
    (phase,) = learner._filtered({}, client(4), state, turn, range(1), torch.tensor([True, False, False, True]))
    pairs = zip(phase.tensors["index"].flatten().tolist(), phase.tensors["labels"].flatten().tolist(), strict=True)
    assert set(pairs) == {(0, 0), (1, 1)}
    assert state["drawn"].tolist() == [1, 0, 0, 0]  # a label that was changed is no use of the given one


def test_feddivs_clients_fit_where_their_losses_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from a filter that they have received, as numbers."""
    there, found = torch.device("meta"), []

    def fit(losses: Tensor, start: Tensor, floor: float) -> Tensor:
        found.append((losses.device, start.device))
        return torch.zeros(3, 2)

    monkeypatch.setattr(feddiv_server, "fitted", fit)
    own = Client(0, *(torch.zeros(5, dtype=torch.int64, device=there) for _ in range(3)))
    turn = Turn(9, 1, Seed(0), dict.fromkeys(feddiv_module.FILTER, 0.5))
    feddiv_server.Filters(FedDiv(FedDivConfig(), TASK)).review(torch.zeros(5, 2, device=there), own, {}, turn)
    assert found == [(there, there)]


def test_fedcorrs_stages() -> None:
    """A pass over four clients, two rounds of clients with little noise, or with least of it, then all."""
    server = FedCorr(FedCorrConfig(passes=1, warmup=2), TASK)
    assert [server.stage(r) for r in range(1, 9)] == [1, 1, 1, 1, 2, 2, 3, 3]
    noise = {"0": 0.3, "1": 0.5, "2": 0.3, "3": 0.6}
    assert server.chances(ServerState({}, {"noise": noise}), 5, range(4)) == [1.0, 0.0, 1.0, 0.0]


def test_fedcorr_adds_dimensions_up_over_passes() -> None:
    server = FedCorr(FedCorrConfig(passes=2), TASK)
    tensors = {"model/w": torch.zeros(1)}
    update = Update(0, tensors, {"samples": 5.0, "steps": 1.0, "dimension": 3.0})
    after = server.aggregate(ServerState(tensors, {"dimensions": {"0": 2.0}}), 5, [update])
    assert after.values["dimensions"] == {"0": 5.0}


def test_fednoro_looks_for_noisy_clients_once_the_warm_up_is_over() -> None:
    server = FedNoRo(FedNoRoConfig(warmup=3), TASK)
    assert [server.reviews(ServerState({}), r) for r in (1, 3, 4)] == [False, False, True]
    assert not server.reviews(ServerState({}, {"noisy": []}), 4)


def test_fedgr_weighs_the_losses_of_a_batch_by_their_mean_chance() -> None:
    """Chances with the mean 0.4: 0.4 · 1.5 + 0.6 · 0.25."""
    given, pseudo, chance = (torch.tensor(v) for v in ([1.0, 2.0], [0.5, 0.0], [0.7, 0.1]))
    assert float(both_losses(given, pseudo, chance, "code")) == pytest.approx(0.75)


def test_fedgrs_distillation_is_from_the_teacher() -> None:
    """q = (0.1192, 0.8808) of the teacher against (½, ½): ln 2 − 0.3653; the other way round it would be 0.4338."""
    assert float(apart(torch.tensor([[0.0, 2.0]]), torch.zeros(1, 2), 1.0)) == pytest.approx(0.3278, abs=1e-4)


def test_what_clients_keep_that_a_review_does_not_reach_stays() -> None:
    def reviewed_server(state: ServerState, round_idx: int, answers: Any) -> ServerState:
        return state

    server = SimpleNamespace(
        reviews=lambda *_: True, reviewed=reviewed_server, model_for=lambda *_: {}, signals=lambda *_: {}
    )
    experiment: Any = SimpleNamespace(server=server, seed=Seed(0))
    answer = Result(1, {}, {"noise": 0.5}, {"labels": torch.ones(1)}, {}, 0.0)
    policy: Any = SimpleNamespace(members=lambda _: [0, 1], review=lambda jobs: [answer])
    before = RunState(1, ServerState({}), keep={0: {"labels": torch.zeros(1)}})
    after, _ = reviewed(experiment, policy, before)
    assert {k: float(kept["labels"]) for k, kept in after.keep.items()} == {0: 0.0, 1: 1.0}
