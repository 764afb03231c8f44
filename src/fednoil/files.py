"""Writing a file so that a crash or a full disk leaves either the old one or the new one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def write_bytes(path: Path, content: bytes | memoryview, *, private: bool = False, for_good: bool = False) -> None:
    """Write beside the target, flush to disk, then put it in place in one step.

    `private`: readable only by its owner. `for_good`: the new one survives a power failure.
    """
    part = path.with_name(path.name + ".part")
    try:
        with naming(path), open(part, "wb", opener=_private if private else None) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        if for_good and os.name == "posix":
            _flush(path.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _flush(folder: Path) -> None:
    """Flush a folder's entries to disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for their owner alone."""
    for missing in [path for path in (folder, *folder.parents) if not path.exists()][::-1]:
        missing.mkdir(mode=0o700, exist_ok=True)


def _private(path: str, flags: int) -> int:
    """Open a new file that only its owner may read; one left by a crash may be readable by others."""
    Path(path).unlink(missing_ok=True)
    return os.open(path, flags, 0o600)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Make a write error name its file: those of an open file (a full disk) don't."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
