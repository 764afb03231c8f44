"""What may be sent between server and nodes: the names, types and shapes of each kind of message, and nothing else.

Both ends build and read messages with the same `Form`, so what is not in it neither leaves a node nor is accepted from
one. Arrays are plain numpy buffers; their header is checked before any byte is used, and nothing is unpickled. Those of
one type are sent as one, joined in the order of their names: Flower sends and stores each with requests of its own.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE

from fednoil.errors import one_line
from fednoil.learners.base import Learner
from fednoil.tensors import Tensors

PROTOCOL = 7
HELLO, REFUSE, SCORE, AUDIT = "query.hello", "query.refuse", "query.score", "query.audit"
REVIEW = "query.review"
TRAIN, EVALUATE = "train", "evaluate"
KEYS, SHARES, REVEAL = "query.keys", "query.shares", "query.reveal"  # the stages of a secure sum, around training
LARGEST_NUMBER = (
    1e30  # the mean of such numbers can't overflow; what a weight may be depends on the model that was sent
)
_HEADER = 1024  # bytes that an array's own header has at most

Arrays = Mapping[str, tuple[str, tuple[int, ...]]]  # name -> dtype, shape
Kinds = Mapping[str, str]  # name -> int, float, str, list[int], list[float] or list[str]
_PYTHON = {"int": int, "float": float, "str": str}


class BadMessage(Exception):
    """How a message violates its form."""


class Refusal(Exception):
    """Why a node refuses a request; unlike other errors, its text is sent to the server."""


@dataclass(frozen=True)
class Form:
    """What a message may hold: the arrays of a model, numbers, and values (strings and lists)."""

    arrays: Arrays = field(default_factory=dict)
    numbers: Kinds = field(default_factory=dict)
    values: Kinds = field(default_factory=dict)


@dataclass(frozen=True)
class Body:
    """The content of a message, checked."""

    arrays: Tensors = field(default_factory=dict)
    numbers: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)


_HELLO_ORDER: Kinds = {"protocol": "int", "config": "str"}
_ORDER: Kinds = {
    **_HELLO_ORDER,
    "run": "str",
    "client": "int",
    "round": "int",
    "epochs": "int",
    "classes": "list[str]",
    "shape": "list[int]",
    "columns": "list[str]",
    "mean": "list[float]",
    "std": "list[float]",
    "founders": "int",
    "samples": "int",
    "frozen": "str",
    "signals": "list[str]",
    "signal_values": "list[float]",
}
HELLO_ORDER = Form(values=_HELLO_ORDER)
HELLO_REPLY = Form(
    numbers={
        "samples": "int",
        "held_out": "int",
        "counts": "list[int]",
        "mean": "list[float]",
        "std": "list[float]",
    },
    values={
        "client": "str",
        "version": "str",
        "partition": "int",
        "classes": "list[str]",
        "shape": "list[int]",
        "columns": "list[str]",
    },
)
REFUSE_ORDER = Form(values={"reason": "str"})
REFUSE_REPLY = Form()
SCORE_REPLY = Form(numbers={"score": "float"})
_SUM: Kinds = {**_HELLO_ORDER, "run": "str", "client": "int", "round": "int"}
KEYS_ORDER = Form(values=_SUM)
KEYS_REPLY = Form(values={"mask_key": "str", "share_key": "str"})
SHARES_ORDER = Form(values={**_SUM, "clients": "list[int]", "mask_keys": "list[str]", "share_keys": "list[str]"})
SHARES_REPLY = Form(values={"clients": "list[int]", "shares": "list[str]"})
REVEAL_ORDER = Form(values={**_SUM, "alive": "list[int]", "lost": "list[int]"})
REVEAL_REPLY = Form(values={"shares": "list[str]"})
AUDIT_REPLY = Form(numbers={"noise_ratio": "float"})
EVALUATE_REPLY = Form(numbers={"right": "int", "samples": "int", "loss": "float"})


def model_arrays(model: Tensors) -> Arrays:
    """The arrays that a model of this experiment has."""
    return {n: (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in model.items()}


def order_form(arrays: Arrays) -> Form:
    """What the server sends with a request to score, train or evaluate."""
    return Form(arrays, values=_ORDER)


def update_form(arrays: Arrays, learner: Learner) -> Form:
    """What a node sends back after training: the shared networks, and the numbers that its learner declares."""
    numbers = {"samples": "float", "steps": "float"} | dict.fromkeys(learner.sends, "float")
    return Form(arrays, numbers)


def secure_form(arrays: Arrays) -> Form:
    """What the server sends with a request to train for a secure sum: also shares, by sender, and of how many it is."""
    return Form(arrays, values={**_ORDER, "senders": "list[int]", "shares": "list[str]", "among": "int"})


def masked_form(size: int) -> Form:
    """What a node sends back then: its vector under masks, and how many samples and steps it had."""
    return Form({"masked": ("int64", (size,))}, {"samples": "float", "steps": "float"})


def review_form(learner: Learner) -> Form:
    """What a node answers when it reviews its labels: the numbers that its learner declares."""
    return Form(numbers=dict.fromkeys(learner.reports, "float"))


def pack(form: Form, body: Body) -> RecordDict:
    """A message's content; values that its form doesn't have are not sent."""
    _same_names("arrays", form.arrays, body.arrays)
    _same_names("numbers", form.numbers, body.numbers)
    _same_names("values", form.values, body.values)
    content = RecordDict()
    if form.arrays:
        arrays = {name: body.arrays[name].detach().cpu().contiguous() for name in form.arrays}
        for name, expected in form.arrays.items():
            _check_array(name, expected, (str(arrays[name].dtype).removeprefix("torch."), tuple(arrays[name].shape)))
        content["model"] = ArrayRecord({kind: Array(_joined(arrays, names)) for kind, names in _kinds(form).items()})
    if form.numbers:
        numbers = {n: _value(n, kind, body.numbers[n]) for n, kind in form.numbers.items()}
        content["numbers"] = MetricRecord(numbers)
    if form.values:
        content["values"] = ConfigRecord({n: _value(n, kind, body.values[n]) for n, kind in form.values.items()})
    return content


def unpack(form: Form, content: RecordDict) -> Body:
    """Read a message's content; anything missing, unexpected or out of range raises BadMessage."""
    parts = {"model": bool(form.arrays), "numbers": bool(form.numbers), "values": bool(form.values)}
    _same_names("records", {name: None for name, there in parts.items() if there}, content)
    kinds = {"model": ArrayRecord, "numbers": MetricRecord, "values": ConfigRecord}
    for name, record in content.items():
        if not isinstance(record, kinds[name]):
            raise BadMessage(f"'{name}' is a {type(record).__name__}")
    arrays: Any = content.get("model", {})
    numbers: Any = content.get("numbers", {})
    values: Any = content.get("values", {})
    kinds_of = _kinds(form)
    _same_names("arrays", kinds_of, arrays)
    _same_names("numbers", form.numbers, numbers)
    _same_names("values", form.values, values)
    found = {n: t for kind, names in kinds_of.items() for n, t in _split(form.arrays, kind, names, arrays[kind])}
    return Body(
        {name: found[name] for name in form.arrays},
        {name: _value(name, kind, numbers[name]) for name, kind in form.numbers.items()},
        {name: _value(name, kind, values[name]) for name, kind in form.values.items()},
    )


