"""Do presets still give the same results to the bit? Plays short runs on a CPU with one thread and prints a table.

    python tools/same_results.py                                        # the table, as CSV
    python tools/same_results.py --against tools/same_results.csv       # what differs from it
    python tools/same_results.py --only 'small/iid/*' --against tools/same_results.csv

A case is a preset made short by `--set`s. Its row has 16 digits of the SHA-256 of the final model's tensors (whatever
their names) and the test accuracy of each round, read from the run folder that the command `fednoil run` leaves. Bits
depend on the processor and on PyTorch's version: on another machine make a table of an earlier commit first, with
`PYTHONPATH` at its `src`, and compare with that.
"""

from __future__ import annotations

import argparse
import csv
import fnmatch
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import safetensors.torch

from fednoil.servers.cfl import Cfl

METHODS = (
    *("fedavg", "fedprox", "fedavg+dividemix", "fedavg+josrc", "apfl+dividemix", "apfl+josrc", "krum+dividemix"),
    *("krum+josrc", "cfl+dividemix", "cfl+josrc", "centralized+dividemix", "centralized+josrc", "fednoil-cosine"),
    *("fednoil-logarithm", "fednoil-auto", "fednoil-plus", "fednoil-uniform-clients"),
    *("fednoil-uniform-local", "fednoil-no-ssl"),
)
SETTINGS = ("iid", "non-iid", "100-clients", "imbalanced")
NOISES = ("symmetric-high", "symmetric-low", "pair-high", "pair-low")
SERVERS = ("apfl", "cfl", "krum", "multikrum", "median", "trimmed_mean", "rfa")  # with the plain learner
LEARNERS = ("coteaching", "jocor")  # in no preset

DECAYING = ("schedule.epochs=4", "schedule.t_min=2")
CONSTANT = ("schedule.epochs=3",)
PSEUDO_LABELS = ("learner.xi=0.2",)  # else a model of two rounds is never certain enough for one
SMALL = ("partition.samples_per_client=60",)
CHANGED = {"non-iid": "b36f676: Dirichlet splits have no cap"}  # settings whose results a commit has changed on purpose
DEFAULT = "2db8808: fednoil-plus by the size of the network"


class Splitting(Cfl):
    """Splits its clusters from round 2 on."""

    first_split, eps1, eps2 = 1, 100.0, 0.0


@dataclass(frozen=True)
class Row:
    """What a case gave. `accuracies` are those of its rounds, in percent."""

    case: str
    model_sha256: str
    accuracies: str
    note: str = ""


@dataclass(frozen=True)
class Case:
    """A preset and the keys that make it short."""

    preset: str
    sets: tuple[str, ...]
    name: str
    note: str = ""  # the last commit that changed it on purpose


def cases() -> list[Case]:
    """All cases, the demos first."""
    demos = [
        Case("demo", ("train.rounds=2", *CONSTANT), "demo", DEFAULT),
        Case("demo/fednoil", ("train.rounds=2", *DECAYING, *PSEUDO_LABELS), "demo/fednoil xi=0.2"),
        Case("demo/fednoil", ("train.rounds=2", *DECAYING, "run.seed=1"), "demo/fednoil"),
        Case("demo/fedavg", ("train.rounds=2", "schedule.epochs=4", "schedule.r_min=2"), "demo/fedavg"),
    ]
    plain = ("train.rounds=3", *CONSTANT, *SMALL)
    servers = [Case("demo/fedavg", (*plain, f"server.name={name}"), f"demo/fedavg server={name}") for name in SERVERS]
    learners = [Case("demo/fedavg", (*plain, f"learner.name={n}"), f"demo/fedavg learner={n}") for n in LEARNERS]
    split = ("server.name=same_results:Splitting",)
    others = [
        Case("demo/fedavg", (*plain, *split), "demo/fedavg server=cfl, split"),
        Case("demo/fedavg", (*plain, "data.validation=0.2"), "demo/fedavg validation=0.2"),
        Case(
            "demo/fednoil",
            ("train.rounds=2", "learner.frac=[0.5, 0.2]", *DECAYING, *SMALL),
            "demo/fednoil frac by group",
        ),
        _small("iid", "clean", "fedavg"),
        _small("iid", "clean", "fednoil-logarithm"),
    ]
    methods = [_small("iid", "symmetric-high", method) for method in METHODS]
    grid = [_small(s, n, m) for s in SETTINGS for n in NOISES for m in ("fedavg", "fednoil-logarithm")]
    return list({case.name: case for case in (*demos, *servers, *learners, *others, *methods, *grid)}.values())


