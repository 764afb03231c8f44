"""JSON and safetensors on disk, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors.torch import save

from fednoil.errors import UserError
from fednoil.files import write_bytes
from fednoil.tensors import Tensors, cpu


def write_text(path: Path, text: str, *, private: bool = False) -> None:
    write_bytes(path, text.encode(), private=private)


def write_json(path: Path, value: Any, *, private: bool = False, for_good: bool = False) -> None:
    text = json.dumps(value, indent=2) + "\n"
    write_bytes(path, text.encode(), private=private, for_good=for_good)


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


def tensor_bytes(tensors: Tensors, metadata: dict[str, str] | None = None) -> bytes:
    """A safetensors file's content; two names for one tensor (two clusters just split) are written as two."""
    seen: set[int] = set()
    own: Tensors = {}
    for name, tensor in cpu(tensors).items():
        own[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return save(own, metadata)


def write_tensors(
    path: Path, tensors: Tensors, metadata: dict[str, str] | None = None, *, private: bool = False
) -> None:
    write_bytes(path, tensor_bytes(tensors, metadata), private=private)
