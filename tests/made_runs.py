"""Run folders written by hand, so that tests of reports know every number in them and train nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fednoil import metrics
from fednoil.config import load_config, merge, to_toml
from fednoil.history import RoundRecord
from fednoil.labels import Labels, Truth
from fednoil.manifest import write_manifest
from fednoil.report.results import Results, load_results
from fednoil.report.runs import RecordedRun, load_run
from fednoil.study.places import values_of
from fednoil.study.report import STUDY


def results_of(*paths: Path) -> Results:
    """What a report of the study makes of run folders or records."""
    return load_results(paths, STUDY)


def round_record(number: int, **known: Any) -> RoundRecord:
    """A round's record with what is known of it."""
    work = {"local_epochs": 1, "train_batches": 1, "selected": [0], "bytes_down": 0, "bytes_up": 0, "wall_s": 1.0}
    return RoundRecord(round=number, **work | known)


def change_rounds(run: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Change what a run has recorded of its rounds."""
    file = run / "rounds.jsonl"
    records = change([json.loads(line) for line in file.read_text().splitlines()])
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


CLEAN_SHARES = (0.9, 0.6, 0.3)  # of the three clients of a made run


def made_run(
    path: Path,
    method: str = "fednoil-logarithm",
    accuracies: Sequence[float] = (50, 60, 70, 71, 72, 71, 72, 73),
    seed: int = 0,
    *,
    where: tuple[str, str, str, str] = ("paper", "fashion-mnist", "iid", "symmetric-high"),
    changes: dict[str, dict[str, Any]] | None = None,
    clients: bool = False,
    finished: bool = True,
    batches: float = 100,
    precision: str | None = None,
    known: dict[str, Any] | None = None,
    about: dict[str, Any] | None = None,
    **figures: float,
) -> Path:
    """A folder with configuration, records, summary (`known` added) and environment (`about` added, if there is any);
    with `clients` also noise, scores and predicted labels."""
    rounds = len(accuracies)
    base = merge(values_of(*where, method), {"run": {"seed": seed}})
    config = load_config(merge(base, changes or {}))
    records = []
    for i, accuracy in enumerate(accuracies, start=1):
        record = {"round": i, "test_accuracy": float(accuracy), "test_loss": 1.0, "train_loss": 1.0, "local_epochs": 2}
        record |= {"train_batches": round(batches * i), "selected": [0, i % 3], "bytes_down": 10, "bytes_up": 5}
        record |= {"wall_s": 1.5, **figures}
        if clients:
            record["client_scores"] = [10 * share for share in CLEAN_SHARES]  # ten samples each
        records.append(record)
    path.mkdir(parents=True)
    (path / "config.toml").write_text(to_toml(config))
    (path / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    if finished:
        summary = metrics.summarise([RoundRecord.from_json(r) for r in records], ()) | {
            "config_hash": config.hash(),
            "noise_hash": str(path),
            **(known or {}),
        }
        (path / "summary.json").write_text(json.dumps(summary))
    if clients:
        _write_clients(path)
    if clients or precision or about:
        environment = {"python": "3.11", "packages": {"fednoil": "0.1.0"}, "device": "cpu"} | (about or {})
        (path / "environment.json").write_text(
            json.dumps(environment | ({"precision": precision} if precision else {}))
        )
    assert rounds == len(records)
    return path


def thousand(folder: Path) -> list[RecordedRun]:
    """Twenty seeds of fifty variants of a method, 150 rounds each."""
    source = load_run(made_run(folder / "a", accuracies=list(np.linspace(20, 80, 150)), clients=True), STUDY)
    runs = []
    for number in range(1000):
        values = {**source.values, "run": {**source.values["run"], "seed": number % 20}}
        values["privacy"] = {**values["privacy"], "scores": 0.5 + number // 20}
        place = replace(source.place, method_changes=(f"privacy.scores={number // 20}",))
        runs.append(replace(source, values=values, place=place, path=Path(f"runs/{number}")))
    return runs


def site_run(path: Path, samples: dict[str, int], seed: int = 0) -> Path:
    """A federation's run on its sites' own data; the last site came late and sent no score."""
    changes = {"data": {"name": "sites"}, "noise": {"kind": "auto"}}
    about = {"command": ["fednoil", "federation", "run", "demo", "--set", "a='b c'"]}
    run = made_run(path, accuracies=[60, 70], seed=seed, changes=changes, about=about)
    names = list(samples)
    roster = {"run": "0" * 32, "clients": {n: k for k, n in enumerate(names)}, "sizes": samples, "agreement": {}}
    (run / "roster.json").write_text(json.dumps(roster | {"founders": names[:-1]}))
    records = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    for record, share in zip(records, (0.4, 0.6), strict=True):
        record["scores"] = {name: share * samples[name] for name in names[:-1]}
        record["held_out"] = {names[0]: {"accuracy": 100 * share, "samples": 5, "loss": 1.0}}
    (run / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return run


def _write_clients(path: Path) -> None:
    """Three clients with ten samples each; of their given labels 9, 6 and 3 are right."""
    parts = tuple(np.arange(10) + 10 * k for k in range(3))
    true = tuple(np.arange(10) % 4 for _ in range(3))
    given = tuple(
        np.where(np.arange(10) < 10 * share, t, (t + 1) % 4) for share, t in zip(CLEAN_SHARES, true, strict=True)
    )
    write_manifest(path / "noise.parquet", parts, Labels(given), Truth(true), "data", 4)
    (path / "confusion.json").write_text(json.dumps(metrics.agreement(true, given, 4)))
