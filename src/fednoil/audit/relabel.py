"""Decisions applied to a copy of the data: all of them or none, and never in place.

Every decision is checked against the data first: an unknown sample or class, a label that has changed since, or a
second decision about one sample stops it before anything is written.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fednoil.audit.copies import open_copy
from fednoil.audit.decisions import Decision, read_decisions
from fednoil.data.choice import chosen
from fednoil.data.copy import Copy
from fednoil.data.sources import open_own
from fednoil.errors import UserError, few_of, nearest
from fednoil.records.model_file import class_names

_FORMATS = {".csv", ".npz", ".parquet", ".tar"}
_PLACE = ".relabel-"  # prefix of the temporary name of a copy


@dataclass(frozen=True)
class Relabelled:
    """What changed: (given, new) → samples, and how many were kept, dropped by class, or undecided."""

    changed: Counter[tuple[str, str]] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    kept: int = 0
    undecided: int = 0


def relabel(
    data: str,
    decisions: Path,
    out: Path,
    *,
    dataset: str | None = None,
    data_dir: Path | None = None,
    model: Path | None = None,
    site: str | None = None,
    dry_run: bool = False,
) -> Relabelled:
    """Apply a decisions file to a copy of `data` (`folder:`, `csv:` and so on, or `manifest:`) at `out`.

    A manifest outside a run's folder needs `dataset`, its `data.name`; data with numbered classes need the `model` that
    they were audited with, because decisions use its class names. A copy of a `csv:` file has absolute paths: the
    pictures stay where they are. With a `site`, only the decisions about that client apply.
    """
    found = read_decisions(decisions)
    if site is not None:
        clients = sorted({decision.client for decision in found})
        found = [decision for decision in found if decision.client == site]
        if not found:
            raise UserError(f"--site {site}: {decisions} has decisions about {', '.join(clients)} alone")
    source = open_copy(data, dataset, data_dir)
    if site is None:
        _check_one_site(found, decisions, data)
    if model is not None:
        _name_classes(source, data, model)
    _check_out(out, source)
    _check_ending(out, chosen(Path(data.partition(":")[2]).expanduser())[0])
    labels, outcome = _apply(found, source, data)
    if not dry_run:
        with _whole(out) as path:
            source.write(path, labels)
    return outcome


def _check_one_site(found: list[Decision], decisions: Path, data: str) -> None:
    """Refuse decisions about several sites for data that don't say whose they are: names of pictures, and row numbers,
    may be the same at two sites."""
    names = sorted({decision.client for decision in found if decision.client and not decision.client.isdecimal()})
    if len(names) > 1 and not data.startswith("manifest:") and not open_own(data).clients():
        sites = ", ".join(names)
        raise UserError(
            f"{decisions} has decisions about {sites}, and {data} names no sites; --site says whose they are"
        )


def _name_classes(source: Copy, data: str, model: Path) -> None:
    """Name numbered classes as the model does, and as the audit did."""
    if source.named:
        raise UserError(f"--model is for data without class names, but {data} has them; leave it out")
    names = class_names(model)
    numbers = [int(n) for n in names if n.isascii() and n.isdecimal()]
    if len(numbers) < len(names):
        numbers = list(range(len(names)))  # otherwise the classes' own names are numbers, perhaps from 1
    unknown = np.setdiff1d(source.labels, numbers)
    if len(unknown):
        raise UserError(f"{data} has the label {unknown[-1]}, but {model} knows only {few_of(list(map(str, numbers)))}")
    named = dict(zip(numbers, names, strict=True))
    source.classes = tuple(named.get(i, str(i)) for i in range(max(numbers) + 1))


def _check_out(out: Path, source: Copy) -> None:
    if os.path.lexists(out):
        raise UserError(f"--out {out} already exists; choose another, nothing is overwritten")
    if not out.parent.is_dir():
        raise UserError(f"--out {out} is in {out.parent}, which is not a folder; create it first")
    inside = next((place for place in source.places if out.parent.resolve().is_relative_to(place.resolve())), None)
    if inside is not None:
        raise UserError(f"--out {out} is inside the data {inside}, which must not change; choose another place")


def _check_ending(out: Path, file: Path) -> None:
    """Refuse a name that says another format than the copy of this file will have."""
    endings = {out.suffix.lower(), file.suffix.lower()}
    if file.is_file() and len(endings) == 2 and endings <= _FORMATS:
        raise UserError(f"--out {out}: a copy of {file.name} is of the same format; end its name in {file.suffix}")


def _apply(decisions: list[Decision], source: Copy, data: str) -> tuple[np.ndarray, Relabelled]:
    """The new labels int64 [N], -1 for a sample that is dropped, and what has changed."""
    number = {name: i for i, name in enumerate(source.classes)}
    labels, first = source.labels.copy(), dict[int, Decision]()
    changed, dropped, kept = Counter[tuple[str, str]](), Counter[str](), 0
    for line in decisions:
        decision = replace(line, given=source.class_of(line.given), label=source.class_of(line.label))
        row = source.row(decision)
        hint = source.hint.format(decision.label)
        _check(decision, source.classes[source.labels[row]], first.get(row), number, data, hint)
        first[row] = decision
        if decision.action == "drop":
            labels[row] = -1
            dropped[decision.given] += 1
        elif decision.action == "reject" or decision.label == decision.given:
            kept += 1
        else:
            labels[row] = number[decision.label]
            changed[decision.given, decision.label] += 1
    _check_left(source, labels)
    return labels, Relabelled(changed, dropped, kept, len(labels) - len(first))


def _check(decision: Decision, has: str, before: Decision | None, number: dict[str, int], data: str, hint: str) -> None:
    """Check one decision against the sample's current label, the classes, and an earlier decision about it."""
    where, what = decision.where, decision.item or decision.index
    if before is not None:
        same = (before.action, before.label) == (decision.action, decision.label)
        line = before.where.rpartition(", ")[2]
        how = "again, as" if same else f"'{decision.action}', but '{before.action}'"
        raise UserError(f"{where} decides {what} {how} in {line}; keep one of them")
    if decision.given != has and has.isdecimal() and not decision.given.isdecimal():
        raise UserError(
            f"{where}: {what} was '{decision.given}' when this was decided, but the classes of {data} are numbers; "
            "add the model it was audited with: --model MODEL.safetensors"
        )
    if decision.given != has:
        raise UserError(
            f"{where}: {what} was '{decision.given}' when this was decided, but is '{has}' in {data}; "
            "audit the data again, or give the data that were audited"
        )
    if decision.label and decision.label not in number:
        known = ", ".join(list(number)[:8]) + ("…" if len(number) > 8 else "")
        raise UserError(
            f"{where}: '{decision.label}' is not a class of {data}, which has {known}"
            + (nearest(decision.label, list(number)) or hint)
        )


