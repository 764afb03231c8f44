"""Time and memory to decode a folder of pictures once, to open it again, to look at all of it, and to train on it.

Pictures of 256×192 to 640×480 pixels are drawn and saved as JPEG, at most `--distinct` of them; files beyond these are
further names of the same. Then each step runs in a new process. Pixels are mapped from the cache whatever their size,
as they are from 1 GiB on by themselves. `own` is the memory that a process can't give back (anonymous pages), at its
highest above that of the imports; mapped pixels are not in it, since the system drops them when others need the room.

The step `train` is a whole run of FedAvg: one round in which a hundredth of the clients, of 80 pictures each, trains a
model of patches' means for an epoch, the test, and what is measured of all clients at the end.

    python benchmarks/images.py [--count 400] [--distinct 2000] [--size 224] [--read] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor, nn

from written import write

CLASSES = 10
STEPS = ("decode", "open", "look", "train")


class Means(nn.Module):
    """A linear layer on the means of 7×7 patches: a model that costs little beside reading the images."""

    def __init__(self, image_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(image_shape[0] * 49, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.adaptive_avg_pool2d(x, 7).flatten(1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--distinct", type=int, default=2000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--read", action="store_true", help="read pixels into memory instead of mapping them")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step is not None:
        print(json.dumps(measured(options.step, options.folder, options.size, options.read)))
        return 0
    with tempfile.TemporaryDirectory() as place:
        draw(Path(place) / "photos", options.count, options.distinct)
        rows = {step: _in_new_process(step, Path(place), sys.argv[1:]) for step in STEPS}
    pixels = options.count * 3 * options.size**2 / 1e6
    print(f"{options.count} pictures, {pixels:.0f} MB of pixels at {options.size}×{options.size}")
    for step, row in rows.items():
        most = f"own {row['own_mb']:6.0f} MB   with mapped pages {row['all_mb']:6.0f} MB"
        print(f"{step:<8} {row['seconds']:7.2f} s, of a processor {row['cpu_s']:7.2f} s   {most}")
    if options.json:
        about = {"count": options.count, "distinct": min(options.count, options.distinct), "size": options.size}
        write(options.json, {**about, "mapped": not options.read, "pixels_mb": round(pixels), "steps": rows})
    return 0


def draw(root: Path, count: int, distinct: int) -> None:
    """Smooth noise of many sizes, so that JPEG has something to compress."""
    rng = np.random.default_rng(0)
    small = rng.integers(0, 256, (64, 12, 16, 3), dtype=np.uint8)
    for number in range(count):
        folder = root / f"class-{number % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{number:06}.jpg"
        if number >= distinct:
            first = number % distinct
            path.hardlink_to(root / f"class-{first % CLASSES}" / f"{first:06}.jpg")
            continue
        scale = 16 + int(rng.integers(0, 25))
        image = Image.fromarray(np.roll(small[number % 64], number, (0, 1)))
        image.resize((16 * scale, 12 * scale), Image.Resampling.BICUBIC).save(path, quality=85)


def _in_new_process(step: str, place: Path, arguments: list[str]) -> dict[str, float]:
    environment = {**os.environ, "FEDNOIL_CACHE": str(place / "cache")}
    command = [sys.executable, __file__, *arguments, "--step", step, "--folder", str(place / "photos")]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


class Memory:
    """The most memory of this process while it is entered, in MB."""

    def __enter__(self) -> Memory:
        self.own, self.all = 0, 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.01):
            own, everything = memory()
            self.own, self.all = max(self.own, own), max(self.all, everything)


def memory() -> tuple[int, int]:
    """MB of anonymous pages, and of all that are resident."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return tuple(int(lines[key].split()[0]) // 1024 for key in ("RssAnon", "VmRSS"))  # type: ignore[return-value]


def measured(step: str, folder: Path, size: int, read: bool) -> dict[str, Any]:
    """Seconds and memory of one step."""
    import torch

    import fednoil
    from fednoil.data import cache, load
    from fednoil.data.base import PictureConfig
    from fednoil.experiment import resident
    from fednoil.learners.base import chunks

    if not read:
        cache.MAPPED = 1
    torch.zeros(1).float()
    before = memory()
    began, worked = time.monotonic(), time.process_time()
    with Memory() as most:
        if step == "train":
            _trained(fednoil, folder, size)
        else:
            dataset = load(PictureConfig(name=f"folder:{folder}", size=size))
        if step == "look":
            pool = resident(dataset.train.images, torch.device("cpu"))
            total = sum(float(pool[span].float().mean()) for span in chunks(len(pool), pool))
            assert total > 0
    spent = {"seconds": round(time.monotonic() - began, 2), "cpu_s": round(time.process_time() - worked, 2)}
    return {**spent, "own_mb": most.own - before[0], "all_mb": most.all - before[1]}


def _trained(fednoil: Any, folder: Path, size: int) -> None:
    count = sum(1 for _ in folder.rglob("*.jpg"))
    changes = {"data.name": f"folder:{folder}", "data.size": size, "model.name": "images:Means", "run.device": "cpu"}
    changes |= {"partition.clients": max(2, count // 100), "sampling.fraction": 0.01, "train.rounds": 1}
    keys = {**changes, "schedule.epochs": 1}
    run = fednoil.run("demo/fedavg", seed=0, set=keys, progress=False, out=folder.parent / "run")
    assert run.history


if __name__ == "__main__":
    sys.exit(main())
