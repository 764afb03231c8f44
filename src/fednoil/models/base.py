"""The keys of a model: those that all models have, and those of a factory without its own configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from pydantic import Field, create_model

from fednoil.errors import UserError, few_of
from fednoil.section import Section
from fednoil.tensors import Tensors

GIVEN = ("image_shape", "num_classes")  # arguments of every factory, besides its keys
_SAME_MODEL = "it must be of a model as `model` says, for as many classes"
_PLAIN = (bool, int, float, str, type(None))


class ModelConfig(Section):
    """The keys every model has. All others are passed to its factory under the same name."""

    name: str = Field(default="cnn", description="which network")
    start: str | None = Field(
        default=None, description="safetensors file with the weights before round 1; none: random weights from the seed"
    )

    def own_keys(self) -> dict[str, Any]:
        """The keys that are passed to the factory: those that not every model has."""
        return {key: getattr(self, key) for key in type(self).model_fields if key not in ModelConfig.model_fields}


def check_pictures(name: str, image_shape: tuple[int, ...]) -> None:
    """Refuse vectors where a network is for pictures."""
    if len(image_shape) == 1:
        raise UserError(
            f"model.name = '{name}' is for pictures, and the samples are vectors of {image_shape[0]} numbers; use "
            "'mlp' or 'linear'"
        )


def fitting(own: Tensors, given: Tensors, where: str, may_lack: Callable[[str], bool]) -> Tensors:
    """A network's tensors `own` with the values `given` under the same names; `may_lack` says which may be missing.
    Anything else that doesn't fit is reported in one line. Names may start with the network's and a '/'."""

    def bare(name: str) -> str:
        return name.rpartition("/")[2]

    lost = [name for name in own if name not in given and not may_lack(bare(name))]
    other = [name for name in own if name in given and given[name].shape != own[name].shape]
    if lost or other:
        wrong = [f"it has no '{bare(name)}' {tuple(own[name].shape)}" for name in lost]
        wrong += [f"'{bare(n)}' is {tuple(given[n].shape)}, not {tuple(own[n].shape)}" for n in other]
        raise UserError(f"{where} doesn't fit: {few_of(wrong, 3)}; {_SAME_MODEL}")
    return {name: given[name].to(tensor.dtype) if name in given else tensor for name, tensor in own.items()}


@cache
def keys_of(factory: Callable[..., object]) -> type[ModelConfig]:
    """The configuration of a user's plain function or class: its arguments are keys, if TOML can hold them."""
    fields: dict[str, Any] = {}
    for name, argument in _arguments(factory).items():
        plain = isinstance(argument.default, _PLAIN) or argument.default is argument.empty
        if name in GIVEN or argument.kind not in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY) or not plain:
            continue
        kind = argument.annotation if argument.annotation in _PLAIN else Any
        fields[name] = (kind, ... if argument.default is argument.empty else argument.default)
    return create_model("ModelConfig", __base__=ModelConfig, **fields)


def _arguments(factory: Callable[..., object]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(factory, eval_str=True).parameters)
    except (NameError, TypeError, ValueError):  # annotations that don't evaluate, or no signature at all
        return {}
