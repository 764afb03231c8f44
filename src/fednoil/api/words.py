"""Messages in Python's terms: options of the command become arguments of functions."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from fednoil.errors import UserError, full_disk

P = ParamSpec("P")
R = TypeVar("R")

_WORDS = (
    (r"fednoil run --resume --out (.+)$", r"fednoil.run(out='\1', resume=True)"),
    (r"--(resume|force)\b", r"\1=True"),
    (r"--device (\w+)", r"device='\1'"),
    (r"--(client|method|select) ([^:]+):", r"\1 = '\2':"),
    (r"--data-dir\b", "data_dir="),
    (r"--(out|device|client|data|model|method|select)\b", r"\1="),
)


def in_python(function: Callable[P, R]) -> Callable[P, R]:
    """The function with its errors in Python's terms."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except UserError as error:
            message = str(error)
            for option, word in _WORDS:
                message = re.sub(option, word, message)
            if message == str(error):
                raise
            raise type(error)(message) from None
        except OSError as error:
            if (said := full_disk(error)) is None:
                raise
            raise UserError(said) from error

    return wrapped
