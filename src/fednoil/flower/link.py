"""Flower's SuperLink behind a gate: no large requests, and from other machines nothing but the Fleet API.

Flower 1.41 serves the Control API, which registers keys and starts runs, without authentication on the port that the
nodes use. Requests to it are refused unless they come from this machine. Flower sends arrays in pieces of 5 MiB, so no
honest request is much larger: a larger one is refused by its header, or as soon as more than that has come, before
Flower reads it; 300 MB of junk would otherwise be held several times.

    python -m fednoil.flower.link OPTIONS OF flower-superlink
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

MOST = 8 * 2**20  # bytes of a request: one of Flower's pieces, and what is around it
FLEET = "/v1/fleet/"
_HERE = ("127.0.0.1", "::1")

Values = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Values]]
Send = Callable[[Values], Awaitable[None]]
App = Callable[[Values, Receive, Send], Awaitable[None]]


class Oversized(Exception):
    """More has come than is allowed."""


class Gate:
    """An ASGI application that refuses what must not come in and passes on the rest."""

    def __init__(self, app: App, most: int = MOST) -> None:
        self.app, self.most = app, most

    async def __call__(self, scope: Values, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan" or _is_here(scope):
                await self.app(scope, receive, send)
            return
        if not (_is_here(scope) or scope["path"].startswith(FLEET)):
            await _refuse(send, 403, b"this part of the server can only be used from its own machine")
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if not announced.isdigit() or int(announced) > self.most:
            await _refuse(send, 413, b"the request is larger than any that fednoil sends")
            return
        await self._counted(scope, receive, send)

    async def _counted(self, scope: Values, receive: Receive, send: Send) -> None:
        """Pass a request on until more has come than is allowed."""
        come, begun = 0, False

        async def counted() -> Values:
            nonlocal come
            message = await receive()
            come += len(message.get("body", b""))
            if come > self.most:
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
                await _refuse(send, 413, b"the request is larger than any that fednoil sends")


def _is_here(scope: Values) -> bool:
    """Whether the caller is a process of this machine."""
    client = scope.get("client")
    return client is not None and client[0] in _HERE


async def _refuse(send: Send, status: int, said: bytes) -> None:
    headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": said})


def main() -> None:
    """Run Flower's SuperLink behind the gate."""
    from flwr.superlink import main as flowers
    from flwr.superlink.cli import flower_superlink

    made = flowers.create_app
    flowers.create_app = lambda *args, **kwargs: Gate(made(*args, **kwargs))  # pyright: ignore
    flower_superlink()


if __name__ == "__main__":
    main()
