"""Messages that are too large are refused before they are read: by the SuperLink, and by the server."""

from __future__ import annotations

import asyncio
import importlib
import time
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse, PushAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

from fednoil.flower.link import FLEET, MOST, Gate, main
from fednoil.flower.messages import Form, objects_of
from fednoil.flower.wire import Wire


def asked(
    pieces: list[bytes], announced: int | None, path: str = f"{FLEET}push-object", client: str = "192.0.2.7"
) -> tuple[int, int]:
    """The status of a request of these pieces, and how many of them the application behind the gate got to see."""
    seen, sent, left = [], [], list(pieces)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            message = await receive()
            seen.append(message["body"])
            more = message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Any:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [] if announced is None else [(b"content-length", str(announced).encode())]
    scope = {"type": "http", "headers": headers, "path": path, "client": (client, 4711)}
    asyncio.run(Gate(app)(scope, receive, send))
    return sent[0]["status"], len(seen)


def test_the_superlink_refuses_a_large_request_by_its_header() -> None:
    assert asked([b"x"], MOST + 1) == (413, 0)
    assert asked([b"x"], MOST) == (200, 1)


def test_a_request_that_conceals_its_size_is_cut_off() -> None:
    piece = bytes(MOST // 4)
    assert asked([piece] * 4, None) == (200, 4)
    assert asked([piece] * 100, None) == (413, 4)
    assert asked([piece] * 100, 1) == (413, 4)


@pytest.mark.parametrize(
    "path", ["/v1/control/start-run", "/v1/runtime/pull-object", "/docs", "/v1/fleet/../control/x", "/"]
)
def test_from_another_machine_only_the_fleet_api_can_be_reached(path: str) -> None:
    assert asked([b"x"], 1, path) == (403, 0)
    assert asked([b"x"], 1, path, "127.0.0.1") == (200, 1)
    assert asked([b"x"], 1, f"{FLEET}pull-messages") == (200, 1)


class Store:
    """A SuperLink that has one reply."""

    def __init__(self, reply: Message) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        self.reply, self.objects = reply, get_all_nested_objects(reply)
        self.pulled: list[str] = []

    def PushMessages(self, request: Any) -> Any:
        ids = [message.metadata.message_id for message in request.messages_list]
        self.reply.metadata.__dict__["_reply_to_message_id"] = ids[0]
        self.reply.metadata.__dict__["_message_id"] = self.reply.object_id
        self.objects = get_all_nested_objects(self.reply)
        return type("Response", (), {"message_ids": ids, "objects_to_push": [], "session_id": ""})

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:
        proto = message_to_proto(remove_content_from_message(self.reply))
        return PullAppMessagesResponse(messages_list=[proto], message_object_trees=[get_object_tree(self.reply)])

    def PullObject(self, request: Any) -> PullObjectResponse:
        self.pulled.append(request.object_id)
        content = self.objects[request.object_id].deflate()
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def PushObject(self, request: Any) -> None:
        raise AssertionError("nothing is wanted")

    def ConfirmMessageReceived(self, request: Any) -> None:
        pass


def answered(content: RecordDict, most: int) -> tuple[Any, Store]:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    order = Message(RecordDict({"n": MetricRecord({"a": 1})}), 7, "train")
    store = Store(Message(content, reply_to=order))
    grid = HttpGrid(token="secret")
    grid.set_run(Run.create_empty(1))
    grid._client = store  # type: ignore[assignment]
    return Wire(grid, 0.5).ask("train", 1, {7: order.content}, most=most)[7], store


def test_a_reply_with_too_many_parts_is_not_read() -> None:
    form = Form({"w": ("float32", (3,))})
    honest = RecordDict({"model": ArrayRecord({"float32": Array(np.ones(3, np.float32))})})
    reply, store = answered(honest, objects_of(form))
    assert isinstance(reply, RecordDict)
    assert store.pulled
    junk = RecordDict({"model": ArrayRecord({f"w{k}": Array(np.full(3, k, np.float32)) for k in range(60)})})
    reply, store = answered(junk, objects_of(form))
    assert reply == f"its reply has more than {objects_of(form)} parts, and was not read"
    assert not store.pulled


def test_pieces_of_a_large_model_are_counted() -> None:
    small, large = (objects_of(Form({"w": ("float32", (n,))})) for n in (10, 25 * 10**6))
    assert (small, large) == (7, 26)  # 100 MB in pieces of 5 MiB


class Several(Store):
    """A SuperLink with a reply of each node, each delivered once; of those in `stuck` one object never comes."""

    def __init__(self, replies: dict[int, Message], stuck: set[int]) -> None:
        self.replies, self.stuck = replies, stuck
        self.by_message: dict[str, int] = {}
        self.pulled = []

    def PushMessages(self, request: Any) -> Any:
        ids = [message.metadata.message_id for message in request.messages_list]
        self.objects, self.missing = {}, set[str]()
        for proto, number in zip(request.messages_list, ids, strict=True):
            node = proto.metadata.dst_node_id
            reply = self.replies[node]
            reply.metadata.__dict__["_reply_to_message_id"] = number
            reply.metadata.__dict__["_message_id"] = reply.object_id
            nested = get_all_nested_objects(reply)
            self.objects |= nested
            self.missing |= {reply.object_id} if node in self.stuck else set()
            self.by_message[number] = node
        return type("Response", (), {"message_ids": ids, "objects_to_push": [], "session_id": ""})

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:
        nodes = [
            self.by_message.pop(number) for number in request.message_ids
        ]  # the real one refuses a second time, too
        found = [self.replies[node] for node in sorted(nodes)]
        protos = [message_to_proto(remove_content_from_message(reply)) for reply in found]
        return PullAppMessagesResponse(messages_list=protos, message_object_trees=[get_object_tree(r) for r in found])

    def PullObject(self, request: Any) -> PullObjectResponse:
        if request.object_id in self.missing:
            return PullObjectResponse(object_found=True, object_available=False)
        return super().PullObject(request)


def test_a_reply_that_is_announced_and_never_uploaded_keeps_nobody_waiting() -> None:
    """Flower waits for its objects for three minutes, in which it asks for no other reply."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    orders = {node: Message(RecordDict({"n": MetricRecord({"a": node})}), node, "train") for node in (7, 8, 9)}
    contents = {node: RecordDict({"m": MetricRecord({"b": node})}) for node in orders}
    grid = HttpGrid(token="secret")
    grid.set_run(Run.create_empty(1))
    store = Several({node: Message(contents[node], reply_to=order) for node, order in orders.items()}, stuck={7})
    grid._client = store  # type: ignore[assignment]
    began = time.monotonic()
    found = Wire(grid, 1.0).ask("train", 1, {node: order.content for node, order in orders.items()})
    assert time.monotonic() - began < 3
    assert found[7] == "no reply within 1 s"
    assert [cast(Any, found[node])["m"]["b"] for node in (8, 9)] == [8, 9]
    assert len(store.pulled) == len(set(store.pulled))  # no object twice


def test_a_server_that_is_stopped_does_not_wait_for_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their connections stay open, and uvicorn's usual patience has no end: systemd would kill it after 90 s."""
    uvicorn, command, flowers = (
        importlib.import_module(name)
        for name in ("uvicorn", "flwr.superlink.cli.flower_superlink", "flwr.superlink.main")
    )
    seen: dict[str, Any] = {}
    monkeypatch.setattr(uvicorn, "run", lambda **options: seen.update(options))
    monkeypatch.setattr(uvicorn.config, "create_ssl_context", uvicorn.config.create_ssl_context)
    monkeypatch.setattr(flowers, "create_app", flowers.create_app)
    monkeypatch.setattr(command, "flower_superlink", lambda: uvicorn.run(port=1))
    main()
    assert seen == {"port": 1, "timeout_graceful_shutdown": 5}


def tree(pieces: int) -> ObjectTree:
    """A message of so many objects: itself, and the others below it."""
    return ObjectTree(object_id="m", children=[ObjectTree(object_id=str(k)) for k in range(pieces - 1)])


def test_a_reply_is_no_larger_than_what_the_server_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders of 6 pieces of up to 3 MB: replies of 2 · 6 + 10 pieces of up to 2 · 3 MB and a MiB. Without an order
    nothing is known, as after a restart."""
    gate, reply = Gate(cast(Any, None)), PushMessagesRequest(message_object_trees=[tree(23)]).SerializeToString()
    monkeypatch.setattr("test_flower_sizes.Gate", lambda app: setattr(gate, "app", app) or gate)
    here = "127.0.0.1"
    assert asked([reply[:10], reply[10:]], None, f"{FLEET}push-messages") == (200, 1)
    order = PushAppMessagesRequest(message_object_trees=[tree(2), tree(6)]).SerializeToString()
    assert asked([order], len(order), "/v1/runtime/push-messages", here) == (200, 1)
    assert asked([b"x"], 3_000_000, "/v1/runtime/push-object", here) == (200, 1)
    assert asked([reply], len(reply), f"{FLEET}push-messages") == (413, 0)
    assert asked([reply], len(reply), f"{FLEET}push-messages", here) == (413, 0)  # a node on the same machine
    fitting = PushMessagesRequest(message_object_trees=[tree(22)] * 2).SerializeToString()
    assert asked([fitting], len(fitting), f"{FLEET}push-messages") == (200, 1)
    assert asked([b"\xff" * 9], 9, f"{FLEET}push-messages") == (200, 1)  # Flower refuses it
    assert asked([b"x"], 6_000_000 + 2**20 + 1) == (413, 0)
    assert asked([b"x"], 6_000_000 + 2**20) == (200, 1)
    assert asked([bytes(10**6)] * 8, None) == (413, 7)
    assert asked([bytes(MOST // 2)] * 3, None, f"{FLEET}push-messages") == (413, 0)
