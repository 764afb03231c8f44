"""Nodes that stay: what they answer, what they never fetch, and who starts them again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from conftest import refused
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from fednoil.config import load_config, to_toml
from fednoil.errors import UserError
from fednoil.flower import resident
from fednoil.flower.credentials import make_certificates, make_key
from fednoil.flower.messages import HELLO_ORDER, HELLO_REPLY, PROTOCOL, Body, pack, unpack
from fednoil.flower.resident import Connection, NodeSetup, serve
from fednoil.flower.watching import Pulse
from fednoil.flower.work import whole

Values = dict[str, Any]


class Link:
    """The calls that Flower's connection has, for orders that wait; replies are put together again."""

    def __init__(self, orders: list[Message]) -> None:
        self.orders, self.replies = orders, list[Message]()
        self.objects: dict[str, bytes] = {}
        self.confirmed: list[str] = []

    def receive(self) -> Any:
        if not self.orders:
            return None
        order = self.orders.pop(0)
        order.metadata.__dict__["_message_id"] = order.object_id
        self.objects |= {name: one.deflate() for name, one in get_all_nested_objects(order).items()}
        return remove_content_from_message(order), get_object_tree(order)

    def send(self, reply: Message, tree: Any, seconds: float) -> Any:
        self.wanted = reply.metadata.message_id
        return set(_ids(tree)), "session"

    def push(self, run: int, session: str, name: str, content: bytes) -> None:
        self.objects[name] = content
        if name == self.wanted:
            self.last = name

    def reply(self) -> Any:
        return inflate_object_from_contents(self.last, self.objects)

    def never(self, *args: object) -> Any:
        raise AssertionError("an app or a run is not fetched")

    def calls(self) -> tuple[Any, ...]:
        pull, confirm = (lambda run, name: self.objects[name]), (lambda run, name: self.confirmed.append(name))
        return 7, self.receive, self.send, self.never, self.never, pull, self.push, confirm


def _ids(tree: Any) -> list[str]:
    return [tree.object_id, *(one for child in tree.children for one in _ids(child))]


def hello(federated: Values) -> Message:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    order = Body(values={"protocol": PROTOCOL, "config": to_toml(load_config(federated))})
    return Message(pack(HELLO_ORDER, order), 7, "query.hello", group_id="0")


def test_a_message_is_answered_with_the_installed_code(federated: Values, tmp_path: Path) -> None:
    link = Link([hello(federated)])
    connection = Connection(link.calls(), {"partition-id": 2, "state": str(tmp_path)})
    assert connection.answer()
    assert not connection.answer()
    reply = link.reply()
    assert unpack(HELLO_REPLY, reply.content).values["client"] == "client-2"
    assert [reply.metadata.reply_to_message_id] == link.confirmed


def test_the_data_are_read_once_for_all_messages(federated: Values, tmp_path: Path) -> None:
    whole.cache_clear()
    link = Link([hello(federated) for _ in range(3)])
    connection = Connection(link.calls(), {"partition-id": 0, "state": str(tmp_path)})
    assert [connection.answer() for _ in range(4)] == [True, True, True, False]
    assert whole.cache_info().misses == 1


