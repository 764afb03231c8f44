"""Servers against numbers worked out by hand and brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import assert_same, sgd_step
from scipy.optimize import minimize

from fednoil import rounds
from fednoil.config import load_config
from fednoil.experiment import make_executor, make_experiment
from fednoil.learners import LEARNERS
from fednoil.learners.base import Client, Learner, LearnerConfig, Nets, Phase, Task, Turn
from fednoil.models.network import Network
from fednoil.seeds import Seed
from fednoil.servers import SERVERS
from fednoil.servers.apfl import Personal
from fednoil.servers.base import Server, Update
from fednoil.servers.cfl import Cfl, CflConfig, bipartition, cosine_matrix
from fednoil.servers.coordinate import median, trimmed_mean
from fednoil.servers.krum import krum_scores, tolerated
from fednoil.servers.rfa import Rfa, weiszfeld
from fednoil.tensors import Tensors
from fednoil.testing.splitting import Splitting

SIX = torch.tensor([[0.0, 0], [1, 0], [0, 1], [1, 1], [0.5, 0.4], [10, 10]])
FIVE = torch.tensor([[1.0, 10], [2, 20], [3, 30], [4, 40], [100, -500]])


def server(name: str, **keys: Any) -> Server:
    cls = SERVERS[name]
    return cls(cls.Config(name=name, **keys), Task(2, (1, 1, 1), 1, 0.1, 1, parameters=frozenset({"w"})))


def updates(rows: torch.Tensor, samples: list[float] | None = None) -> list[Update]:
    """Messages of one trainable vector, a BatchNorm statistic that must not count for distances, and a counter."""
    sizes = samples or [1.0] * len(rows)
    return [
        Update(
            k,
            {"model/w": row, "model/mean": 1000.0 * (k + 1) * torch.ones(1), "model/n": torch.tensor(k)},
            {"samples": n},
        )
        for k, (row, n) in enumerate(zip(rows, sizes, strict=True))
    ]


def test_krum_oracle() -> None:
    assert krum_scores(SIX, 1).tolist() == pytest.approx([2.41, 2.41, 2.61, 2.61, 1.43, 524], abs=1e-5)
    winner = server("krum").combine(updates(SIX))
    assert_same(winner, updates(SIX)[4].tensors)


def test_multikrum_oracle() -> None:
    """With f = 1 of six, n − f − 2 = 3 are kept."""
    mean = server("multikrum").combine(updates(SIX))
    assert mean["model/w"].tolist() == pytest.approx([0.5, 0.133333], abs=1e-6)
    assert mean["model/mean"].item() == pytest.approx(1000 * (1 + 2 + 5) / 3)
    assert mean["model/n"].item() == 4


def test_krum_never_parts_the_two_networks_of_a_client() -> None:
    """Each network has a different winner; by both vectors together it is a third client, with its whole state."""
    first, second = torch.tensor([[9.0, 2, 9, 5, 3, 8], [8, 4, 7, 3, 8, 0]])[..., None]
    both = [
        Update(k, {"a/w": a, "a/mean": torch.tensor([k]), "b/w": b, "b/mean": torch.tensor([k])}, {"samples": 1.0})
        for k, (a, b) in enumerate(zip(first, second, strict=True))
    ]
    assert [int(krum_scores(net, 1).argmin()) for net in (first, second)] == [5, 2]
    assert int(krum_scores(torch.cat([first, second], 1), 1).argmin()) == 3
    assert_same(server("krum").combine(both), both[3].tensors)


def test_krum_scores_by_brute_force() -> None:
    rng = np.random.default_rng(0)
    for count in range(3, 12):
        points = rng.normal(size=(count, 7))
        f = tolerated(0.3, count)
        expected = []
        for i in range(count):
            others = sorted(((points[i] - points[j]) ** 2).sum() for j in range(count) if j != i)
            expected.append(sum(others[: max(1, count - f - 2)]))
        assert krum_scores(torch.tensor(points), f).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("count", "f"), [(1, 0), (2, 0), (3, 0), (4, 0), (5, 1), (6, 1), (9, 2), (10, 3), (30, 9)])
def test_krum_tolerates_what_the_number_of_updates_allows(count: int, f: int) -> None:
    assert tolerated(0.3, count) == f
    assert tolerated(0.49, 30) == 13
    assert count < 3 or 2 * f + 2 < count
    rows = torch.randn(count, 3)
    assert any(torch.equal(server("krum").combine(updates(rows))["model/w"], row) for row in rows)


def test_median_and_trimmed_mean_oracles() -> None:
    assert median(FIVE).tolist() == [3, 20]
    assert median(FIVE[:4]).tolist() == [2.5, 25]
    assert trimmed_mean(FIVE, 0.2).tolist() == [3, 20]
    assert trimmed_mean(FIVE, 0.0).tolist() == pytest.approx([22, -80])
    assert server("median").combine(updates(FIVE))["model/w"].tolist() == [3, 20]
    assert server("trimmed_mean", bad=0.2).combine(updates(FIVE))["model/n"].item() == 4


def test_median_and_trimmed_mean_by_brute_force() -> None:
    rng = np.random.default_rng(0)
    for count in range(1, 12):
        points = rng.normal(size=(count, 5))
        columns = [sorted(column) for column in points.T.tolist()]
        middle = [(column[(count - 1) // 2] + column[count // 2]) / 2 for column in columns]
        assert median(torch.tensor(points)).tolist() == pytest.approx(middle)
        cut = int(0.3 * count)
        rest = [sum(column[cut : count - cut]) / (count - 2 * cut) for column in columns]
        assert trimmed_mean(torch.tensor(points), 0.3).tolist() == pytest.approx(rest)


def test_weiszfeld_finds_the_point_of_least_distances() -> None:
    """Against a search that knows nothing of the method: the sum of distances, weighted by samples."""
    rng = np.random.default_rng(0)
    for count in (3, 5, 8):
        points, samples = rng.normal(size=(count, 2)), rng.integers(1, 9, size=count).astype(float)

        def distances(z: np.ndarray, points: np.ndarray = points, samples: np.ndarray = samples) -> float:
            return float(samples @ np.linalg.norm(points - z, axis=1))

        found = minimize(distances, points.mean(0), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12})
        z, _ = weiszfeld(torch.tensor(points), torch.tensor(samples), 2000, 1e-9, 0.0)
        assert distances(z.numpy()) == pytest.approx(found.fun, rel=1e-5)


@pytest.mark.parametrize(
    ("iterations", "expected"), [(1, 1.324170), (2, 0.743584), (3, 0.570095), (4, 0.522398), (200, 0.5)]
)
def test_weiszfeld_oracle(iterations: int, expected: float) -> None:
    points, equal = torch.tensor([[0.0, 0], [1, 0], [0, 1], [10, 10]]), torch.ones(4)
    assert weiszfeld(points, equal, 0, 1e-5, 0.0)[0].tolist() == pytest.approx([2.75] * 2)  # it starts at the mean
    z, weights = weiszfeld(points, equal, iterations, 1e-5, 0.0)
    assert z.tolist() == pytest.approx([expected] * 2, abs=2e-4 if iterations > 100 else 1e-6)
    assert float(weights.sum()) == pytest.approx(1)
    if iterations == 4:
        assert float((points - z).norm(dim=1).mean()) == pytest.approx(3.889442, abs=1e-6)


def test_fedavg_counts_samples() -> None:
    combined = server("fedavg").combine(updates(torch.tensor([[0.0], [4.0]]), [3.0, 1.0]))
    assert combined["model/w"].item() == pytest.approx(1.0)
    assert combined["model/mean"].item() == pytest.approx(1250)


def test_rfa_weighs_buffers_like_parameters_and_counts_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rfa, "iterations", 1)
    combined = server("rfa").combine(updates(torch.tensor([[0.0], [4.0]]), [3.0, 1.0]))
    # z0 = 1; distances 1 and 3; weights .75/1 and .25/3, normalised .9 and .1
    assert combined["model/w"].item() == pytest.approx(0.4)
    assert combined["model/mean"].item() == pytest.approx(1100)


@pytest.mark.parametrize("name", SERVERS)
def test_the_update_of_one_client_comes_out_as_it_is(name: str) -> None:
    """BatchNorm statistics and counters included; under CFL its cluster's model becomes it."""
    cls = SERVERS[name]
    method = cls(cls.Config(name=name), Task(2, (1, 1, 1), 1, 0.1, 1, parameters=frozenset({"w"}), sizes=(10,)))
    (update,) = updates(torch.tensor([[1.5, -2.0]]), [10.0])
    state = method.init({name: torch.zeros_like(tensor) for name, tensor in update.tensors.items()})
    assert_same(method.exported(method.aggregate(state, 1, [update])), update.tensors)


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_fewer_updates_than_asked_for_are_enough(name: str, count: int) -> None:
    """However few replies arrive: f, trims and the members that a split needs follow their number."""
    cls = Splitting if name == "cfl" else SERVERS[name]
    task = Task(2, (1, 1, 1), 1, 0.1, 1, parameters=frozenset({"w"}), sizes=(10,) * 6)
    method = cls(cls.Config(name=name), task)
    state = method.init({"model/w": torch.zeros(2), "model/mean": torch.zeros(1), "model/n": torch.tensor(0)})
    after = method.aggregate(state, 1, updates(SIX[:count] + 1))
    assert bool(torch.isfinite(method.exported(after)["model/w"]).all())
    assert bool((method.exported(after)["model/w"] >= 1).all())
    assert len(after.values.get("splits", [])) == (1 if name == "cfl" and count >= 3 else 0)


