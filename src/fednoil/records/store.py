"""Where a run is kept while it is played: in this process's memory, or in a folder as well.

A store holds the run as far as it got: the experiment, the state after the last whole round and the records of all
rounds. `InFolder` writes the same to disk, so that a run that was stopped, for whatever reason, continues from there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from fednoil import metrics, rounds
from fednoil.config.schema import Config
from fednoil.devices import networks_on, pick_device, pick_precision
from fednoil.errors import UserError
from fednoil.executors.base import Executor
from fednoil.experiment import Experiment, predicted_labels
from fednoil.history import ACCURACY, RoundRecord
from fednoil.records.beginning import begin, check, extended, has_manifest
from fednoil.records.card import card
from fednoil.records.checkpoint import Checkpoints
from fednoil.records.environment import environment, note, slower_noted
from fednoil.records.folder import CHECKPOINT, RunFolder
from fednoil.records.loggers import Loggers
from fednoil.records.model_file import save_model
from fednoil.rounds import final

Watcher = Callable[[RoundRecord], None]


class Store:
    """A run in memory; nothing is written."""

    def __init__(self) -> None:
        self.experiment: Experiment | None = None
        self.state: rounds.RunState | None = None
        self.records: list[RoundRecord] = []
        self.summary: dict[str, Any] | None = None  # of a finished run
        self.made_with: dict[str, Any] = {}
        self.notice: str | None = None  # a warning about a run that is continued
        self.origin: dict[str, Any] | None = None  # the preset or file that the configuration came from

    @property
    def path(self) -> Path | None:
        """The run's folder."""
        return None

    @property
    def going_on(self) -> bool:
        """Whether it holds the beginning of the run."""
        return False

    def check(self, config: Config) -> None:
        """Refuse what can't be kept here, before anything is loaded or made; changes nothing."""
        if config.run.log:
            raise UserError(f"run.log = '{config.run.log[0]}' needs a run with a folder, out=")

    @contextlib.contextmanager
    def held(self, config: Config) -> Iterator[None]:
        """Keep others out until the run has ended."""
        yield

    def finished(self, experiment: Experiment, hashes: dict[str, str], *, behind: bool) -> bool:
        """Whether the complete run is already here and only needs to be read; called first."""
        self.experiment = experiment
        return False

    def begin(self, made_with: dict[str, Any]) -> None:
        """Set the state and the records to continue from."""
        assert self.experiment is not None
        self.made_with = made_with
        self.state, self.records = rounds.start(self.experiment), []

    def watchers(self, executor: Executor, say: Callable[[str], None]) -> list[Watcher]:
        """Who else is given each round's record; what they have to report is said."""
        return []

    def add(self, record: RoundRecord, state: rounds.RunState) -> None:
        """Keep a round that was played."""
        self.records.append(record)
        self.state = state

    def settle(self) -> None:
        """Wait until everything that was kept is safe."""

    def rescue(self) -> None:
        """Save the last whole round of a run that is stopped."""

    def note(self, **more: dict[str, Any]) -> None:
        """Add to the notes on how the run was made."""
        self.made_with |= more

    def kept(self) -> bool:
        """Whether a run that fails leaves a checkpoint."""
        return False

    def end(self, summary: dict[str, Any], device: torch.device) -> None:
        """Keep the summary of the finished run; its last model is on `device`."""
        self.summary = summary

    def close(self) -> None:
        """Let go of files, however the run has ended."""


