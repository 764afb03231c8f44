"""How long it takes to write the pages of a large report and a large audit, and to open them in a browser.

A report of 1,000 runs and an audit of 50,000 images, and the same of 10 runs and 500 images beside them: a page should
stay usable however much it shows. Without Debian's chromium and playwright the browser's part is left out.

    python benchmarks/pages.py [--runs 1000] [--images 50000]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from browsing import CHROMIUM, FLAGS
from made_audit import made_audit

from fednoil.audit.page import write_page

SHORT = ("train.rounds=8", "schedule.epochs=1", "partition.samples_per_client=20")
TURN = """async () => { const start = performance.now(); document.querySelector('.next').click();
  while (document.querySelectorAll("canvas[data-ready]").length < document.querySelectorAll("canvas").length)
    await new Promise((wake) => setTimeout(wake, 2));
  return performance.now() - start; }"""


def fednoil(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "fednoil", *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def many(source: Path, folder: Path, runs: int) -> Path:
    """A folder with `runs` seeds of a run."""
    config = (source / "config.toml").read_text()
    for seed in range(runs):
        target = folder / str(seed)
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("checkpoint", "*.safetensors"))
        (target / "config.toml").write_text(config.replace("seed = 0", f"seed = {seed}"))
    return folder


@contextmanager
def browsing() -> Iterator[Any]:
    """A browser, or None where there is none."""
    if CHROMIUM is None:
        yield None
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[f"--{flag}" for flag in FLAGS])
        yield browser
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--images", type=int, default=50_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, browsing() as browser:
        folder = Path(name)
        sets = [word for change in (*SHORT, "run.device=cpu") for word in ("--set", change)]
        fednoil("run", "demo/fedavg", *sets, "--out", folder / "one", "--quiet")
        for runs in (10, options.runs):
            all_runs, page = many(folder / "one", folder / f"runs-{runs}", runs), folder / f"report-{runs}.html"
            began = time.monotonic()
            fednoil("report", all_runs, "--html", page)
            print(f"report of {runs} runs: {page.stat().st_size / 1e6:.1f} MB, {time.monotonic() - began:.1f} s")
            if browser:
                visit = browser.new_page()
                visit.goto(page.as_uri())
                spent = visit.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
                print(f"  opens in {spent / 1000:.2f} s")
        for images in (500, options.images):
            target = folder / f"audit-{images}"
            target.mkdir()
            made = made_audit(images, ["a", "b", "c"], [str(k) for k in range(20)], side=32)
            began = time.monotonic()
            page = write_page(target, *made)
            print(f"audit of {images} images: {page.stat().st_size / 1e6:.1f} MB, {time.monotonic() - began:.1f} s")
            if browser:
                visit = browser.new_page()
                visit.goto(page.as_uri())
                times = sorted(visit.evaluate(TURN) for _ in range(7))
                print(f"  a page turns in {times[3]:.0f} ms")


if __name__ == "__main__":
    main()
