"""Every server with every learner keeps the contract, and one that doesn't is refused with a reason."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from inspect import isfunction
from typing import Any

import pytest
import torch
from made_labels import true_labels
from torch import Tensor, nn

from fednoil import rounds
from fednoil.config import load_config
from fednoil.experiment import Experiment, assemble, make_executor, make_experiment
from fednoil.labels import Labels
from fednoil.learners import LEARNERS
from fednoil.learners.base import Client, Final, Nets, Phase, Turn, one_by_one
from fednoil.learners.erm import Erm
from fednoil.learners.feddiv import FILTER
from fednoil.learners.fednoil import FedNoil
from fednoil.learners.looks import confidences, logits_of
from fednoil.servers import SERVERS
from fednoil.servers.base import Server, ServerState
from fednoil.tensors import Tensors
from fednoil.testing import NotConforming, cases, check_learner, check_method, check_server, checks, federation
from fednoil.testing.checks import LEARNER_KEYS, SERVER_KEYS

OWN = {"fednoro": "fednoro", "fedelc": "fednoro", "feddiv": "feddiv", "fedgr": "fedgr"}  # learners' own servers
TINY = {"rounds": federation.ROUNDS, "batch_size": 8, "pad": 1}
FEW = ("erm", "dividemix", "fedgr")  # with one network, with two, with numbers for the server


def only_combines(server: str) -> bool:
    """Whether a server differs from the plain one in how it combines updates alone, which no learner can notice."""
    methods = (name for name, value in vars(Server).items() if isfunction(value))
    return [name for name in methods if getattr(SERVERS[server], name) is not getattr(Server, name)] == ["combine"]


def distinct() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Every server with every learner, but those that only combine updates in another way with a few of them."""
    combine = {name for name in SERVERS if only_combines(name)}
    assert combine == {"median", "trimmed_mean", "krum", "multikrum", "rfa"}
    return [(s, learner) for s, learner in cases() if s["name"] not in combine or learner["name"] in FEW]


@pytest.mark.parametrize(("server", "learner"), distinct(), ids=lambda section: section["name"])
def test_any_server_with_any_learner(server: dict[str, Any], learner: dict[str, Any]) -> None:
    check_method(server, learner)


def test_methods_of_ones_own_meet_all_that_those_of_the_package_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters that split, and learners after their warm-up, independent of the defaults."""
    met: list[tuple[dict[str, Any], dict[str, Any]]] = []
    monkeypatch.setattr(checks, "check_method", lambda server, learner: met.append((server, learner)))
    check_learner("my_module:Mine", warmup=1)
    check_server("my_module:Mine", trim=0.1)
    servers, learners = [server for server, _ in met[: len(SERVERS)]], [learner for _, learner in met[len(SERVERS) :]]
    assert servers == [{"name": name, **SERVER_KEYS.get(name, {})} for name in SERVERS]
    assert learners == [{"name": name, **LEARNER_KEYS.get(name, {})} for name in LEARNERS]
    assert met[0][1] == {"name": "my_module:Mine", "warmup": 1}
    assert met[-1][0] == {"name": "my_module:Mine", "trim": 0.1}


def test_the_tiny_federation_shows_what_it_should() -> None:
    """Clusters split, personal models are kept by clients that train again, after a pause as well, and sizes differ."""
    config = federation.tiny_config({"name": "cfl", **SERVER_KEYS["cfl"]}, {"name": "erm"})
    trace = federation.play(config, federation.Circumstances(checkpoints=True))
    assert trace.state.server.values["splits"]
    assert len({len(part) for part in federation.tiny_setting(config).parts}) > 1
    trace = federation.play(federation.tiny_config({"name": "apfl"}, {"name": "erm"}), federation.Circumstances())
    assert any(job.keep for jobs in trace.jobs for job in jobs)
    first, second, third = ({job.client for job in jobs} for jobs in trace.jobs)
    (back,) = (first & third) - second
    assert [bool(job.keep) for job in trace.jobs[2] if job.client == back] == [True]


def test_the_tiny_federation_shows_feddivs_filter() -> None:
    """Nobody has one in the first round; everybody fits one before the second, and has one from then on."""
    section = {"name": "feddiv", **SERVER_KEYS["feddiv"]}
    trace = federation.play(federation.tiny_config(section, {"name": "feddiv"}), federation.Circumstances())
    assert [[FILTER[0] in job.turn.signals for job in jobs] for jobs in trace.jobs] == [[False], [True] * 3, [True] * 3]
    assert {k: len(answers) for k, answers in trace.answers.items()} == {2: 4}


def steep_model(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """Logits that lie hundreds apart: nearly all probabilities but one a sample are exactly 0."""
    model = federation.plain_model(image_shape, num_classes)
    head = model.get_submodule("3")
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        head.weight.mul_(1e4)
    return model


@pytest.mark.parametrize(
    ("server", "learner", "keys"),
    [
        *((OWN.get(name, "fedavg"), name, LEARNER_KEYS.get(name, {})) for name in LEARNERS),
        *((OWN.get(name, "fedavg"), name, {"version": "paper"}) for name in ("fedlsr", "fedgr")),
    ],
)
def test_probabilities_that_are_exactly_0_give_finite_gradients(
    server: str, learner: str, keys: dict[str, Any]
) -> None:
    """A gradient that isn't finite would leave no finite weights at any rate, and end the run."""
    section = {"name": server, **SERVER_KEYS.get(server, {})}
    config = federation.tiny_config(section, {"name": learner, **keys})
    steep = load_config({"model": {"name": f"{__name__}:steep_model"}, "train": {**TINY, "lr": 1e-20}})
    config = config.model_copy(update={"model": steep.model, "train": steep.train})
    trace = federation.play(config, federation.Circumstances())
    bench = make_executor(assemble(config, federation.tiny_setting(config)), torch.device("cpu"))
    logits = bench.test_logits(trace.jobs[0][0].received)
    assert (torch.softmax(logits, 1) == 0).sum() > 2.5 * len(logits)
    assert all(math.isfinite(result.loss) for results in trace.results for result in results)


