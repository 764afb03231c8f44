"""Flower's SuperLink behind a gate: no large requests, and from other machines nothing but the Fleet API.

Flower 1.41 serves the Control API, which registers keys and starts runs, without authentication on the port that the
nodes use. Requests to it are refused unless they come from this machine. Flower sends arrays in pieces of 5 MiB, so no
honest request is much larger: a larger one is refused by its header, or as soon as more than that has come, before
Flower reads it. And a reply is about as large as what the server has sent: one that is announced with many more pieces
than any order so far, or whose pieces are much larger, is refused. Flower would keep 300 MB of junk until the run ends.

    python -m fednoil.flower.link OPTIONS OF flower-superlink

A certificate that is renewed is used from then on, without a restart that would end the run.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.runtime_pb2 import PushAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from google.protobuf.message import DecodeError

from fednoil.errors import UserError
from fednoil.flower.logs import use_plain

MOST = 8 * 2**20  # bytes of a request: one of Flower's pieces, and what is around it
FLEET, RUNTIME = "/v1/fleet/", "/v1/runtime/"  # what nodes use, and what the server's side of a run uses
_ORDERS, _ORDER_PIECE = f"{RUNTIME}push-messages", f"{RUNTIME}push-object"
_REPLIES, _REPLY_PIECE = f"{FLEET}push-messages", f"{FLEET}push-object"
_ROOM = 2**20  # bytes of a piece, whatever the orders' are: an introduction names classes and columns
_MORE = 10  # pieces of a reply, beside twice an order's: a masked vector has eight bytes for a weight's four
_HERE = ("127.0.0.1", "::1")
_LOOK = 10.0  # seconds between two looks at the certificate's file
_LEAVE = 5  # seconds that open connections have when the server is stopped: those of waiting nodes never end
log = logging.getLogger("flwr.fednoil")

Values = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Values]]
Send = Callable[[Values], Awaitable[None]]
App = Callable[[Values, Receive, Send], Awaitable[None]]


_LARGE = b"the request is larger than any that fednoil sends"


class Oversized(Exception):
    """More has come than is allowed."""


class Gate:
    """An ASGI application that refuses what must not come in and passes on the rest."""

    def __init__(self, app: App, most: int = MOST) -> None:
        self.app, self.most = app, most
        self.pieces, self.piece = 0, 0  # of the largest order so far: how many, and bytes of its largest

    async def __call__(self, scope: Values, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan" or _is_here(scope):
                await self.app(scope, receive, send)
            return
        if not (_is_here(scope) or (scope["path"].startswith(FLEET) and ".." not in scope["path"])):
            await _refuse(send, 403, b"this part of the server can only be used from its own machine")
            return
        path, announced = scope["path"], dict(scope["headers"]).get(b"content-length", b"0")
        most = min(self.most, 2 * self.piece + _ROOM) if path == _REPLY_PIECE and self.piece else self.most
        if not announced.isdigit() or int(announced) > most:
            await _refuse(send, 413, _LARGE)
            return
        if path == _ORDER_PIECE:
            self.piece = max(self.piece, int(announced))
        if path in (_ORDERS, _REPLIES):
            await self._announced(scope, receive, send)
        else:
            await self._counted(scope, receive, send, most)

    async def _announced(self, scope: Values, receive: Receive, send: Send) -> None:
        """Pass on messages that are announced, orders or replies, unless a reply has too many pieces."""
        body, more = b"", True
        while more and len(body) <= self.most:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        try:
            count = _pieces(body, scope["path"] == _ORDERS)
        except DecodeError:
            count = 0  # Flower says what is wrong
        if scope["path"] == _ORDERS:
            self.pieces = max(self.pieces, count)
        elif len(body) > self.most or (self.pieces and count > 2 * self.pieces + _MORE):
            await _refuse(send, 413, _LARGE)
            return
        left = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Values:
            return left.pop() if left else await receive()

        await self.app(scope, again, send)

    async def _counted(self, scope: Values, receive: Receive, send: Send, most: int) -> None:
        """Pass a request on until more has come than is allowed."""
        come, begun = 0, False

        async def counted() -> Values:
            nonlocal come
            message = await receive()
            come += len(message.get("body", b""))
            if come > most:
                raise Oversized
            return message

        async def noted(message: Values) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, counted, noted)
        except Oversized:
            if not begun:
                await _refuse(send, 413, _LARGE)


def _pieces(body: bytes, orders: bool) -> int:
    """How many objects the largest message has that is announced."""
    request = PushAppMessagesRequest.FromString(body) if orders else PushMessagesRequest.FromString(body)
    return max((sum(1 for _ in iterate_object_tree(tree)) for tree in request.message_object_trees), default=0)


def _is_here(scope: Values) -> bool:
    """Whether the caller is a process of this machine."""
    client = scope.get("client")
    return client is not None and client[0] in _HERE


async def _refuse(send: Send, status: int, said: bytes) -> None:
    headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": said})


class Renewed:
    """Loads a server's certificate again when its file has changed."""

    def __init__(self, context: ssl.SSLContext, certificate: Path, key: Path) -> None:
        self.context, self.certificate, self.key = context, certificate, key
        self._seen = self._files()

    def look(self) -> bool:
        """Load the certificate if it is a new one; one that can't be loaded, half-written perhaps, waits."""
        if (now := self._files()) == self._seen or not all(now):
            return False
        try:
            self.context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            log.error("%s can't be used: %s", self.certificate, error)
            return False
        self._seen = now
        log.info("%s has been renewed", self.certificate)
        return True

    def _files(self) -> tuple[float, ...]:
        paths = (self.certificate, self.key)
        return tuple(path.stat().st_mtime if path.is_file() else 0.0 for path in paths)


