"""Models by name, and the user's own by import path."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from fednoil.errors import UserError
from fednoil.models.backbone import WORD, Backbone, BackboneConfig
from fednoil.models.base import ModelConfig, keys_of
from fednoil.models.cnn import CNN
from fednoil.models.dense import Linear, Mlp
from fednoil.models.network import Network, channels_last, mixes
from fednoil.models.resnet import ResNet18, ResNet18Gn, ResNet34, ResNet34Gn
from fednoil.plugins import Axis, import_object, renamed
from fednoil.section import Section
from fednoil.seeds import Seed

__all__ = ["AXIS", "MODELS", "ModelConfig", "Network", "build"]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "cnn": CNN,
    "resnet18": ResNet18,
    "resnet34": ResNet34,
    "resnet18-gn": ResNet18Gn,
    "resnet34-gn": ResNet34Gn,
    "linear": Linear,
    "mlp": Mlp,
    WORD: Backbone,
}


class _Models(Axis[Any]):
    """A model may also be a plain function, whose arguments are its keys, or one of timm's by its name."""

    def names(self) -> list[str]:
        return [f"{name}:NAME" if name == WORD else name for name in self.table]

    def is_own(self, name: str) -> bool:
        return super().is_own(name) and not name.startswith(f"{WORD}:")

    def find(self, name: str) -> Any:
        if name.startswith(f"{WORD}:"):
            return partial(Backbone, name.partition(":")[2])
        if self.is_own(name):
            factory = import_object(name, self.path)
            if not callable(factory):
                raise UserError(f"model.name = '{name}' is not callable; give a function or class that makes a module")
            return factory
        return super().find(name)

    def config(self, name: str) -> type[Section]:
        if name.partition(":")[0] == WORD:
            return BackboneConfig
        factory = self.find(name)
        own = getattr(factory, "Config", None)
        if not (isinstance(own, type) and issubclass(own, ModelConfig)):
            own = keys_of(factory)
        return renamed(own, self.key, name) if self.is_own(name) else own


AXIS = _Models("model", nn.Module, MODELS, default="cnn")  # pyright: ignore[reportArgumentType]


def build(config: ModelConfig, image_shape: tuple[int, ...], num_classes: int, seed: Seed) -> nn.Module:
    """Make a model on the CPU with initial weights that depend on `seed` alone.

    Its factory is called as `factory(image_shape=…, num_classes=…)`, plus its own keys.
    """
    factory = AXIS.find(config.name)
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed also prepares GPUs that aren't there: half the time that a small network takes.
        there = torch.cuda.is_available() or torch.backends.mps.is_available()
        (torch.manual_seed if there else torch.default_generator.manual_seed)(seed.value & (2**63 - 1))
        try:
            module = factory(image_shape=image_shape, num_classes=num_classes, **config.own_keys())
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
        _check_output(config.name, module, image_shape, num_classes)  # lazy layers draw their weights here
    module.reads_channels_last = _reads_channels_last(module, image_shape)  # pyright: ignore[reportArgumentType]
    module.mixes_samples = _mixes_samples(module, image_shape)  # pyright: ignore[reportArgumentType]
    return module


def _check_output(name: str, module: nn.Module, image_shape: tuple[int, ...], num_classes: int) -> None:
    """Run two blank images through the model, so that a faulty one is reported before any training."""
    if not any(parameter.requires_grad for parameter in module.parameters()):
        frozen = "; all of them are frozen (requires_grad = False)" if any(True for _ in module.parameters()) else ""
        raise UserError(f"model.name = '{name}' has no parameters to train{frozen}")
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
        what = f"shape {shape}" if isinstance(out, torch.Tensor) else f"a {type(out).__name__}"
        raise UserError(f"model.name = '{name}' returns {what} for 2 images, not a tensor of shape (2, {num_classes})")


def _reads_channels_last(module: nn.Module, image_shape: tuple[int, ...]) -> bool:
    """Whether the module works on channels-last images; one that calls `view` may not."""
    if len(image_shape) == 1:
        return False
    was_training = module.training
    try:
        with torch.no_grad():
            module.eval()(channels_last(torch.zeros(2, *image_shape)))
    except RuntimeError:
        return False
    finally:
        module.train(was_training)
    return True


def _mixes_samples(module: nn.Module, image_shape: tuple[int, ...]) -> bool:
    """Whether a sample's logits in training depend on the rest of its batch, or on shared random numbers."""
    if mixes(module):
        return True
    module = copy.deepcopy(module).train()
    images = torch.linspace(-1, 1, 4 * math.prod(image_shape)).view(4, *image_shape)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), contextlib.suppress(Exception):
        return not torch.allclose(module(images)[:2], module(images[:2]), 1e-3, 1e-4)
    return True  # an error in training is reported there
