"""A node that stays: one process that asks the SuperLink for work and answers with the installed fednoil.

Flower's own SuperNode starts a process for each message, which imports PyTorch and reads the data again, looks for work
every 3 s, and runs whatever app the SuperLink sends. This one uses the same API through Flower's own functions, keeps
code and data in memory, and runs no app but ours: the one that the SuperLink sends is not even fetched.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects, push_objects
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_connection import http_request_response

from fednoil.data import check_own
from fednoil.errors import UserError
from fednoil.flower.client import app
from fednoil.flower.settings import NodeSettings, as_option
from fednoil.flower.watching import Pulse, lived_lately

log = logging.getLogger("flwr.fednoil")
_POLL = 0.1, 2.0  # seconds until the next look for work: after some, and at most; the pause doubles
_AGAIN = 5.0  # seconds until a broken connection is tried again
_PATIENCE = 60.0  # seconds that one request is repeated for, while the SuperLink is away

Values = dict[str, Any]


@dataclass(frozen=True)
class NodeSetup:
    """Where a node connects, with which key, and its operator's settings by their names in Flower's
    --node-config."""

    superlink: str
    root_certificates: Path | None
    key: Path | None
    settings: Values = field(default_factory=dict)
    log: Path | None = None  # where what it prints goes, if not to its parent's output

    @property
    def name(self) -> str:
        return self.read().client_id

    def read(self) -> NodeSettings:
        """The settings, checked."""
        return NodeSettings.read(self.settings, as_option)

    def keys(self) -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey] | None:
        """The node's key pair; None: it has none, and no TLS."""
        if self.key is None:
            return None
        try:
            private = load_ssh_private_key(self.key.read_bytes(), None)
        except OSError as error:
            raise UserError(f"--key {self.key}: {error.strerror}") from None
        except ValueError:
            private = None
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise UserError(f"--key {self.key} is not a key that `fednoil federation keys` makes")
        return private, private.public_key()

    def check(self) -> None:
        """Refuse settings, data, a key or certificates that can't be used, before anything is started."""
        settings = self.read()
        if settings.data is not None:
            check_own(settings.data, f"--data {settings.data}")
        self.keys()
        self.certificates()

    def certificates(self) -> bytes | None:
        try:
            return None if self.root_certificates is None else self.root_certificates.read_bytes()
        except OSError as error:
            raise UserError(f"--root-certificates {self.root_certificates}: {error.strerror}") from None


class Connection:
    """One node's connection: messages in, replies out."""

    def __init__(self, link: tuple[Any, ...], settings: Values, pulse: Pulse | None = None) -> None:
        self.node, self._receive, self._send, _, _, self._pull, self._push, self._confirm = link
        self.settings, self.pulse = settings, pulse

    def answer(self) -> bool:
        """Take one message, if there is any, and answer it."""
        received = self._receive()
        if received is None:
            if self.pulse is not None:
                self.pulse.beat()
            return False
        order, tree = received
        if self.pulse is not None:
            self.pulse.beat(order.metadata.message_type)
        run, number = order.metadata.run_id, order.metadata.message_id
        contents = pull_objects(
            [one.object_id for one in iterate_object_tree(tree)], lambda name: self._pull(run, name)
        )
        self._confirm(run, number)
        message: Any = inflate_object_from_contents(number, contents)
        message.metadata.__dict__["_message_id"] = number  # as Flower's own client does: it isn't part of the content
        began = time.monotonic()
        reply = self._reply(message)
        log.info("round %s: %s, %.1f s", order.metadata.group_id, order.metadata.message_type, time.monotonic() - began)
        self._return(reply, time.monotonic() - began)
        return True

    def _reply(self, message: Message) -> Message:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, message.metadata.run_id, self.node
        context = Context(message.metadata.run_id, self.node, dict(self.settings), RecordDict(), {})
        return app(message, context)

    def _return(self, reply: Message, seconds: float) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        run = reply.metadata.run_id
        with no_object_id_recompute():
            wanted, session = self._send(reply, get_object_tree(reply), seconds)
            push_objects(
                get_all_nested_objects(reply),
                lambda name, content: self._push(run, session, name, content),
                object_ids_to_push=set(wanted),
            )


def serve(place: NodeSetup, goes_on: Callable[[], bool]) -> None:
    """Answer messages until `goes_on` says no; a lost connection is opened again, with the files as they are then."""
    settings = place.read()  # what is wrong is reported now, not with the first message
    known = False
    while goes_on():
        keys, certificates = place.keys(), place.certificates()
        try:
            with http_request_response(
                place.superlink, place.root_certificates is None, certificates, keys, max_wait_time=_PATIENCE
            ) as link:
                log.info("%s is online", place.name)
                known = True
                _answer_all(Connection(link, place.settings, Pulse(settings.state / settings.client_id)), goes_on)
        except SystemExit as error:  # Flower's way to say that it couldn't connect
            if not known and not lived_lately(settings.state / settings.client_id):
                raise UserError(
                    f"{place.name} can't connect to {place.superlink}; see above (is its key registered and no other "
                    "node's, and --root-certificates the server's?)"
                ) from error
            if not known:
                log.warning("%s: %s may still see its last process online", place.name, place.superlink)
        if goes_on():
            log.warning("%s: lost the connection to %s; connecting again", place.name, place.superlink)
            time.sleep(_AGAIN)


def _answer_all(connection: Connection, goes_on: Callable[[], bool]) -> None:
    pause = _POLL[0]
    while goes_on():
        try:
            worked = connection.answer()
        except RunNotRunningException:
            log.info("the run has ended; its message is dropped")
            worked = True
        pause = _POLL[0] if worked else min(2 * pause, _POLL[1])
        if not worked:
            time.sleep(pause)


def orphaned_after(parent: int) -> Callable[[], bool]:
    """Whether this process still has the parent that started it."""
    return lambda: os.getppid() == parent