def scores_by_hand(experiment: Experiment, state: rounds.RunState, temperature: float) -> list[float]:
    """Σ softmax(logits/τ)[given] of every client, with the networks that the server has for it."""
    images = torch.tensor(experiment.setting.dataset.train.images)
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in experiment.normalisation)
    scores = []
    for k, (part, given) in enumerate(zip(experiment.setting.parts, experiment.setting.labels.given, strict=True)):
        received = experiment.server.model_for(state.server, k)
        logits: Tensor | float = 0.0
        for network in sorted({name.split("/")[0] for name in received}):
            module = experiment.build_model("model").eval()
            module.load_state_dict({n.split("/", 1)[1]: t for n, t in received.items() if n.startswith(f"{network}/")})
            with torch.no_grad():
                logits = logits + module((images[torch.tensor(part)].float() / 255 - mean) / std)
        assert isinstance(logits, Tensor)
        chances = torch.softmax(logits / temperature, 1)
        scores.append(float(chances[torch.arange(len(given)), torch.tensor(given)].double().sum()))
    return scores


@pytest.mark.parametrize(
    ("server", "learner"), [*(("fedavg", name) for name in LEARNERS), ("apfl", "dividemix"), ("cfl", "fednoil")]
)
def test_clients_are_scored_with_what_they_receive(values: dict[str, Any], server: str, learner: str) -> None:
    """Sampling by score: two networks as an ensemble, under CFL the client's own cluster, under APFL the common w."""
    values["sampling"] = {"name": "score", "fraction": 0.75}
    values["server"] = {"name": server, **SERVER_KEYS.get(server, {})}
    values["learner"] = {"name": learner, **LEARNER_KEYS.get(learner, {})}
    values["schedule"]["epochs"] = 1
    experiment = make_experiment(load_config(values))
    executor, state = make_executor(experiment, torch.device("cpu")), rounds.start(experiment)
    for _ in range(2):
        state, _ = rounds.play(experiment, executor, state)
    _, record = rounds.play(experiment, executor, state)
    assert record.client_scores == pytest.approx(scores_by_hand(experiment, state, 0.5), rel=1e-4)
    if server == "cfl":
        assert len(state.server.values["clusters"]) > 1
        (split, *_) = record.extra["splits"]
        assert split["round"] <= 2
        assert sorted(k for part in split["into"] for k in part) == split["from"]
        assert 0 <= record.extra["largest_cluster_accuracy"] <= 100


