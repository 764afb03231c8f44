"""Times rounds of all engines that are compared (`peer_work.py`, `peer_engines.py`), and writes JSON.

Each engine plays one round, starts again from the same seeds, and has the same bits after the first round, or not. Then
rounds are timed, with engines in one process taking turns; what is compiled, captured or chosen before isn't timed.
`benchmarks/peers.py` (CPU) and `benchmarks/peers_gpu.py` run this file:

    python benchmarks/peer_rounds.py --json FILE [--task cnn] [--device cuda] [--engines fednoil plain pfl]
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

import peer_engines
from fednoil.files import write_bytes
from peer_work import SIZES, TASKS, Round, Style, Task, Work, as_usual, our_rounds, plain_rounds, task_of

Found = dict[str, Any]  # by engine


@dataclass
class Engine:
    """How an engine's rounds begin, what it has in common with others, and what was measured."""

    start: Callable[[], Iterator[Round]]
    ours: bool = False
    clock: Callable[[], float] = time.process_time  # seconds that its processes computed
    memory: Callable[[], int] | None = None  # bytes of the GPU in use at most, where PyTorch doesn't know
    shares: int = 0  # bytes on the GPU that it shares with other engines
    playing: Iterator[Round] = field(init=False)
    own: int = 0  # bytes that it holds between rounds
    peak: int = 0
    found: dict[str, Any] = field(default_factory=lambda: {"seconds": [], "cpu": [], "accuracies": []})

    def begin(self) -> None:
        self.playing, self.own = iter(()), 0  # what the last run held is freed first
        self.found["accuracies"].clear()
        gc.collect()
        self.playing = self.start()

    def play(self, timed: bool = True) -> str:
        """One round; returns a hash of the model."""
        gpu = torch.cuda.is_available() and self.memory is None
        as_usual(self.ours)
        held = torch.cuda.memory_allocated() if gpu else 0
        if gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        began, cpu = time.perf_counter(), self.clock()
        accuracy, model = next(self.playing)
        if gpu:
            torch.cuda.synchronize()
        if timed:
            self.found["seconds"].append(time.perf_counter() - began)
            self.found["cpu"].append(self.clock() - cpu)
        if gpu:
            self.peak = max(self.peak, self.shares + self.own + torch.cuda.max_memory_allocated() - held)
            self.own += torch.cuda.memory_allocated() - held
        elif self.memory:
            self.peak = max(self.peak, self.memory())
        self.found["accuracies"].append(accuracy)
        digest = hashlib.sha256()
        for tensor in model:
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def ready(self) -> None:
        """Up to where rounds can be timed; notes whether two runs have the same bits."""
        self.begin()
        first = self.play(timed=False)
        self.begin()
        self.found["equal"] = self.play(timed=False) == first
        if self.ours:
            self.play(timed=False)  # shapes that come a second time are captured as longer graphs


def measured(
    engines: dict[str, Engine],
    count: int,
    until: float = float("inf"),
    save: Callable[[Found], None] = lambda found: None,
) -> Found:
    """Rounds of all engines in turn, so that other load on the machine affects all alike; one that fails says why.

    With one thread the process's own seconds (`cpu`) are more reliable than the wall clock if other programs run too.
    After `until` (by `time.time`) no further round begins; what was found so far is saved after each.
    """
    playing: list[str] = []

    def found() -> Found:
        return {name: engine.found | {"bytes": engine.peak} for name, engine in engines.items()}

    def play(name: str, first: bool = False) -> None:
        with noted(engines[name]):
            if first:
                engines[name].ready()
            engines[name].play()
        if "failed" not in engines[name].found:
            playing.append(name)
        save(found())

    for name in engines:
        if time.time() < until:
            play(name, first=True)
        else:
            engines[name].found["failed"] = "no time left"
    for number in range(1, count):
        turn = number % max(1, len(playing))  # the order changes from round to round
        names = playing[turn:] + playing[:turn]
        playing.clear()
        for name in names:
            if time.time() < until:
                play(name)
    return found()


@contextlib.contextmanager
def noted(engine: Engine) -> Iterator[None]:
    """A failure ends this engine's rounds, not the others'."""
    try:
        yield
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        engine.found["failed"] = f"{type(error).__name__}: {lines[0]}"[:300]


STYLES = {"plain": Style(), "plain-bfloat16": Style(half=True), "plain-compiled": Style(half=True, compiled=True)}


def engine(name: str, work: Work, at_once: int, gpu: bool) -> Engine:
    """An engine by its name; Flower's begins its rounds itself."""
    held = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0  # the images, which all but ours share
    if name == "fednoil":
        return Engine(lambda: our_rounds(work.experiment, work.device), ours=True)
    if name == "fedjax":
        return Engine(lambda: peer_engines.fedjax_rounds(work, gpu), memory=jax_bytes)
    starts: dict[str, Callable[[], Iterator[Round]]] = {
        **{plain: partial(plain_rounds, work, style) for plain, style in STYLES.items()},
        "pfl": lambda: peer_engines.pfl_rounds(work),
        "blazefl": lambda: peer_engines.blazefl_rounds(work, at_once),
    }
    return Engine(starts[name], shares=held)


def jax_bytes() -> int:
    import jax

    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)


def flower(task: Task, gpu: bool, at_once: int, time_them: Callable[[dict[str, Engine]], Found]) -> None:
    """Flower's rounds are played inside its simulation; memory is all that its processes take of the GPU."""
    free = torch.cuda.mem_get_info()[0] if gpu else 0

    def during(start: Callable[[], Iterator[Round]], clock: Callable[[], float]) -> None:
        memory = (lambda: free - torch.cuda.mem_get_info()[0]) if gpu else (lambda: 0)
        time_them({"flower": Engine(start, clock=clock, memory=memory)})

    os.environ |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}  # of its processes
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    peer_engines.flower_simulation(task, "cuda" if gpu else "cpu", at_once, during)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(TASKS), default="demo")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--engines", nargs="+", default=["plain", "fednoil", "pfl"])
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch on a CPU")
    parser.add_argument("--at-once", type=int, default=10, help="clients at once in BlazeFL and Flower")
    parser.add_argument("--rounds", type=int, default=20, help="that are timed")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no further round begins")
    parser.add_argument("--json", type=Path, required=True, help="write what was found here, after each round")
    for size in SIZES:
        parser.add_argument(f"--{size}", type=int, help="another size; of clients and samples on noise images")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    until, gpu = time.time() + given.seconds, given.device == "cuda"
    sizes = {size: getattr(given, size) for size in SIZES if getattr(given, size)}
    task = task_of(given.task, **sizes)
    torch.set_num_threads(given.threads)
    logging.disable(logging.CRITICAL)
    os.environ |= {"PFL_PYTORCH_DEVICE": given.device, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

    def save(found: Found) -> None:
        about = {"steps": task.steps, "images": task.steps * task.batch, "real": not task.made_up}
        write_bytes(given.json, json.dumps(about | {"engines": found}).encode())

    time_them = partial(measured, count=given.rounds, until=until, save=save)
    if given.engines == ["flower"]:
        flower(task, gpu, given.at_once, time_them)
        return
    work = Work(task, "cpu" if given.engines == ["fedjax"] else given.device)  # whose data are in the host's memory
    time_them({name: engine(name, work, given.at_once, gpu) for name in given.engines})


if __name__ == "__main__":
    main()
