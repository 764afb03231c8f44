"""The share of a run that goes into checkpoints and records, on the demo and with a ResNet18.

The demo runs as users run it, with its own `run.checkpoint_every`, and what it spends in `Checkpoints.save` and in
`RunFolder.append_round` (with its fsync) is added up. A ResNet18's checkpoint is timed by itself, all tensors changed,
and held against ten rounds of the paper's CIFAR-10 cell at its fewest local epochs: on a GPU such rounds are played on
noise images, on a CPU they are counted as their bare optimiser steps, which is less than they take.

    python benchmarks/checkpoints.py [--device cpu] [--rounds 20] [--json benchmarks/results/checkpoints-cpu.json]

How much is written where clients keep models of their own (APFL), nothing else:

    python benchmarks/checkpoints.py --personal 100
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fednoil import rounds, runner
from fednoil.config import load_config
from fednoil.models.resnet import ResNet18
from fednoil.records.checkpoint import Checkpoints
from fednoil.records.folder import RunFolder
from fednoil.runner import Silent
from fednoil.schedules.decay import DecayConfig
from fednoil.servers.base import ServerState
from fednoil.study import preset
from fednoil.tensors import Tensors
from floor import bare_step, check_device, device_name, noise_experiment, plain_resnet18
from scaling import Case, Point, Size
from written import write

LIMIT = 2.0  # percent
PAPER = "paper/cifar10/iid/symmetric-high/fednoil-logarithm"


@contextlib.contextmanager
def timed(owner: type, name: str, seconds: list[float]) -> Iterator[None]:
    """Record how long a method takes."""
    plain: Callable[..., Any] = getattr(owner, name)

    def noting(*args: Any) -> Any:
        began = time.perf_counter()
        try:
            return plain(*args)
        finally:
            seconds.append(time.perf_counter() - began)

    setattr(owner, name, noting)
    try:
        yield
    finally:
        setattr(owner, name, plain)


def demo(device: str, rounds_: int) -> dict[str, Any]:
    """The share of a real run of the demo."""
    values = preset("demo")
    values["train"] = {**values["train"], "rounds": rounds_}
    config = load_config({**values, "run": {"device": device}})
    saves: list[float] = []
    records: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        timed(Checkpoints, "save", saves),
        timed(RunFolder, "append_round", records),
    ):
        runner.run(config, Path(folder) / "run", Silent())
        # The first two rounds are left out: on a GPU they capture and compile, which would make the share too small.
        playing = sum(record.wall_s for record in RunFolder(Path(folder) / "run").records()[2:])
    return {
        "what": f"demo, {rounds_} rounds",
        "checkpoints": len(saves),
        "every": config.run.checkpoint_every,
        "checkpoint_ms": 1000 * statistics.median(saves),
        "record_ms": 1000 * statistics.median(records),
        "share_percent": 100 * sum(saves) / (playing + sum(saves)),
        "share_with_records_percent": 100 * (sum(saves) + sum(records)) / (playing + sum(saves) + sum(records)),
    }


def resnet18(device: str, repeats: int = 5) -> dict[str, Any]:
    """The share of a run of the paper's CIFAR-10 cell, where rounds are shortest."""
    config = load_config(preset(PAPER))
    assert isinstance(config.schedule, DecayConfig)
    assert config.partition.samples_per_client is not None
    samples, epochs = config.partition.samples_per_client, config.schedule.t_min
    clients = round(config.sampling.fraction * config.partition.clients)
    point = Point("clients", clients, clients, samples, config.run.parallel)
    experiment = noise_experiment({"name": "resnet18"}, samples, clients, epochs, {"device": device})
    state = rounds.placed(rounds.start(experiment), torch.device(device))
    saves, whole = [], []
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder) / "checkpoint", {}, behind=device == "cuda")
        for number in range(1, repeats + 1):
            for tensor in state.server.tensors.values():
                tensor.add_(1)
            began = time.perf_counter()
            checkpoints.save(replace(state, round_idx=number))
            saves.append(time.perf_counter() - began)
            checkpoints.wait()
            whole.append(time.perf_counter() - began)
    case = Case(point, device, Size(0, epochs, samples, clients, 1), {"name": "resnet18"})
    if device == "cuda":
        case.seconds()  # captures and compiles
        round_s = min(case.seconds() for _ in range(2))
    else:
        steps, batch = case.shape()
        round_s = steps * bare_step(plain_resnet18(), (batch, 3, 32, 32), torch.float32, device)
    save, every = statistics.median(saves), config.run.checkpoint_every
    return {
        "what": f"ResNet18, {clients} clients × {epochs} epochs a round",
        "every": every,
        "checkpoint_ms": 1000 * save,
        "on_disk_ms": 1000 * statistics.median(whole),
        "megabytes": sum(t.nbytes for t in state.server.tensors.values()) / 1e6,
        "round_s": round_s,
        "share_percent": 100 * save / (save + every * round_s),
    }


def personal(clients: int, folder: Path) -> list[tuple[str, int, float]]:
    """Bytes and seconds of checkpoints of `clients` with a ResNet18 each: all, three tenths changed, none."""
    model = ResNet18((3, 32, 32), 10).state_dict()

    def fresh(name: str, step: int) -> Tensors:
        return {f"{name}/{key}": tensor + step for key, tensor in model.items()}

    trained = round(0.3 * clients)
    keep = {k: fresh("own-model", k) for k in range(clients)}
    first = rounds.RunState(1, ServerState(fresh("model", 0)), keep)
    again = {k: fresh("own-model", k + 1) for k in range(trained)}
    second = rounds.RunState(2, ServerState(fresh("model", 1)), {**keep, **again})
    checkpoints, found = Checkpoints(folder, {}), []
    for what, state in (("all", first), (f"{trained} that trained", second), ("none", replace(second, round_idx=3))):
        before = {path: path.stat().st_size for path in folder.glob("*.safetensors")}
        began = time.perf_counter()
        checkpoints.save(state)
        seconds = time.perf_counter() - began
        written = {path: path.stat().st_size for path in folder.glob("*.safetensors") if path not in before}
        found.append((what, sum(written.values()), seconds))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=20, help="of the demo")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--personal", type=int, metavar="CLIENTS", help="clients with a ResNet18 each")
    given = parser.parse_args()
    if given.personal:
        with tempfile.TemporaryDirectory() as folder:
            for what, size, seconds in personal(given.personal, Path(folder)):
                print(f"{given.personal} personal ResNet18s, changed: {what}: {size / 1e6:,.0f} MB in {seconds:.1f} s")
        return
    check_device(given.device)
    rows = [demo(given.device, given.rounds), resnet18(given.device)]
    for row in rows:
        print(f"{row['what']}: a checkpoint every {row['every']} rounds takes {row['checkpoint_ms']:.1f} ms, ", end="")
        print(f"{row['share_percent']:.3f} % of the run")
    print(f"with one line a round in rounds.jsonl the demo's share is {rows[0]['share_with_records_percent']:.3f} %")
    if given.json:
        write(given.json, {"device": device_name(given.device), "rows": rows})
    if any(row["share_percent"] > LIMIT for row in rows):
        sys.exit(f"more than {LIMIT} % of a run")


if __name__ == "__main__":
    main()
