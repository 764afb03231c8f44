"""Run folders as values: what a report needs of each run, read once.

A folder may be incomplete (experiments keep only configuration, records and summary) or unfinished. What is missing is
absent in the report; a folder that can't be read is left out, with the reason.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fednoil import metrics
from fednoil.config import load_config, read_toml
from fednoil.config.axes import own_code
from fednoil.errors import UserError
from fednoil.history import ACCURACY, RoundRecord
from fednoil.records.files import read_json
from fednoil.records.folder import CONFUSION, MEASURES, Roster, RunFolder
from fednoil.records.older import in_todays_keys, lost_settings
from fednoil.report.checks import Confusion, Environment, MeasuresFile, Summary, check, check_rounds
from fednoil.report.clients import Clients, simulated_clients, site_clients, tested
from fednoil.report.hook import Study
from fednoil.report.places import Place, method_key, own_place

CURVES = {
    "test_accuracy": "test accuracy, %",
    "balanced_accuracy": "balanced accuracy, %",
    "macro_f1": "macro F1, %",
    "auroc": "AUROC",
    "calibration_error": "calibration error, %",
    "selected_noise": "noise of selected clients, %",
    "label_precision": "precision of the labelled set, %",
    "label_recall": "recall of the labelled set, %",
    "effective_precision": "precision with pseudo-labels, %",
    "effective_recall": "recall with pseudo-labels, %",
    "pseudo_accuracy": "accuracy of accepted pseudo-labels, %",
    "labelled_share": "share of samples in the labelled set, %",
    "shifted_accuracy": "accuracy against (y + 1) mod C, %",
    "lost_classes": "classes without a right answer",
    "last_accuracy": "test accuracy of the last model, not the averaged one, %",
    "test_loss": "test loss",
    "train_loss": "training loss",
    "local_epochs": "local epochs",
    "train_batches": "training batches so far",
}
FALL = 10.0  # points below its best round at which a run that has settled counts as fallen
_DEPTH = 3  # how many folders deep runs are searched for


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """One run."""

    path: Path
    place: Place
    values: dict[str, Any]  # the whole configuration
    finished: bool
    summary: dict[str, Any]
    curves: dict[str, np.ndarray]  # per round; NaN if a round has no such number
    clients: Clients
    confusion: list[list[int]] | None = None  # given × predicted labels of all clients' samples
    environment: dict[str, Any] = field(default_factory=dict)
    federated: bool = False  # run on the nodes of a federation, not simulated
    measures: dict[str, Any] = field(default_factory=dict)  # of the final model, as measures.json has them
    means: dict[str, tuple[float, float | None]] = field(default_factory=dict)  # of curves that a record leaves out

    @property
    def seed(self) -> int:
        return int(self.values["run"]["seed"])

    @property
    def rounds(self) -> int:
        return len(self.curves["test_accuracy"])

    def over_rounds(self, key: str) -> tuple[float, float | None] | None:
        """Mean and standard deviation of a curve over the rounds that have the number; None if none has."""
        if key not in self.curves:
            return self.means.get(key)
        known = self.curves[key][np.isfinite(self.curves[key])]
        if not len(known):
            return None
        return float(np.mean(known)), float(np.std(known, ddof=1)) if len(known) > 1 else None

    @functools.cached_property
    def key(self) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
        """Runs with the same key differ only in their seed."""
        return self.place.where, method_key(self.values), self.conduct

    @property
    def precision(self) -> str:
        """The precision it computed in, such as `float32`; several if it was resumed elsewhere, "" if unknown."""
        known = [self.environment.get("precision"), *(r.get("precision") for r in self.environment.get("resumed", []))]
        found = dict.fromkeys(str(name) for name in known if name)
        configured = self.values["run"]["precision"]
        if not found and configured != "auto":
            return str(configured)
        if not found and self.environment.get("device") == "cpu":
            return "float32"
        return " then ".join(found)

    @property
    def diverged(self) -> bool:
        """Whether its training failed after the last round, unlike a run that was stopped."""
        return not self.finished and self.environment.get("diverged", {}).get("after_round") == self.rounds

    @functools.cached_property
    def conduct(self) -> tuple[str, ...]:
        """How it was carried out, as far as this changes results: its precision, and what a federation adds."""
        parts = [self.precision or "precision not recorded"]
        if extended := self.environment.get("extended"):  # whose rounds depend on the total number of rounds
            parts.append(f"extended from {extended.get('from')} rounds")
        if self.federated:
            parts.append("in a federation")
        return tuple(parts)

    @property
    def measure(self) -> str:
        """What its accuracies are."""
        return str(self.summary.get("measure", ACCURACY))

    @property
    def accuracy(self) -> float:
        """The final accuracy, or the best one if the run didn't converge."""
        return float(self.summary["best_accuracy" if self.starred else "final_accuracy"])

    @property
    def starred(self) -> bool:
        return self.summary["converged"] is False

    @property
    def fallen(self) -> bool:
        """Whether it settled far below its best round, although that counts as converged."""
        return not self.starred and self.summary["best_accuracy"] - self.summary["final_accuracy"] >= FALL