# --- those that break the contract -----------------------------------------------------------------------------------


class Draws(Erm):
    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        return super().step(nets, pool, batch, state, kind) * (1 + torch.rand(()))


class DrawsAhead(Erm):
    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        (phase,) = super().plan(nets, client, state, turn, epochs)
        return [Phase({**phase.tensors, "labels": (phase.tensors["labels"] + int(random.random() * 4)) % 4})]

    def adapts(self, turn: Turn) -> bool:
        return True


class Looks(Erm):
    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        loss = super().step(nets, pool, batch, state, kind)
        return loss if loss > 1 else 2 * loss


class Chooses(Erm):
    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        few = batch["labels"] > 0
        return super().step(nets, pool, {name: t[few] for name, t in batch.items()}, state, kind)


class Replaces(Erm):
    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        return {"steps": torch.zeros(())}

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        state["steps"] = state["steps"] + 1
        return super().step(nets, pool, batch, state, kind)


class Hoards(Erm):
    """Remembers clients on the object instead of in `keep`."""

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        self.turns = getattr(self, "turns", 0) + 1
        return {"weight": torch.tensor(1.0 / self.turns)}

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        return super().step(nets, pool, batch, state, kind) * state["weight"]


class HoardsByClient(Hoards):
    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        seen = self.__dict__.setdefault("seen", {})
        seen[client.id] = seen.get(client.id, 0) + 1
        return {"weight": torch.tensor(1.0 / seen[client.id])}


class OneOrder(Erm):
    """The same order of samples in every epoch that is planned together."""

    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        (one,) = super().plan(nets, client, state, turn, range(1))
        (phase,) = super().plan(nets, client, state, turn, epochs)
        return [
            Phase({**phase.tensors, "index": one.tensors["index"].flip(0).repeat(len(epochs), 1).roll(len(epochs))})
        ]


class OneSeed(Erm):
    """Plans all clients with the seed of the first."""

    def plans(self, trainees: Any, epochs: range) -> list[list[Phase]]:
        return one_by_one(self, [one._replace(turn=trainees[0].turn) for one in trainees], epochs)


class OneKind(Erm):
    def plans(self, *args: Any) -> list[list[Phase]]:
        return [[replace(phase, kind="together") for phase in phases] for phases in one_by_one(self, *args)]


class Spoils(Erm):
    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        client.labels.fill_(2)
        return super().plan(nets, client, state, turn, epochs)


class Shapes(Erm):
    def views(self, pool: Tensor, batch: Tensors) -> Tensors:
        return {"images": super().views(pool, batch)["images"].view(len(batch["index"]), *pool.shape[1:])}


class Centres(Erm):
    def views(self, pool: Tensor, batch: Tensors) -> Tensors:
        images = super().views(pool, batch)["images"].float()
        return {"images": images - images.mean()}


class Counts(Erm):
    def final(self, nets: Nets, client: Client, state: Tensors, turn: Turn) -> Final:
        return Final(numbers={"turn": turn.round_idx})


class Uneven(Erm):
    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        (phase,) = super().plan(nets, client, state, turn, epochs)
        return [phase, Phase({name: t[:, :5] for name, t in phase.tensors.items()})]

    def adapts(self, turn: Turn) -> bool:
        return True


class Ghost(Erm):
    def plan(self, nets: Nets, client: Client, state: Tensors, turn: Turn, epochs: range) -> list[Phase]:
        return [Phase(p.tensors, trains=("ghost",)) for p in super().plan(nets, client, state, turn, epochs)]


class Compares(Erm):
    """Its survey looks at a client as a whole."""

    def asks(self, client: Client, turn: Turn) -> Tensors:
        return {}

    def survey(self, nets: Nets, client: Client, asked: Tensors) -> Tensors:
        confidence = confidences(logits_of(self, nets, client), client.labels, 1.0)
        return {"rank": confidence / confidence.sum()}


class Sums(Compares):
    def survey(self, nets: Nets, client: Client, asked: Tensors) -> Tensors:
        return {"sum": logits_of(self, nets, client).sum()[None]}


