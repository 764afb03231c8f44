"""A run's folder: what is in it, who may write it, and how it is read."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fednoil.errors import UserError
from fednoil.records.files import read_json, write_bytes, write_json, write_text

FILES = (
    "config.toml",
    "environment.json",
    "noise.parquet",
    "rounds.jsonl",
    "summary.json",
    "model.safetensors",
)
CHECKPOINT = "checkpoint"
_LOCK = ".lock"


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def rounds_file(self) -> Path:
        return self.path / "rounds.jsonl"

    def is_run(self) -> bool:
        return (self.path / "config.toml").is_file()

    def prepare(self, *, resume: bool, force: bool) -> None:
        """Make sure the folder may be written, before anything is done; deletes nothing."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"--out {self.path} is a file; give a folder")
        occupied = self.path.is_dir() and any(p.name != _LOCK for p in self.path.iterdir())
        if occupied and not (resume or force):
            raise UserError(f"{self.path} exists already: add --resume to go on with it or --force to start over")
        if (
            occupied
            and not self.is_run()
            and any(p.name not in (*FILES, CHECKPOINT, _LOCK) for p in _visible(self.path))
        ):
            raise UserError(f"{self.path} is not empty and not a run folder; choose another --out")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".probe"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {error.strerror}; choose another --out") from None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process out; the lock goes with the process, however that ends."""
        try:
            import fcntl
        except ImportError:  # no such lock on this system
            yield
            return
        with (self.path / _LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"{self.path} is being written by another process; wait for it") from None
            yield

    def clear(self) -> None:
        """Remove what a run has written here, and nothing else."""
        for name in FILES:
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.path / CHECKPOINT, ignore_errors=True)

    def append_round(self, record: dict[str, Any]) -> None:
        with self.rounds_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def keep_rounds(self, last: int) -> list[dict[str, Any]]:
        """Drop what was logged after round `last`; returns the rest."""
        records = [r for r in self.records() if r["round"] <= last]
        if [r["round"] for r in records] != list(range(1, last + 1)):
            raise UserError(f"{self.rounds_file} lacks rounds before the checkpoint's {last}; start over with --force")
        write_bytes(self.rounds_file, "".join(json.dumps(r) + "\n" for r in records).encode())
        return records

    def records(self) -> list[dict[str, Any]]:
        """All whole lines of rounds.jsonl; a last line cut off by a crash is left out."""
        try:
            lines = self.rounds_file.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {self.rounds_file}: {error}") from None
        records = []
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
                record["round"]
            except (ValueError, TypeError, KeyError):
                if number == len(lines):
                    break
                raise UserError(f"{self.rounds_file}, line {number} is damaged: {line[:60]!r}") from None
            records.append(record)
        return records

    def summary(self) -> dict[str, Any]:
        return read_json(self.path / "summary.json")

    def write_summary(self, summary: dict[str, Any]) -> None:
        write_json(self.path / "summary.json", summary)

    def write_config(self, text: str) -> None:
        write_text(self.path / "config.toml", text)

    def write_environment(self, environment: dict[str, Any]) -> None:
        write_json(self.path / "environment.json", environment)


def _visible(path: Path) -> list[Path]:
    return [p for p in path.iterdir() if not p.name.endswith(".part")]
