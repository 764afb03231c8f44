"""A run from start to end: the round loop, where it is kept, and what happens when it is stopped."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from fednoil import findings, metrics, rounds
from fednoil.config.schema import Config
from fednoil.data.elsewhere import are_given
from fednoil.data.given import Given
from fednoil.data.images import Progress as Decoding
from fednoil.data.sources import open_source
from fednoil.devices import networks_on, pick_device, pick_precision
from fednoil.errors import Diverged, UserError, full_gpu, gpu_is_full
from fednoil.executors.base import Executor, Progress
from fednoil.experiment import Experiment, make_executor, make_experiment
from fednoil.history import RoundRecord
from fednoil.privacy import DELTA
from fednoil.records.environment import environment, now, own_files
from fednoil.records.store import InFolder, Store, hashes_of
from fednoil.rounds.collapse import signs


class Reporter(Protocol):
    """An observer of a run."""

    def say(self, line: str) -> None: ...

    def start(self, experiment: Experiment, done: list[RoundRecord]) -> None: ...

    def decoding(self, done: int, total: int) -> None: ...

    def local(self, share: float) -> None: ...

    def round(self, record: RoundRecord) -> None: ...

    def finish(self, summary: dict[str, Any], folder: Path | None) -> None: ...

    def close(self) -> None: ...


class Silent:
    """A reporter that says nothing (`--quiet`), and the base of those that say less than everything."""

    def say(self, line: str) -> None:
        pass

    def start(self, experiment: Experiment, done: list[RoundRecord]) -> None:
        pass

    def decoding(self, done: int, total: int) -> None:
        """Progress in decoding images; called before `start`, if there are any to decode."""

    def local(self, share: float) -> None:
        pass

    def round(self, record: RoundRecord) -> None:
        pass

    def finish(self, summary: dict[str, Any], folder: Path | None) -> None:
        pass

    def close(self) -> None:
        """Leave the terminal in order, whatever ended the run."""


class Engine(Protocol):
    """Where a run takes place: in this process, or in a federation."""

    def experiment(self, config: Config, out: Path | None, *, going_on: bool) -> Experiment:
        """The experiment, `going_on` where `out` holds the beginning of it; writes nothing."""
        ...

    def executor(self, experiment: Experiment, out: Path | None, device: torch.device) -> Executor:
        """The executor of the clients' work; may write to `out`, which belongs to the run by now."""
        ...

    def environment(self, device: torch.device, precision: str) -> dict[str, Any]:
        """What the run is made with, for environment.json."""
        ...


@dataclass(frozen=True)
class Simulation:
    """All clients in this process; `given` are data without a name. `decoding` is called as images are decoded."""

    data_dir: Path | None = None
    given: Given | None = None
    decoding: Decoding | None = None

    def experiment(self, config: Config, out: Path | None, *, going_on: bool) -> Experiment:
        given = self.given
        if given is None and are_given(config.data.name) and going_on and out is not None:
            given = Given.load(out)
        return make_experiment(config, self.data_dir, given, self.decoding)

    def executor(self, experiment: Experiment, out: Path | None, device: torch.device) -> Executor:
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
    origin: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Run an experiment to its end, simulated unless another engine is given, and record it under `out`; returns the
    summary."""
    store = InFolder(out, resume=resume, force=force)
    store.origin = origin
    carry_out(config, store, reporter, engine or Simulation(data_dir, decoding=reporter.decoding))
    assert store.summary is not None
    return store.summary


def carry_out(config: Config, store: Store, reporter: Reporter, engine: Engine) -> None:
    """Run an experiment to its end; the store has it then, or as far as it got if it was stopped."""
    device = pick_device(config.run.device)
    _check_folder(config, store, engine)
    # Nothing is created before the whole configuration and the data are known to be valid.
    experiment = engine.experiment(config, store.path, going_on=store.going_on)
    if config.model.start is not None and not store.going_on:
        rounds.start(experiment)
    with store.held(config), _full_gpu_reported(config):
        hashes = hashes_of(experiment)
        # A federation's nodes drop what the last checkpoint can no longer ask for: there it must be on disk in time.
        behind = device.type == "cuda" and isinstance(engine, Simulation)
        if store.finished(experiment, hashes, behind=behind):
            reporter.start(experiment, store.records)
        else:
            if store.going_on and not store.kept():
                reporter.say(f"{store.path} has no checkpoint yet (run.checkpoint_every): starting again at round 1")
            place = networks_on(config, device)
            made_with = engine.environment(place, pick_precision(config.run.precision, place)) | hashes
            made_with |= {"own_files": own} if (own := own_files(config)) else {}
            store.begin(made_with | ({"origin": store.origin} if store.origin else {}))
            _play(experiment, store, reporter, engine, device)
    assert store.summary is not None
    reporter.finish(store.summary, store.path)


def _check_folder(config: Config, store: Store, engine: Engine) -> None:
    """Refuse a folder that must not be written; data that aren't there are reported first, because another folder
    wouldn't help."""
    try:
        store.check(config)
    except UserError:
        if isinstance(engine, Simulation) and not are_given(config.data.name):
            open_source(config.data, engine.data_dir).files()
        raise