class Overcounts(FedNoil):
    """Fills up batches with samples that count."""

    def evened(self, batches: Sequence[Tensors]) -> Sequence[Tensors] | None:
        wide = super().evened(batches)
        return wide and [{**batch, "u_mask": torch.ones_like(batch["u_mask"])} for batch in wide]


def test_clients_that_learn_something_else_side_by_side_are_found() -> None:
    with pytest.raises(
        NotConforming, match=r"side by side with others as on a GPU, ends with a different 'model/.*evened"
    ):
        check_learner(Overcounts, servers=["fedavg"], frac=0.35, xi=0.3)


@pytest.mark.parametrize(
    ("learner", "said"),
    [
        (Draws, r"step draws random numbers \(rand\).*turn.seed"),
        (DrawsAhead, "depend on a global random generator.*turn.seed"),
        (Looks, "step reads a tensor's value"),
        (Chooses, "size depends on values"),
        (Replaces, "replaces tensors of the state"),
        (Hoards, "order in which clients train.*Final.keep"),
        (HoardsByClient, "resumed from a checkpoint ends differently.*Final.keep"),
        (OneOrder, "planning all epochs at once gives another 'index'.*one key per epoch"),
        (OneSeed, "plans` gives another 'index' than `plan"),
        (OneKind, "plans` gives other kinds of phases"),
        (Spoils, "changes the client's data"),
        (Shapes, "its views can't be made for several steps at once: "),
        (Centres, "its views of several steps at once aren't those of each"),
        (Counts, r"Final.numbers\['turn'\] is not a float"),
        (Uneven, "steps of kind 'train' have different shapes"),
        (Compares, "survey gives another 'rank'.*belongs in init"),
        (Sums, "'sum' of its asks or survey has 1 rows for"),
        (Ghost, r"trains \['ghost'\], but the roles are \['model'\]"),
    ],
)
def test_a_misbehaving_learner_is_refused_with_a_reason(learner: type, said: str) -> None:
    with pytest.raises(NotConforming, match=rf"{learner.__name__} under fedavg: .*({said})"):
        check_learner(learner, servers=["fedavg"])


class InPlace(Server):
    def aggregate(self, state: ServerState, round_idx: int, updates: Any) -> ServerState:
        for name, tensor in state.tensors.items():
            tensor.copy_(updates[0].tensors[name])
        return state


class Counting(Server):
    rounds = 0

    def aggregate(self, state: ServerState, round_idx: int, updates: Any) -> ServerState:
        self.rounds += 1
        return replace(super().aggregate(state, round_idx, updates), values={"rounds": self.rounds})


class Sets(Server):
    def aggregate(self, state: ServerState, round_idx: int, updates: Any) -> ServerState:
        return replace(super().aggregate(state, round_idx, updates), values={"seen": {u.client for u in updates}})


class Partial(Server):
    def aggregate(self, state: ServerState, round_idx: int, updates: Any) -> ServerState:
        tensors = super().aggregate(state, round_idx, updates).tensors
        return ServerState(dict(list(tensors.items())[1:]))


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (InPlace, "aggregate changes its state or the updates in place"),
        (Counting, "resumed from a checkpoint ends differently.*ServerState"),
        (Sets, r"left values\['seen'\] = .*; JSON has numbers"),
        (Partial, r"must leave 'model/.*' as a tensor of shape \[.*\], not a NoneType"),
    ],
)
def test_a_misbehaving_server_is_refused_with_a_reason(server: type, said: str) -> None:
    with pytest.raises(NotConforming, match=f"erm under {__name__}:{server.__name__}: .*{said}"):
        check_server(server, learners=["erm"])


def test_true_labels_that_leak_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor that hands out the truth makes every learner depend on it."""
    real = federation.make_executor

    def leaky(experiment: Experiment, device: torch.device) -> Any:
        truth = true_labels(experiment.setting.truth)
        return real(replace(experiment, setting=replace(experiment.setting, labels=Labels(truth))), device)

    monkeypatch.setattr(federation, "make_executor", leaky)
    with pytest.raises(NotConforming, match="depend on true labels"):
        check_learner("erm", servers=["fedavg"])
