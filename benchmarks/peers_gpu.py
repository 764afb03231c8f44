"""Ours, a plain PyTorch loop, pfl, BlazeFL, FedJAX and Flower's simulation on one GPU; fails below 5 × and 3 ×.

FedAvg on CIFAR-10, 100 clients of 500 images, ten a round, five epochs, batches of 50, with the CNN and the ResNet18
(`benchmarks/peer_work.py`); how each peer is used is in `benchmarks/peer_engines.py`. CIFAR-10 is read from
$FEDNOIL_DATA; without it the images are noise, and accuracies aren't reported. Rounds of engines that can share a
process alternate; FedJAX and Flower have one of their own. A peer that isn't installed is listed with the reason.

    python benchmarks/peers_gpu.py [--seconds 150] [--json benchmarks/results/peers-gpu.json]

Peers that can't be had beside a GPU can be timed on a CPU, in smaller rounds, against the loop with one thread:

    python benchmarks/peers_gpu.py --device cpu --task cnn --engines fednoil plain flower --samples 100 --epochs 1
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from floor import check_device, device_name
from peer_work import SIZES
from written import write

HERE = Path(__file__).resolve().parent
GOALS = {"cnn": 5.0, "resnet18": 3.0}  # times as fast as the best peer
TOGETHER = ("fednoil", "plain", "plain-bfloat16", "pfl", "blazefl", "plain-compiled")  # can share a process
ENGINES = (*TOGETHER, "fedjax", "flower")
NEEDS = {"pfl": ("pfl",), "blazefl": ("blazefl",), "fedjax": ("jax", "haiku", "fedjax"), "flower": ("flwr", "ray")}
SHARES = {"cnn": 2, "resnet18": 4, "alone": 1}  # of the time, for the engines together and for each one alone


def missing(engine: str) -> str | None:
    """Why an engine can't be measured here."""
    lacking = [name for name in NEEDS.get(engine, ()) if importlib.util.find_spec(name) is None]
    return f"not installed here: {', '.join(lacking)}" if lacking else None


def run(given: argparse.Namespace, task: str, engines: list[str], seconds: float, most: float) -> dict[str, Any]:
    """One process of `peer_rounds.py`, which is asked to end after some seconds, and is ended after `most`."""
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder) / "found.json", Path(folder) / "log"
        sizes = [f"--{size}={value}" for size in SIZES if (value := getattr(given, size))]
        options = [f"--task={task}", f"--device={given.device}", f"--rounds={given.rounds}", f"--seconds={seconds}"]
        options += [f"--at-once={given.at_once}", f"--json={file}", *sizes, "--engines", *engines]
        command, why = [sys.executable, str(HERE / "peer_rounds.py"), *options], "no time left"
        env = {**os.environ, "PYTHONWARNINGS": "ignore"}
        with log.open("w") as out, subprocess.Popen(
            command, stdout=out, stderr=out, env=env, start_new_session=True
        ) as process:  # fmt: skip
            try:
                if process.wait(timeout=max(1.0, most)):
                    why = "its process failed"
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # and what it has started
        found = json.loads(file.read_text()) if file.is_file() else {"engines": {}}
        if lost := [name for name in engines if not found["engines"].get(name, {}).get("seconds")]:
            print(f"{task} {' '.join(lost)}: the end of the output is\n{log.read_text()[-3000:]}", file=sys.stderr)
        for name in lost:
            found["engines"].setdefault(name, {}).setdefault("failed", why)
        return found


def gather(given: argparse.Namespace) -> list[dict[str, Any]]:
    """All processes, one after another, each with its share of the time that is left; a row for each engine."""
    reasons = {name: why for name in given.engines if (why := missing(name))}
    there = [name for name in given.engines if name not in reasons]
    together = [name for name in there if name in TOGETHER]
    groups = [group for group in [together, *([name] for name in there if name not in TOGETHER)] if group]
    plan = [(task, group, SHARES["alone" if group != together else task]) for task in given.task for group in groups]
    found: dict[str, Any] = {
        task: {"engines": {name: {"failed": why} for name, why in reasons.items()}} for task in given.task
    }
    until = time.monotonic() + given.seconds
    while plan:
        left = until - time.monotonic()
        task, group, share = plan[0]
        new = run(given, task, group, left * share / sum(share for *_, share in plan), left)
        found[task] |= new | {"engines": found[task]["engines"] | new["engines"]}
        print(f"{task}: {' '.join(group)} done, {until - time.monotonic():.0f} s left", flush=True)
        plan.pop(0)
    return [row for task in given.task for row in table(task, given.engines, found[task])]


