"""A real federation on this machine, from start to stop: `make federation`.

Three sites get 1,000 images each of the embedded data, with 10, 40 and 70 % wrong labels, in a file of their own. A
SuperLink with TLS, three SuperNodes with keys, FedNoiL for a few rounds; then what the server could see of each site's
noise by its audit, next to the truth, and everything is stopped. A folder in which it was shown before is used again;
nothing that it hasn't written is touched.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from fednoil.cli.tables import show
from fednoil.config.loading import load_config
from fednoil.data import DataConfig, load
from fednoil.flower.credentials import OURS
from fednoil.noise import apply
from fednoil.seeds import Seed

SITES = {"clinic-north": 0.1, "clinic-south": 0.4, "clinic-west": 0.7}


def deal(folder: Path) -> dict[str, str]:
    """Write one .npz a site; name -> what --site takes."""
    dataset, rng = load(DataConfig()), np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    parts = np.array_split(rng.permutation(len(dataset.train)), len(SITES))
    held_out = np.array_split(rng.permutation(len(dataset.test)), len(SITES))
    noise = load_config({"noise": {"kind": "symmetric", "ratios": list(SITES.values())}}).noise
    labels, _ = apply(dataset, tuple(parts), noise, Seed(0))
    for place, name in enumerate(SITES):
        np.savez(
            folder / f"{name}.npz",
            x_train=dataset.train.images[parts[place], 0],
            y_train=labels.given[place],
            x_test=dataset.test.images[held_out[place], 0],
            y_test=dataset.test.labels[held_out[place]],
            class_names=np.array(dataset.class_names),
        )
    return {name: f"npz:{folder / name}.npz" for name in SITES}


def check(folder: Path) -> None:
    """Refuse a folder with anything in it that this program hasn't made."""
    known = {*OURS, ".gitignore", "data", "run", *(f"{name}.npz" for name in SITES)}
    found = [*folder.glob("*"), *folder.glob("data/*")]
    strange = [path for path in found if path.name not in known]
    if folder.exists() and (strange or not folder.is_dir()):
        sys.exit(f"{strange[0] if strange else folder} is not this demo's; give a new or empty --folder")


def fednoil(*arguments: str) -> None:
    """Show a command and run it."""
    print("$ fednoil", " ".join(arguments), flush=True)
    subprocess.run([sys.executable, "-m", "fednoil", *arguments], check=True)


def estimates(run: Path) -> list[dict[str, object]]:
    """What the server knows of each site at the end: the noise that its audit found, and its held-out accuracy."""
    last = json.loads((run / "rounds.jsonl").read_text().splitlines()[-1])
    found = json.loads((run / "summary.json").read_text())["noise_ratios"]
    return [
        {
            "node": name,
            "wrong": 100 * SITES[name],
            "estimate": 100 * found[name] if name in found else None,
            "accuracy": last["held_out"].get(name, {}).get("accuracy"),
        }
        for name in SITES
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/federation"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    folder = options.folder
    check(folder)
    if (folder / "federation.json").exists():
        fednoil("federation", "down", str(folder))
    sites = [part for name, data in deal(folder / "data").items() for part in ("--site", f"{name}={data}")]
    changes = [
        "data.name=sites",
        "sampling.fraction=0.67",
        "learner.frac=auto",
        f"train.rounds={options.rounds}",
        "schedule.name=constant",
        f"schedule.epochs={options.epochs}",
        f"federation.min_nodes={len(SITES)}",
        "federation.timeout=300",
    ]
    try:
        fednoil("federation", "up", str(folder), *sites)
        sets = [part for change in changes for part in ("--set", change)]
        where = ["--federation", str(folder), "--out", str(folder / "run"), "--force"]
        fednoil("federation", "run", "demo", *where, *sets)
    finally:
        fednoil("federation", "down", str(folder))
    columns = {"node": "node", "wrong": "wrong labels %", "estimate": "estimated %", "accuracy": "held-out accuracy %"}
    show(estimates(folder / "run"), columns, "What each node's audit reported to the server", as_json=False)
    fednoil("compare", str(folder / "run"))


if __name__ == "__main__":
    main()
