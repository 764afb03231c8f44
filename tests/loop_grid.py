"""A Flower federation within the test: messages go straight to the ClientApp, and a test may spoil what comes back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fednoil.config import Config, load_config, to_toml
from fednoil.flower.client import app as client_app
from fednoil.flower.server import Assignment, play

Spoil = Callable[[int, Message, Message], Message | None]  # node, order, reply -> reply, or none


class LoopGrid(Grid):
    """Nodes in this process, by Flower's node number; every message is recorded."""

    def __init__(self, nodes: dict[int, dict[str, Any]], spoil: Spoil | None = None) -> None:
        self.nodes = {number: dict(config) for number, config in nodes.items()}
        self.spoil = spoil
        self.sent: list[Message] = []
        self.replies: list[tuple[int, Message]] = []
        self._ready: dict[str, Message] = {}
        # Flower's own processes set these before an app is called.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = str(uuid4())
            ids.append(message.metadata.message_id)
            self.sent.append(message)
            context = Context(1, node, dict(self.nodes.get(node, {})), RecordDict(), {})
            reply: Message | None = client_app(message, context)
            if self.spoil is not None and reply is not None:
                reply = self.spoil(node, message, reply)
            if reply is not None:
                self.replies.append((node, reply))
                self._ready[message.metadata.message_id] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._ready.pop(i) for i in list(message_ids) if i in self._ready]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError


def partitions(folder: Path, count: int = 4) -> dict[int, dict[str, Any]]:
    """Nodes with a partition each, in an order that is not theirs."""
    return {900 - k: {"partition-id": k, "num-partitions": count, "state": str(folder)} for k in range(count)}


def federate(
    config: Config | dict[str, Any], out: Path, grid: LoopGrid | None = None, **options: Any
) -> list[dict[str, Any]]:
    """Run a federation, by default one of four partitions; its records."""
    config = config if isinstance(config, Config) else load_config(config)
    play(grid or LoopGrid(partitions(out.parent / "state")), Assignment(to_toml(config), str(out), **options))
    return [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
