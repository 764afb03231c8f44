"""Time of one client's optimiser step on a GPU: all clients at once against client after client, in one process.

The work is FedNoiL's: 500 images a client, 35 % of them labelled. 'bare' is a step in plain PyTorch on images that are
ready, 'sequential' the reference executor with its augmentation, 'stacked' all clients at once.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fednoil import rounds
from fednoil.config import load_config
from fednoil.experiment import Experiment, make_executor, make_experiment

BATCH = 32 + 55  # labelled and unlabelled images of a step with 500 images a client
SHAPES = {"cnn": (28, 28), "resnet18": (32, 32, 3)}


class PlainCNN(nn.Sequential):
    """The paper's CNN in PyTorch's own layers."""

    def __init__(self) -> None:
        blocks: list[nn.Module] = []
        for inputs, outputs in ((1, 32), (32, 64)):
            blocks += [nn.Conv2d(inputs, outputs, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        super().__init__(*blocks, nn.Flatten(), nn.Linear(64 * 7 * 7, 10))


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


def experiment_of(model: str, samples: int, clients: int, run: dict[str, Any]) -> Experiment:
    """Noise images: time doesn't depend on what they show."""
    rng, count = np.random.default_rng(0), samples * clients
    images = rng.integers(0, 256, (count, *SHAPES[model]), dtype=np.uint8)
    labels = np.arange(count) % 10
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "noise.npz"
        np.savez(file, x_train=images, y_train=labels, x_test=images[:100], y_test=labels[:100])
        values = {
            "data": {"name": f"npz:{file}"},
            "partition": {"clients": clients},
            "model": {"name": model},
            "server": {"name": "fedavg", "client_fraction": 1.0},
            "learner": {"name": "fednoil", "frac": 0.35},
            "run": {"device": "cuda", **run},
        }
        return make_experiment(load_config(values))


def per_step(model: str, samples: int, clients: int, epochs: int, **run: Any) -> dict[str, float]:
    """Milliseconds of one client's step, and the GPU memory in use at most (GiB)."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    experiment = experiment_of(model, samples, clients, run)
    device = torch.device("cuda")
    executor = make_executor(experiment, device)
    state = rounds.placed(rounds.start(experiment), device)

    def turn(count: int) -> float:
        jobs = [rounds._job(experiment, state, k, count) for k in range(clients)]
        torch.cuda.synchronize()
        began = time.perf_counter()
        results = executor.train(jobs)
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / sum(r.numbers["steps"] for r in results)

    turn(4)  # captures and compiles
    best = min(turn(epochs) for _ in range(2))
    return {"ms": 1000 * best, "gib": torch.cuda.max_memory_allocated() / 2**30}


def bare_step(model: str, batch: int, dtype: torch.dtype) -> float:
    """Milliseconds of forward, backward and SGD on ready images in plain PyTorch: what any simulator needs at least."""
    channels, side = (1, 28) if model == "cnn" else (3, 32)
    module = {"cnn": PlainCNN, "resnet18": plain_resnet18}[model]().cuda()
    sgd = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    images = torch.randn(batch, channels, side, side, device="cuda")
    if dtype != torch.float32:
        module, images = (v.to(memory_format=torch.channels_last) for v in (module, images))
    labels = torch.arange(batch, device="cuda") % 10

    def steps(count: int) -> None:
        for _ in range(count):
            sgd.zero_grad()
            with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
                loss = F.cross_entropy(module(images), labels)
            loss.backward()
            sgd.step()
        torch.cuda.synchronize()

    steps(10)
    began = time.perf_counter()
    steps(100)
    return 10 * (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(SHAPES), nargs="+", default=list(SHAPES))
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 6, 12, 30])
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--quick", action="store_true", help="leave the sequential executor out")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for model in given.model:
        reference = bare_step(model, BATCH, torch.float32)
        found = [("bare float32", 1, {"ms": reference, "gib": 0.0})]
        found += [("bare bfloat16 NHWC", 1, {"ms": bare_step(model, BATCH, torch.bfloat16), "gib": 0.0})]
        for precision in () if given.quick else ("float32", "bfloat16"):
            numbers = per_step(model, given.samples, 1, 2, executor="sequential", precision=precision)
            found += [(f"sequential {precision}", 1, numbers)]
        for clients in given.clients:
            found += [("stacked", clients, per_step(model, given.samples, clients, given.epochs, parallel=clients))]
        for name, clients, numbers in found:
            row = {"model": model, "style": name, "clients": clients, **numbers, "times": reference / numbers["ms"]}
            rows.append(row)
            print(
                f"{model:9} {name:20} {clients:3} clients {row['ms']:8.4f} ms a client-step "
                f"{row['times']:6.1f} × {row['gib']:6.2f} GiB",
                flush=True,
            )
    if given.json:
        given.json.write_text(json.dumps({"device": torch.cuda.get_device_name(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
