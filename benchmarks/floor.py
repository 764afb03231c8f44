"""What the timings share: noise images as an experiment, and the bare optimiser steps that any simulator needs.

A bare step is forward, backward and SGD in plain PyTorch on images that are ready: no augmentation, no pseudo-labels,
no rounds. On a GPU also replayed as one CUDA graph, which leaves the launches out, and as arithmetic alone.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from fednoil.config import load_config
from fednoil.experiment import Experiment, make_experiment

PEAK = 790e12  # what one H200 reaches in large bfloat16 matrix products, FLOP/s
SHAPES = {"cnn": (28, 28), "resnet18": (32, 32, 3)}
FRAC = 0.35  # share of labelled images in FedNoiL's epochs


class PlainCNN(nn.Sequential):
    """The paper's CNN in PyTorch's own layers."""

    def __init__(self, width: int = 32, shape: tuple[int, int, int] = (1, 28, 28)) -> None:
        blocks: list[nn.Module] = []
        for inputs, outputs in ((shape[0], width), (width, 2 * width)):
            blocks += [nn.Conv2d(inputs, outputs, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        super().__init__(*blocks, nn.Flatten(), nn.Linear(2 * width * (shape[1] // 4) * (shape[2] // 4), 10))


class PlainBlock(nn.Module):
    """A ResNet block in PyTorch's own layers."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        conv, norm = partial(nn.Conv2d, bias=False), nn.BatchNorm2d
        self.main = nn.Sequential(
            conv(inputs, outputs, 3, stride, 1),
            norm(outputs),
            nn.ReLU(True),
            conv(outputs, outputs, 3, 1, 1),
            norm(outputs),
        )
        self.short = nn.Sequential(conv(inputs, outputs, 1, stride), norm(outputs)) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.main(x) + self.short(x))


def plain_resnet18() -> nn.Module:
    """The paper's ResNet18 in PyTorch's own layers."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(True)]
    for stage in range(4):
        inputs, outputs = 64 * 2 ** max(stage - 1, 0), 64 * 2**stage
        layers += [PlainBlock(inputs, outputs, 2 if stage else 1), PlainBlock(outputs, outputs, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def noise_experiment(
    model: dict[str, Any], samples: int, clients: int, epochs: int, run: dict[str, Any], pseudo: bool = True
) -> Experiment:
    """FedNoiL with all clients in every round, with or without pseudo-labels, on noise images: time doesn't depend on
    what they show."""
    rng, count = np.random.default_rng(0), samples * clients
    images = rng.integers(0, 256, (count, *SHAPES[model["name"]]), dtype=np.uint8)
    labels = np.arange(count) % 10
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "noise.npz"
        np.savez(file, x_train=images, y_train=labels, x_test=images[:100], y_test=labels[:100])
        values = {
            "data": {"name": f"npz:{file}"},
            "partition": {"clients": clients},
            "model": model,
            "server": {"name": "fedavg"},
            "sampling": {"fraction": 1.0},
            "learner": {"name": "fednoil", "frac": FRAC, "weight": float(pseudo)},
            "schedule": {"epochs": epochs},
            "run": run,
        }
        return make_experiment(load_config(values))


def bare_step(
    module: nn.Module,
    shape: tuple[int, int, int, int],
    dtype: torch.dtype = torch.float32,
    device: str = "cuda",
    graph: bool = False,
    channels_last: bool = True,
) -> float:
    """Seconds of forward, backward and SGD on ready images [B, C, H, W] in plain PyTorch; `graph`: as a CUDA graph."""
    module = module.to(device)
    sgd = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    images = torch.randn(shape, device=device)
    if channels_last:  # the faster layout, on a CPU too
        module, images = (v.to(memory_format=torch.channels_last) for v in (module, images))
    labels = torch.arange(len(images), device=device) % 10

    def step() -> None:
        sgd.zero_grad()
        with torch.autocast(device, dtype, enabled=dtype != torch.float32, cache_enabled=not graph):
            loss = F.cross_entropy(module(images), labels)
        loss.backward()
        sgd.step()

    if device == "cpu":
        return _best(step, warm=3, count=10)
    return _best(_captured(step) if graph else step, warm=10, count=50)


def step_flops(module: nn.Module, shape: tuple[int, int, int, int]) -> int:
    """Floating-point operations of a forward and backward pass through convolutions and matrix products."""
    module, images = module.to("meta"), torch.empty(shape, device="meta")
    with FlopCounterMode(display=False) as counter:
        module(images).sum().backward()
    return counter.get_total_flops()


def check_device(device: str) -> None:
    """End the program with one line if it needs a GPU and there is none."""
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        print(f"{Path(sys.argv[0]).name} needs a CUDA GPU here, but PyTorch sees none", file=sys.stderr)
        sys.exit(2)


def device_name(device: str) -> str:
    """The name of the device that was measured."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' if threads > 1 else ''}"


def _captured(step: Callable[[], None]) -> Callable[[], None]:
    """The step as one CUDA graph, after it has run on a separate stream, as PyTorch requires."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def _best(step: Callable[[], None], warm: int, count: int, tries: int = 3) -> float:
    """Seconds of a step, the least mean over `count` of them."""

    def steps(number: int) -> float:
        began = time.perf_counter()
        for _ in range(number):
            step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / number

    steps(warm)
    return min(steps(count) for _ in range(tries))
