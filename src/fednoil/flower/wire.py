"""Sends requests to nodes and collects the replies that come in time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.superlink.grid.http_grid import HttpGrid

from fednoil.flower.messages import clean, content_bytes

_POLL = 0.05, 0.5  # seconds between two polls, at first and at most; Flower's own loop always waits 3 s

LATE = "no reply within"  # some seconds, which may be the fault of nobody
_FEW = 5  # of Flower's objects in a message without arrays
_GRACE = 5.0  # seconds by which a message outlives our timeout, so that we and not the SuperLink report it


class Lost(str):
    """Why there is no reply: the node isn't online, which is not its fault."""


@dataclass
class Wire:
    """The connection to the nodes, which counts the bytes in each direction."""

    grid: Grid
    timeout: float
    bytes_down: int = 0
    bytes_up: int = 0
    _most: int = _FEW  # of Flower's objects that a reply may have
    _oversized: set[str] = field(default_factory=set)  # messages whose replies have more
    _held: list[tuple[Any, Any]] = field(default_factory=list)  # replies that are announced and not yet uploaded
    _objects: dict[str, PullObjectResponse] = field(default_factory=dict)  # what is there of them

    def __post_init__(self) -> None:
        if isinstance(self.grid, HttpGrid):
            self._guard(self.grid, self.grid._runtime_client)

    def _guard(self, grid: HttpGrid, client: Any) -> None:
        """Keep from Flower replies that have too many objects, which it would read before anyone sees one, and those
        whose objects have not come: it would wait for one node, and no longer ask for the replies of the others."""
        pull, pull_object = client.PullMessages, client.PullObject

        def guarded(request: PullAppMessagesRequest) -> PullAppMessagesResponse:
            asked = set(request.message_ids)
            self._held = [pair for pair in self._held if pair[0].metadata.reply_to_message_id in asked]
            # Of a reply that was delivered the SuperLink says that it doesn't exist.
            new = asked - {message.metadata.reply_to_message_id for message, _ in self._held}
            found = pull(PullAppMessagesRequest(message_ids=new)) if new else PullAppMessagesResponse()
            pairs = list(zip(found.messages_list, found.message_object_trees, strict=True))
            kept = [(m, tree) for m, tree in pairs if sum(1 for _ in iterate_object_tree(tree)) <= self._most]
            self._oversized |= {m.metadata.reply_to_message_id for m, tree in pairs if (m, tree) not in kept}
            held = [*self._held, *kept]
            ready = [pair for pair in held if uploaded(pair[1])]
            self._held = [pair for pair in held if pair not in ready]
            wanted = {one.object_id for _, tree in held for one in iterate_object_tree(tree)}
            self._objects = {name: found for name, found in self._objects.items() if name in wanted}
            messages, trees = ([pair[place] for pair in ready] for place in (0, 1))
            return PullAppMessagesResponse(messages_list=messages, message_object_trees=trees)

        def uploaded(tree: Any) -> bool:
            """Whether all objects of a reply are there, or one of them never will be, which Flower reports."""
            for name in [one.object_id for one in iterate_object_tree(tree)]:
                if name not in self._objects:
                    found = pull_object(PullObjectRequest(node=grid.node, run_id=grid.run.run_id, object_id=name))
                    if found.object_found and not found.object_available:
                        return False
                    self._objects[name] = found
            return True

        client.PullMessages = guarded
        client.PullObject = lambda request: self._objects.pop(request.object_id, None) or pull_object(request)

    def ask(
        self,
        kind: str,
        round_idx: int,
        orders: Mapping[int, RecordDict],
        timeout: float | None = None,
        most: int = _FEW,
    ) -> dict[int, RecordDict | str]:
        """Send each node its order; node -> the content of its reply, or why there is none within `timeout` seconds. A
        reply of more than `most` of Flower's objects is not read."""
        timeout, self._most = self.timeout if timeout is None else timeout, most
        messages = [
            Message(content, node, kind, ttl=timeout + _GRACE, group_id=str(round_idx))
            for node, content in orders.items()
        ]
        pushed = set(self.grid.push_messages(messages)) if messages else set()
        nodes = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        self.bytes_down += sum(content_bytes(content) for content in orders.values())
        replies: dict[int, RecordDict | str] = dict.fromkeys(orders, f"{LATE} {timeout:g} s")
        replies |= {node: Lost("could not be reached") for message, node in nodes.items() if message not in pushed}
        waiting = set(nodes) & pushed
        end, pause = time.monotonic() + timeout, _POLL[0]
        while waiting:
            late = time.monotonic() >= end  # what has come until now counts
            for reply in self.grid.pull_messages(waiting):
                # By the message it answers: a reply from the SuperLink for a lost node has another sender.
                message = reply.metadata.reply_to_message_id
                waiting.discard(message)
                replies[nodes[message]] = self._content(reply)
            for message in waiting & self._oversized:
                waiting.discard(message)
                replies[nodes[message]] = f"its reply has more than {most} parts, and was not read"
            if late:
                break
            if waiting:
                time.sleep(pause)
                pause = min(2 * pause, _POLL[1])
        return replies

    def notify(self, kind: str, node: int, content: RecordDict) -> None:
        """Send a node a message without waiting for a reply."""
        self.grid.push_messages([Message(content, node, kind, ttl=self.timeout)])

    def _content(self, reply: Message) -> RecordDict | str:
        if reply.has_error():
            kind = Lost if reply.error.code == ErrorCode.NODE_UNAVAILABLE else str
            return kind(clean(reply.error.reason or f"error {reply.error.code}"))
        try:
            self.bytes_up += content_bytes(reply.content)
        except Exception as error:  # whatever a node may send
            return f"its reply can't be read ({type(error).__name__})"
        return reply.content
