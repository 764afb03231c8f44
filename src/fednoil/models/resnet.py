"""ResNet18 and ResNet34 with the stem for small images (He et al., CVPR 2016; 3×3 stride-1 stem, no stem pooling)."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, cast

from pydantic import Field
from torch import Tensor, nn

from fednoil.models.base import ModelConfig, check_pictures
from fednoil.models.layers import Norm, branch, conv_norm_relu
from fednoil.plugins import About


def _conv3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


def _norm(kind: str, channels: int) -> Norm:
    """BatchNorm, or GroupNorm with at most 32 groups of at least two channels (Wu and He, ECCV 2018)."""
    return nn.BatchNorm2d(channels) if kind == "batch" else nn.GroupNorm(math.gcd(32, channels // 2) or 1, channels)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = _conv3(inputs, outputs, stride)
        self.bn1 = _norm(norm, outputs)
        self.conv2 = _conv3(outputs, outputs)
        self.bn2 = _norm(norm, outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(conv, _norm(norm, outputs))

    def forward(self, x: Tensor) -> Tensor:
        out, x = branch(x, self.conv1, self.bn1)
        if len(self.shortcut):
            conv, norm = self.shortcut
            x = conv_norm_relu(x, cast(nn.Conv2d, conv), cast(Norm, norm), relu=False)
        return conv_norm_relu(out, self.conv2, self.bn2, residual=x)


class _ResNetConfig(ModelConfig):
    width: int = Field(default=64, ge=1, le=4096, description="channels of the first layer")


class ResNet18Config(_ResNetConfig):
    name: Literal["resnet18"] = "resnet18"


class ResNet34Config(_ResNetConfig):
    name: Literal["resnet34"] = "resnet34"


class ResNet18GnConfig(_ResNetConfig):
    name: Literal["resnet18-gn"] = "resnet18-gn"


class ResNet34GnConfig(_ResNetConfig):
    name: Literal["resnet34-gn"] = "resnet34-gn"


class ResNet18(nn.Module):
    """Eight basic blocks of 64, 128, 256, 512 channels: 11,173,962 parameters for 3 channels, 10 classes."""

    Config: ClassVar[type[ModelConfig]] = ResNet18Config
    depths: ClassVar[tuple[int, ...]] = (2, 2, 2, 2)  # blocks of each width
    norm: ClassVar[str] = "batch"
    about = About(title="Eight blocks of two convolutions, with the stem for small images")

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, width: int = 64) -> None:
        super().__init__()
        check_pictures(self.Config().name, image_shape)
        self.stem = nn.Sequential(_conv3(image_shape[0], width), _norm(self.norm, width))
        blocks: list[nn.Module] = []
        inputs = width
        for stage, depth in enumerate(self.depths):
            outputs = width * 2**stage
            blocks.append(BasicBlock(inputs, outputs, 1 if stage == 0 else 2, self.norm))
            blocks += [BasicBlock(outputs, outputs, 1, self.norm) for _ in range(depth - 1)]
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        conv, norm = self.stem
        x = conv_norm_relu(x, cast(nn.Conv2d, conv), cast(Norm, norm))
        return self.head(self.blocks(x).mean((2, 3)))


class ResNet34(ResNet18):
    """Sixteen basic blocks of the same channels: 21,282,122 parameters for 3 channels, 10 classes."""

    Config = ResNet34Config
    depths = (3, 4, 6, 3)
    about = About(title="Sixteen blocks of two convolutions, with the stem for small images")


class ResNet18Gn(ResNet18):
    """With GroupNorm, which keeps no statistics: nothing is sent but parameters."""

    Config = ResNet18GnConfig
    norm = "group"
    about = About(title="resnet18 with GroupNorm, which keeps no statistics")


class ResNet34Gn(ResNet34):
    """With GroupNorm, which keeps no statistics: nothing is sent but parameters."""

    Config = ResNet34GnConfig
    norm = "group"
    about = About(title="resnet34 with GroupNorm, which keeps no statistics")
