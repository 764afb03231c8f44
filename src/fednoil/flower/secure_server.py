"""The server's part in a secure sum: it carries keys and encrypted shares, adds masked vectors, and learns the sum.

A client that drops out before its masked vector came is not in the sum, and the others' shares of its key remove what
they have added because of it. With fewer than half of the clients left, or of the neighbours of one, nothing is
revealed, and the round's model stays as it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key, public_key_to_bytes

from fednoil.flower.messages import (
    KEYS,
    KEYS_ORDER,
    KEYS_REPLY,
    REVEAL,
    REVEAL_ORDER,
    REVEAL_REPLY,
    SHARES,
    SHARES_ORDER,
    SHARES_REPLY,
    TRAIN,
    BadMessage,
    Body,
    Form,
    masked_form,
)
from fednoil.flower.secure import FEWEST, mask, neighbours, pair_mask, threshold
from fednoil.privacy import majority

log = logging.getLogger("flwr.fednoil")
Read = Callable[[int, Body], Any]


class Asking(Protocol):
    """Sends each client its order; returns what `read` makes of the valid replies, by client."""

    def __call__(
        self, kind: str, orders: Mapping[int, Body], order: Form, form: Form, read: Read
    ) -> dict[int, Any]: ...


class TooFew(Exception):
    """Why a round has no sum, with the names of those who are left."""


class SecureSum:
    """The secure sum of one round: its stages, one after another."""

    def __init__(self, ask: Asking, common: Mapping[str, Any], name: Callable[[int], str], size: int) -> None:
        self.ask, self.common, self.name, self.size = ask, common, name, size
        self.keys: dict[int, tuple[str, str]] = {}
        self.around: dict[int, list[int]] = {}

    def prepare(self, clients: Sequence[int]) -> dict[int, dict[int, str]]:
        """Exchange keys and shares; returns the shares for each client that is still there, by sender."""
        self.keys = self._stage(KEYS, {k: {} for k in clients}, KEYS_ORDER, KEYS_REPLY, _read_keys)
        self._enough(list(self.keys), FEWEST)
        self.around = neighbours(list(self.keys))
        orders = {k: self._keys_for(k) for k in self.keys}
        sent: dict[int, dict[int, str]] = self._stage(SHARES, orders, SHARES_ORDER, SHARES_REPLY, self._read_shares)
        self._check_left(sent)
        return {k: {j: sent[j][k] for j in self.around[k] if j != k and j in sent} for k in sent}

    def masked(self, orders: Mapping[int, Body], form: Form, read: Read) -> dict[int, tuple[np.ndarray, Any]]:
        """The masked vectors of those who have trained, with what else they report."""

        def vector(client: int, body: Body) -> tuple[np.ndarray, Any]:
            return body.arrays["masked"].numpy().view(np.uint64), read(client, body)

        return self.ask(TRAIN, orders, form, masked_form(self.size), vector)

    def total(self, vectors: Mapping[int, np.ndarray], took_part: Sequence[int]) -> np.ndarray:
        """The sum of the vectors without their masks: uint64 [d]. `took_part` have sent shares."""
        self._check_left(vectors)
        orders = {k: self._asked_of(k, vectors, took_part) for k in vectors}
        found: dict[int, dict[int, bytes]] = self._stage(
            REVEAL, orders, REVEAL_ORDER, REVEAL_REPLY, lambda client, body: _read_secrets(orders[client], body)
        )
        total = np.zeros(self.size, np.uint64)
        for client, vector in vectors.items():
            total += vector - mask(self._secret(client, found), self.size)
        for client in set(took_part) - set(vectors):
            around = [k for k in self.around[client] if k in vectors]
            if around:
                private = self._private(client, found)
                for other in around:  # what each of them has added because of it
                    total += pair_mask(private, self.keys[other][0], client, other, self.size)
        return total

    def _stage(
        self, kind: str, orders: Mapping[int, Mapping[str, Any]], order: Form, form: Form, read: Read
    ) -> dict[int, Any]:
        bodies = {k: Body(values={**self.common, "client": k, **values}) for k, values in orders.items()}
        return self.ask(kind, bodies, order, form, read)

    def _keys_for(self, client: int) -> dict[str, Any]:
        around = self.around[client]
        first, second = ([self.keys[k][place] for k in around] for place in (0, 1))
        return {"clients": around, "mask_keys": first, "share_keys": second}

    def _read_shares(self, client: int, body: Body) -> dict[int, str]:
        clients, shares = body.values["clients"], body.values["shares"]
        if sorted(clients) != [k for k in self.around[client] if k != client] or len(shares) != len(clients):
            raise BadMessage("its shares are not for its neighbours")
        return dict(zip(clients, shares, strict=True))

    def _asked_of(self, client: int, alive: Mapping[int, Any], took_part: Sequence[int]) -> dict[str, Any]:
        around = [k for k in self.around[client] if k in set(took_part)]
        return {"alive": [k for k in around if k in alive], "lost": [k for k in around if k not in alive]}

    def _secret(self, client: int, found: Mapping[int, Mapping[int, bytes]]) -> bytes:
        shares = [secrets[client] for secrets in found.values() if client in secrets]
        needed = threshold(len(self.around[client]))
        if len(shares) < needed:
            raise TooFew(f"{len(shares)} of {needed} shares of {self.name(client)}'s mask came back")
        try:
            return combine_shares(shares[:needed])
        except ValueError:
            raise TooFew(
                f"the shares of {self.name(client)}'s mask don't fit together: a node has sent a wrong one"
            ) from None

    def _private(self, client: int, found: Mapping[int, Mapping[int, bytes]]) -> str:
        """The key of a client that dropped out, checked against the one it had sent."""
        try:
            text = self._secret(client, found)
            public = public_key_to_bytes(bytes_to_private_key(text).public_key()).decode()
        except (ValueError, TypeError):
            public, text = "", b""
        if public != self.keys[client][0]:
            raise TooFew(f"the shares of {self.name(client)}'s key don't fit together: a node has sent a wrong one")
        return text.decode()

    def _check_left(self, left: Mapping[int, Any]) -> None:
        self._enough(list(left), max(2, majority(len(self.keys))))
        for client in left:
            around = self.around[client]
            self._enough([k for k in around if k in left], threshold(len(around)))

    def _enough(self, left: Sequence[int], needed: int) -> None:
        if len(left) < needed:
            names = ", ".join(self.name(k) for k in sorted(left)) or "nobody"
            raise TooFew(f"a secure sum needs {needed} nodes, and {len(left)} are left: {names}")


def _read_keys(client: int, body: Body) -> tuple[str, str]:
    found = body.values["mask_key"], body.values["share_key"]
    for key in found:
        public = bytes_to_public_key(key.encode())
        if not isinstance(public, ec.EllipticCurvePublicKey) or not isinstance(public.curve, ec.SECP384R1):
            raise BadMessage("its keys are of another kind")
    return found


def _read_secrets(order: Mapping[str, Sequence[int]], body: Body) -> dict[int, bytes]:
    asked = [*order["alive"], *order["lost"]]
    shares = body.values["shares"]
    if len(shares) != len(asked):
        raise BadMessage(f"it was asked for {len(asked)} shares and sent {len(shares)}")
    return {client: bytes.fromhex(share) for client, share in zip(asked, shares, strict=True)}