def _misleading_labels(experiment: Experiment) -> list[str]:
    """A warning where even a perfect learner would find other classes than the true ones."""
    setting, names = experiment.setting, experiment.setting.dataset.class_names
    wrong = metrics.outvoted(setting.labels, setting.truth, len(names))
    if not wrong:
        return []
    label, given = next(iter(wrong.items()))
    return [
        f"warning: over all clients, {len(wrong)} of {len(names)} classes are mostly labelled as another one "
        f"('{names[label]}' as '{names[given]}'): nothing in the labels says which class is meant, so no method can "
        "tell"
    ]


def _play(experiment: Experiment, store: Store, reporter: Reporter, engine: Engine, device: torch.device) -> None:
    """Play the rounds that are left and finish the run."""
    assert store.state is not None
    try:
        if isinstance(engine, Simulation):  # a federation's server works with what its nodes send
            store.state = rounds.placed(store.state, device)
        executor = engine.executor(experiment, store.path, device)
        reporter.start(experiment, store.records)
        for line in [*_misleading_labels(experiment), *filter(None, [store.notice])]:
            reporter.say(line)
        policy, watchers = rounds.policy_of(experiment, executor), store.watchers(executor, reporter.say)
        _play_all(policy, store, reporter.local, [reporter.round, *watchers])
    except Diverged as error:
        kept = "; the last checkpoint is kept" if store.kept() else ""
        reason = f"{error} and start a new run: another --out, or --force{kept}" if store.path else str(error)
        # Why there are no more rounds, unlike in a run that was stopped.
        store.note(diverged={"at": now(), "after_round": len(store.records), "reason": reason})
        raise Diverged(reason) from error
    finally:
        _settle(device)
        store.close()
    summary: dict[str, Any] = metrics.summarise(
        store.records, store.state.final_per_class(experiment.config.run.select)
    )
    summary |= _named(experiment) | hashes_of(experiment)
    if store.state.chosen(experiment.config.run.select) is not None:
        chosen = summary["best_by_validation"]
        summary |= {"final_accuracy": chosen["test_accuracy"], "final_round": chosen["round"]}
        summary |= metrics.measures_of(store.records[chosen["round"] - 1])
    if (epsilon := store.records[-1].epsilon) is not None:
        summary |= {"epsilon": epsilon, "delta": DELTA}
    summary |= {"trend": findings.recent_trend(store.records)} | findings.largest_class(experiment)
    if policy.has_data and (ratios := findings.estimated_ratios(experiment, store.state, device)) is not None:
        summary["noise_ratios"] = ratios
    summary |= policy.finish(store.state)
    store.end(summary, device)


def _named(experiment: Experiment) -> dict[str, Any]:
    """The names of classes and, if they have any, of clients."""
    names = experiment.setting.names
    return {"classes": list(experiment.setting.dataset.class_names)} | ({"clients": list(names)} if names else {})


def _play_all(
    policy: rounds.Policy, store: Store, progress: Progress, watchers: Sequence[Callable[[RoundRecord], None]]
) -> None:
    """Play the remaining rounds; whatever stops them, the last whole round is kept first."""
    experiment = policy.experiment
    try:
        while store.state is not None and not store.state.over(experiment.config):
            after, record = rounds.play(experiment, policy.executor, store.state, progress, policy)
            record = _watched(experiment, store.records, record)
            with uninterrupted():
                store.add(record, after)
            for watch in watchers:
                watch(record)
        with uninterrupted():
            store.settle()
    except BaseException:
        with uninterrupted():
            store.rescue()
        raise


def _watched(experiment: Experiment, before: Sequence[RoundRecord], record: RoundRecord) -> RoundRecord:
    """The record with signs of a collapse."""
    held = experiment.setting.validation
    count = 0 if held is None else sum(len(part) for part in held.parts)
    found = signs([*before, record], experiment.setting.dataset.class_names, count)
    return replace(record, warnings=found) if found else record


@contextlib.contextmanager
def _full_gpu_reported(config: Config) -> Iterator[None]:
    """Say what to do if the GPU's memory is full, whether from data, networks, graphs, steps or the last test."""
    try:
        yield
    except RuntimeError as error:
        if not gpu_is_full(error):
            raise
        advice = (
            f"lower run.parallel, how many clients train at once (now {config.run.parallel} at most), or use --device "
            "cpu, and continue with --resume; a smaller train.batch_size helps too, but is another run"
        )
        raise UserError(full_gpu(error, advice)) from error


def _settle(device: torch.device) -> None:
    """Wait for a GPU's work: under NVIDIA's multi-process service a process that ends before may take others along."""
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):  # what failed there has been reported
            torch.cuda.synchronize(device)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let a signal that ends the run, or an alarm, wait until a record and its checkpoint are whole."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []
    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM")  # Windows has neither of the last two
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
