"""Writing a file so that a crash or a full disk leaves either the old one or the new one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write beside the target, flush to disk, then put it in place in one step."""
    part = path.with_name(path.name + ".part")
    try:
        with naming(path), part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Have an error of writing name its file: those of an open file (a full disk) don't."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
