"""Every row of the paper's Table 1 on Fashion-MNIST, one run after another; what has been done is skipped or resumed.

    python experiments/baselines/run.py [--rounds 30] [--only WORD] [--noise symmetric-high ...] [--record] [--list]

The order is that of the noises, and in each the paper's rows. A run that fails is told and the next one begins.
Each run is `fednoil run <preset> --resume --out <runs>/<setting>--<noise>--<method>`, so stopping this program (Ctrl-C
or a limit of time) and starting it again with the same options goes on where it was. `--record` takes each finished run
into `records/`, from which `table.py` makes README.md; `recorded.py` does so with an unfinished one.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
from pathlib import Path

from recorded import add

from fednoil.errors import UserError
from fednoil.paper import DATASETS, METHODS, cells, noise_name, preset_of

NOISES = ("symmetric-high", "pair-high", "symmetric-low")


def presets(dataset: str, setting: str, noise: str) -> list[str]:
    """The presets of the rows of Table 1 in one column, in the paper's order."""
    wanted = [
        cell
        for cell in cells()
        if cell.table == "1"
        and DATASETS[cell.dataset] == dataset
        and cell.setting == setting
        and noise_name(cell.noise, cell.mode) == noise
    ]
    order = list(METHODS)
    return [preset_of(cell) for cell in sorted(wanted, key=lambda cell: order.index(cell.method))]


def folder_of(preset: str, runs: Path) -> Path:
    _, _, setting, noise, method = preset.split("/")
    return runs / f"{setting}--{noise}--{method}"


def command_of(preset: str, args: argparse.Namespace) -> list[str]:
    """The command of a row; `--rounds` is for federations, since a centralised round is an epoch."""
    changes = list(args.changes)
    if args.rounds is not None and "/centralized" not in preset:
        changes.append(f"train.rounds={args.rounds}")
    command = ["fednoil", "run", preset, "--resume", "--out", str(folder_of(preset, args.runs))]
    return [*command, "--device", args.device, *(part for change in changes for part in ("--set", change))]


def run(command: list[str]) -> int:
    """Its exit status; a Ctrl-C is the run's own to answer, which first writes its checkpoint."""
    process = subprocess.Popen([sys.executable, "-m", *command])
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            return process.wait()


def record(folder: Path) -> None:
    """Take a run in; one that `--set` has made another is told and left out."""
    try:
        add(folder)
    except UserError as error:
        print(f"not recorded: {error}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="fashion-mnist", choices=list(DATASETS.values()))
    parser.add_argument("--setting", default="iid", choices=["iid", "non-iid"])
    parser.add_argument("--noise", nargs="+", default=list(NOISES))
    parser.add_argument("--only", default="", help="run methods whose name contains this")
    parser.add_argument("--rounds", type=int, help="rounds of the federated rows; else the paper's")
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--runs", type=Path, default=Path("runs/baselines"), help="folder for the runs")
    parser.add_argument("--record", action="store_true", help="take each finished run into records/")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--list", action="store_true", help="print the commands and run nothing")
    args = parser.parse_args()
    rows = [preset for noise in args.noise for preset in presets(args.dataset, args.setting, noise)]
    rows = [preset for preset in rows if args.only in preset.rsplit("/", 1)[1]]
    if not rows:
        sys.exit(f"no row of Table 1 in {args.setting} {' '.join(args.noise)} has '{args.only}' in its method's name")
    failed = []
    for place, preset in enumerate(rows, start=1):
        command = command_of(preset, args)
        print(f"[{place}/{len(rows)}] {' '.join(command)}", flush=True)
        if args.list:
            continue
        status = run(command)
        if status in (128 + signal.SIGINT, 128 + signal.SIGTERM):
            sys.exit(status)
        if status:
            failed.append(preset)
        elif args.record:
            record(folder_of(preset, args.runs))
    if failed:
        sys.exit(f"{len(failed)} of {len(rows)} runs failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
