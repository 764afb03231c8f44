"""The study of CIFAR: which reading gives the paper's numbers, what helps, and what clean labels ask for.

    python experiments/cifar/study.py list
    python experiments/cifar/study.py run published lr-cosine wd-5e-4+lr-cosine --rounds 40 --out runs/cifar
    python experiments/cifar/study.py run --group readings --rounds 40 --seconds 1500 --lost 2 --out runs/cifar
    python experiments/cifar/study.py collect runs/cifar
    python experiments/cifar/study.py table

`run` plays all variants in this process, one after another, and can be stopped at any moment: it goes on where it was.
Several processes may share --out: each run belongs to one of them. `--seconds` stops in time, within a round if need
be, which is then played again. `--lost` gives up a run whose agreement with the validation labels is so many points
below that of `published` (`no-ssl` for what is joined to it) in the same setting and seed, over the last five rounds,
from round 15 on. `collect` takes run folders into results.csv and curves.csv, `table` writes README.md's tables and
draws the curves from these.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from table import CURVES, RESULTS, write_page
from variants import GROUPS, PLACES, Variant, composed, configured, reference, sets_of

from fednoil.config import Config, load_config, read_toml
from fednoil.errors import UserError
from fednoil.records.folder import RunFolder
from fednoil.runner import Silent, run

FIGURES = (
    *("val_accuracy", "test_accuracy", "last_accuracy", "label_precision", "pseudo_accuracy", "pseudo_accept"),
    "lost_classes",
)
NAMES = ("setting", "variant", "seed", "rounds", "full")
FIRST_JUDGED = 15  # round from which a run may be given up


class Lost(Exception):
    """The run is too far behind to be worth its time."""


class Enough(BaseException):
    """The run has as many rounds as were asked for now."""


class TimeUp(BaseException):
    """The time of all runs is used up. No error: what tries another way after one must let it through."""


class Watcher(Silent):
    """Tells of a run's rounds, and stops it after round `until`, or when it is lost against `rival`, another run's
    agreement by round."""

    def __init__(self, name: str, rival: Callable[[], list[float]], lost: float | None, until: int | None) -> None:
        self.name, self.rival, self.lost, self.until = name, rival, lost, until
        self.agreed: list[float] = []

    def start(self, experiment: Any, done: list[dict[str, Any]]) -> None:
        self.agreed = [r["val_accuracy"] for r in done if "val_accuracy" in r]
        if done:
            print(f"  goes on after round {len(done)}", flush=True)
        if self.until is not None and len(done) >= self.until:
            raise Enough

    def round(self, record: dict[str, Any]) -> None:
        shown = [f"{name} {record[name]:.2f}" for name in FIGURES if name in record]
        print(f"  {self.name} round {record['round']}: {', '.join(shown)}, {record['wall_s']:.1f} s", flush=True)
        if record["round"] == self.until:
            raise Enough
        if "val_accuracy" in record:
            self.agreed.append(record["val_accuracy"])
        count = len(self.agreed)
        if self.lost is None or count < FIRST_JUDGED:
            return
        rival = self.rival()  # maybe another process is still at it
        if count <= len(rival):
            behind = fmean(rival[count - 5 : count]) - fmean(self.agreed[-5:])
            if behind > self.lost:
                raise Lost(f"{behind:.1f} points behind in round {count}")


def folder_name(setting: str, variant: str, seed: int, rounds: int, full: bool) -> str:
    return f"{setting}--{variant}--seed{seed}--{rounds}{'--full' if full else ''}"


@contextlib.contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """End the block when its time is up, between two instructions; a record and its checkpoint are made whole first.

    Not by way of a Ctrl-C, which a job in the background may ignore.
    """
    if seconds is None:
        yield
        return
    if seconds <= 0:
        raise UserError(f"--seconds = {seconds:g}: give more than 0")

    def end(*_: object) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    except TimeUp:
        print("time is up; the same command goes on")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def play(args: argparse.Namespace) -> None:
    """Run what is asked for; a run that fails or is lost is told, and the next one begins."""
    names = [*args.names, *(v.name for group in args.group for v in GROUPS[group])]
    if not names:
        raise UserError("which variants? name some, or give --group; `study.py list` shows them")
    wanted = [  # all of them, before the first begins: a wrong key is told at once
        (setting, variant, configured(variant, PLACES[setting], seed, args.rounds, args.full, tuple(args.sets)))
        for seed in args.seeds
        for setting in args.setting
        for variant in map(composed, dict.fromkeys(names))
    ]
    failed = 0
    with time_limit(args.seconds):
        for setting, variant, config in wanted:
            try:
                play_one(args, setting, variant, config)
            except UserError as error:
                print(f"  failed: {error}")
                failed += 1
            gc.collect()  # graphs and networks of the last run
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
    if failed:
        raise UserError(f"{failed} of {len(wanted)} runs failed, see above")


def play_one(args: argparse.Namespace, setting: str, variant: Variant, config: Config) -> None:
    """One run, unless it is done; says what it is."""
    seed, rounds = config.run.seed, config.train.rounds
    folder = args.out / folder_name(setting, variant.name, seed, rounds, args.full)
    if (folder / "summary.json").is_file() or (folder / "lost.txt").is_file():
        print(f"{folder.name}: done before")
        if load_config(read_toml(folder / "config.toml")).hash() != config.hash():
            raise UserError(f"{folder} has other keys than are asked for now; choose another --out")
        return
    sets = (*sets_of(variant, PLACES[setting], args.rounds, args.full), *args.sets)
    print(f"{folder.name}: {' '.join(sets)}", flush=True)
    rival = args.out / folder_name(setting, reference(variant), seed, rounds, args.full)
    until = args.until if args.until is not None and args.until < rounds else None
    watcher = Watcher(variant.name, lambda: [] if rival == folder else agreed(rival), args.lost, until)
    try:
        run(config, folder, watcher, data_dir=args.data, resume=True)
    except Lost as error:
        (folder / "lost.txt").write_text(f"{error}\n")
        print(f"  given up: {error}")
    except Enough:
        print(f"  enough after round {args.until}; without --until it goes on")


def agreed(folder: Path) -> list[float]:
    """A run's agreement with validation labels, round by round, as far as it is."""
    if not (folder / "rounds.jsonl").is_file():
        return []
    return [r["val_accuracy"] for r in RunFolder(folder).records() if "val_accuracy" in r]


