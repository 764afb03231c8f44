"""Networks for vectors: one linear layer, or a few with ReLU between them. They take pictures too, flattened."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from fednoil.models.base import ModelConfig
from fednoil.plugins import About


class LinearConfig(ModelConfig):
    name: Literal["linear"] = "linear"


class MlpConfig(ModelConfig):
    name: Literal["mlp"] = "mlp"
    width: int = Field(default=128, ge=1, le=65536, description="units of each of the two hidden layers")


class Linear(nn.Module):
    """Logistic regression."""

    Config = LinearConfig
    about = About(title="One linear layer, for vectors")

    def __init__(self, image_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(math.prod(image_shape), num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1))


class Mlp(nn.Module):
    """Two hidden layers; no BatchNorm, whose statistics would differ from client to client, and no dropout."""

    Config = MlpConfig
    about = About(title="Two hidden layers and a linear one, for vectors")

    def __init__(self, image_shape: tuple[int, ...], num_classes: int, width: int = 128) -> None:
        super().__init__()
        self.hidden1 = nn.Linear(math.prod(image_shape), width)
        self.hidden2 = nn.Linear(width, width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.hidden1(x.flatten(1)).relu()
        return self.head(self.hidden2(x).relu())
