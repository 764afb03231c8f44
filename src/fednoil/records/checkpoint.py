"""Checkpoints: safetensors and one JSON index, written so that there is always a whole one.

A checkpoint is made of parts: each client's state, the evidence of all, and the server's tensors by what stands before
the first `/` of their names (a network, a cluster, a client's last update). The index names the parts' files and is
replaced in one step after they are on disk; only then are files of the one before removed. A part is written again
only when it changed, so the cost of a checkpoint follows what was trained since the last one and not all clients. The
index holds a checksum of each file: a run that went on from a damaged one would end with other numbers than it should.

A simulation on a GPU writes its checkpoints behind the next rounds, in a thread: the GPU doesn't wait for a disk. What
must be written is copied to the host first; the next checkpoint, and the end of the run, wait for the last one.
"""

from __future__ import annotations

import copy
import hashlib
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fednoil.config.schema import Config
from fednoil.errors import UserError
from fednoil.files import write_bytes
from fednoil.records.files import checksum, read_json, tensor_bytes, write_json
from fednoil.rounds import Best, RunState
from fednoil.servers.base import ServerState
from fednoil.tensors import Tensors, read_tensors

# Raised when a checkpoint is written differently, and when a configuration comes to mean something else with the same
# keys: a run that was begun before that must not go on after it.
FORMAT = 5
_CHANGED = {
    "data_hash": "the data have changed",
    "noise_hash": "the split or the labels have changed",
    "frozen_hash": "the frozen part of the model has changed",
}
_EVIDENCE = "evidence/all"  # the part with what clients remember about their labels

Entry = dict[str, str]  # a part's file and its checksum
Origin = dict[str, tuple[weakref.ref[Tensor], int]]  # tensors and their versions


@dataclass(frozen=True)
class _Part:
    """What is on disk of a part: its entry in the index, and which tensors it was written from, without holding them.

    A tensor that was changed in place has another version; one that is gone matches nothing.
    """

    entry: Entry
    tensors: Origin

    @classmethod
    def of(cls, entry: Entry, tensors: Tensors) -> _Part:
        return cls(entry, _origin(tensors))

    def is_of(self, tensors: Tensors) -> bool:
        same = self.tensors.keys() == tensors.keys()
        return same and all(ref() is tensors[n] and tensors[n]._version == v for n, (ref, v) in self.tensors.items())


@dataclass(frozen=True)
class _Fresh:
    """A part that may have to be written: its tensors on the host, and where they came from."""

    tensors: Tensors
    origin: Origin
    file: str