def collect(runs: Path) -> None:
    """Take the run folders below `runs` in, in place of what was there of the same name and keys."""
    results, curves = {row["run"]: row for row in rows(RESULTS)}, rows(CURVES)
    for folder in sorted(path.parent for path in runs.glob("*/rounds.jsonl")):
        records = RunFolder(folder).records()
        if not records:
            continue
        row = result(folder, records)
        results[row["run"]] = row
        curves = [other for other in curves if other["run"] != row["run"]]
        for record in records:
            figures = {name: f"{record[name]:.2f}" for name in FIGURES if name in record}
            curves.append({"run": row["run"], "round": str(record["round"]), **figures})
    write(RESULTS, results.values(), ["run", *NAMES, "planned", "given_up", *FIGURES, *FINAL, "seconds", *MADE])
    write(CURVES, curves, ["run", "round", *FIGURES])
    print(f"{len(results)} runs in {RESULTS.name}")


FINAL = ("final_test", "final_last")
MADE = ("device", "precision", "config_hash", "sets")


def result(folder: Path, records: list[dict[str, Any]]) -> dict[str, str]:
    """One line: what the run was, and the mean of each figure over its last ten rounds, or its last quarter."""
    setting, variant, seed, planned, *full = folder.name.split("--")
    environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    last = records[-max(1, min(10, int(planned) // 4)) :]
    means = {n: f"{fmean(r[n] for r in last):.2f}" for n in FIGURES if all(n in r for r in last)}
    lost = folder / "lost.txt"
    known = {name: str(environment.get(name, "")) for name in ("device", "precision")}
    other = other_keys(folder)
    return {
        "run": " ".join((folder.name, *other)),
        **dict(
            zip(NAMES, (setting, variant, seed.removeprefix("seed"), str(len(records)), str(bool(full))), strict=True)
        ),
        "planned": planned,
        "given_up": lost.read_text().strip() if lost.is_file() else "",
        **means,
        "final_test": f"{records[-1]['test_accuracy']:.2f}",
        **({"final_last": f"{records[-1]['last_accuracy']:.2f}"} if "last_accuracy" in records[-1] else {}),
        "seconds": f"{sum(r['wall_s'] for r in records):.1f}",
        **known,
        "config_hash": str(environment.get("config_hash", ""))[:12],
        "sets": " ".join((*composed(variant).sets, *other)),
    }


def other_keys(folder: Path) -> list[str]:
    """What a run has beyond its name: keys of `run --set`, or of a variant that was another one then.

    Of a file only its folder is told, which is the run it is from.
    """
    setting, variant, seed, planned, *full = folder.name.split("--")
    here = load_config(read_toml(folder / "config.toml"))
    known = configured(composed(variant), PLACES[setting], int(seed.removeprefix("seed")), int(planned), bool(full), ())
    if here.hash() == known.hash():
        return []
    ours, theirs = (c.model_dump(mode="json", exclude={"run", "federation"}) for c in (known, here))
    return [
        f"{section}.{key}={Path(value).parent.name if (section, key) == ('model', 'start') and value else value}"
        for section, keys in theirs.items()
        for key, value in keys.items()
        if ours[section].get(key) != value
    ]


def rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, lines: Iterable[dict[str, str]], columns: list[str]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(lines, key=lambda row: (row["run"], int(row.get("round", 0)))))


def show() -> None:
    """All variants with their sets and reasons, and the settings."""
    for group, variants in GROUPS.items():
        print(f"{group}:")
        for variant in variants:
            sets = " ".join(variant.sets) or "-"
            print(f"  {variant.name:24} {variant.method:18} {sets:64} {variant.why}")
    print("settings:", ", ".join(PLACES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="what there is to try")
    one = commands.add_parser("run", help="run variants")
    one.add_argument("names", nargs="*", metavar="VARIANT", help="one, or several joined by +")
    one.add_argument("--group", action="append", default=[], choices=list(GROUPS))
    one.add_argument("--setting", action="append", choices=list(PLACES), help="default: symmetric-high")
    one.add_argument("--seeds", type=int, nargs="+", default=[0])
    one.add_argument("--rounds", type=int, help="default: the preset's")
    one.add_argument("--until", type=int, metavar="ROUND", help="stop each run after this round; it can go on later")
    one.add_argument("--full", action="store_true", help="train on all samples: no validation, as the paper")
    one.add_argument("--set", dest="sets", action="append", default=[], metavar="KEY=VALUE", help="for all runs")
    one.add_argument("--out", type=Path, default=Path("runs/cifar"))
    one.add_argument("--data", type=Path, help="folder of the datasets")
    one.add_argument("--threads", type=int, default=1, help="of a CPU; more only pay with wide networks")
    one.add_argument("--seconds", type=float, help="stop when the runs have taken so long")
    one.add_argument("--lost", type=float, help="give up what is so many validation points behind 'published'")
    commands.add_parser("collect", help="take runs into results.csv").add_argument("runs", type=Path)
    commands.add_parser("table", help="write README.md's tables and the curves")
    args = parser.parse_args()
    try:
        if args.command == "list":
            show()
            sys.stdout.flush()  # here, where a reader that left is still noticed
        elif args.command == "run":
            args.setting = args.setting or ["symmetric-high"]
            torch.set_num_threads(args.threads)
            play(args)
        elif args.command == "collect":
            collect(args.runs)
        else:
            from pictures import draw_all  # with Matplotlib, which runs don't need

            results, curves = rows(RESULTS), rows(CURVES)
            write_page(results, curves)
            print("drawn:", ", ".join(f"{name}.png" for name in draw_all(results, curves)))
    except UserError as error:
        sys.exit(f"study.py: {error}")
    except BrokenPipeError:  # as `list | head` leaves: nobody reads what is still in the buffer
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
