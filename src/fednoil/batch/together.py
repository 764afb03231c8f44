"""Runs that advance together, round by round, with the clients of all of them in one stack on the GPU.

Seeds of an experiment, or other labels for it, have the same networks and the same steps. Each run has its own folder,
state and records, and a thread, of which one works at a time: until it wants to train, when it waits for the others,
whose clients train beside its own. Runs that end or fail leave; one that can't be stacked leaves, too, and is made
alone, from its last whole round.
"""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from fednoil import noise, sampling
from fednoil.batch.cell import Cell
from fednoil.batch.workers import Outcome, View, Watcher, outcome_of, run_here, run_in_processes
from fednoil.config import Config
from fednoil.devices import one_by_one, pick_device
from fednoil.errors import UserError, gpu_is_full
from fednoil.executors.base import Executor, Job, Result
from fednoil.executors.cuda import CudaGraphs
from fednoil.executors.joint import Joint
from fednoil.experiment import Experiment, make_clients, make_experiment, make_stack, resident
from fednoil.learners.base import Client
from fednoil.runner import Simulation, run, uninterrupted
from fednoil.servers import server_class

_MOST = 8  # runs at once: what a run does between its turns, it does while the others wait


class Alone(Exception):
    """Raised in a run that can't be stacked with the others, or no longer."""


