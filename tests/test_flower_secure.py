"""Secure sums: exact up to their fixed point, with clients that drop out, and without one update at the server."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from loop_grid import LoopGrid, Spoil, federate, partitions

from fednoil.config import load_config
from fednoil.errors import UserError
from fednoil.flower.executor import FlowerExecutor
from fednoil.flower.messages import Body, Refusal, update_form
from fednoil.flower.secure import fixed_point, mask, names_of, neighbours, pair_mask, real, threshold
from fednoil.flower.secure_node import Session
from fednoil.flower.secure_server import SecureSum
from fednoil.tensors import read_tensors

Values = dict[str, Any]


@pytest.fixture
def summed(federated: Values) -> Values:
    """Four nodes that all train, in one round whose updates are summed in secret."""
    federated["sampling"] = {"name": "uniform", "fraction": 1.0}
    federated["train"]["rounds"] = 1
    federated["privacy"] = {"sees": "sum"}
    return federated


def model_of(out: Path) -> dict[str, torch.Tensor]:
    return read_tensors(out / "model.safetensors")


def values_of(message: Message) -> Values:
    return dict(cast(ConfigRecord, message.content["values"]))


def losing(kind: str, *nodes: int) -> Spoil:
    """These nodes don't answer messages of this kind."""
    return lambda node, order, reply: None if order.metadata.message_type == kind and node in nodes else reply


def updates_of(grid: LoopGrid) -> dict[int, np.ndarray]:
    """What each node sent back from training, as one vector of its wire's own type."""
    found = {}
    for node, reply in grid.replies:
        if reply.metadata.message_type == "train":
            (array,) = cast(ArrayRecord, reply.content["model"]).values()
            found[node] = array.numpy()
    return found


@pytest.mark.parametrize("server", ["fedavg", "fedprox"])
def test_the_mean_is_that_of_the_plain_updates(server: str, summed: Values, tmp_path: Path) -> None:
    """Over two rounds, up to the fixed point: a multiple of 2⁻²⁴ in a sum over 80 samples."""
    summed["server"] = {"name": server, "limits": False}
    summed["train"]["rounds"] = 2
    plain = load_config({**summed, "privacy": {}})
    (first, last) = federate(summed, tmp_path / "sum", LoopGrid(partitions(tmp_path / "s1")))
    federate(plain, tmp_path / "plain", LoopGrid(partitions(tmp_path / "s2")))
    assert last["trained"] == [f"client-{k}" for k in range(4)]
    assert first["failed"] == {}
    found, expected = model_of(tmp_path / "sum"), model_of(tmp_path / "plain")
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-7, rtol=1e-6)


def test_batch_norm_is_summed_too(summed: Values, tmp_path: Path) -> None:
    summed["model"] = {"name": "resnet18", "width": 2}
    federate(summed, tmp_path / "sum", LoopGrid(partitions(tmp_path / "s1")))
    plain = load_config({**summed, "privacy": {}, "server": {"name": "fedavg", "limits": False}})
    federate(plain, tmp_path / "plain", LoopGrid(partitions(tmp_path / "s2")))
    found, expected = model_of(tmp_path / "sum"), model_of(tmp_path / "plain")
    assert any(name.endswith("running_var") for name in expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", ["query.keys", "query.shares", "train", "query.reveal"])
def test_a_node_that_drops_out_at_any_stage_is_survived(kind: str, summed: Values, tmp_path: Path) -> None:
    """It is in the sum only if its masked vector came: the result is the mean of exactly these clients."""
    grid = LoopGrid(partitions(tmp_path / "s1"), losing(kind, 898))
    (record,) = federate(summed, tmp_path / "sum", grid)
    counted = kind == "query.reveal"
    assert record["trained"] == [f"client-{k}" for k in range(4) if counted or k != 2]
    assert "client-2" in record["failed"]
    plain = load_config({**summed, "privacy": {}, "server": {"name": "fedavg", "limits": False}})
    others = LoopGrid(partitions(tmp_path / "s2"), None if counted else losing("train", 898))
    federate(plain, tmp_path / "plain", others)
    for name, tensor in model_of(tmp_path / "plain").items():
        torch.testing.assert_close(model_of(tmp_path / "sum")[name], tensor, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("query.keys", "a secure sum needs 3 nodes, and 2 are left: client-2, client-3"),
        ("query.shares", "a secure sum needs 3 nodes, and 2 are left: client-2, client-3"),
        ("train", "a secure sum needs 3 nodes, and 2 are left: client-2, client-3"),
        ("query.reveal", "2 of 3 shares of client-0's mask came back"),
    ],
)
def test_too_few_are_named_and_the_model_stays(kind: str, said: str, summed: Values, tmp_path: Path) -> None:
    grid = LoopGrid(partitions(tmp_path / "state"), losing(kind, 900, 899))
    (record,) = federate(summed, tmp_path / "run", grid)
    assert record["kept"]
    assert record["trained"] == []
    assert all(said in why or "no reply" in why for why in record["failed"].values())
    assert said in record["failed"]["client-3"]
    if kind == "train":  # nothing is revealed of those who have sent their vectors
        assert not [m for m in grid.sent if m.metadata.message_type == "query.reveal"]


