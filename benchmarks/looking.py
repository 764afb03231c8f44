"""A forward pass over many images on a CPU in the spans that the package uses, against spans of 1,000, as a ratio.

Scores, tests and audits are such passes. Both ways alternate, on one thread: with more, other load on the machine slows
many small calls more than few large ones. The ratio is that of the best times.

    python benchmarks/looking.py [--images 4000] [--repeat 3]
"""

from __future__ import annotations

import argparse
import sys
import time

import torch

from fednoil.learners.base import chunks
from fednoil.models.cnn import CNN
from fednoil.models.resnet import ResNet18

LIMIT = 1.05
NETWORKS = {
    "CNN of width 8, 1×28×28": (lambda shape: CNN(shape, 10, 8), (1, 28, 28), 1),
    "CNN of width 32, 1×28×28": (lambda shape: CNN(shape, 10, 32), (1, 28, 28), 1),
    "ResNet18, 3×32×32": (lambda shape: ResNet18(shape, 10), (3, 32, 32), 4),
}


@torch.no_grad()
def seconds(module: torch.nn.Module, images: torch.Tensor, spans: list[slice]) -> float:
    began = time.perf_counter()
    for rows in spans:
        module(images[rows])
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    slower = []
    for name, (make, shape, share) in NETWORKS.items():
        count = options.images // share
        images = torch.randn(count, *shape).to(memory_format=torch.channels_last)
        module = make(shape).to(memory_format=torch.channels_last).eval()
        ways = [chunks(count, images), [slice(start, start + 1000) for start in range(0, count, 1000)]]
        rows = [[seconds(module, images, spans) for spans in ways] for _ in range(1 + options.repeat)][1:]
        ours, large = (min(times) for times in zip(*rows, strict=True))
        print(f"{name}: {ours / large:.2f} of the time")
        slower += [name] if ours > LIMIT * large else []
    if slower:
        sys.exit(f"slower than {LIMIT} times spans of 1,000: {', '.join(slower)}")


if __name__ == "__main__":
    main()
