"""Checkpoints: safetensors and one JSON index, written so that there is always a whole one.

The index names the files that make up the checkpoint and is replaced in one step after they are on disk; only
then are files of the one before removed. A client's state is written again only when it changed, so the cost
of a checkpoint follows the clients trained since the last one and not all clients. The index holds a checksum of
each file: a run that went on from a damaged one would end with other numbers than it should.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fednoil.errors import UserError
from fednoil.records.files import checksum, read_json, read_tensors, write_json, write_tensors
from fednoil.rounds import RunState
from fednoil.servers.base import ServerState
from fednoil.tensors import Tensors

FORMAT = 1


class Checkpoints:
    """The checkpoint of one run folder."""

    def __init__(self, folder: Path, hashes: dict[str, str]) -> None:
        self.folder = folder
        self.hashes = hashes
        self._index = folder / "checkpoint.json"
        # What is on disk: client -> (its state as last written or read, its file and checksum).
        self._written: dict[int, tuple[Tensors, dict[str, str]]] = {}

    def exists(self) -> bool:
        return self._index.is_file()

    def save(self, state: RunState) -> None:
        self.folder.mkdir(exist_ok=True)
        server = self._write(f"server-{state.round_idx:06d}.safetensors", state.server.tensors)
        for client, keep in state.keep.items():
            if client in self._written and self._written[client][0] is keep:
                continue
            file = self._write(f"client-{client:05d}-{state.round_idx:06d}.safetensors", keep)
            self._written[client] = (keep, file)
        index = {
            "format": FORMAT,
            "round": state.round_idx,
            "train_batches": state.train_batches,
            "per_class": list(state.per_class),
            "server": {**server, "values": state.server.values},
            "clients": {str(k): file for k, (_, file) in sorted(self._written.items())},
            **self.hashes,
        }
        write_json(self._index, index)
        self._sweep({server["file"], *(entry["file"] for entry in index["clients"].values())})

    def load(self) -> RunState:
        index = read_json(self._index)
        self._check(index)
        try:
            keep = {int(k): self._read(entry) for k, entry in index["clients"].items()}
            self._written = {k: (keep[k], index["clients"][str(k)]) for k in keep}
            return RunState(
                round_idx=_count(index["round"]),
                server=ServerState(self._read(index["server"]), dict(index["server"]["values"])),
                keep=keep,
                train_batches=_count(index["train_batches"]),
                per_class=tuple(index["per_class"]),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise UserError(f"{self._index} is damaged ({error!r}); start over with --force") from None

    def _check(self, index: Any) -> None:
        if not isinstance(index, dict) or index.get("format") != FORMAT:
            raise UserError(f"{self._index} is not a checkpoint of format {FORMAT}; start over with --force")
        for name, value in self.hashes.items():
            if index.get(name) != value:
                raise UserError(
                    f"{self.folder} is the checkpoint of another experiment: {name} "
                    f"{str(index.get(name))[:12]}… there, {value[:12]}… now; use the same configuration and data, "
                    "or --force to start over"
                )

    def _write(self, file: str, tensors: Tensors) -> dict[str, str]:
        write_tensors(self.folder / file, tensors)
        return {"file": file, "sha256": checksum(self.folder / file)}

    def _read(self, entry: dict[str, Any]) -> Tensors:
        path = self.folder / entry["file"]
        tensors = read_tensors(path)
        if checksum(path) != entry["sha256"]:
            raise UserError(f"{path} is damaged (its checksum is another); start over with --force")
        return tensors

    def _sweep(self, used: set[str]) -> None:
        for path in self.folder.iterdir():
            if path.name not in used and path != self._index and path.suffix in (".safetensors", ".part"):
                path.unlink(missing_ok=True)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a number of rounds or batches")
    return value
