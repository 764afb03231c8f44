"""Random numbers that are the same on every executor, device and order of clients.

One root seed has named children (`partition`, `noise/client 3`, `round 7/client 3/order`), so that a draw
depends on what it is for and never on what was drawn before it. Two kinds of numbers come from a child:

- host draws (partition, noise): a numpy generator, `Seed.numpy()`;
- draws for training (clients, samples, their order, augmentation): counter-based numbers, `bits`, `uniform`,
  `permutations`. They are computed by integer tensor arithmetic (SplitMix64, Steele et al., OOPSLA 2014), which
  gives the same bits on a CPU and on a GPU, and inside a captured CUDA graph.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

Name = str | int
Path = tuple[Name, ...]  # of a descendant, below a seed

_GAMMA = 0x9E3779B97F4A7C15
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB


def _signed(value: int) -> int:
    """The int64 with the same 64 bits as `value`."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


@lru_cache(maxsize=4096, typed=True)
def _part(name: Name) -> str:
    return f"{type(name).__name__[0]}:{name}"


@dataclass(frozen=True)
class Seed:
    """A node in the tree of seeds: a root number and the path of names below it."""

    root: int
    path: tuple[Name, ...] = ()

    def child(self, *names: Name) -> Seed:
        return Seed(self.root, self.path + names)

    def _hash(self) -> hashlib.blake2b:
        text = "/".join([str(self.root), *(_part(n) for n in self.path)])
        return hashlib.blake2b(text.encode(), digest_size=8)

    @property
    def value(self) -> int:
        """64 bits that depend on the root and on every name of the path."""
        return int.from_bytes(self._hash().digest(), "little")

    def numpy(self) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=self.value))

    def key(self) -> int:
        """The key for the counter-based draws below, as an int64."""
        return _signed(self.value)

    def keys(self, names: Iterable[Name], device: torch.device | str = "cpu") -> Tensor:
        """Keys of the children called `names`: int64 [len(names)]."""
        return self.keys_of([(name,) for name in names], device)

    def keys_of(self, paths: Iterable[Path], device: torch.device | str = "cpu") -> Tensor:
        """Keys of the descendants at `paths` below this node: int64 [len(paths)].

        The common part is hashed once: a round draws thousands of keys.
        """
        return Seeds((self,)).keys_of(paths, device)

    def digests(self, ends: Iterable[bytes]) -> Iterator[bytes]:
        """The eight bytes of each of these keys, given the ends of their paths (`_end`)."""
        common = self._hash()
        for end in ends:
            one = common.copy()
            one.update(end)
            yield one.digest()


@dataclass(frozen=True)
class Seeds:
    """Several seeds that are drawn from in the same way: all keys of the first one, then of the second, …"""

    members: tuple[Seed, ...]

    def child(self, *names: Name) -> Seeds:
        return Seeds(tuple(seed.child(*names) for seed in self.members))

    def keys(self, names: Iterable[Name], device: torch.device | str = "cpu") -> Tensor:
        """Like `Seed.keys`, for all members: int64 [members · len(names)]."""
        return self.keys_of([(name,) for name in names], device)

    def keys_of(self, paths: Iterable[Path], device: torch.device | str = "cpu") -> Tensor:
        """As `Seed.keys_of`, of all members: int64 [members · len(paths)]."""
        ends = [_end(path) for path in paths]  # once for all members: a round draws thousands of keys
        return _keys((digest for seed in self.members for digest in seed.digests(ends)), device)


def keys_of(wanted: Iterable[tuple[Seed, Iterable[Path]]], device: torch.device | str = "cpu") -> Tensor:
    """Like `Seed.keys_of`, for several seeds with different paths, one seed after another: int64 [paths]."""
    return _keys((digest for seed, paths in wanted for digest in seed.digests(map(_end, paths))), device)


def _end(path: Path) -> bytes:
    return "".join([f"/{_part(name)}" for name in path]).encode()


def _keys(digests: Iterable[bytes], device: torch.device | str) -> Tensor:
    words = np.frombuffer(b"".join(digests), dtype="<i8").astype(np.int64)
    return torch.from_numpy(words).to(device, non_blocking=True)  # the host plans on while a GPU still works


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64 (torch's own is arithmetic)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def bits(keys: Tensor, count: int) -> Tensor:
    """64 random bits for each key and counter: int64 [*keys.shape, count]."""
    counter = torch.arange(1, count + 1, dtype=torch.int64, device=keys.device) * _signed(_GAMMA)
    x = keys.unsqueeze(-1) + counter
    x = (x ^ _shift(x, 30)) * _signed(_MIX1)
    x = (x ^ _shift(x, 27)) * _signed(_MIX2)
    return x ^ _shift(x, 31)


def uniform(keys: Tensor, count: int) -> Tensor:
    """Uniform numbers in [0, 1) with 24 random bits: float32 [*keys.shape, count]."""
    return _shift(bits(keys, count), 40).to(torch.float32) * 2.0**-24


def integers(keys: Tensor, count: int, low: int, high: int) -> Tensor:
    """Uniform integers in low..high-1: int64 [*keys.shape, count]. The range must be under 2**31."""
    return low + (((_shift(bits(keys, count), 33)) * (high - low)) >> 31)


def permutations(keys: Tensor, count: int) -> Tensor:
    """A random order of 0..count-1 for each key: int64 [*keys.shape, count]."""
    return torch.argsort(bits(keys, count), dim=-1, stable=True)


def orders(keys: Tensor, sizes: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """`permutations` for keys [S] with different sizes [S], one after another, and the number of each entry's key: both
    int64 [total]. `total` is the sum of the sizes, which the host has to know."""
    owner = torch.repeat_interleave(sizes, output_size=total)
    start = (sizes.cumsum(0) - sizes)[owner]
    counter = torch.arange(total, device=keys.device) - start
    words = bits(keys[owner] + counter * _signed(_GAMMA), 1)[:, 0]
    order = torch.argsort(words, stable=True)  # all in one, then back to each key's own places, still in order
    return order[torch.argsort(owner[order], stable=True)] - start, owner


def open_uniform(keys: Tensor, count: int) -> Tensor:
    """Uniform numbers in (0, 1), never 0 or 1: float64 [*keys.shape, count]."""
    return (_shift(bits(keys, count), 11).to(torch.float64) + 0.5) * 2.0**-53


def gumbel(keys: Tensor, count: int) -> Tensor:
    """Standard Gumbel noise: float64 [*keys.shape, count].

    The m largest of log p + Gumbel noise are m draws by p without replacement, one after another.
    """
    return -torch.log(-torch.log(open_uniform(keys, count)))
