"""A run's folder: what is in it, who may write to it, and how it is read."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from fednoil.config.loading import read_toml
from fednoil.config.schema import Config
from fednoil.data.given import FILE as GIVEN_DATA
from fednoil.errors import UserError, few_of
from fednoil.files import naming, write_bytes
from fednoil.history import RoundRecord
from fednoil.records.files import read_json, write_json, write_text

FILES = (
    "config.toml",
    "environment.json",
    "noise.parquet",
    "rounds.jsonl",
    "summary.json",
    "model.safetensors",
)
CARD = "model_card.md"
MEASURES = "measures.json"  # of the final model, on the test set and by client
CONFUSION = "confusion.json"  # given × predicted labels; runs made by earlier versions have none
TENSORBOARD, WANDB = "tensorboard", "wandb"  # folders of loggers, on request
SKIPPED = "skipped.csv"  # files of the data that were left out, and why
ROSTER = "roster.json"  # of clients with names
_BESIDE = (CONFUSION, MEASURES, CARD, ROSTER, GIVEN_DATA, SKIPPED)  # what not every run has
CHECKPOINT = "checkpoint"
INDEX = "checkpoint.json"
_LOCK = ".lock"


@dataclass(frozen=True)
class Roster:
    """The clients where they have names: names and samples by number, and how many samples those had, by name, who were
    there at the start. `federated`: they are a federation's nodes, not simulated."""

    names: dict[int, str]
    samples: dict[int, int]
    founders: dict[str, int]
    federated: bool = False


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def rounds_file(self) -> Path:
        return self.path / "rounds.jsonl"

    def is_run(self) -> bool:
        return (self.path / "config.toml").is_file()

    def check_is_run(self, advice: str) -> None:
        """Refuse a folder that is not a run, naming the runs in it, as `run --seeds` leaves them, or with `advice`."""
        if self.is_run():
            return
        inside = sorted(path.parent.name for path in self.path.glob("*/config.toml"))
        if not inside:
            raise UserError(f"{self.path} is not a run folder{advice}")
        raise UserError(
            f"{self.path} is not a run folder but holds {few_of(inside, 5)}; give the runs themselves, as "
            f"{self.path / inside[0]}"
        )

    def is_finished(self, *, with_noise: bool = True) -> bool:
        wanted = [name for name in FILES if with_noise or name != "noise.parquet"]
        return all((self.path / name).is_file() for name in wanted) and (self.path / CHECKPOINT / INDEX).is_file()

    def diverged(self) -> bool:
        """Whether the run ended because its losses were no longer finite."""
        if (self.path / "summary.json").is_file() or not (self.path / "environment.json").is_file():
            return False
        return "diverged" in read_json(self.path / "environment.json")

    def check(self, *, resume: bool, force: bool) -> None:
        """Refuse a folder that this run must not write to; changes nothing."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"--out {self.path} is a file; give a folder")
        # A run killed at its very start leaves these and nothing else.
        beginnings = (_LOCK, f"{FILES[0]}.part")
        if not self.path.is_dir() or all(p.name in beginnings for p in self.path.iterdir()):
            return
        if not self.is_run() or (force and not self._is_ours()):
            raise UserError(f"{self.path} is not empty and not a run folder; choose another --out")
        if not (resume or force):
            raise UserError(f"{self.path} already exists: add --resume to continue it or --force to start over")

    def is_held(self) -> bool:
        """Whether a process is writing here now, this one included."""
        try:
            import fcntl

            with (self.path / _LOCK).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except (ImportError, OSError):  # no lock, or a system or file system without locks
            return False
        return False

    def _is_ours(self) -> bool:
        """Whether what `clear` would remove belongs to a run: other programs have a config.toml, too."""
        if (self.path / CHECKPOINT / INDEX).is_file():
            return True
        try:
            return set(read_toml(self.path / FILES[0])) == set(Config.model_fields)
        except UserError:
            return False

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder and keep a second process out of it until this one is done, however that ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = self._lock()
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {error.strerror}; choose another --out") from None
        with lock:
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    (self.path / _LOCK).unlink(missing_ok=True)

    def _lock(self) -> IO[str]:
        """The open lock file; the lock goes with it, or with the process."""
        path = self.path / _LOCK
        while True:
            lock = path.open("a")
            try:
                import fcntl

                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                raise UserError(f"{self.path} is being written by another process; wait for it") from None
            except (ImportError, OSError):  # a system or file system without locks
                return lock
            # The holder removes the file when it is done: a lock on a removed file would keep nobody out.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                    return lock
            lock.close()

    def clear(self) -> None:
        """Remove what a run has written here, and nothing else; what says that this is a run goes last."""
        checkpoint = self.path / CHECKPOINT
        if checkpoint.is_dir():
            (checkpoint / INDEX).unlink(missing_ok=True)
            for path in [*checkpoint.glob("*.safetensors"), *checkpoint.glob("*.part")]:
                path.unlink()
            with contextlib.suppress(OSError):  # somebody else's file is in it
                checkpoint.rmdir()
        self.clear_events()
        for name in (*_BESIDE, *reversed(FILES)):
            (self.path / name).unlink(missing_ok=True)

    def clear_events(self) -> None:
        """Remove TensorBoard's event files and what Weights & Biases has kept."""
        for path in [*(self.path / WANDB).glob("offline-run-*"), *(self.path / WANDB).glob("run-*")]:
            shutil.rmtree(path, ignore_errors=True)
        for path in (self.path / WANDB).glob("*"):
            if path.is_symlink() or path.suffix == ".log":
                path.unlink()
        with contextlib.suppress(OSError):
            (self.path / WANDB).rmdir()
        events = self.path / TENSORBOARD
        for path in events.glob("events.out.tfevents.*"):
            path.unlink()
        with contextlib.suppress(OSError):  # not there, or somebody else's file is in it
            events.rmdir()

    def sweep(self) -> None:
        """Remove half-written files that a killed run has left."""
        for name in (*_BESIDE, *FILES):
            (self.path / f"{name}.part").unlink(missing_ok=True)

    def append_round(self, record: RoundRecord) -> None:
        """Add a line, which survives the end of this process but maybe not a power failure until `flush_rounds`."""
        with naming(self.rounds_file), self.rounds_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record.to_json()) + "\n")

    def flush_rounds(self) -> None:
        """Flush all lines to disk, as a checkpoint needs them; rounds after it are played again anyway.

        Not after each round: a flush may take 4 ms, and a round on a GPU 70.
        """
        with naming(self.rounds_file), self.rounds_file.open("a", encoding="utf-8") as file:
            os.fsync(file.fileno())

    def keep_rounds(self, last: int) -> list[RoundRecord]:
        """Drop what was logged after round `last`; returns the rest."""
        records = [r for r in self.records(last) if r.round <= last]
        if [r.round for r in records] != list(range(1, last + 1)):
            raise UserError(f"{self.rounds_file} lacks rounds before the checkpoint's {last}; start over with --force")
        content = "".join(json.dumps(r.to_json()) + "\n" for r in records).encode()
        if content != self.rounds_file.read_bytes():
            write_bytes(self.rounds_file, content)
        return records

    def any_trained(self) -> bool:
        """Whether a node of a federation has trained in any of its rounds."""
        return any(record.trained for record in self.records())

    def records(self, most: int | None = None) -> list[RoundRecord]:
        """All whole lines of rounds.jsonl, or the first few; a last line cut off by a crash is left out."""
        try:
            lines = self.rounds_file.read_text(encoding="utf-8").splitlines()[:most]
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {self.rounds_file}: {error}") from None
        records = []
        for number, line in enumerate(lines, start=1):
            try:
                values = json.loads(line)
            except ValueError:
                if number == len(lines):
                    break
                raise UserError(f"{self.rounds_file}, line {number} is damaged: {line[:60]!r}") from None
            try:
                records.append(RoundRecord.from_json(values))
            except ValueError as error:
                raise UserError(f"{self.rounds_file}, line {number} is damaged: {error}") from None
        return records

    def roster(self) -> Roster | None:
        """Who took part; None: clients are numbered."""
        path = self.path / ROSTER
        if not path.is_file():
            return None
        try:
            values = read_json(path)
            numbers = {str(name): int(number) for name, number in values["clients"].items()}
            sizes = {str(name): int(size) for name, size in values["sizes"].items()}
            names = {number: name for name, number in numbers.items()}
            samples = {number: sizes[name] for name, number in numbers.items()}
            founders = {str(name): sizes[str(name)] for name in values["founders"]}
            return Roster(names, samples, founders, federated="agreement" in values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path} is damaged ({error!r})") from None

    def summary(self) -> dict[str, Any]:
        path = self.path / "summary.json"
        summary = read_json(path)
        if not isinstance(summary, dict) or "final_accuracy" not in summary:
            raise UserError(f"{path} is not a run's summary; remove it and continue with --resume")
        return summary

    def write_summary(self, summary: dict[str, Any]) -> None:
        write_json(self.path / "summary.json", summary)

    def write_measures(self, measures: dict[str, Any]) -> None:
        if measures:
            write_text(self.path / MEASURES, json.dumps(measures) + "\n")

    def write_card(self, text: str) -> None:
        write_text(self.path / CARD, text)

    def write_confusion(self, confusion: dict[str, Any]) -> None:
        write_text(self.path / CONFUSION, json.dumps(confusion) + "\n")

    def write_skipped(self, skipped: Sequence[tuple[str, str]]) -> None:
        """List the files that were left out, if any were."""
        if skipped:
            buffer = io.StringIO()
            csv.writer(buffer).writerows([("file", "reason"), *skipped])
            write_text(self.path / SKIPPED, buffer.getvalue())

    def write_roster(self, names: Sequence[str], sizes: Sequence[int]) -> None:
        """Record who the clients are, where they have names."""
        if names:
            clients = {name: number for number, name in enumerate(names)}
            found = {"clients": clients, "sizes": dict(zip(names, sizes, strict=True)), "founders": list(names)}
            write_text(self.path / ROSTER, json.dumps(found, indent=2, ensure_ascii=False) + "\n")

    def write_config(self, text: str) -> None:
        write_text(self.path / "config.toml", text)

    def write_environment(self, environment: dict[str, Any]) -> None:
        write_json(self.path / "environment.json", environment)
