"""A trained model as a torch module: pixels in, logits out."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from fednoil.data.vectors import FURTHEST, is_vector
from fednoil.executors.local import Workbench
from fednoil.learners.base import Learner, Nets
from fednoil.models.network import channels_last
from fednoil.tensors import Tensors


class Classifier(nn.Module):
    """The model of a run, in eval mode, with the normalisation inside.

    It takes images [N, C, H, W], uint8 pixels or fractions in 0..1, or vectors [N, D] as the data have them, and
    returns logits float32 [N, classes]. If a method trains several networks, as `dividemix` does, it has all of them
    and combines them as the method does.
    """

    def __init__(self, bench: Workbench, tensors: Tensors, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        bench.load(tensors, tensors)
        modules = {name: copy.deepcopy(net.module) for name, net in bench.nets.items()}
        self._vectors = is_vector(bench.learner.task.image_shape)
        wrap = _Scaled if self._vectors else _Normalised
        self.networks = nn.ModuleDict({name: wrap(module, mean, std) for name, module in modules.items()})
        self._learner: Learner = bench.learner
        shared = tuple(f"{role.name}/" for role in bench.learner.roles)
        self._own = {name: tensor for name, tensor in tensors.items() if not name.startswith(shared)}
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        pixels = images * 255 if images.is_floating_point() and not self._vectors else images
        return self._learner.predict(cast(Nets, self.networks), pixels, self._own).float()


class _Scaled(nn.Module):
    """One network behind the scaling of vectors."""

    mean: Tensor
    std: Tensor

    def __init__(self, module: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.module = module
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float64))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float64))

    def forward(self, rows: Tensor) -> Tensor:
        found = ((rows.to(self.mean.dtype) - self.mean) / self.std).clamp(-FURTHEST, FURTHEST)
        return self.module(torch.nan_to_num(found).float())


class _Normalised(nn.Module):
    """One network behind the normalisation of pixels in 0..255."""

    gain: Tensor
    bias: Tensor

    def __init__(self, module: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.module = module
        self._channels_last = bool(getattr(module, "channels_last", False))
        scale = torch.tensor(std).view(1, -1, 1, 1) * 255.0
        self.register_buffer("gain", scale.reciprocal())
        self.register_buffer("bias", -torch.tensor(mean).view(1, -1, 1, 1) * 255.0 / scale)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.addcmul(self.bias, images, self.gain)
        side_by_side = self._channels_last and not torch.compiler.is_compiling()  # ONNX has no layouts
        return self.module(channels_last(x) if side_by_side else x)