class Checkpoints:
    """The checkpoint of one run folder; with `behind` it is written while the run continues."""

    def __init__(self, folder: Path, hashes: dict[str, str], *, behind: bool = False) -> None:
        self.folder = folder
        self.hashes = hashes
        self._index = folder / "checkpoint.json"
        self._written: dict[str, _Part] = {}  # what is on disk, by the part's name
        self._thread = ThreadPoolExecutor(1, "checkpoint") if behind else None
        self._pending: Future[None] | None = None
        self.round_idx = 0  # the round on disk, as far as this object has loaded or written it
        self.rounds: int | None = None  # rounds that the run is to have; recorded, so that it can be given more

    def exists(self) -> bool:
        return self._index.is_file()

    def save(self, state: RunState) -> None:
        """Save the state, which may change afterwards."""
        self.wait()
        best = state.best
        sides = {"server": state.server.tensors, "average": state.average, "best": best.server.tensors if best else {}}
        parts = {f"{side}/{group}": part for side, whole in sides.items() for group, part in _groups(whole).items()}
        parts |= {f"client/{client}": keep for client, keep in sorted(state.keep.items())}
        parts |= {_EVIDENCE: state.evidence} if state.evidence else {}
        found: dict[str, _Part | _Fresh] = {}
        for place, (name, tensors) in enumerate(parts.items()):
            before = self._written.get(name)
            if before is not None and before.is_of(tensors):
                found[name] = before
                continue
            # The round and the place make the name new: no file that an index names is ever written again.
            file = f"{name.split('/')[0]}-{state.round_idx:06d}-{place:04d}.safetensors"
            found[name] = _Fresh(_copies(tensors) if self._thread else tensors, _origin(tensors), file)
        index: dict[str, Any] = {
            "format": FORMAT,
            "round": state.round_idx,
            "train_batches": state.train_batches,
            "per_class": list(state.per_class),
            "spent": state.spent,
            "server": {"values": copy.deepcopy(state.server.values)},
        }
        if self.rounds is not None:
            index["rounds"] = self.rounds
        if best is not None:
            index["best"] = {
                "round": best.round_idx,
                "val_accuracy": best.val_accuracy,
                "per_class": list(best.per_class),
                "values": copy.deepcopy(best.server.values),
            }
        if self._thread is None:
            self._write(found, index)
        else:
            self._pending = self._thread.submit(self._write, found, index)

    def wait(self) -> None:
        """Wait until what was saved is on disk; an error in writing it is raised here."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _write(self, found: dict[str, _Part | _Fresh], index: dict[str, Any]) -> None:
        self.folder.mkdir(exist_ok=True)
        written = {name: self._write_part(name, part) for name, part in found.items()}
        entries = {name: part.entry for name, part in written.items()}
        write_json(self._index, {**index, "parts": entries, **self.hashes})
        self._written, self.round_idx = written, index["round"]
        self._sweep({entry["file"] for entry in entries.values()})

    def _write_part(self, name: str, part: _Part | _Fresh) -> _Part:
        """Write a part unless it is already on disk unchanged."""
        if isinstance(part, _Part):
            return part
        before, content = self._written.get(name), tensor_bytes(part.tensors)
        digest = hashlib.sha256(content).hexdigest()
        if before is not None and before.entry["sha256"] == digest:
            return _Part(before.entry, part.origin)
        write_bytes(self.folder / part.file, content)
        return _Part({"file": part.file, "sha256": digest}, part.origin)

    def check(self, config: Config) -> None:
        """Refuse what belongs to another experiment."""
        if self.exists():
            self._check(read_json(self._index), config)

    def load(self, config: Config | None = None) -> RunState:
        """The state; with a `config` also that of the same run with fewer rounds or another `run.select`."""
        index = read_json(self._index)
        self._check(index, config)
        try:
            server: Tensors = {}
            average: Tensors = {}
            best: Tensors = {}
            keep: dict[int, Tensors] = {}
            evidence: Tensors = {}
            written = {}
            for name, entry in index["parts"].items():
                tensors = self._read(entry)
                written[name] = _Part.of(entry, tensors)
                side, _, which = name.partition("/")
                if side == "client":
                    keep[int(which)] = tensors
                elif name == _EVIDENCE:
                    evidence = tensors
                elif side == "average":
                    average |= tensors
                elif side == "best":
                    best |= tensors
                else:
                    server |= tensors
            self._written, self.round_idx = written, _count(index["round"])
            return RunState(
                round_idx=self.round_idx,
                server=ServerState(server, dict(index["server"]["values"])),
                keep=keep,
                evidence=evidence,
                average=average,
                train_batches=_count(index["train_batches"]),
                per_class=tuple(index["per_class"]),
                spent={str(name): _count(rounds) for name, rounds in index.get("spent", {}).items()},
                best=_best(index.get("best"), best),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise UserError(f"{self._index} is damaged ({error!r}); start over with --force") from None

    def _check(self, index: Any, config: Config | None) -> None:
        if not isinstance(index, dict) or index.get("format") != FORMAT:
            raise UserError(
                f"{self._index} is not of this version (format {FORMAT}), in which the run would go on differently: "
                "`fednoil report` and `fednoil compare` show it; start over with --force or another --out"
            )
        differs = [name for name, value in self.hashes.items() if index.get(name) != value]
        if "config_hash" in differs and not _earlier(index, config):
            raise UserError(
                f"{self.folder} has other settings: an earlier version of fednoil made the run, or config.toml was "
                "edited since. `fednoil report` and `fednoil compare` show it, but this version can't continue or "
                "audit it; start over with --force or another --out"
            )
        for name in differs:
            if name != "config_hash":
                raise UserError(
                    f"{self.folder.parent}: {_CHANGED[name]} since this run began ({name}); it goes on and is audited "
                    "only with what it began with: put that back, or make the run again in another folder"
                )

    def _read(self, entry: dict[str, Any]) -> Tensors:
        path = self.folder / entry["file"]
        tensors = read_tensors(path)
        if checksum(path) != entry["sha256"]:
            raise UserError(f"{path} is damaged (its checksum doesn't match); start over with --force")
        return tensors

    def _sweep(self, used: set[str]) -> None:
        for path in self.folder.iterdir():
            if path.name not in used and path != self._index and path.suffix in (".safetensors", ".part"):
                path.unlink(missing_ok=True)


def _earlier(index: dict[str, Any], config: Config | None) -> bool:
    """Whether a checkpoint is of this configuration before it was given more rounds, or another model to end with."""
    planned = {n for n in (index.get("rounds"), index.get("round")) if type(n) is int and n > 0}
    if config is None:
        return False
    variants = (
        config.changed(rounds=n, select=s) for n in {*planned, config.train.rounds} for s in ("last", "best", "early")
    )
    return index.get("config_hash") in {variant.hash() for variant in variants}


def _best(entry: Any, tensors: Tensors) -> Best | None:
    if entry is None:
        return None
    server = ServerState(tensors, dict(entry["values"]))
    return Best(_count(entry["round"]), float(entry["val_accuracy"]), server, tuple(entry["per_class"]))


def _origin(tensors: Tensors) -> Origin:
    return {name: (weakref.ref(t), t._version) for name, t in tensors.items()}


def _copies(tensors: Tensors) -> Tensors:
    """Copies in host memory."""
    return {name: torch.empty_like(t, device="cpu").copy_(t) for name, t in tensors.items()}


def _groups(tensors: Tensors) -> dict[str, Tensors]:
    """Tensors by what stands before the first `/` of their names."""
    groups: dict[str, Tensors] = {}
    for name, tensor in tensors.items():
        groups.setdefault(name.split("/", 1)[0], {})[name] = tensor
    return groups


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a number of rounds or batches")
    return value