def _watch_certificates() -> None:
    """Have every TLS context that uvicorn makes follow its files."""
    import uvicorn.config

    made = uvicorn.config.create_ssl_context

    def watched(certfile: str, keyfile: str, *args: Any, **kwargs: Any) -> ssl.SSLContext:
        context = made(certfile, keyfile, *args, **kwargs)
        renewed = Renewed(context, Path(certfile), Path(keyfile))

        def watch() -> None:
            while True:
                threading.Event().wait(_LOOK)
                renewed.look()

        threading.Thread(target=watch, name="certificate", daemon=True).start()
        return context

    uvicorn.config.create_ssl_context = watched  # pyright: ignore


def _log_json(command: Any) -> None:
    """Let Flower's and uvicorn's loggers write JSON lines."""
    from fednoil.flower.logs import JsonFormatter, use_json, wrap_output

    wrap_output()
    use_json()
    usual = command.get_uvicorn_log_config
    command.get_uvicorn_log_config = lambda level: {**usual(level), "formatters": {"http": {"()": JsonFormatter}}}


def _register_keys(folder: Path, register: Callable[[Path], None]) -> None:
    """Register the public keys in a folder, also those that come later."""
    known: set[Path] = set()

    def watch() -> None:
        while True:
            for path in sorted(set(folder.glob("*.pub")) - known):
                try:
                    register(path)
                except (UserError, OSError, ValueError) as error:  # not up yet, or no key; it is tried again
                    log.warning("%s", error)
                else:
                    known.add(path)
                    log.info("%s is registered", path)
            threading.Event().wait(_LOOK)

    threading.Thread(target=watch, name="keys", daemon=True).start()


def main(*, json: bool = False, keys: Path | None = None, register: Callable[[Path], None] | None = None) -> None:
    """Run Flower's SuperLink behind the gate; `register` is called for each public key in the folder `keys`."""
    import functools
    import importlib

    import uvicorn
    from flwr.superlink import main as flowers

    command: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")
    uvicorn.run = functools.partial(uvicorn.run, timeout_graceful_shutdown=_LEAVE)  # pyright: ignore
    made = flowers.create_app
    flowers.create_app = lambda *args, **kwargs: Gate(made(*args, **kwargs))  # pyright: ignore
    _watch_certificates()
    if json:
        _log_json(command)
    else:
        use_plain()
    if keys is not None and register is not None:
        _register_keys(keys, register)
    command.flower_superlink()


if __name__ == "__main__":
    main()
