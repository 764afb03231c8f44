"""What both ends of a secure sum share: fixed-point vectors, masks, and who is whose neighbour.

SecAgg+ (Bell et al., CCS 2020), in the stages of Flower's own workflow, which knows only Flower's older API and its own
messages. Keys, their agreement, encryption and Shamir's shares are Flower's functions. Two others are not: its masks
come from a Mersenne Twister with 32 bits of the seed, which can be searched through, so ours are AES-CTR with the whole
key; and its vectors have 22 bits in a fixed range, so ours are multiples of 2⁻²⁴ modulo 2⁶⁴.
"""

from __future__ import annotations

import random
from base64 import urlsafe_b64decode
from collections.abc import Sequence

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key

from fednoil.privacy import majority
from fednoil.tensors import Tensors

FEWEST = 3  # clients of a sum: of two, each would learn the other's update
_UNIT = 2.0**-24
_AROUND = 20  # neighbours of a client; of up to so many others, all


def names_of(model: Tensors) -> list[str]:
    """The order in which a model's tensors are summed."""
    return sorted(model)


def fixed_point(change: Tensors, weight: float, among: int) -> np.ndarray | None:
    """The change times `weight` as multiples of 2⁻²⁴: int64 [d]; None if a sum `among` so many might not fit."""
    whole = torch.cat([change[name].reshape(-1).double() for name in names_of(change)]) * weight / _UNIT
    if not bool((whole.abs() < 2.0**62 / among).all()):
        return None
    return whole.round().to(torch.int64).numpy()


def real(total: np.ndarray, like: Tensors, weight: float) -> Tensors:
    """What a sum of fixed-point vectors stands for, divided by `weight`, in the shapes of `like`: float64."""
    whole = torch.from_numpy(total.view(np.int64)).double() * (_UNIT / weight)
    parts = whole.split([like[name].numel() for name in names_of(like)])
    return {name: part.reshape(like[name].shape) for name, part in zip(names_of(like), parts, strict=True)}


def mask(key: bytes, count: int) -> np.ndarray:
    """A mask from 32 secret bytes: uint64 [count]. Each key makes one mask only."""
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(8 * count)), np.uint64)


def pair_mask(private: str, public: str, mine: int, other: int, count: int) -> np.ndarray:
    """What client `mine` adds because of client `other`, who adds the opposite: uint64 [count]."""
    shared = generate_shared_key(bytes_to_private_key(private.encode()), bytes_to_public_key(public.encode()))
    found = mask(urlsafe_b64decode(shared), count)
    return found if mine > other else np.uint64(0) - found


def neighbours(clients: Sequence[int]) -> dict[int, list[int]]:
    """Whom each client shares masks and secrets with, itself included: everyone or, of many, those around it in a
    circle of random order."""
    circle = list(clients)
    if len(circle) <= _AROUND + 1:
        return {client: sorted(circle) for client in circle}
    random.SystemRandom().shuffle(circle)
    steps = range(-(_AROUND // 2), _AROUND // 2 + 1)
    return {k: sorted(circle[(place + step) % len(circle)] for step in steps) for place, k in enumerate(circle)}


def threshold(shares: int) -> int:
    """How many shares reveal a secret: more than half, so that no two groups of clients reveal both of one client's."""
    return max(2, majority(shares))
