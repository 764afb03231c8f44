"""Models with frozen parameters, as tests of them want them."""

from __future__ import annotations

import torch
from torch import nn


class Probe(nn.Module):
    """A frozen body, whose BatchNorm stays as it is, and a head."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, stride=4), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.body.requires_grad_(False)
        self.head = nn.Linear(16, num_classes)

    def train(self, mode: bool = True) -> Probe:
        super().train(mode)
        self.body.eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def probe(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    return Probe(num_classes)


def grouped(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """A body with a tenth of the rate and no decay before its head."""
    net = nn.Sequential(nn.Conv2d(1, 4, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(16, num_classes))
    net.parameter_groups = {"0.": {"lr": 0.1, "weight_decay": 0.0}}  # type: ignore[assignment]
    return net


def part(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """A frozen convolution before a BatchNorm that trains."""
    conv = nn.Conv2d(1, 4, 3, stride=4).requires_grad_(False)
    return nn.Sequential(conv, nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, num_classes))
