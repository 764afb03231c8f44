"""Models by name, and the user's own by import path."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable
from typing import Literal

import torch
from pydantic import Field
from torch import nn

from fednoil.errors import UserError, nearest
from fednoil.models.cnn import CNN
from fednoil.models.network import Network, channels_last, mixes
from fednoil.models.resnet import ResNet18
from fednoil.plugins import import_object
from fednoil.section import Section
from fednoil.seeds import Seed

__all__ = ["MODELS", "ModelConfig", "Network", "build"]

MODELS: dict[str, Callable[..., nn.Module]] = {"cnn": CNN, "resnet18": ResNet18}


class ModelConfig(Section):
    """`name` is one of the built-in models or the user's own `package.module:factory`."""

    name: str = "cnn"
    width: int | None = Field(default=None, ge=1, le=4096, description="channels of the first layer; none: 32 or 64")
    norm: Literal["batch", "group"] | None = Field(
        default=None,
        description="normalisation in resnet18; none: BatchNorm; group: GroupNorm, which keeps no statistics",
    )

    start: str | None = Field(
        default=None, description="safetensors file of the weights before round 1; none: random ones, by the seed"
    )


def build(config: ModelConfig, image_shape: tuple[int, int, int], num_classes: int, seed: Seed) -> nn.Module:
    """Make a model on the CPU with initial weights that depend on `seed` alone.

    A user's factory is called as `factory(image_shape=…, num_classes=…)`, with `width=…` or `norm=…` where it is set.
    """
    factory = _factory(config.name)
    if config.name == "cnn" and min(image_shape[1:]) < 4:
        raise UserError(f"model.name = 'cnn' needs images of at least 4×4 pixels, not {image_shape[1:]}")
    if config.name == "cnn" and config.norm is not None:
        raise UserError(f"model.norm = '{config.norm}': the model 'cnn' has no normalisation; 'resnet18' has")
    extra = {key: value for key in ("width", "norm") if (value := getattr(config, key)) is not None}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed.value & (2**63 - 1))
        try:
            module = factory(image_shape=image_shape, num_classes=num_classes, **extra)
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"model.name = '{config.name}': the factory failed on "
                f"(image_shape={image_shape}, num_classes={num_classes}): {error!r}"
            ) from error
    if not isinstance(module, nn.Module):
        raise UserError(
            f"model.name = '{config.name}': the factory returned {type(module).__name__}, not a torch.nn.Module"
        )
    _check_output(config.name, module, image_shape, num_classes)
    module.reads_channels_last = _reads_channels_last(module, image_shape)  # pyright: ignore[reportArgumentType]
    module.mixes_samples = _mixes_samples(module, image_shape)  # pyright: ignore[reportArgumentType]
    return module


def _factory(name: str) -> Callable[..., object]:
    if name in MODELS:
        return MODELS[name]
    if ":" not in name:
        known = ", ".join(MODELS)
        raise UserError(
            f"model.name = '{name}' is unknown; choose {known} or your own package.module:factory"
            + nearest(name, list(MODELS))
        )
    factory = import_object(name, "model.name")
    if not callable(factory):
        raise UserError(f"model.name = '{name}' is not callable; give a function or class that makes a module")
    return factory


def _check_output(name: str, module: nn.Module, image_shape: tuple[int, ...], num_classes: int) -> None:
    """Run two blank images through the model, so that a wrong one is told before any training."""
    if not any(True for _ in module.parameters()):
        raise UserError(f"model.name = '{name}' has no parameters to train")
    was_training = module.training
    try:
        with torch.no_grad():
            out = module.eval()(torch.zeros(2, *image_shape))
    except Exception as error:
        raise UserError(f"model.name = '{name}' fails on images of shape {image_shape}: {error!r}") from error
    finally:
        module.train(was_training)
    shape = tuple(getattr(out, "shape", ()))
    if shape != (2, num_classes):
        raise UserError(f"model.name = '{name}' returns shape {shape} for 2 images, not (2, {num_classes})")


def _reads_channels_last(module: nn.Module, image_shape: tuple[int, ...]) -> bool:
    """Whether the module works on images whose channels lie side by side in memory; one that calls `view` may not."""
    was_training = module.training
    try:
        with torch.no_grad():
            module.eval()(channels_last(torch.zeros(2, *image_shape)))
    except RuntimeError:
        return False
    finally:
        module.train(was_training)
    return True


def _mixes_samples(module: nn.Module, image_shape: tuple[int, int, int]) -> bool:
    """Whether a sample's logits in training depend on which others are with it, or on random numbers they share."""
    if mixes(module):
        return True
    module = copy.deepcopy(module).train()
    images = torch.linspace(-1, 1, 4 * math.prod(image_shape)).view(4, *image_shape)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), contextlib.suppress(Exception):
        return not torch.allclose(module(images)[:2], module(images[:2]), 1e-3, 1e-4)
    return True  # what is wrong with it in training is told there