def find(paths: Sequence[Path]) -> Iterator[Path]:
    """The run folders at and below the given ones, each once."""
    seen: set[Path] = set()
    for path in paths:
        if not path.is_dir():
            what = "is not a folder" if path.exists() else "does not exist"
            raise UserError(f"{path} {what}; give run folders, folders of run folders, or records of runs (reports)")
        found = [p.parent for depth in range(_DEPTH + 1) for p in sorted(path.glob("*/" * depth + "config.toml"))]
        if not found:
            raise UserError(f"no run in {path} (no config.toml there or up to {_DEPTH} folders below)")
        for folder in found:
            inside = any(above in found for above in folder.parents)  # as the folds of an audit
            if folder.resolve() not in seen and not inside:
                seen.add(folder.resolve())
                yield folder


def load_runs(paths: Sequence[Path], study: Study | None = None) -> tuple[list[RecordedRun], list[str]]:
    """All runs at and below `paths`, and a line for each folder that was left out."""
    runs: list[RecordedRun] = []
    left_out: list[str] = []
    for folder in find(paths):
        try:
            runs.append(load_run(folder, study))
        except UserError as error:
            left_out.append(str(error))
    if not runs:
        raise UserError(f"none of the {len(left_out)} run folders can be reported: {left_out[0]}")
    return runs, left_out


def load_run(path: Path, study: Study | None = None) -> RecordedRun:
    """Read one run folder."""
    folder = RunFolder(path)
    values = read_config(path)
    records = folder.records()
    if not records:
        raise UserError(f"{path} has no finished round yet")
    finished = (path / "summary.json").is_file()
    roster = folder.roster()
    try:
        summary = folder.summary() if finished else metrics.summarise(records, ())
        if summary["final_accuracy"] is None:
            raise UserError(f"{path} was never tested, so it has no accuracy to report")
        check(Summary, summary, path / "summary.json" if finished else folder.rounds_file)
        check_rounds(records, summary, folder.rounds_file)
        curves = _curves(records)
        confusion = _read(path / CONFUSION, Confusion)
        if roster is not None and not (path / "noise.parquet").is_file():
            clients = site_clients(values, records, summary, roster)
        else:
            clients = simulated_clients(path, values, records, summary, confusion)
            if roster is not None and len(roster.names) == len(clients.selected):
                clients = replace(clients, names=[roster.names[k] for k in range(len(roster.names))])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UserError(f"{path} is damaged: {error!r}") from None
    environment = _read(path / "environment.json", Environment)
    measures = _read(path / MEASURES, MeasuresFile) if finished else {}
    clients = tested(clients, measures)
    matrix = confusion.get("given_predicted")
    federated = records[-1].nodes is not None
    place = placed(values, environment, roster, study, len(clients.samples or ()) or None)
    return RecordedRun(
        path, place, values, finished, summary, curves, clients, matrix, environment, federated, measures
    )


def placed(
    values: dict[str, Any], environment: dict[str, Any], roster: Roster | None, study: Study | None, clients: int | None
) -> Place:
    """Where a run belongs: in a study if it knows the run, otherwise among the user's own runs."""
    found = None if study is None else study.place(values, environment.get("origin"), roster)
    return found or own_place(values, roster, clients)


def read_config(path: Path) -> dict[str, Any]:
    """The configuration of the run in a folder, with all keys."""
    try:
        return completed(read_toml(path / "config.toml"))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def completed(raw: dict[str, Any]) -> dict[str, Any]:
    """A run's configuration with all keys. The user's own code is not imported, because it may not be trusted."""
    lost = lost_settings(raw)
    raw = in_todays_keys(raw)
    own = {key.split(".")[0]: raw[key.split(".")[0]] for key in own_code(raw)}
    values = load_config({**raw, **{section: {} for section in own}}).model_dump(mode="json") | own
    return values | {section: {**values[section], **keys} for section, keys in lost.items()}


def _curves(records: list[RoundRecord]) -> dict[str, np.ndarray]:
    present = [key for key in CURVES if any(getattr(record, key) is not None for record in records)]
    return {key: np.array([getattr(record, key) for record in records], dtype=float) for key in present}


def _read(file: Path, expected: type[Confusion | Environment | MeasuresFile]) -> dict[str, Any]:
    """A file that may be missing."""
    if not file.is_file():
        return {}
    values = read_json(file)
    check(expected, values, file)
    return values