# --- CFL -----------------------------------------------------------------------------------------------------------

DELTAS = torch.tensor([[2.0, 0], [1.8, 0.4], [-1.9, 0.3], [-2.1, -0.2]])


class Early(Cfl):
    first_split = 0


class EarlyAndLong(Early):
    eps1 = 1.0


def cfl(cls: type[Cfl] = Early) -> Cfl:
    return cls(CflConfig(), Task(2, (1, 1, 1), 1, 0.1, 1, parameters=frozenset({"w"}), sizes=(10, 10, 10, 10)))


def test_cfl_splits_the_oracle() -> None:
    similarity = cosine_matrix(DELTAS)
    assert float(similarity[0, 1]) == pytest.approx(0.976187, abs=1e-6)
    assert float(similarity[2, 3]) == pytest.approx(0.968527, abs=1e-6)
    assert float(similarity[:2, 2:].max()) == pytest.approx(-0.930408, abs=1e-6)
    server = cfl()
    state = server.init({"model/w": torch.zeros(2), "model/mean": torch.zeros(1), "model/n": torch.tensor(0)})
    after = server.aggregate(state, 1, updates(DELTAS))
    assert after.values["clusters"] == [[0, 1], [2, 3]]
    (split,) = after.values["splits"]
    assert split["mean"] == pytest.approx(0.134629, abs=1e-6)
    assert split["longest"] == pytest.approx(2.109502, abs=1e-6)
    assert split["across"] == pytest.approx(-0.930408, abs=1e-6)
    assert torch.equal(server.model_for(after, 0)["model/w"], server.model_for(after, 3)["model/w"])
    later = server.aggregate(after, 2, updates(DELTAS)[:2])
    assert server.model_for(later, 1)["model/w"].tolist() == pytest.approx([1.9, 0.2])
    assert_same(server.model_for(later, 2), server.model_for(after, 2))
    weights = [(s.name, s.weight) for s in server.scored(later, {})]
    assert weights == [("cluster 0", 20.0), ("cluster 1", 20.0), ("largest_cluster", 0.0)]
    assert [s.name for s in server.scored(state, {})] == ["cluster 0"]