def _small(setting: str, noise: str, method: str) -> Case:
    name = f"small/{setting}/{noise}/{method}"
    sets = ["train.rounds=2", *SMALL]
    if "dividemix" in method or "josrc" in method:
        sets[0] = "train.rounds=4"  # two of them are their warm-up
    if not method.startswith("centralized"):
        sets += DECAYING if method.startswith("fednoil") and method != "fednoil-plus" else CONSTANT
    if method.startswith("fednoil") and method not in ("fednoil-no-ssl", "fednoil-plus"):
        sets += PSEUDO_LABELS
    if setting == "imbalanced":
        sets.append("run.seed=2")  # whose first clients differ between the draw by score and the uniform one
    return Case(name, tuple(sets), name, DEFAULT if method == "fednoil-plus" else CHANGED.get(setting, ""))


def play(case: Case) -> Row:
    """Run the case in a process and a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        sets = [word for pair in ("run.device=cpu", *case.sets) for word in ("--set", pair)]
        done = subprocess.run(
            [sys.executable, "-m", "fednoil", "run", case.preset, *sets, "--out", str(out), "--quiet"],
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": _path()},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
            return Row(case.name, "", f"failed: {last[0]}", case.note)
        rounds = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
        accuracies = " ".join(repr(record["test_accuracy"]) for record in rounds)
        return Row(case.name, _digest(out / "model.safetensors"), accuracies, case.note)


def _path() -> str:
    """The import path of a run, with this folder: for `Splitting`."""
    return os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])


def _digest(path: Path) -> str:
    tensors = safetensors.torch.load_file(path).values()
    each = [hashlib.sha256(f"{t.dtype} {tuple(t.shape)}".encode() + t.numpy().tobytes()).digest() for t in tensors]
    return hashlib.sha256(b"".join(sorted(each))).hexdigest()[:16]


def differences(rows: list[Row], before: dict[str, Row]) -> Iterator[str]:
    """A line for each row that isn't as before."""
    for row in rows:
        old = before.get(row.case)
        if old is None:
            yield f"{row.case}: not in the table"
        elif (old.model_sha256, old.accuracies) != (row.model_sha256, row.accuracies):
            what = "accuracies" if old.accuracies != row.accuracies else "model, with the same accuracies"
            yield f"{row.case}: {what}: {old.accuracies} -> {row.accuracies}"


def read(path: Path) -> dict[str, Row]:
    """A table by case; lines that begin with # are comments."""
    with path.open(newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return {row["case"]: Row(**row) for row in rows}


def main() -> int:
    """Play the cases; print the table, or what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="table to compare with")
    parser.add_argument("--only", default="*", help="pattern of the cases to play")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--comment", default="", help="first line of the table, such as the commit")
    options = parser.parse_args()
    chosen = [case for case in cases() if fnmatch.fnmatch(case.name, options.only)]
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(play, chosen))
    if options.against is None:
        if options.comment:
            print(f"# {options.comment}")
        table = csv.DictWriter(sys.stdout, [field.name for field in fields(Row)], lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(row) for row in rows)
        return 0
    lines = list(differences(rows, read(options.against)))
    print("\n".join([*lines, f"{len(rows)} cases, {len(lines)} differ"]))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