def _check_left(source: Copy, labels: np.ndarray) -> None:
    """Check that samples are left, of every client and of every class that had any if the data are trained on alone."""
    train = source.train
    had, has = np.unique(source.labels[train]), np.unique(labels[train])
    gone = np.setdiff1d(had, has)
    if len(gone) and source.alone:
        name = source.classes[gone[0]]
        raise UserError(f"class '{name}' would have no training image left; keep one of its samples as it is")
    if has.max() < 0:
        raise UserError("every sample would be dropped; keep one")
    if source.clients is not None:
        empty = np.setdiff1d(source.clients, source.clients[labels >= 0])
        if len(empty):
            raise UserError(f"client {empty[0]} would have no sample left; keep one")


@contextlib.contextmanager
def _whole(out: Path) -> Iterator[Path]:
    """A temporary folder or file beside `out`; renamed to `out` at the end, or removed if something fails.

    Only a killed process leaves it behind; the next one with the same `out` removes it.
    """
    place: Path | None = None
    lock: int | None = None
    try:
        _clear(out)
        place = Path(tempfile.mkdtemp(prefix=_PLACE, dir=out.parent))
        lock = _locked(place)
        yield place / out.name
        if os.path.lexists(out):
            raise UserError(f"--out {out} was created in the meantime; choose another, nothing is overwritten")
        (place / out.name).rename(out)
    except (OSError, UserError) as error:
        why = str(error)
        if isinstance(error, OSError):  # an error that names two files came while the second was written
            why = f"{out if place is None or error.filename2 else error.filename or out}: {error.strerror}"
        if place is not None:  # its name would mean nothing to the user
            why = why.replace(str(place / out.name), str(out))
        raise UserError(f"{why}; nothing was written") from error
    finally:
        if place is not None:
            shutil.rmtree(place, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _clear(out: Path) -> None:
    """Remove what dead processes left of copies to `out`: nobody has it locked."""
    for place in out.parent.glob(f"{_PLACE}{'?' * 8}"):  # as tempfile names them
        with contextlib.suppress(OSError):  # another process's, or already gone
            ours = all(part.name.startswith(out.name) for part in place.iterdir())
            lock = _locked(place) if ours else None
            if lock is not None:
                shutil.rmtree(place, ignore_errors=True)
                os.close(lock)


def _locked(folder: Path) -> int | None:
    """A folder's lock, released with this descriptor or the process; None on a system without locks.

    Raises `BlockingIOError` if another process holds it.
    """
    try:
        import fcntl
    except ImportError:
        return None
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return lock