def test_the_server_sees_no_update_and_never_both_secrets_of_a_client(summed: Values, tmp_path: Path) -> None:
    """All that reaches the server in a round in which one of five nodes drops out after sharing its secrets."""
    summed["partition"]["clients"] = 5
    plain = LoopGrid(partitions(tmp_path / "s2", 5))
    federate({**summed, "privacy": {}}, tmp_path / "plain", plain)
    grid = LoopGrid(partitions(tmp_path / "s1", 5), losing("train", 898))
    federate(summed, tmp_path / "run", grid)
    truth = updates_of(plain)
    masked = updates_of(grid)
    assert masked.keys() == {900, 899, 897, 896}
    for node, vector in masked.items():
        assert vector.dtype == np.int64
        # As random as its masks: no more like the update than like another node's, and spread over all 64 bits.
        assert abs(np.corrcoef(vector.astype(float), truth[node])[0, 1]) < 0.2
        assert (vector.astype(float) / 2**63).std() == pytest.approx(1 / np.sqrt(3), rel=0.1)
    asked = [values_of(m) for m in grid.sent if m.metadata.message_type == "query.reveal"]
    assert {tuple(values["lost"]) for values in asked} == {(2,)}
    own, keys = ({k for values in asked for k in values[kind]} for kind in ("alive", "lost"))
    assert (own, keys) == ({0, 1, 3, 4}, {2})
    assert not own & keys
    sent = [text for _, reply in grid.replies for text in strings(reply)]
    assert not any("PRIVATE KEY" in text for text in sent)


def strings(message: Message) -> list[str]:
    if message.has_error() or "values" not in message.content:
        return []
    lists = [value if isinstance(value, list) else [value] for value in values_of(message).values()]
    return [one for value in lists for one in value if isinstance(one, str)]


def test_what_a_server_could_undo_with_all_it_has_is_the_sum_alone(summed: Values, tmp_path: Path) -> None:
    """With the revealed seeds of all four a vector is still under the masks of its pairs."""
    grid = LoopGrid(partitions(tmp_path / "s1"))
    federate(summed, tmp_path / "run", grid)
    shares: dict[int, list[bytes]] = {}
    for _, reply in grid.replies:
        if reply.metadata.message_type == "query.reveal":
            for client, share in enumerate(values_of(reply)["shares"]):
                shares.setdefault(client, []).append(bytes.fromhex(share))
    vectors = {900 - node: vector.view(np.uint64) for node, vector in updates_of(grid).items()}
    bare = {k: vectors[k] - mask(combine_shares(shares[k]), len(vectors[k])) for k in vectors}
    for vector in bare.values():  # an update of this model has numbers far below 2⁴⁰
        assert np.abs(vector.view(np.int64).astype(float)).mean() > 2**60
    total = bare[0] + bare[1] + bare[2] + bare[3]
    assert np.abs(total.view(np.int64).astype(float)).max() < 2**40


class Four:
    """Four clients of a secure sum without a federation."""

    def __init__(self, folder: Path) -> None:
        self.of = {k: Session(folder / str(k) / "run", k, 1) for k in range(4)}
        self.keys = {k: session.keys() for k, session in self.of.items()}
        sent = {k: session.shares(self.keys) for k, session in self.of.items()}
        self.shares = {k: {j: sent[j][k] for j in sent if j != k} for k in sent}
        self.vector = np.arange(3, dtype=np.int64)

    def masked(self, client: int) -> np.ndarray:
        return self.of[client].masked(self.vector, self.shares[client])


