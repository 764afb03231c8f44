"""Read a pickled dict of arrays and plain values without running anything that the file names.

The official CIFAR archives are Python 2 pickles of a dict that holds a numpy array. A pickle is a small
program that may call any importable function; here every name it may look up is replaced by a recorder from
this module, so not even numpy's own unpickling code sees the file's bytes. What comes out is numpy arrays,
bytes, strings, numbers, lists, tuples and dicts.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from typing import Any, NoReturn

import numpy as np

from fednoil.errors import UserError

_PLAIN_DTYPE = re.compile(r"[iuf][1248]|b1")


class _Sealed:
    """Something the pickle may hold but not change: BUILD on it is refused."""

    __slots__ = ()

    def __setstate__(self, state: object) -> NoReturn:
        raise pickle.UnpicklingError(f"an attempt to change {type(self).__name__}")


class _ArrayType(_Sealed):
    """Stands for `numpy.ndarray`, which is only ever passed on to `_reconstruct`."""

    __slots__ = ()


class _DType:
    """Stands for a `numpy.dtype`: the plain type, then its byte order from the state."""

    __slots__ = ("dtype",)

    def __init__(self, code: object) -> None:
        text = code.decode("latin1") if isinstance(code, bytes) else code
        if not isinstance(text, str) or not _PLAIN_DTYPE.fullmatch(text):
            raise pickle.UnpicklingError(f"an array of type {text!r}")
        self.dtype = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"byte order {order!r}")
        self.dtype = self.dtype.newbyteorder(order)


class _Array:
    """Stands for an array until its state has come: shape, type, order and raw bytes."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, raw = state
        if not isinstance(kind, _DType) or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("an array that is not plain numbers")
        if type(shape) is not tuple or any(type(size) is not int or size < 0 for size in shape):
            raise pickle.UnpicklingError("an array with an invalid shape")
        if len(raw) != math.prod(shape) * kind.dtype.itemsize:
            raise pickle.UnpicklingError(f"{len(raw)} bytes for an array of shape {shape}")
        self.value = np.frombuffer(raw, kind.dtype).reshape(shape, order="F" if fortran else "C")


class _Reconstruct(_Sealed):
    __slots__ = ()

    def __call__(self, subtype: object, shape: object, code: object) -> _Array:
        return _Array()


class _MakeDType(_Sealed):
    __slots__ = ()

    def __call__(self, code: object, *flags: object) -> _DType:
        return _DType(code)


class _Encode(_Sealed):
    """Stands for `_codecs.encode`, by which Python 3 writes bytes into old pickle protocols."""

    __slots__ = ()

    def __call__(self, text: object, encoding: object = "latin1") -> bytes:
        if not isinstance(text, str) or encoding not in ("latin1", "latin-1", b"latin1"):
            raise pickle.UnpicklingError(f"encoding {encoding!r}")
        return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy._core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy", "ndarray"): _ArrayType(),
    ("numpy", "dtype"): _MakeDType(),
    ("_codecs", "encode"): _Encode(),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        try:
            return _ALLOWED[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}") from None


def load_dict(data: bytes, where: str) -> dict[str, object]:
    """The dict pickled in `data`, with text keys and real arrays; `where` names the file in errors."""
    try:
        _check_memo(data)
        value = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # a broken pickle can fail in any way: index, type, value, memory
        raise UserError(f"{where} is refused: not a plain pickled dict of arrays ({error})") from error
    if not isinstance(value, dict):
        raise UserError(f"{where} is refused: it holds a {type(value).__name__}, not a dict of arrays")
    return {_text(key): item.value if isinstance(item, _Array) else item for key, item in value.items()}


def _check_memo(data: bytes) -> None:
    """Refuse a memo slot beyond the number of steps so far: the reader would allocate every slot below it."""
    for step, (opcode, argument, _) in enumerate(pickletools.genops(data), 1):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and isinstance(argument, int) and argument > step:
            raise pickle.UnpicklingError(f"memo slot {argument} at step {step}")


def _text(key: object) -> str:
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key)