def waves(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The cells that can run together, in groups as large as `run.parallel` allows and of about the same size; not
    those that have nobody to run with."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        if stackable(cell.config):
            groups.setdefault(_form(cell.config), []).append(cell)
    found = []
    for group in groups.values():
        most = min(_MOST, group[0].config.run.parallel // _at_once(group[0].config))
        if most < 2:
            continue
        count = -(-len(group) // most)
        bounds = [len(group) * place // count for place in range(count + 1)]
        found += [group[a:b] for a, b in pairwise(bounds) if b - a > 1]
    return found


def stackable(config: Config) -> bool:
    """Whether its clients are stacked on a GPU, with images that others have, too; a logger is for one run in a
    process."""
    device = pick_device(config.run.device)
    stacks = device.type == "cuda" and config.run.parallel > 0 and one_by_one(device) is None
    return stacks and not config.run.log and not noise.changes_images(config.noise)


def _form(config: Config) -> str:
    """What runs must have in common to run together: all but seed and labels."""
    values = config.model_dump(mode="json", exclude={"noise"})
    del values["run"]["seed"]
    return json.dumps(values, sort_keys=True)


def _at_once(config: Config) -> int:
    """The clients of one run that train in a round."""
    pools = server_class(config.server.name).pools
    return 1 if pools else sampling.make(config.sampling).count(config.partition.clients)


def run_cells(
    cells: Sequence[Cell], out: Path, data_dir: Path | None, view: View, jobs: int, together: bool
) -> list[Outcome]:
    """Run the cells, `jobs` at a time in processes of their own; with `together` those that can be stacked run so."""
    ended: dict[Cell, Outcome] = {}
    for wave in waves(cells) if together else []:
        ended |= {outcome.cell: outcome for outcome in run_together(wave, out, data_dir, view)}
        gc.collect()  # graphs and networks refer to each other
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # for the processes of others
    rest = [cell for cell in cells if cell not in ended]
    made = run_here(rest, out, data_dir, view) if jobs == 1 else run_in_processes(rest, out, data_dir, view, jobs)
    ended |= {outcome.cell: outcome for outcome in made}
    return [ended[cell] for cell in cells]


def run_together(cells: Sequence[Cell], out: Path, data_dir: Path | None, view: View) -> list[Outcome]:
    """Run the cells together; returns how they ended, without those that have to be made, or finished, alone.

    Ctrl-C stops all of them, each with its last whole round.
    """
    try:
        first = make_experiment(cells[0].config, data_dir)  # here, where Ctrl-C is noticed while images are decoded
    except UserError:
        return []  # each will report what is wrong
    group = _Group(len(cells), first)
    runs = [_Run(group, cell, out, data_dir, view) for cell in cells]
    try:
        group.play(runs)
    except BaseException as stop:
        with uninterrupted():
            for one in runs:
                one.stop(stop)
        raise
    return [one.outcome for one in runs if one.outcome]


class _Group:
    """What the runs share."""

    def __init__(self, count: int, first: Experiment) -> None:
        self.count, self.first = count, first
        self.joint: Joint | None = None
        self.pool: torch.Tensor = torch.empty(0)

    def share(self, one: _Run, experiment: Experiment, device: torch.device) -> Executor:
        """A run's part of the stack, which the first one makes."""
        if _data(experiment) != _data(self.first):
            raise Alone
        if self.joint is None:
            self._make(device)
        assert self.joint is not None
        one.share = self.joint.join(*make_clients(experiment, self.pool), one.wait)
        return one.share

    def _make(self, device: torch.device) -> None:
        config = self.first.config
        parallel = min(config.run.parallel, self.count * _at_once(config))

        def stack(clients: Mapping[int, Client], validation: Mapping[int, Client]) -> CudaGraphs:
            return make_stack(self.first, device, clients, validation, parallel)

        try:
            self.pool = resident(self.first.setting.dataset.train.images, device)
            self.joint = Joint(stack)
        except RuntimeError as error:
            if gpu_is_full(error):
                raise Alone from error
            raise

    def play(self, runs: Sequence[_Run]) -> None:
        """Give each run its turn, and train those that wait for it; those that are behind catch up first."""
        for one in runs:
            one.go_on()
        while waiting := [one for one in runs if one.jobs]:
            behind = min(one.round_idx for one in waiting)
            ready = [one for one in waiting if one.round_idx == behind]
            for one, answer in zip(ready, self._trained(ready), strict=True):
                one.go_on(answer)

    def _trained(self, runs: Sequence[_Run]) -> Sequence[list[Result] | Exception]:
        """The results of each run, or what failed there."""
        joint = self.joint
        assert joint is not None
        if joint.stack.reason is not None:  # client after client: processes side by side are faster
            return [Alone()] * len(runs)
        try:
            return joint.train([(one.share, one.jobs) for one in runs])
        except Exception as error:
            if gpu_is_full(error):
                joint.stack.graphs.clear()
                return [Alone()] * len(runs)
            # A run's own failure must not end the others.
            return [error] if len(runs) == 1 else [answer for one in runs for answer in self._trained([one])]


class _Run:
    """A run in a thread, which works only while it has its turn."""

    def __init__(self, group: _Group, cell: Cell, out: Path, data_dir: Path | None, view: View) -> None:
        self.group, self.cell, self.view = group, cell, view
        self.folder, self.engine = out / cell.folder, _Engine(data_dir, run=self)
        self.outcome: Outcome | None = None
        self.share: Any = None
        self.jobs: Sequence[Job] = ()  # that wait for training
        self.answer: list[Result] | BaseException = []
        self._turn, self._paused = threading.Semaphore(0), threading.Event()
        self._paused.set()
        self._over = False
        threading.Thread(target=self._live, name=cell.folder, daemon=True).start()

    @property
    def round_idx(self) -> int:
        return self.jobs[0].turn.round_idx

    def go_on(self, answer: list[Result] | BaseException | None = None) -> None:
        """Let the run work until it waits for training, or has ended."""
        self.answer = [] if answer is None else answer
        with uninterrupted():
            self._paused.clear()
            self._turn.release()
        self._paused.wait()

    def stop(self, why: BaseException) -> None:
        """End the run where it waits."""
        self._paused.wait()
        if not self._over:
            self.go_on(why)

    def wait(self, jobs: Sequence[Job]) -> list[Result]:
        """In the run's thread: wait until its jobs are done."""
        self.jobs = jobs
        self._pause()
        self.jobs = ()
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def _pause(self) -> None:
        self._paused.set()
        self._turn.acquire()

    def _live(self) -> None:
        self._turn.acquire()
        try:
            if not isinstance(self.answer, BaseException):  # not stopped before it began
                self._play()
        finally:
            self._over, self.jobs = True, ()
            self._paused.set()

    def _play(self) -> None:
        self.view.started(self.cell)
        began, reason = time.perf_counter(), ""
        try:
            watcher = Watcher(self.cell, self.view)
            run(self.cell.config, self.folder, watcher, engine=self.engine, resume=True, origin=self.cell.origin)
        except UserError as error:
            reason = str(error)
        except Exception as error:  # its own failure must not end the others
            if isinstance(error, Alone):
                return
            reason = f"{type(error).__name__}: {error}"
        except BaseException:  # stopped, which is no outcome
            return
        self.outcome = outcome_of(self.cell, reason, began)
        self.view.ended(self.outcome)


@dataclass(frozen=True)
class _Engine(Simulation):
    """A simulation whose clients train beside those of other runs."""

    run: _Run | None = None

    def experiment(self, config: Config, out: Path | None, *, going_on: bool) -> Experiment:
        assert self.run is not None
        first = self.run.group.first
        return first if config is first.config else super().experiment(config, out, going_on=going_on)

    def executor(self, experiment: Experiment, out: Path | None, device: torch.device) -> Executor:
        assert self.run is not None
        return self.run.group.share(self.run, experiment, device)

    def environment(self, device: torch.device, precision: str) -> dict[str, Any]:
        assert self.run is not None
        return super().environment(device, precision) | {"runs_at_once": self.run.group.count}


def _data(experiment: Experiment) -> tuple[str, str, int]:
    """What runs must have in common besides their configuration: images, frozen parameters, number of clients."""
    return experiment.setting.dataset.hash, experiment.fixed_hash(), experiment.setting.num_clients