def test_a_node_gives_nothing_twice(tmp_path: Path) -> None:
    four = Four(tmp_path)
    with pytest.raises(Refusal, match="has not come to this stage"):
        four.of[0].reveal([0, 1, 2, 3], [])
    four.masked(0)
    with pytest.raises(Refusal, match="or is past it"):  # another vector under the same masks
        four.masked(0)
    with pytest.raises(Refusal, match="one secret of each client"):
        four.of[0].reveal([0, 1, 2, 3], [3])
    with pytest.raises(Refusal, match="one secret of each client"):  # its own key
        four.of[0].reveal([1, 2, 3], [0])
    with pytest.raises(Refusal, match="needs 3 clients here, and 2 are left"):
        four.of[0].reveal([0, 1], [2, 3])
    assert len(four.of[0].reveal([0, 1, 2], [3])) == 4
    with pytest.raises(Refusal, match="or is past it"):  # the other secret of client 3
        four.of[0].reveal([0, 1, 2, 3], [])


def test_a_round_that_was_revealed_is_not_summed_again(tmp_path: Path) -> None:
    """The difference of two sums over other clients would be one update; a round that broke off is played again."""
    four = Four(tmp_path)
    four.masked(0)
    Session(tmp_path / "0" / "run", 0, 1).keys()  # nothing was revealed yet
    four = Four(tmp_path)
    four.masked(0)
    four.of[0].reveal([0, 1, 2, 3], [])
    for round_idx in (0, 1):
        with pytest.raises(Refusal, match="has helped to reveal the sum of round 1"):
            Session(tmp_path / "0" / "run", 0, round_idx).keys()
    Session(tmp_path / "0" / "run", 0, 2).keys()


def test_a_node_keeps_its_secrets_from_others_and_no_longer_than_needed(tmp_path: Path) -> None:
    four = Four(tmp_path)
    file = tmp_path / "0" / "run" / "secure.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "PRIVATE KEY" in file.read_text()
    four.masked(0)
    assert "PRIVATE KEY" not in file.read_text()
    four.of[0].reveal([0, 1, 2, 3], [])
    assert json.loads(file.read_text()) == {"round": 1, "stage": "done"}
    file.write_text("[]")
    with pytest.raises(UserError, match=r"secure\.json is damaged"):
        Session(tmp_path / "0" / "run", 0, 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda keys: {k: keys[k] for k in (0, 1)}, "a secure sum of 2 clients would reveal too much; it needs 3"),
        (lambda keys: {**keys, 0: keys[1]}, "are not those that clients have sent"),
        (lambda keys: {**keys, 2: keys[1]}, "are not those that clients have sent"),
        (lambda keys: {k: keys[k] for k in (1, 2, 3)}, "are not those that clients have sent"),
    ],
)
def test_a_node_checks_the_keys_of_its_sum(change: Callable[[Any], Any], said: str, tmp_path: Path) -> None:
    sessions = {k: Session(tmp_path / str(k) / "run", k, 1) for k in range(4)}
    keys = {k: session.keys() for k, session in sessions.items()}
    with pytest.raises(Refusal, match=said):
        sessions[0].shares(change(keys))


