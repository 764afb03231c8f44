"""The paper's network for Fashion-MNIST: two convolutions and one linear layer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from fednoil.errors import UserError
from fednoil.models.base import ModelConfig, check_pictures
from fednoil.models.layers import conv_pool_relu, flat_linear
from fednoil.plugins import About


class CnnConfig(ModelConfig):
    name: Literal["cnn"] = "cnn"
    width: int = Field(default=32, ge=1, le=4096, description="channels of the first layer")


class CNN(nn.Module):
    """conv5×5 – ReLU – maxpool2 – conv5×5 – ReLU – maxpool2 – linear; no BatchNorm, no dropout.

    `width` channels in the first layer, twice that in the second: 83,466 parameters at width 32 for
    1×28×28 images and 10 classes.
    """

    Config = CnnConfig
    about = About(title="Two convolutions and one linear layer")
    channels_last = True  # works on images with their channels side by side in memory

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, width: int = 32) -> None:
        super().__init__()
        check_pictures("cnn", image_shape)
        channels, height, side = image_shape
        if min(height, side) < 4:
            raise UserError(f"model.name = 'cnn' needs images of at least 4×4 pixels, not {image_shape[1:]}")
        self.conv1 = nn.Conv2d(channels, width, 5, padding=2)
        self.conv2 = nn.Conv2d(width, 2 * width, 5, padding=2)
        self.head = nn.Linear(2 * width * (height // 4) * (side // 4), num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = conv_pool_relu(conv_pool_relu(x, self.conv1), self.conv2)
        return flat_linear(x, self.head)