def table(task: str, names: list[str], found: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each engine; accuracies after as many rounds as all have played."""
    engines, rows = found["engines"], []
    timed = {name: statistics.median(engines[name]["seconds"]) for name in names if engines[name].get("seconds")}
    played = min((len(engines[name]["accuracies"]) for name in timed), default=0)
    for name in names:
        engine, row = engines[name], {"task": task, "engine": name}
        if name not in timed:
            rows.append(row | {"failed": engine["failed"]})
            continue
        row |= {
            "rounds": len(engine["seconds"]),
            "ms_a_round": 1000 * timed[name],
            "client_steps_a_second": found["steps"] / timed[name],
            "images_a_second": found["images"] / timed[name],
            "peak_gib": engine["bytes"] / 2**30,
            "equal": engine["equal"],
            "accuracy": engine["accuracies"][played - 1] if found["real"] else None,
            "accuracy_after": played,
        }
        if "fednoil" in timed:
            row["ours_is_times_as_fast"] = timed[name] / timed["fednoil"]
        rows.append(row)
    return rows


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """For each task how many times as fast ours is as the best of the others; 0 where ours wasn't measured."""
    found = {}
    for task in {row["task"]: None for row in rows}:
        ours = any(row["task"] == task and row["engine"] == "fednoil" and "failed" not in row for row in rows)
        others = [row for row in rows if row["task"] == task and row["engine"] != "fednoil"]
        found[task] = min((row.get("ours_is_times_as_fast", 1e9) for row in others), default=0.0) if ours else 0.0
    return found


def shown(row: dict[str, Any]) -> str:
    name = f"{row['task']:9} {row['engine']:15}"
    if "failed" in row:
        return f"{name} not measured: {row['failed']}"
    accuracy = "" if row["accuracy"] is None else f", {row['accuracy']:.1f} % after {row['accuracy_after']} rounds"
    times = f", ours is {row['ours_is_times_as_fast']:.2f} × as fast" if "ours_is_times_as_fast" in row else ""
    return (
        f"{name} {row['ms_a_round']:9.1f} ms a round, {row['client_steps_a_second']:8.0f} client-steps/s, "
        f"{row['images_a_second']:9.0f} images/s, {row['peak_gib']:5.2f} GiB, "
        f"bits {'equal' if row['equal'] else 'differ'}{accuracy}{times}"
    )


def versions() -> dict[str, str]:
    names = {"torch", "jax", *(name for needed in NEEDS.values() for name in needed)} - {"haiku"}
    return {name: metadata.version(name) for name in sorted(names) if importlib.util.find_spec(name)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--task", nargs="+", choices=list(GOALS), default=list(GOALS))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--rounds", type=int, default=3, help="that are timed, if there is time for them")
    parser.add_argument("--seconds", type=float, default=150, help="for everything")
    parser.add_argument("--at-once", type=int, default=10, help="clients at once in BlazeFL and Flower")
    for size in SIZES:
        parser.add_argument(f"--{size}", type=int, help="another size; of clients and samples on noise images")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    given = parser.parse_args()
    check_device(given.device)
    if given.device == "cpu":
        torch.set_num_threads(1)
    rows = gather(given)
    print(*map(shown, rows), sep="\n")
    if given.json:
        sizes = {size: value for size in SIZES if (value := getattr(given, size))}
        about = {"device": device_name(given.device), "at_once": given.at_once, "sizes": sizes, "versions": versions()}
        write(given.json, {**about, "rows": rows})
    best = ratios(rows)
    print(*(f"{task}: {times:.2f} × the best peer, goal {GOALS[task]} ×" for task, times in best.items()), sep="\n")
    if given.device == "cuda" and any(times < GOALS[task] for task, times in best.items()):
        sys.exit("below the goal")


if __name__ == "__main__":
    main()