def test_cfl_linkage_oracle() -> None:
    angles = torch.deg2rad(torch.tensor([0.0, 30, 61, 100]))
    similarity = cosine_matrix(torch.stack([angles.cos(), angles.sin()], 1))
    assert bipartition(similarity) == ([0, 1, 2], [3])
    assert float(similarity[:3, 3].max()) == pytest.approx(0.777146, abs=1e-6)


def test_single_linkage_is_the_best_cut() -> None:
    """Against all cuts: none has a smaller largest similarity across."""
    from itertools import combinations

    for seed in range(5):
        similarity = cosine_matrix(torch.randn(7, 3, generator=torch.Generator().manual_seed(seed)))

        def across(group: tuple[int, ...], similarity: torch.Tensor = similarity) -> float:
            rest = [i for i in range(7) if i not in group]
            return float(similarity[list(group)][:, rest].max())

        best = min(across(group) for size in range(1, 4) for group in combinations(range(7), size))
        assert across(tuple(bipartition(similarity)[0])) == pytest.approx(best)


def test_clients_that_have_not_trained_go_with_the_larger_part() -> None:
    server = cfl(EarlyAndLong)
    state = server.init({"model/w": torch.zeros(2), "model/mean": torch.zeros(1), "model/n": torch.tensor(0)})
    after = server.aggregate(state, 1, updates(DELTAS[[0, 1, 2]]))  # client 3 has not trained
    assert after.values["clusters"] == [[0, 1, 3], [2]]
    later = server.aggregate(after, 2, updates(DELTAS[[0, 1]]))  # the smaller cluster stays where it was
    assert_same(server.exported(later), server.model_for(later, 3))
    assert not torch.equal(server.exported(later)["model/w"], server.model_for(later, 2)["model/w"])


