"""Where the time of a command goes outside its rounds, against a bare `import torch` in a process of its own.

A preset is run in a new process as `fednoil run --quiet` would, with the clock read between the stages. By default its
rounds are few and short, because they are not what is measured; the first one loads what a GPU needs. `--cold` is the
start of a machine on which nothing is cached: no compiled modules of Python, no decoded data. `--kernels ahead` has the
first round of a GPU compile all kernels, side by side as a command does; `singly` one after another.

    python benchmarks/start.py [demo] [--rounds 2] [--epochs 1] [--device cpu] [--repeat 3] [--cold] [--kernels ahead]
                               [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LAST = "the process ends"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", nargs="?", default="demo")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--kernels", choices=("cached", "ahead", "singly"), default="cached")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        timed_run(options, options.inside)
        return 0
    rows = [measured(sys.argv[1:], options) for _ in range(options.repeat)]
    best = min(rows, key=lambda row: row["outside the rounds" if options.kernels == "cached" else "first round"])
    for name, seconds in best.items():
        print(f"{name:<28} {seconds:7.2f} s   {seconds / best['bare import torch']:6.2f} of import torch")
    if options.json:
        about = {name: getattr(options, name) for name in ("preset", "device", "cold", "kernels")}
        options.json.write_text(json.dumps({**about, "runs": rows}, indent=1) + "\n")
    return 0


def measured(arguments: list[str], options: argparse.Namespace) -> dict[str, float]:
    """Seconds of each stage of one run, of all but the rounds, and of `import torch` beside it."""
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ)
        if options.kernels != "cached":
            environment["TRITON_CACHE_DIR"] = f"{folder}/kernels"
        if options.cold:
            own = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": folder, "FEDNOIL_CACHE": f"{folder}/cache"}
            environment |= own
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", "import torch"], env=environment, check=True)
        bare, began = time.monotonic() - began, time.monotonic()
        inside = [sys.executable, __file__, *arguments, "--inside", folder]
        measured = subprocess.run(inside, env=environment, check=True, stdout=subprocess.PIPE).stdout
        stamps = [*json.loads(measured.splitlines()[-1]), [LAST, time.monotonic()]]
    seconds: dict[str, float] = {}
    for name, stamp in stamps:
        seconds[name] = seconds.get(name, 0.0) + stamp - began
        began = stamp
    outside = sum(spent for name, spent in seconds.items() if "round" not in name)
    return {**seconds, "outside the rounds": outside, "bare import torch": bare}


def timed_run(options: argparse.Namespace, folder: Path) -> None:
    """Run the preset in this process and print when each stage was over, by the machine's clock."""
    stamps: list[tuple[str, float]] = []

    def over(stage: str) -> None:
        stamps.append((stage, time.monotonic()))

    over("Python starts")
    import torch

    over("import torch")
    from fednoil import runner

    importlib.import_module("fednoil.cli.main")  # what `fednoil run` imports besides
    importlib.import_module("fednoil.reporters")
    if options.kernels == "singly":
        setattr(importlib.import_module("fednoil.kernels.ahead"), "available", lambda: False)  # noqa: B010
    from fednoil.config import load_config
    from fednoil.study import preset

    over("import fednoil")

    class Engine(runner.Simulation):
        def experiment(self, config: Any, out: Path, *, going_on: bool) -> Any:
            experiment = super().experiment(config, out, going_on=going_on)
            over("data, clients, model")
            return experiment

        def executor(self, experiment: Any, out: Path, device: torch.device) -> Any:
            executor = super().executor(experiment, out, device)
            if device.type == "cuda":
                torch.cuda.synchronize()
            over("first files, executor")
            return executor

    class Reporter(runner.Silent):
        def round(self, record: Any) -> None:
            over("first round" if record.round == 1 else "other rounds")

        def finish(self, summary: dict[str, Any], folder: Path) -> None:
            over("last files")

    values = preset(options.preset)
    values["train"] = {**values.get("train", {}), "rounds": options.rounds}
    values["schedule"] = {"name": "constant", "epochs": options.epochs}
    values["run"] = {**values.get("run", {}), "device": options.device}
    runner.run(load_config(values), folder / "run", Reporter(), engine=Engine())
    print(json.dumps(stamps))
    gc.freeze()  # as the command does before it ends


if __name__ == "__main__":
    sys.exit(main())