def objects_of(form: Form) -> int:
    """The most of Flower's objects that a message of this form has: itself, records, arrays and their pieces."""
    arrays = [math.prod(shape) * np.dtype(kind).itemsize for kind, shape in _whole(form).items()]
    return 5 + sum(1 + -(-(size + _HEADER) // FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE) for size in arrays)


def content_bytes(content: RecordDict) -> int:
    """Bytes of all records of a message; Flower's own count fails on an empty string or list."""
    return sum(
        record.count_bytes() if isinstance(record, ArrayRecord) else sum(len(k) + _bytes(v) for k, v in record.items())
        for record in content.values()
    )


def clean(text: object) -> str:
    """A node's text for logs and records: one line of at most 300 characters without control characters."""
    return one_line(str(text)[:3000])[:300]


def _bytes(value: Any) -> int:
    if isinstance(value, list):
        return sum(_bytes(item) for item in value)
    return len(value) if isinstance(value, str | bytes) else 1 if isinstance(value, bool) else 8


def _same_names(what: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    missing = [name for name in expected if name not in found]
    extra = [str(name) for name in found if name not in expected]
    if missing or extra:
        parts = [f"lacks {', '.join(missing[:3])}"] if missing else []
        parts += [f"has {', '.join(extra[:3])}, which was not asked for"] if extra else []
        raise BadMessage(f"{what}: {' and '.join(parts)}")


def _value(name: str, kind: str, value: Any) -> Any:
    """The value, after checking that it has the type and is finite."""
    inner = _PYTHON[kind.removeprefix("list[").removesuffix("]")]
    many = kind.startswith("list[")
    if many != isinstance(value, list):
        raise BadMessage(f"'{name}' is {type(value).__name__}, not {kind}")
    for item in value if many else [value]:
        right = type(item) is inner or (inner is float and type(item) is int)
        if not right or (inner is float and not math.isfinite(item)):
            raise BadMessage(f"'{name}' is {str(item)[:40]!r}, not a finite {kind}")
    return value if inner is not float else [float(v) for v in value] if many else float(value)


def _check_array(name: str, expected: tuple[str, tuple[int, ...]], found: tuple[str, tuple[int, ...]]) -> None:
    if expected != found:
        raise BadMessage(f"array '{name}' is {found[0]} {list(found[1])}, not {expected[0]} {list(expected[1])}")


def _kinds(form: Form) -> dict[str, list[str]]:
    """The names of the arrays of each type, in the order in which they are joined."""
    kinds: dict[str, list[str]] = {}
    for name in sorted(form.arrays):
        kinds.setdefault(form.arrays[name][0], []).append(name)
    return kinds


def _whole(form: Form) -> dict[str, tuple[int]]:
    """The length of each joined array, by type."""
    return {kind: (sum(math.prod(form.arrays[n][1]) for n in names),) for kind, names in _kinds(form).items()}


def _joined(arrays: Tensors, names: Sequence[str]) -> np.ndarray:
    return torch.cat([arrays[name].reshape(-1) for name in names]).numpy()


def _split(form: Arrays, kind: str, names: Sequence[str], array: Array) -> Iterator[tuple[str, torch.Tensor]]:
    """The arrays of one type, each with memory of its own."""
    sizes = [math.prod(form[name][1]) for name in names]
    whole = _tensor(kind, (kind, (sum(sizes),)), array)
    for name, part in zip(names, whole.split(sizes), strict=True):
        if part.is_floating_point() and not bool((part.isfinite() & (part.abs() <= LARGEST_NUMBER)).all()):
            raise BadMessage(f"array '{name}' holds values that are not finite or above {LARGEST_NUMBER:g}")
        yield name, part.reshape(form[name][1]).clone()


def _tensor(name: str, expected: tuple[str, tuple[int, ...]], array: Array) -> torch.Tensor:
    """The array as a new tensor; its header, which says how much memory it would take, is checked first."""
    _check_array(name, expected, (array.dtype, tuple(array.shape)))
    try:
        file = io.BytesIO(array.data)
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, _, dtype = read(file)
        _check_array(name, expected, (str(dtype), tuple(shape)))
        return torch.from_numpy(np.array(array.numpy()))  # a copy: the message's buffer can't be written
    except (ValueError, KeyError, TypeError, EOFError, OSError) as error:
        raise BadMessage(f"array '{name}' can't be read ({type(error).__name__})") from None