class InFolder(Store):
    """A run in memory and in a folder, written so that it can be resumed after a crash at any moment."""

    def __init__(self, path: Path, *, resume: bool = False, force: bool = False) -> None:
        super().__init__()
        self.folder = RunFolder(path)
        self._resume, self._force = resume, force
        self._loggers: Loggers | None = None
        self._checkpoints: Checkpoints | None = None

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def going_on(self) -> bool:
        return self._resume and self.folder.is_run()

    @property
    def checkpoints(self) -> Checkpoints:
        assert self._checkpoints is not None
        return self._checkpoints

    def check(self, config: Config) -> None:
        check(self.folder, config, resume=self._resume, force=self._force)
        self._loggers = Loggers(self.folder, config)

    @contextlib.contextmanager
    def held(self, config: Config) -> Iterator[None]:
        with self.folder.locked():
            # Again: another process may have been here in the meantime.
            check(self.folder, config, resume=self._resume, force=self._force, held=True)
            yield

    def finished(self, experiment: Experiment, hashes: dict[str, str], *, behind: bool) -> bool:
        self.experiment = experiment
        self._checkpoints = Checkpoints(self.path / CHECKPOINT, hashes, behind=behind)
        self._checkpoints.rounds = experiment.config.train.rounds
        if self._force:
            self.folder.clear()
        elif self.going_on and self._checkpoints.exists():
            check_best(self.checkpoints.load(experiment.config), experiment, self.path)
            self.notice = extended(self.folder, experiment.config)
        if not (self._resume and self.folder.is_finished(with_noise=has_manifest(experiment.setting))):
            return False
        self.summary, self.state = self.folder.summary(), self.checkpoints.load(experiment.config)
        self.records = self.folder.keep_rounds(self.state.round_idx)
        return True

    def begin(self, made_with: dict[str, Any]) -> None:
        assert self.experiment is not None
        self.made_with = made_with
        self.state, self.records = begin(self.experiment, self.folder, self.checkpoints, made_with)

    def watchers(self, executor: Executor, say: Callable[[str], None]) -> list[Watcher]:
        assert self._loggers is not None
        self._loggers.start(self.records, say)
        return [slower_noted(self.folder, executor), self._loggers.round]

    def add(self, record: RoundRecord, state: rounds.RunState) -> None:
        assert self.experiment is not None
        self.folder.append_round(record)
        super().add(record, state)
        config = self.experiment.config
        if state.round_idx % config.run.checkpoint_every == 0 or state.over(config):
            self._save()

    def _save(self) -> None:
        assert self.state is not None
        self.folder.flush_rounds()
        self.checkpoints.save(self.state)

    def settle(self) -> None:
        self.checkpoints.wait()

    def rescue(self) -> None:
        with contextlib.suppress(OSError):
            with contextlib.suppress(OSError):  # what could not be written in the background is tried once more
                self.checkpoints.wait()
            if self.state is not None and self.state.round_idx > self.checkpoints.round_idx:
                self._save()
                self.checkpoints.wait()

    def note(self, **more: dict[str, Any]) -> None:
        note(self.folder, **more)

    def kept(self) -> bool:
        return self.checkpoints.exists()

    def end(self, summary: dict[str, Any], device: torch.device) -> None:
        """The files that a finished run has; the summary, which says that it is, comes last."""
        assert self.experiment is not None
        assert self.state is not None
        experiment, state = self.experiment, self.state
        model = experiment.server.exported(state.final(experiment.config.run.select))
        # Agreement with given labels doesn't say how often the model is right.
        known = summary.get("measure", ACCURACY) == ACCURACY
        accuracy, by_class = (summary["final_accuracy"], summary["per_class_accuracy"]) if known else (None, ())
        save_model(self.path / "model.safetensors", experiment, model, accuracy, by_class)
        if has_manifest(experiment.setting):  # sites keep their labels
            predicted, given = predicted_labels(experiment, device, model), experiment.setting.labels.given
            self.folder.write_confusion(metrics.agreement(predicted, given, experiment.task.num_classes))
        found = final.measured(experiment, state, device)
        self.folder.write_measures(found)
        self.folder.write_card(card(experiment, summary, found))
        self.folder.write_summary(summary)
        super().end(summary, device)

    def close(self) -> None:
        if self._loggers is not None and self.experiment is not None:
            over = self.state is not None and self.state.over(self.experiment.config)
            self._loggers.close(finished=over)

    def keep(self, played: Store) -> None:
        """Write a run that was played elsewhere, finished or not."""
        assert played.experiment is not None
        assert played.state is not None
        config, device = played.experiment.config, pick_device(played.experiment.config.run.device)
        self.check(config)
        with self.held(config):
            hashes = hashes_of(played.experiment)
            self.finished(played.experiment, hashes, behind=False)
            place = networks_on(config, device)
            now = environment(place, pick_precision(config.run.precision, place)) | hashes
            self.begin(played.made_with or now)
            for record in played.records:
                self.folder.append_round(record)
            self.records, self.state = list(played.records), played.state
            if self.records:
                self._save()
            if played.summary is not None:
                self.end(played.summary, device)


def check_best(state: rounds.RunState, experiment: Experiment, path: Path) -> None:
    """Refuse to end with the best round if it was not kept, as in earlier versions."""
    if (select := experiment.config.run.select) != "last" and state.best is None and state.round_idx:
        raise UserError(
            f"{path}: run.select = '{select}', but its checkpoint has only the last round; make the run again"
        )


def hashes_of(experiment: Experiment) -> dict[str, str]:
    """What a checkpoint belongs to: configuration, data, who has which labels, and frozen parameters, if any."""
    hashes = {
        "config_hash": experiment.config.hash(),
        "data_hash": experiment.setting.dataset.hash,
        "noise_hash": experiment.setting.manifest_hash(),
    }
    return hashes | ({"frozen_hash": experiment.fixed_hash()} if experiment.fixed else {})
