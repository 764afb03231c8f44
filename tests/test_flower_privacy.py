"""What a node guards: its scores, its update, and which code it runs."""

from __future__ import annotations

import json
import math
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any, cast

import pytest
import torch

pytest.importorskip("flwr")

from loop_grid import LoopGrid, federate, partitions

from fednoil.config import load_config, to_toml
from fednoil.errors import UserError
from fednoil.flower import messages
from fednoil.flower import node as node_module
from fednoil.flower.ledger import ScoreLedger, Terms
from fednoil.flower.messages import BadMessage, Refusal
from fednoil.flower.node import Node
from fednoil.flower.settings import NodeSettings
from fednoil.flower.terms import CommonTerms, Founders
from fednoil.flower.work import Order, partition_work, whole
from fednoil.learners.base import Nets, Role
from fednoil.learners.erm import Erm
from fednoil.tensors import Tensors

Values = dict[str, Any]


def test_a_node_runs_no_code_that_its_operator_has_not_named(
    federated: Values, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federated["learner"] = {"name": "fednoil.learners.erm:Erm"}
    config = load_config(federated)
    with pytest.raises(UserError):
        federate(config, tmp_path / "run")
    assert any("it doesn't trust the code 'fednoil.learners.erm:Erm'" in r.getMessage() for r in caplog.records)
    trusting = partitions(tmp_path / "state")
    for node in trusting.values():
        node["trust"] = "fednoil.learners.erm:Erm"
    assert len(federate(config, tmp_path / "run", LoopGrid(trusting))) == 4


def test_a_node_sends_one_noisy_score_a_round(federated: Values, tmp_path: Path) -> None:
    federated["privacy"] = {"scores": 4.0}
    federated["train"]["rounds"] = 1
    config, plain = load_config(federated), {**federated, "privacy": {}}
    (without,) = federate(plain, tmp_path / "plain", LoopGrid(partitions(tmp_path / "p")))
    (first,) = federate(config, tmp_path / "a", LoopGrid(partitions(tmp_path / "a-state")))
    (second,) = federate(config, tmp_path / "b", LoopGrid(partitions(tmp_path / "b-state")))
    # The same seed, other noise: it is the node's own.
    assert len({tuple(r["scores"].values()) for r in (without, first, second)}) == 3
    assert all(0 <= s <= 20 for s in first["scores"].values())
    stored = json.loads((tmp_path / "a-state" / "client-0" / "scores.json").read_text())
    (account,) = stored["runs"].values()
    assert account == {"rounds": 1, "epsilon": 4.0, "told": {"1": first["scores"]["client-0"]}}
    assert stored["spent"] == 4.0
    # Asked again for round 1 (the run starts over from its roster), it says the same.
    (tmp_path / "a" / "checkpoint" / "checkpoint.json").unlink()
    (again,) = federate(config, tmp_path / "a", LoopGrid(partitions(tmp_path / "a-state")), resume=True)
    assert again["scores"] == first["scores"]


def test_a_server_that_changes_its_terms_gets_no_score(tmp_path: Path) -> None:
    """R = 4 and ε = 2: a score costs ½. Asked with fewer rounds, more ε or no noise at all, a node says nothing."""
    ledger, terms = ScoreLedger(tmp_path / "site"), Terms(rounds=4, epsilon=2.0)
    assert ledger.reported("run", 1, terms) is None
    assert ledger.record("run", 1, terms, 7.5) == 7.5
    assert ledger.record("run", 1, terms, 9.0) == ledger.reported("run", 1, terms) == 7.5
    assert json.loads((tmp_path / "site" / "scores.json").read_text())["spent"] == 0.5
    for other in (Terms(rounds=1, epsilon=2.0), Terms(rounds=4, epsilon=8.0)):
        for round_idx in (1, 2):
            with pytest.raises(Refusal, match=r"share ε = 2 over 4 rounds, but the request has ε = \d over \d"):
                ledger.record("run", round_idx, other, 1.0)
    for round_idx in (0, 5):
        with pytest.raises(Refusal, match="is not one of 4"):
            ledger.reported("run", round_idx, terms)
    with pytest.raises(Refusal, match="one without would cost privacy"):
        ledger.check_plain("run")
    ledger.check_plain("another")


def test_the_budget_is_for_all_runs_together(tmp_path: Path) -> None:
    """Two runs of R = 2 and ε = 1 cost 2; with a budget of 1.5 the second one's last score is not sent."""
    ledger, terms = ScoreLedger(tmp_path / "site"), Terms(rounds=2, epsilon=1.0, budget=1.5)
    for run, round_idx in (("a", 1), ("a", 2), ("b", 1)):
        ledger.record(run, round_idx, terms, 3.0)
    with pytest.raises(Refusal, match=r"exceed its budget of ε = 1.5 for all runs"):
        ledger.record("b", 2, terms, 3.0)
    assert ledger.reported("a", 2, terms) == 3.0  # what was sent may be sent again
    (tmp_path / "site" / "scores.json").write_text('{"runs": {"a": {"told": 3}}}')
    with pytest.raises(UserError, match=r"scores\.json is damaged"):
        ledger.reported("b", 1, terms)


def test_runs_that_ask_at_once_share_the_budget(tmp_path: Path) -> None:
    """Sixteen first scores of ½ each and a budget of 4: eight are sent, and all eight are recorded."""
    terms, together = Terms(rounds=2, epsilon=1.0, budget=4.0), Barrier(16)

    def ask(run: int) -> bool:
        together.wait()
        try:
            ScoreLedger(tmp_path / "site").record(str(run), 1, terms, float(run))
        except Refusal:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        sent = [run for run, done in enumerate(pool.map(ask, range(16))) if done]
    stored = json.loads((tmp_path / "site" / "scores.json").read_text())
    assert len(sent) == 8
    assert {run: account["told"]["1"] for run, account in stored["runs"].items()} == {str(r): float(r) for r in sent}
    assert stored["spent"] == 4.0


def test_a_site_that_has_spent_its_budget_is_left_out(federated: Values, tmp_path: Path) -> None:
    """Without score-budget it is score-epsilon: enough for one run, whatever the server calls the next."""
    federated["train"]["rounds"] = 2
    nodes = partitions(tmp_path / "state")
    nodes[900]["score-epsilon"] = 3.0
    first = federate(federated, tmp_path / "first", LoopGrid(nodes))
    assert all("client-0" in record["scores"] for record in first)
    second = federate(federated, tmp_path / "second", LoopGrid(nodes))
    for record in second:
        assert "client-0" not in record["scores"]
        assert "exceed its budget of ε = 3 for all runs" in record["failed"]["client-0"]
    nodes[900]["score-budget"] = 6
    third = federate(federated, tmp_path / "third", LoopGrid(nodes))
    assert all("client-0" in record["scores"] for record in third)


def asked(federated: Values, state: Path, **settings: Any) -> tuple[Node, Tensors]:
    """Client 0 before its first score, and the model it is asked with."""
    text, trusted = to_toml(load_config(federated)), (settings["trust"],) if "trust" in settings else ()
    dataset = whole(text, trusted).setting.dataset
    agreement = CommonTerms(dataset.class_names, dataset.image_shape, dataset.mean, dataset.std)
    own = NodeSettings.read({"partition-id": 0, "state": str(state), **settings})
    return Node(own, Order(text, "0" * 32, 0, 1, 1, agreement, Founders(1, 1))), whole(text, trusted).initial_model()


def test_a_node_does_no_other_clients_work(federated: Values, tmp_path: Path) -> None:
    node, _ = asked(federated, tmp_path)
    for other in (1, -1, 4):
        with pytest.raises(Refusal, match=f"it is client 0, not {other}"):
            partition_work(node.settings, replace(node.order, client=other))


@pytest.mark.parametrize("lead", ["other/", "../../", "./", "/"])
def test_a_server_names_no_other_folder(lead: str, federated: Values, tmp_path: Path) -> None:
    """With a folder of its own choice a run would also have a ledger of its own, and the whole budget again."""
    node, _ = asked(federated, tmp_path / "state")
    with pytest.raises(BadMessage, match="the name of its run is invalid"):
        Node(node.settings, replace(node.order, run=lead + "0" * 32))


@pytest.mark.parametrize("settings", [{}, {"score-epsilon": 1.0}])
def test_a_method_that_needs_no_score_gets_none(settings: Values, federated: Values, tmp_path: Path) -> None:
    """Its range would be that of a mean and its size that of a sum: noise of 1/n of what ε promises."""
    federated["sampling"]["name"] = "uniform"
    node, model = asked(federated, tmp_path, **settings)
    with pytest.raises(Refusal, match="samples its clients without scores"):
        node.score(model)
    assert not list(tmp_path.iterdir())


def test_a_model_that_overflows_on_one_sample_does_not_reveal_it(
    federated: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN counts as 0, what is beyond [0, 1] as its end: 0 + 1 + 0 + 1 + 16 · ½ = 10, nearly without noise."""
    found = torch.tensor([math.nan, math.inf, -1.0, 2.0] + 16 * [0.5])
    monkeypatch.setattr(node_module, "confidences", lambda *_: found)
    node, model = asked(federated, tmp_path, **{"score-epsilon": 1e9})
    assert node.score(model) == pytest.approx(10, abs=1e-4)
    # Without a promise there is nothing to hide, and the server drops a score that is no number.
    node, model = asked(federated, tmp_path / "other")
    assert math.isnan(node.score(model))


class AsksItsOwn(Erm):
    """Predicts with a network that stays with the client."""

    @property
    def roles(self) -> tuple[Role, ...]:
        return (Role("model"), Role("own", shared=False, kept=True))

    def predict(self, nets: Nets, images: torch.Tensor, own: Tensors) -> torch.Tensor:
        return nets["own"](images)


def test_a_noisy_score_is_the_received_models_alone(federated: Values, tmp_path: Path) -> None:
    """What a client keeps was shaped by all of its samples: one of them could move the score by more than ε allows."""
    federated["learner"] = {"name": "test_flower_privacy:AsksItsOwn"}
    trusted: Values = {"trust": "test_flower_privacy:AsksItsOwn"}
    scores = {}
    for kept in (False, True):
        for epsilon in (None, 1e9):
            settings = trusted if epsilon is None else {**trusted, "score-epsilon": epsilon}
            node, model = asked(federated, tmp_path / f"{kept}-{epsilon}", **settings)
            if kept:
                node.state.save_keep(0, {n.replace("model/", "own/"): 2 * t for n, t in model.items()}, 1)
            scores[kept, epsilon] = node.score(model)
    assert scores[True, None] != pytest.approx(scores[False, None], rel=1e-3)
    assert scores[True, 1e9] == pytest.approx(scores[False, None], rel=1e-5)


def test_all_rounds_of_a_run_share_a_nodes_epsilon(
    federated: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Laplace noise of scale R/ε = 6/4 at its third quartile: 10 + 1.5 · ln 2."""
    federated["train"]["rounds"] = 6
    monkeypatch.setattr(node_module, "confidences", lambda *_: torch.full((20,), 0.5))
    monkeypatch.setattr(node_module.secrets, "randbits", lambda bits: 3 << bits - 2)
    node, model = asked(federated, tmp_path, **{"score-epsilon": 4.0})
    assert node.score(model) == pytest.approx(10 + 1.5 * math.log(2))


def test_the_number_of_steps_does_not_reveal_the_score(federated: Values, tmp_path: Path) -> None:
    """|D^x| goes by the confidences, and the steps by |D^x|; with noise on scores they are ⌈20 / 2⌉ = 10 an epoch."""
    federated["learner"] = {"name": "fednoil", "frac": "auto"}
    federated["sampling"]["fraction"] = 1.0
    federated["train"] |= {"rounds": 1, "batch_size": 2}
    federated["schedule"] = {"name": "constant", "epochs": 3}
    nodes = partitions(tmp_path / "state")
    nodes[900]["score-epsilon"] = 1.0
    grid = LoopGrid(nodes)
    federate(federated, tmp_path / "run", grid)
    steps = {
        node: cast(Any, reply.content["numbers"])["steps"]
        for node, reply in grid.replies
        if reply.metadata.message_type == "train"
    }
    assert steps.pop(900) == 30
    assert len(steps) == 3
    assert all(0 < sent < 30 for sent in steps.values())


def test_what_a_node_keeps_is_its_owners_alone(federated: Values, tmp_path: Path) -> None:
    federated["server"] = {"name": "apfl"}
    federated["sampling"] = {"name": "score", "fraction": 1.0}
    federated["privacy"] = {"scores": 5.0}
    federated["train"]["rounds"] = 1
    (tmp_path / "state" / "client-0").mkdir(parents=True)
    (tmp_path / "state" / "client-0").chmod(0o755)  # as an earlier version has made it
    federate(federated, tmp_path / "run")
    kept = list((tmp_path / "state").glob("*/*/keep-*.safetensors"))
    assert len(kept) == 4
    for path in kept:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [stat.S_IMODE(folder.stat().st_mode) for folder in path.parents[:2]] == [0o700, 0o700]
    for path in (tmp_path / "state").glob("*/scores.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"score-epsilon": 0}, "score-epsilon = 0 must be a number above 0"),
        ({"partition-id": "x"}, "partition-id = 'x' must be a whole number of at least 0"),
        ({"partition-id": -1}, "partition-id = -1 must be a whole number"),
        ({"score-epsilon": True}, "score-epsilon = True must be"),
        ({"score-epsilon": 1, "score-budget": "much"}, "score-budget = 'much' must be"),
        ({"score-budget": 5}, "score-epsilon is missing: the share of score-budget = 5"),
        ({"score-epsilom": 5}, "score-epsilom is unknown; known: .*did you mean"),
        ({"client-id": "../nord"}, "client-id = '../nord' must be letters of any script"),
    ],
)
def test_bad_settings_of_a_node_are_reported(settings: Values, said: str) -> None:
    with pytest.raises(UserError, match=said):
        NodeSettings.read({"partition-id": 0, **settings})


def test_the_operator_may_ask_for_more_noise(federated: Values, tmp_path: Path) -> None:
    federated["train"]["rounds"] = 1
    nodes = partitions(tmp_path / "state")
    nodes[900]["score-epsilon"] = 1e-9
    (record,) = federate(federated, tmp_path / "run", LoopGrid(nodes))
    assert record["scores"]["client-0"] in (0.0, 20.0)  # Laplace noise of scale 1e9, moved back into the range


@pytest.mark.parametrize(("nodes", "wait", "came"), [(0, 3, "came online within 3"), (4, 300, "can take part")])
def test_protocols_must_agree(
    nodes: int, wait: int, came: str, federated: Values, tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    """A refusal takes three tries and is said once; where all nodes are known, no more are waited for."""
    monkeypatch.setattr("fednoil.flower.members.PROTOCOL", messages.PROTOCOL + 1)
    monkeypatch.setattr("fednoil.flower.members._AGAIN", (0.0, 0.0))
    federated["federation"]["wait"] = wait
    said = "node 897 is refused: client-3: it uses protocol 7"
    with pytest.raises(UserError, match=f"0 of 4 nodes {came}.*; {said}"):
        federate(federated, tmp_path / "run", nodes=nodes)
    assert (caplog.text.count(said), caplog.text.count("0 of 4 nodes are there; waiting ")) == (1, 1)
    assert not (tmp_path / "run").exists()