def test_cfl_that_never_splits_is_fedavg(values: dict[str, Any]) -> None:
    tensors = {}
    for name in ("fedavg", "cfl"):
        values["server"] = {"name": name}
        values["sampling"] = {"fraction": 0.5}
        experiment = make_experiment(load_config(values))
        executor, state = make_executor(experiment, torch.device("cpu")), rounds.start(experiment)
        for _ in range(2):
            state, record = rounds.play(experiment, executor, state)
        tensors[name] = experiment.server.exported(state.server)
    assert_same(tensors["fedavg"], tensors["cfl"])
    assert record.extra["clusters"] == [[0, 1, 2, 3]]
    assert all(mean > 0 for mean, _ in record.extra["update_norms"])


# --- APFL ----------------------------------------------------------------------------------------------------------


class Scalar(torch.nn.Module):
    """A network whose output is its one weight."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([value]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w.expand(len(x), 1)


class ToThree(Learner):
    """f = ½(output − 3)²."""

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        return [Phase({"index": torch.zeros(2, 1, dtype=torch.int64)})]

    def step(self, nets: Nets, pool: torch.Tensor, batch: Tensors, state: Tensors, kind: str) -> torch.Tensor:
        return 0.5 * (nets["model"](pool) - 3).square().sum()


def test_apfl_oracle() -> None:
    """α = .5, w = 1, v = 2, f = ½(x − 3)², η = .05: α' = .575, w' = 1.1, v' = 2.0375, mixed with the old α 1.56875."""
    task = Task(2, (1, 1, 1), 1, 0.05, 1)
    personal = Personal(ToThree(LearnerConfig(name="x"), task))
    nets = {n: Network(Scalar(v), (0.0,), (1.0,), torch.device("cpu")) for n, v in (("model", 1.0), ("own-model", 2.0))}
    client = Client(0, torch.zeros(1, 1, 1, 1), torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    turn = Turn(1, 1, Seed(0))
    state = personal.init(nets, client, {}, turn)
    (phase,) = personal.plan(nets, client, state, turn, range(1))
    assert phase.trains == ("model", "own-model")
    alphas = []
    for s in range(2):
        batch = {name: t[s] for name, t in phase.tensors.items()}
        for net in nets.values():
            net.grads.zero_()
        personal.step(nets, client.pool, batch, state, "train").backward()
        personal.gradients(nets, batch, state, "train")
        for net in nets.values():
            sgd_step(net, 0.05, 0.0, 0.0)
        alphas.append(float(state["apfl/alpha"]))
        if s == 0:
            assert nets["model"].params.item() == pytest.approx(1.1)
            assert nets["own-model"].params.item() == pytest.approx(2.0375)
            old = personal.predict(nets, client.pool, {"alpha": torch.tensor(0.5)})
            assert old.item() == pytest.approx(1.56875)
    assert alphas == pytest.approx([0.575, 0.575])  # it moves at the first batch of a turn only
    mixed = personal.predict(nets, client.pool, {"alpha": torch.tensor(0.25)})
    w, v = nets["model"].params.item(), nets["own-model"].params.item()
    assert mixed.item() == pytest.approx(0.25 * v + 0.75 * w)
    assert personal.predict(nets, client.pool, {}).item() == pytest.approx(w)


def test_apfls_alpha_stays_a_share_and_moves_at_the_first_batch_of_a_turn() -> None:
    """Steps of η · slope = ±9 end at 0 and 1; epochs after the first, planned on their own, have no slope."""
    personal = Personal(ToThree(LearnerConfig(name="x"), Task(2, (1, 1, 1), 1, 1.0, 1)))
    nets = {n: Network(Scalar(v), (0.0,), (1.0,), torch.device("cpu")) for n, v in (("model", 1.0), ("own-model", 2.0))}
    client = Client(0, torch.zeros(1, 1, 1, 1), torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    turn = Turn(1, 3, Seed(0))
    state = personal.init(nets, client, {}, turn)
    for slope, alpha in ((9.0, 0.0), (-9.0, 1.0)):
        personal.gradients(nets, {"apfl/slope": torch.tensor(slope)}, state, "train")
        assert float(state["apfl/alpha"]) == alpha
    state = personal.init(nets, client, {}, turn)
    slopes = [personal.plan(nets, client, state, turn, range(e, e + 1))[0].tensors["apfl/slope"] for e in range(3)]
    assert [slope.tolist() for slope in slopes] == [[pytest.approx(-1.5), 0], [0, 0], [0, 0]]


@pytest.mark.parametrize("learner", LEARNERS)
def test_apfl_common_model_is_fedavgs(values: dict[str, Any], learner: str) -> None:
    """w never depends on v or α, BatchNorm statistics included; personal models stay with their clients."""
    values["learner"] = {"name": learner, **({"warmup": 0} if learner in ("dividemix", "josrc") else {})}
    values["model"] = {"name": "test_rounds:bn_model"}
    states = {}
    for name in ("fedavg", "apfl"):
        values["server"] = {"name": name}
        values["sampling"] = {"fraction": 0.5}
        experiment = make_experiment(load_config(values))
        executor, state = make_executor(experiment, torch.device("cpu")), rounds.start(experiment)
        for _ in range(3):
            state, record = rounds.play(experiment, executor, state)
        states[name] = (state, record)
    (plain, plain_record), (apfl, record) = states["fedavg"], states["apfl"]
    assert_same(plain.server.tensors, apfl.server.tensors)
    assert record.extra["global_accuracy"] == plain_record.test_accuracy
    assert record.bytes_up == plain_record.bytes_up
    assert set(apfl.keep) >= set(record.selected)
    kept = apfl.keep[record.selected[0]]
    assert 0 <= float(kept["alpha"]) <= 1
    assert any(name.startswith("own-") for name in kept)
    alphas = [float(kept["alpha"]) for kept in apfl.keep.values()]
    assert record.extra["mean_alpha"] == pytest.approx(sum(alphas) / len(alphas))
    assert len(set(alphas)) > 1
    assert "mean_alpha" not in plain_record.extra


def test_under_apfl_a_learner_counts_each_step_once(values: dict[str, Any]) -> None:
    """The learner runs twice a step, for the common and the mixed model; its own figures are those of one run."""
    values["server"] = {"name": "apfl"}
    values["learner"] = {"name": "test_stack_portions:Counts"}
    experiment = make_experiment(load_config(values))
    job = rounds.make_job(experiment, rounds.start(experiment), 0, 2)
    (result,) = make_executor(experiment, torch.device("cpu")).train([job])
    assert result.evidence["trained"] == result.numbers["steps"] / 2  # which count both networks


@pytest.mark.parametrize("learner", ["erm", "dividemix"])
def test_apfls_mixed_model_without_a_personal_share_is_fedavgs(
    values: dict[str, Any], learner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values["learner"] = {"name": learner}
    records = {}
    monkeypatch.setattr(Personal, "_slope", lambda *_: 0.0)  # α stays where it is
    monkeypatch.setattr(Personal, "first_alpha", 0.0)
    for name in ("fedavg", "apfl"):
        values["server"] = {"name": name}
        values["sampling"] = {"fraction": 0.5}
        experiment = make_experiment(load_config(values))
        executor, state = make_executor(experiment, torch.device("cpu")), rounds.start(experiment)
        for _ in range(2):
            state, records[name] = rounds.play(experiment, executor, state)
    assert records["apfl"].test_accuracy == pytest.approx(records["fedavg"].test_accuracy)
    assert records["apfl"].extra["mean_alpha"] == 0
    assert records["apfl"].test_loss == pytest.approx(records["fedavg"].test_loss, rel=1e-6)
