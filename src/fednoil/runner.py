"""A recorded run: the round loop, its folder, its checkpoints, and what happens when it is stopped."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from fednoil import metrics, rounds
from fednoil.config.schema import Config
from fednoil.errors import Diverged, UserError, full_gpu, gpu_is_full
from fednoil.executors.base import Executor, Progress
from fednoil.experiment import (
    Experiment,
    Sites,
    make_executor,
    make_experiment,
    pick_device,
    pick_precision,
    predicted_labels,
)
from fednoil.records.beginning import begin, check, has_manifest
from fednoil.records.checkpoint import Checkpoints
from fednoil.records.environment import environment, note, now, slower_noted
from fednoil.records.events import EventFiles
from fednoil.records.folder import CHECKPOINT, RunFolder
from fednoil.records.model_file import save_model


class Reporter(Protocol):
    """Whoever wants to know how a run goes."""

    def say(self, line: str) -> None: ...

    def start(self, experiment: Experiment, done: list[dict[str, Any]]) -> None: ...

    def local(self, share: float) -> None: ...

    def round(self, record: dict[str, Any]) -> None: ...

    def finish(self, summary: dict[str, Any], folder: Path) -> None: ...


class Silent:
    """A reporter that says nothing (`--quiet`), and the base of those that say less than everything."""

    def say(self, line: str) -> None:
        pass

    def start(self, experiment: Experiment, done: list[dict[str, Any]]) -> None:
        pass

    def local(self, share: float) -> None:
        pass

    def round(self, record: dict[str, Any]) -> None:
        pass

    def finish(self, summary: dict[str, Any], folder: Path) -> None:
        pass

    def close(self) -> None:
        """Leave the terminal in order, whatever ended the run."""


class Engine(Protocol):
    """Where a run takes place: in this process, or in a federation."""

    def experiment(self, config: Config, out: Path, *, going_on: bool) -> Experiment:
        """The experiment, `going_on` where `out` holds the beginning of it; writes nothing."""
        ...

    def executor(self, experiment: Experiment, out: Path, device: torch.device) -> Executor:
        """Who does the clients' work; may write to `out`, which is the run's by now."""
        ...

    def environment(self, device: torch.device, precision: str) -> dict[str, Any]:
        """With what the run is made, for environment.json."""
        ...


@dataclass(frozen=True)
class Simulation:
    """All clients in this process."""

    data_dir: Path | None = None

    def experiment(self, config: Config, out: Path, *, going_on: bool) -> Experiment:
        return make_experiment(config, self.data_dir)

    def executor(self, experiment: Experiment, out: Path, device: torch.device) -> Executor:
        return make_executor(experiment, device)

    def environment(self, device: torch.device, precision: str) -> dict[str, Any]:
        return environment(device, precision)


def run(
    config: Config,
    out: Path,
    reporter: Reporter,
    *,
    data_dir: Path | None = None,
    resume: bool = False,
    force: bool = False,
    engine: Engine | None = None,
) -> dict[str, Any]:
    """Run an experiment to its end, simulated unless another engine is given, and record it under `out`; returns the
    summary."""
    engine = engine or Simulation(data_dir)
    folder = RunFolder(out)
    check(folder, config, resume=resume, force=force)
    device = pick_device(config.run.device)
    events = EventFiles(folder) if config.run.tensorboard else None
    # Nothing is created before the whole configuration and the data have proved good.
    experiment = engine.experiment(config, out, going_on=resume and folder.is_run())
    if config.model.start is not None and not folder.is_run():
        rounds.start(experiment)
    with folder.locked(), _full_gpu_told(config):
        check(folder, config, resume=resume, force=force)  # again: another process may have been here meanwhile
        hashes = hashes_of(experiment)
        # A federation's nodes drop what the last checkpoint can't ask for any more: there it has to be on disk in time.
        behind = device.type == "cuda" and isinstance(engine, Simulation)
        checkpoints = Checkpoints(out / CHECKPOINT, hashes, behind=behind)
        if force:
            folder.clear()
        if resume and folder.is_finished(with_noise=has_manifest(experiment.setting)):
            summary, records = folder.summary(), folder.keep_rounds(checkpoints.load().round_idx)
            reporter.start(experiment, records)
            reporter.finish(summary, out)
            return summary
        if resume and folder.is_run() and not checkpoints.exists():
            reporter.say(f"{out} has no checkpoint yet (run.checkpoint_every): it begins anew, at round 1")
        made_with = engine.environment(device, pick_precision(config.run.precision, device)) | hashes
        state, records = begin(experiment, folder, checkpoints, made_with)
        try:
            state = rounds.placed(state, device)
            executor = engine.executor(experiment, out, device)
            reporter.start(experiment, records)
            watchers = [reporter.round, slower_noted(folder, executor)]
            if events is not None:
                events.start(records)
                watchers.append(events.round)
            state = _play_all(experiment, executor, state, records, folder, checkpoints, reporter.local, watchers)
        except Diverged as error:
            kept = "; the last checkpoint is kept" if checkpoints.exists() else ""
            told = f"{error} in a run of its own: another --out, or --force{kept}"
            # Why there are no more rounds, in distinction to a run that was stopped.
            note(folder, diverged={"at": now(), "after_round": len(records), "reason": told})
            raise Diverged(told) from error
        finally:
            _settle(device)
            if events is not None:
                events.close()
        summary = metrics.summarise(records, state.per_class) | hashes
        summary |= rounds.policy_of(experiment, executor).finish(state)
        _write_end(experiment, folder, state, device, summary)
    reporter.finish(summary, out)
    return summary


def hashes_of(experiment: Experiment) -> dict[str, str]:
    """What a checkpoint belongs to: configuration, data, and who has which labels."""
    return {
        "config_hash": experiment.config.hash(),
        "data_hash": experiment.setting.dataset.hash,
        "noise_hash": experiment.setting.manifest_hash(),
    }


def _write_end(
    experiment: Experiment, folder: RunFolder, state: rounds.RunState, device: torch.device, summary: dict[str, Any]
) -> None:
    """The files that a finished run has; the summary, which says that it is, comes last."""
    model = experiment.server.exported(state.final)
    accuracies = summary.get("final_accuracy"), summary.get("per_class_accuracy", ())
    save_model(folder.path / "model.safetensors", experiment, model, *accuracies)
    if not isinstance(experiment.setting, Sites):  # whose labels stay with them
        predicted, given = predicted_labels(experiment, device, model), experiment.setting.labels.given
        folder.write_confusion(metrics.agreement(predicted, given, experiment.task.num_classes))
    folder.write_summary(summary)


def _play_all(
    experiment: Experiment,
    executor: Executor,
    state: rounds.RunState,
    records: list[dict[str, Any]],
    folder: RunFolder,
    checkpoints: Checkpoints,
    progress: Progress,
    watchers: Sequence[Callable[[dict[str, Any]], None]],
) -> rounds.RunState:
    """Play the remaining rounds; whatever stops them, the last whole round is checkpointed first."""
    config = experiment.config
    try:
        while state.round_idx < config.train.rounds:
            after, record = rounds.play(experiment, executor, state, progress)
            with _uninterrupted():
                folder.append_round(record)
                records.append(record)
                state = after
                if state.round_idx % config.run.checkpoint_every == 0 or state.round_idx == config.train.rounds:
                    folder.flush_rounds()
                    checkpoints.save(state)
            for watch in watchers:
                watch(record)
        with _uninterrupted():
            checkpoints.wait()
    except BaseException:
        with _uninterrupted(), contextlib.suppress(OSError):
            with contextlib.suppress(OSError):  # what could not be written behind the run is tried once more
                checkpoints.wait()
            if state.round_idx > checkpoints.round_idx:
                folder.flush_rounds()
                checkpoints.save(state)
                checkpoints.wait()
        raise
    return state


@contextlib.contextmanager
def _full_gpu_told(config: Config) -> Iterator[None]:
    """Say what to do about a GPU whose memory is full, be it by data, networks, graphs, steps or the last test."""
    try:
        yield
    except RuntimeError as error:
        if not gpu_is_full(error):
            raise
        advice = (
            f"lower run.parallel, how many clients train at once (now {config.run.parallel} at most), or use --device "
            "cpu, and go on with --resume; a smaller train.batch_size helps too, but is another run"
        )
        raise UserError(full_gpu(error, advice)) from error


def _settle(device: torch.device) -> None:
    """Wait for a GPU's work: under NVIDIA's multi-process service a process that ends before may take others along."""
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):  # what failed there is told already
            torch.cuda.synchronize(device)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let a Ctrl-C, or an alarm, wait until a record and its checkpoint are whole."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []
    names = ("SIGINT", "SIGTERM", "SIGALRM")  # Windows has no alarm
    handlers = {s: signal.getsignal(s) for s in signal.Signals if s.name in names}
    handlers = {s: handler for s, handler in handlers.items() if handler is not signal.SIG_IGN}
    for number in handlers:
        signal.signal(number, lambda n, _frame: pending.append(n))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if pending:
            signal.raise_signal(pending[0])
