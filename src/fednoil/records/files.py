"""Writing files so that a crash or a full disk leaves either the old file or the new one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import load_file, save

from fednoil.errors import UserError
from fednoil.tensors import Tensors, cpu


def write_bytes(path: Path, content: bytes) -> None:
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


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from None


def checksum(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_tensors(path: Path, tensors: Tensors, metadata: dict[str, str] | None = None) -> None:
    write_bytes(path, save(cpu(tensors), metadata))


def read_tensors(path: Path) -> Tensors:
    try:
        return load_file(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except (safetensors.SafetensorError, ValueError) as error:
        raise UserError(f"{path} is damaged or no safetensors file: {error}") from None
