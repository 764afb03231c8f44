"""Time and memory to decode a folder of pictures once, to open it again, and to look at all of it.

N pictures of 320×240 to 1280×960 pixels are drawn and saved as JPEG; then each step runs in a new process. Pixels are
mapped from the cache whatever their size, as they are from 1 GiB on by themselves. `own` is the memory that a process
can't give back (anonymous pages), at its highest above that of the imports; mapped pixels are not in it, since the
system drops them when others need the room.

    python benchmarks/images.py [--count 400] [--size 224] [--read] [--json FILE]
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

CLASSES = 10
STEPS = ("decode", "open", "look")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400)
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
        draw(Path(place) / "photos", options.count)
        rows = {step: _in_new_process(step, Path(place), sys.argv[1:]) for step in STEPS}
    pixels = options.count * 3 * options.size**2 / 1e6
    print(f"{options.count} pictures, {pixels:.0f} MB of pixels at {options.size}×{options.size}")
    for step, row in rows.items():
        most = f"own {row['own_mb']:6.0f} MB   with mapped pages {row['all_mb']:6.0f} MB"
        print(f"{step:<8} {row['seconds']:7.2f} s   {most}")
    if options.json:
        about = {"count": options.count, "size": options.size, "mapped": not options.read, "pixels_mb": round(pixels)}
        options.json.write_text(json.dumps({**about, "steps": rows}, indent=1) + "\n")
    return 0


def draw(root: Path, count: int) -> None:
    """Smooth noise of many sizes, so that JPEG has something to compress."""
    rng = np.random.default_rng(0)
    small = rng.integers(0, 256, (64, 12, 16, 3), dtype=np.uint8)
    for number in range(count):
        folder = root / f"class-{number % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        scale = 20 + int(rng.integers(0, 61))
        image = Image.fromarray(np.roll(small[number % 64], number, (0, 1)))
        image.resize((16 * scale, 12 * scale), Image.Resampling.BICUBIC).save(folder / f"{number:06}.jpg", quality=85)


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

    from fednoil.data import cache, load
    from fednoil.data.base import PictureConfig
    from fednoil.experiment import resident
    from fednoil.learners.base import chunks

    if not read:
        cache.MAPPED = 1
    torch.zeros(1).float()
    before = memory()
    began = time.monotonic()
    with Memory() as most:
        dataset = load(PictureConfig(name=f"folder:{folder}", size=size))
        if step == "look":
            pool = resident(dataset.train.images, torch.device("cpu"))
            total = sum(float(pool[span].float().mean()) for span in chunks(len(pool), pool))
            assert total > 0
    seconds = time.monotonic() - began
    return {"seconds": round(seconds, 2), "own_mb": most.own - before[0], "all_mb": most.all - before[1]}


if __name__ == "__main__":
    sys.exit(main())