def test_a_connection_that_breaks_is_made_anew_with_the_certificate_of_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the renewal of a certificate: nothing has to be started again by hand."""
    ca, *_ = make_certificates(tmp_path, ["localhost"])
    make_key(tmp_path / "a")
    seen: list[bytes] = []

    class Broken:
        def __init__(self, address: str, insecure: bool, certificates: bytes, keys: Any, **_: Any) -> None:
            seen.append(certificates)

        def __enter__(self) -> Any:
            ca.write_bytes(b"renewed")
            return 7, self._break, *[None] * 6

        def _break(self) -> None:
            raise OSError("the certificate is not the one that is known")

        def __exit__(self, *error: object) -> bool:
            return True

    monkeypatch.setattr(resident, "http_request_response", Broken)
    monkeypatch.setattr(resident.time, "sleep", lambda seconds: None)
    first = ca.read_bytes()
    place = NodeSetup("localhost:1", ca, tmp_path / "a", {"partition-id": 0})
    serve(place, lambda: len(seen) < 2)
    assert seen == [first, b"renewed"]


def test_a_node_that_was_killed_waits_until_the_server_has_forgotten_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the heartbeat of its last process runs out, the SuperLink refuses it; one that was never online is told."""
    ca, *_ = make_certificates(tmp_path, ["localhost"])
    make_key(tmp_path / "a")
    tries: list[int] = []

    class Refusing:
        def __init__(self, *_: Any, **__: Any) -> None:
            tries.append(1)

        def __enter__(self) -> Any:
            raise SystemExit(305)

        def __exit__(self, *error: object) -> bool:
            return False

    monkeypatch.setattr(resident, "http_request_response", Refusing)
    monkeypatch.setattr(resident.time, "sleep", lambda seconds: None)
    place = NodeSetup("localhost:1", ca, tmp_path / "a", {"partition-id": 0, "state": str(tmp_path / "state")})
    with pytest.raises(UserError, match="is its key registered"):
        serve(place, lambda: True)
    assert len(tries) == 1
    Pulse(tmp_path / "state" / "client-0").beat()
    serve(place, lambda: len(tries) < 4)
    assert len(tries) == 4
    file = tmp_path / "state" / "client-0" / "health.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "at": time.time() - 600}))
    with pytest.raises(UserError, match="is its key registered"):
        serve(place, lambda: True)


KEPT = """
import os, signal, sys, time
from pathlib import Path
from fednoil.errors import UserError
from fednoil.flower import keeper
from fednoil.flower.resident import NodeSetup

folder = Path(sys.argv[1])

def serve(place, goes_on):
    with (folder / place.name).open("a") as file:
        file.write("x")
    if place.name == "client-0" and (folder / place.name).stat().st_size < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if place.name == "client-1":
        raise UserError("its key is not registered")
    while goes_on():
        time.sleep(0.05)

keeper.serve, keeper._AGAIN = serve, 0.05
places = [NodeSetup("localhost:1", None, None, {"partition-id": k}) for k in range(3)]
sys.exit(keeper.Keeper(places, folder / "pids.json").keep())
"""


def test_a_node_that_dies_is_started_again_and_a_refused_one_is_not(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KEPT, str(tmp_path)], stderr=subprocess.PIPE, text=True) as process:
        for _ in range(1200):
            there = {name: (tmp_path / name) for name in ("client-0", "client-1", "client-2")}
            if all(path.exists() for path in there.values()) and there["client-0"].read_text() == "xxx":
                break
            time.sleep(0.05)
        pids = json.loads((tmp_path / "pids.json").read_text())
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert {name: path.read_text() for name, path in there.items()} == {
        "client-0": "xxx",
        "client-1": "x",
        "client-2": "x",
    }
    assert {"client-0", "client-2"} <= set(pids)
    assert process.returncode == 2
    assert "fednoil: its key is not registered" in said
    for name in ("client-0", "client-2"):
        assert not Path(f"/proc/{pids[name]}").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "federation node needs --superlink HOST:PORT, --root-certificates ca.crt and --key FILE"),
        (["--partition", "0"], "--key {0}/none: No such file"),
        (["--data", "npz:x"], "--name is missing; a site with its own data needs a name that stays"),
        (["--name", "a/b", "--data", "npz:x"], "--name = 'a/b' must be"),
        (["--name", "a", "--data", "npz:x", "--score-epsilon", "0"], "--score-epsilon = 0.0 must be a number above 0"),
        (["--name", "a", "--data", "npz:x"], "--data npz:x: npz:x"),
        (["--name", "a", "--data", "x"], "--data x: data.name = 'x' is unknown"),
        (["--name", "a", "--data", "npz:x", "--partition", "0"], "--partition 0 is for trials: leave one of them out"),
        (["--superlink", "localhost"], "--superlink localhost: write HOST:PORT, such as localhost:8000"),
    ],
)
def test_bad_options_of_a_node_are_one_line(options: list[str], said: str, tmp_path: Path) -> None:
    place = ["--superlink", "localhost:1", "--root-certificates", tmp_path / "ca.crt", "--key", tmp_path / "none"]
    assert said.format(tmp_path) in refused("federation", "node", *(place if options else []), *options)