def test_a_server_that_asks_for_the_plain_update_gets_none(
    summed: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either with the run's own configuration, or with another one at a site whose operator allows sums alone."""

    def plainly(self: FlowerExecutor, jobs: Any) -> list[Any]:
        return list(self._ask("train", jobs, update_form(self._arrays, self._learner), lambda _, body: body).values())

    with monkeypatch.context() as patch:
        patch.setattr(FlowerExecutor, "_train_in_secret", plainly)
        (record,) = federate(summed, tmp_path / "a", LoopGrid(partitions(tmp_path / "s1")))
    assert record["trained"] == []
    assert all("only as part of a secure sum" in why for why in record["failed"].values())
    nodes = partitions(tmp_path / "s2")
    nodes[900]["server-sees"] = "sum"
    (record,) = federate({**summed, "privacy": {}}, tmp_path / "b", LoopGrid(nodes))
    assert record["trained"] == ["client-1", "client-2", "client-3"]
    assert "privacy.sees = 'sum'" in record["failed"]["client-0"]


def test_two_nodes_are_refused_before_round_1(summed: Values, tmp_path: Path) -> None:
    summed["partition"]["clients"], summed["noise"] = 2, {"kind": "none"}
    with pytest.raises(UserError, match=r"privacy\.sees = 'sum' needs rounds of at least 3 clients, and 2 of 2"):
        federate(summed, tmp_path / "run", LoopGrid(partitions(tmp_path / "state", 2)))
    summed["partition"]["clients"], summed["sampling"]["fraction"] = 4, 0.5
    with pytest.raises(UserError, match=r"and 2 of 4 that are online .* sampling\.fraction = 1"):
        federate(summed, tmp_path / "run")


def test_a_wrong_share_spoils_the_sum_and_not_the_model(summed: Values, tmp_path: Path) -> None:
    """A node that lies when masks are revealed leaves numbers that no model has."""

    def lie(node: int, order: Message, reply: Message) -> Message:
        if order.metadata.message_type == "query.reveal" and node == 900:
            values = cast(ConfigRecord, reply.content["values"])
            values["shares"] = [share[:8] + "00" * (len(share) // 2 - 4) for share in values["shares"]]
        return reply

    (record,) = federate(summed, tmp_path / "run", LoopGrid(partitions(tmp_path / "state"), lie))
    assert record["kept"]
    assert any("don't fit together" in w or "can't be used" in w for w in record["failed"].values())


@pytest.mark.skipif(find_spec("dp_accounting") is None, reason="dp-accounting is not installed")
def test_noise_is_shared_by_the_nodes_of_a_sum(summed: Values, tmp_path: Path) -> None:
    """A clip of 1e-6 and noise of 1000 times that: each of four adds 1e-3/√3, so that the mean has 1e-3·√(4/3)/4."""
    from fednoil.experiment import make_experiment
    from fednoil.privacy import epsilon_of

    summed["model"]["width"] = 24
    summed["privacy"] |= {"clip": 1e-6, "noise": 1e3}
    config = load_config(summed)
    (record,) = federate(config, tmp_path / "run")
    start = make_experiment(config).initial_model()
    moved = torch.cat([(t - start[f"model/{n}"]).flatten() for n, t in model_of(tmp_path / "run").items()])
    assert float(moved.std()) == pytest.approx(1e-3 * np.sqrt(4 / 3) / 4, rel=0.05)
    assert record["epsilon"] == epsilon_of({"0": 1}, "sum", 1e3)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["epsilon"] == record["epsilon"]


@pytest.mark.skipif(find_spec("dp_accounting") is None, reason="dp-accounting is not installed")
@pytest.mark.parametrize(
    ("sees", "kind", "times"), [("sum", "query.reveal", 1), ("noise", "train", 1), ("updates", "train", 0)]
)
def test_what_was_sent_and_not_used_is_paid_for(
    sees: str, kind: str, times: int, summed: Values, tmp_path: Path
) -> None:
    """All replies are lost after they were sent. A server that may not see updates has had them all the same."""
    from fednoil.privacy import epsilon_of

    summed["privacy"] = {"sees": sees, "clip": 1.0, "noise": 2.0}
    grid = LoopGrid(partitions(tmp_path / "state"), losing(kind, 900, 899, 898, 897))
    (record,) = federate(summed, tmp_path / "run", grid)
    assert record["trained"] == []
    assert record["epsilon"] == (epsilon_of({"0": times}, "sum", 2.0) if times else 0.0)


@pytest.mark.skipif(find_spec("dp_accounting") is None, reason="dp-accounting is not installed")
def test_a_node_adds_noise_to_an_update_once(summed: Values, tmp_path: Path) -> None:
    """Asked again for the same model, as by a resumed server, it sends the same bits; for another one, nothing."""
    summed["privacy"] = {"sees": "noise", "clip": 1.0, "noise": 2.0}
    grid = LoopGrid(partitions(tmp_path / "state"))
    federate(summed, tmp_path / "run", grid)
    first = updates_of(grid)
    orders = {m.metadata.dst_node_id: m for m in grid.sent if m.metadata.message_type == "train"}
    grid.replies.clear()
    grid.push_messages(orders.values())
    for node, vector in updates_of(grid).items():
        assert np.array_equal(vector, first.pop(node))
    assert not first
    order = orders[900]
    model = cast(ArrayRecord, order.content["model"])
    model[next(iter(model))] = Array(np.zeros_like(next(iter(model.values())).numpy()))
    grid.push_messages([order])
    assert "has sent its update of round 1 with noise" in str(grid.replies[-1][1].error.reason)


@pytest.mark.skipif(find_spec("dp_accounting") is None, reason="dp-accounting is not installed")
@pytest.mark.parametrize(("sees", "std"), [("updates", 1 / 4), ("noise", 1 / 2)])
def test_noise_at_the_server_or_on_each_update(sees: str, std: float, summed: Values, tmp_path: Path) -> None:
    """At the server it is on the sum of four, on the nodes on each; it is drawn anew, whatever the seed."""
    from fednoil.experiment import make_experiment

    summed["model"]["width"] = 24
    summed["privacy"] = {"sees": sees, "clip": 1e-6, "noise": 1e3}
    config = load_config(summed)
    start, moved = make_experiment(config).initial_model(), []
    for out in (tmp_path / "a", tmp_path / "b"):
        (record,) = federate(config, out, LoopGrid(partitions(tmp_path / out.name / "state")))
        moved.append(torch.cat([(t - start[f"model/{n}"]).flatten() for n, t in model_of(out).items()]))
        assert record["epsilon"] > 0
    assert float(moved[0].std()) == pytest.approx(1e-3 * std, rel=0.05)
    assert not torch.allclose(moved[0], moved[1])


def test_fixed_point_and_back() -> None:
    """2⁻²⁴ is the unit; a sum that might not fit into 63 bits is refused, and so is what is no number."""
    change = {"b": torch.tensor([0.5, -1.25]), "a": torch.tensor([[2.0**-24 * 1.4]])}
    vector = fixed_point(change, 2.0, 4)
    assert vector is not None
    assert vector.tolist() == [3, 2**24, -5 * 2**23]
    found = real((vector + vector).view(np.uint64), change, 4.0)
    assert [found[name].tolist() for name in names_of(change)] == [[[1.5 * 2.0**-24]], [0.5, -1.25]]
    for bad in (2.0**37, float("nan"), float("inf")):
        assert fixed_point({"a": torch.tensor([bad], dtype=torch.float64)}, 1.0, 4) is None


def test_masks_cancel_in_pairs_and_use_the_whole_key() -> None:
    from flwr.supercore.primitives.asymmetric import generate_key_pairs, private_key_to_bytes, public_key_to_bytes

    pairs = [generate_key_pairs() for _ in range(2)]
    private = [private_key_to_bytes(one).decode() for one, _ in pairs]
    public = [public_key_to_bytes(one).decode() for _, one in pairs]
    both = pair_mask(private[0], public[1], 0, 1, 1000) + pair_mask(private[1], public[0], 1, 0, 1000)
    assert not both.any()
    # Flower's own generator reduces these two keys to the same 32 bits.
    one, other = bytes(range(32)), bytes([4, 5, 6, 7, 0, 1, 2, 3, *range(8, 32)])
    assert not np.array_equal(mask(one, 4), mask(other, 4))
    assert mask(one, 4).tolist() == mask(one, 9).tolist()[:4]


@pytest.mark.parametrize("count", [3, 21, 22, 57])
def test_neighbours_are_mutual_and_of_many_only_some(count: int) -> None:
    found = neighbours(range(count))
    assert {len(around) for around in found.values()} == {min(count, 21)}
    assert all(k in found[other] for k, around in found.items() for other in around)
    assert [threshold(n) for n in (3, 4, 5, 21)] == [2, 3, 3, 11]
    if count > 21:
        assert neighbours(range(count)) != found


def test_a_circle_of_many_is_summed(tmp_path: Path) -> None:
    """Thirty clients with 21 neighbours each, of whom four drop out after sharing their secrets."""
    sessions = {k: Session(tmp_path / str(k) / "run", k, 1) for k in range(30)}
    vectors = {k: np.array([k, -k, 10**6], np.int64) for k in sessions}

    def ask(kind: str, orders: Any, order: Any, form: Any, read: Any) -> dict[int, Any]:
        replies = {}
        for k, body in orders.items():
            values = body.values
            if kind == "query.keys":
                reply = Body(values=dict(zip(("mask_key", "share_key"), sessions[k].keys(), strict=True)))
            elif kind == "query.shares":
                lists = (values["clients"], values["mask_keys"], values["share_keys"])
                found = sessions[k].shares({c: (a, b) for c, a, b in zip(*lists, strict=True)})
                reply = Body(values={"clients": list(found), "shares": list(found.values())})
            else:
                reply = Body(values={"shares": sessions[k].reveal(values["alive"], values["lost"])})
            replies[k] = read(k, reply)
        return replies

    work = SecureSum(ask, {}, str, 3)
    shares = work.prepare(list(sessions))
    alive = [k for k in sessions if k not in (3, 9, 10, 20)]
    sent = {k: sessions[k].masked(vectors[k], shares[k]) for k in alive}
    total = work.total(sent, list(shares)).view(np.int64)
    assert total.tolist() == [sum(alive), -sum(alive), 26 * 10**6]
