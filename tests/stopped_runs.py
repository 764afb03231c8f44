"""A tiny recorded run of four rounds: what stops it, and what it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fednoil.history import RoundRecord
from fednoil.runner import Silent

ROUNDS = 4
LISTED = {
    "config.toml",
    "environment.json",
    "noise.parquet",
    "rounds.jsonl",
    "summary.json",
    "confusion.json",
    "measures.json",
    "model_card.md",
    "model.safetensors",
    "checkpoint/checkpoint.json",
    f"checkpoint/server-{ROUNDS:06d}-0000.safetensors",
}


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def results(folder: Path) -> dict[str, Any]:
    """Everything a run leaves but what may differ: times and the environment."""
    found: dict[str, Any] = snapshot(folder)
    del found["environment.json"]
    found["rounds.jsonl"] = [{k: v for k, v in line.items() if k != "wall_s"} for line in lines(folder)]
    summary = json.loads(found["summary.json"])
    found["summary.json"] = {k: v for k, v in summary.items() if k != "wall_s"}
    return found


class Stop(Silent):
    """Ctrl-C as soon as `after` rounds are done."""

    def __init__(self, after: int) -> None:
        self.after = after

    def round(self, record: RoundRecord) -> None:
        if record.round == self.after:
            raise KeyboardInterrupt


def add(name: str, content: str = "") -> Callable[[Path], None]:
    def change(out: Path) -> None:
        with (out / name).open("a") as file:
            file.write(content)

    return change


def lose(name: str) -> Callable[[Path], None]:
    return lambda out: (out / name).unlink()


def spawn(*command: str, **options: Any) -> subprocess.Popen[str]:
    """Another process, single-threaded, in which Ctrl-C works even if it is ignored here."""
    return subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=options.pop("preexec_fn", lambda: signal.signal(signal.SIGINT, signal.default_int_handler)),
        **options,
    )
