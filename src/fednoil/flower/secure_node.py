"""A node's part in a secure sum, and what it refuses: its own update is revealed by nothing that it sends.

The secrets of a round are in the client's folder between the stages, readable by its owner only, and removed with the
last. A node masks one vector with them, gives away at most one of the two secrets of each other client, and takes no
part in another sum of a round whose sum it has helped to reveal: the difference of two sums may be one client's update.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.fernet import InvalidToken
from flwr.common.secure_aggregation.crypto.shamir import create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt, generate_shared_key
from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_concat, share_keys_plaintext_separate
from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    bytes_to_public_key,
    generate_key_pairs,
    private_key_to_bytes,
    public_key_to_bytes,
)

from fednoil.errors import UserError
from fednoil.flower.messages import BadMessage, Refusal
from fednoil.flower.secure import FEWEST, mask, pair_mask, threshold
from fednoil.flower.state import make_own
from fednoil.records.files import read_json, write_json

_FILE = "secure.json"
KEYS, SHARED, MASKED, DONE = "keys", "shared", "masked", "done"  # what a round has come to


class Session:
    """One client's secure sums in one run, of which one round is under way."""

    def __init__(self, folder: Path, client: int, round_idx: int) -> None:
        self.folder, self.client, self.round_idx = folder, client, round_idx
        self._values: dict[str, Any] = {}
        path = folder / _FILE
        if path.is_file():
            self._values = read_json(path)
            if not isinstance(self._values, dict) or not isinstance(self._values.get("round"), int):
                raise UserError(f"{path} is damaged; without it no update is sent")

    def keys(self) -> tuple[str, str]:
        """Begin a sum: the public keys of its masks and of what other clients send this one."""
        before = self._values.get("round", -1)
        if before > self.round_idx or (before == self.round_idx and self._values.get("stage") == DONE):
            raise Refusal(f"it has helped to reveal the sum of round {before}, and takes no part in another before it")
        pairs = [generate_key_pairs() for _ in range(2)]
        private = [private_key_to_bytes(one).decode() for one, _ in pairs]
        public = [public_key_to_bytes(one).decode() for _, one in pairs]
        self._save(KEYS, private=private, public=public)
        return public[0], public[1]

    def shares(self, keys: Mapping[int, tuple[str, str]]) -> dict[int, str]:
        """The shares of this client's secrets for its neighbours, each encrypted for the one who gets it."""
        self.check(KEYS)
        if len(keys) < FEWEST:
            raise Refusal(f"a secure sum of {len(keys)} clients would reveal too much; it needs {FEWEST}")
        each = [key for pair in keys.values() for key in pair]
        if keys.get(self.client) != tuple(self._values["public"]) or len(set(each)) != len(each):
            raise Refusal("the keys of its secure sum are not those that clients have sent")
        seed, needed = os.urandom(32), threshold(len(keys))
        private = self._values["private"]
        parts = [create_shares(secret, needed, len(keys)) for secret in (seed, private[0].encode())]
        found, sent = {}, {}
        for place, client in enumerate(sorted(keys)):
            mine = parts[0][place], parts[1][place]
            if client == self.client:
                found[str(client)] = [part.hex() for part in mine]
                continue
            plain = share_keys_plaintext_concat(self.client, client, *mine)
            sent[client] = encrypt(self._shared(keys[client][1]), plain).decode()
        public = {str(client): list(pair) for client, pair in keys.items()}
        self._save(SHARED, private=private, public=public, seed=seed.hex(), shares=found)
        return sent

    def masked(self, vector: np.ndarray, received: Mapping[int, str]) -> np.ndarray:
        """The vector int64 [d] under its masks, of this client alone and of each pair: uint64 [d]."""
        self.check(SHARED)
        public, needed = self._values["public"], threshold(len(self._values["public"]))
        if len(received) + 1 < needed:
            raise Refusal(f"a secure sum needs {needed} clients here, and {len(received) + 1} are left")
        shares = {**self._values["shares"], **{str(k): self._opened(k, text) for k, text in received.items()}}
        total = vector.view(np.uint64) + mask(bytes.fromhex(self._values["seed"]), len(vector))
        for client in received:
            total += pair_mask(self._values["private"][0], public[str(client)][0], self.client, client, len(vector))
        # Another vector under the same masks would reveal the difference of the two.
        self._save(MASKED, shares=shares, needed=needed)
        return total

    def reveal(self, alive: Sequence[int], lost: Sequence[int]) -> list[str]:
        """A share of each secret that the sum needs: the own mask of those in it, the key of those who dropped out."""
        self.check(MASKED)
        shares, needed = self._values["shares"], self._values["needed"]
        asked = [*alive, *lost]
        if len(set(asked)) != len(asked) or not {str(k) for k in asked} <= shares.keys() or self.client not in alive:
            raise Refusal("it gives one secret of each client of its secure sum, and only once")
        if len(alive) < needed:
            raise Refusal(f"a secure sum needs {needed} clients here, and {len(alive)} are left")
        self._save(DONE)
        return [shares[str(k)][0] for k in alive] + [shares[str(k)][1] for k in lost]

    def _opened(self, client: int, text: str) -> list[str]:
        """The two shares that another client has sent to this one."""
        if client == self.client or str(client) not in self._values["public"]:
            raise BadMessage(f"client {client} is not one of its secure sum")
        try:
            plain = decrypt(self._shared(self._values["public"][str(client)][1]), text.encode())
        except InvalidToken:
            raise BadMessage(f"what client {client} has sent to it can't be read") from None
        sender, receiver, *parts = share_keys_plaintext_separate(plain)
        if (sender, receiver) != (client, self.client):
            raise BadMessage(f"what client {client} has sent to it is not from there")
        return [part.hex() for part in parts]

    def _shared(self, public: str) -> bytes:
        private = bytes_to_private_key(self._values["private"][1].encode())
        return generate_shared_key(private, bytes_to_public_key(public.encode()))

    def check(self, stage: str) -> None:
        """Refuse what doesn't follow this stage."""
        if (self._values.get("round"), self._values.get("stage")) != (self.round_idx, stage):
            raise Refusal(f"its secure sum of round {self.round_idx} has not come to this stage, or is past it")

    def _save(self, stage: str, **values: Any) -> None:
        make_own(self.folder.parent)
        make_own(self.folder)
        self._values = {"round": self.round_idx, "stage": stage, **values}
        write_json(self.folder / _FILE, self._values, private=True, for_good=True)
