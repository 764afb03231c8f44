"""The ServerApp: a recorded run like any other, with the federation's nodes as executor."""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.exit import ExitCode, flwr_exit

from fednoil import runner
from fednoil.config import Config, load_config
from fednoil.data import SITES
from fednoil.data.elsewhere import own_sites
from fednoil.errors import UserError
from fednoil.executors.base import Executor
from fednoil.experiment import Experiment, assemble, make_experiment
from fednoil.flower.executor import FlowerExecutor
from fednoil.flower.members import Members
from fednoil.flower.secure import FEWEST
from fednoil.flower.wire import Wire
from fednoil.history import RoundRecord
from fednoil.records.environment import environment
from fednoil.records.folder import ROSTER, RunFolder
from fednoil.setting import Sites

log = logging.getLogger("flwr.fednoil")
app = ServerApp()


class FlowerEngine:
    """A run on the nodes behind a Flower grid."""

    def __init__(self, grid: Grid, command: Sequence[str] = (), nodes: int = 0) -> None:
        self.grid = grid
        self.command = command
        self.nodes = nodes
        self.members: Members | None = None

    def experiment(self, config: Config, out: Path | None, *, going_on: bool) -> Experiment:
        """Gather the nodes; the experiment has what they reported, or everything if they share a dataset."""
        check_simulated_only(config)
        if own_sites(config.data):
            raise UserError("data.sites names the sites of a simulation; in a federation each node has its own data")
        whole = None if config.data.name == SITES else make_experiment(config)
        partitions = None if whole is None else whole.setting.num_clients
        members = Members(Wire(self.grid, config.federation.timeout), config, partitions)
        if going_on and out is not None and (out / ROSTER).is_file():
            members.load(out)
        self.members = members
        members.gather(self.nodes)
        assert members.agreement is not None
        # Nodes that join later don't change the run's identity.
        sites = Sites.of(members.agreement.dataset(SITES), list(members.founders), list(members.founders.values()))
        experiment = whole or assemble(config, sites)
        _check_sums(experiment, len(members.online()))
        return experiment

    def executor(self, experiment: Experiment, out: Path | None, device: torch.device) -> Executor:
        assert self.members is not None
        assert out is not None
        return FlowerExecutor(experiment, self.members, out, device)

    def environment(self, device: torch.device, precision: str) -> dict[str, Any]:
        """The environment with the user's command: Flower started this process, with a secret in its arguments."""
        return environment(device, precision, self.command, ("flwr",))


def _check_sums(experiment: Experiment, online: int) -> None:
    """Refuse secure sums of fewer clients than hide each other."""
    drawn = experiment.sampling.count(online)
    if experiment.config.privacy.sees == "sum" and drawn < FEWEST:
        raise UserError(
            f"privacy.sees = 'sum' needs rounds of at least {FEWEST} clients, and {drawn} of {online} that are online "
            "would train in one; set sampling.fraction = 1 and federation.min_nodes = 3, or use 'noise'"
        )


def check_simulated_only(config: Config) -> None:
    """Refuse what only a simulation can do so far."""
    if config.data.held_out:
        raise UserError(
            f"data.validation = {config.data.held_out} is for simulations: in a federation a site's test images are "
            "what it holds out; set it to 0"
        )


class LogLines(runner.Silent):
    """One line per round in the log of the ServerApp, which `flwr run --stream` shows."""

    def say(self, line: str) -> None:
        log.info("%s", line)

    def start(self, experiment: Experiment, done: list[RoundRecord]) -> None:
        config, setting = experiment.config, experiment.setting
        log.info("%s × %s: %d clients", config.server.name, config.learner.name, setting.num_clients)
        if done:
            log.info("%d of %d rounds done already", len(done), config.train.rounds)

    def round(self, record: RoundRecord) -> None:
        accuracy, trained, nodes = record.test_accuracy, record.trained or (), record.nodes or ()
        parts = [f"round {record.round}", f"{len(trained)} of {len(nodes)} nodes trained"]
        parts += [f"{record.measure.split()[0]} {accuracy:.2f} %"] if accuracy is not None else []
        parts += [f"ε = {record.epsilon:.3g}"] if record.epsilon is not None else []
        parts += ["model kept: too few updates, or their mean is not finite"] if record.kept else []
        log.info("%s  %.1f s", "  ".join(parts), record.wall_s)

    def finish(self, summary: dict[str, Any], folder: Path | None) -> None:
        log.info("finished; results in %s", folder)


@dataclass(frozen=True)
class Assignment:
    """What `fednoil federation run` writes into the app's configuration."""

    config: str  # TOML
    out: str
    resume: bool = False
    force: bool = False
    command: str = "[]"  # JSON: the words of the command
    origin: str = "null"  # JSON: the preset or file that the configuration came from
    nodes: int = 0  # that may come; 0: unknown


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play all rounds of the run that the app's configuration describes."""
    values: dict[str, Any] = dict(context.run_config)
    try:
        assignment = Assignment(**{key: values[key] for key in (f.name for f in fields(Assignment))})
        play(grid, assignment)
        check_trained(Path(assignment.out))
    except UserError as error:
        # Flower's way to report the failure to the SuperLink without a traceback.
        flwr_exit(ExitCode.SERVERAPP_EXCEPTION, f"fednoil: {error}")


def check_trained(out: Path) -> None:
    """Refuse to call a run finished in which no node has trained."""
    if not RunFolder(out).any_trained():
        why = '"failed" in its rounds.jsonl says why'
        raise UserError(f"no node trained in any round, so the model in {out} has learnt nothing; {why}")


def play(grid: Grid, assignment: Assignment) -> dict[str, Any]:
    """Run to the end and record it."""
    return runner.run(
        load_config(tomllib.loads(assignment.config)),
        Path(assignment.out),
        LogLines(),
        resume=assignment.resume,
        force=assignment.force,
        engine=FlowerEngine(grid, json.loads(assignment.command), assignment.nodes),
        origin=json.loads(assignment.origin),
    )
