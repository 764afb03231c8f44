"""A run handed to Flower and watched until it ends, by its folder where Flower has lost sight of it.

A SuperLink that is restarted forgets the process that plays the run, or takes it for failed, while that one goes on.
Whether a run goes on is known from its folder: whoever plays it holds the folder's lock.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fednoil.config import Config
from fednoil.data import SITES, as_asked, load
from fednoil.errors import UserError
from fednoil.models import build
from fednoil.records.beginning import check
from fednoil.records.files import read_json
from fednoil.records.folder import RunFolder
from fednoil.seeds import Seed

if TYPE_CHECKING:
    from fednoil.flower.loopback import Loopback

_LOOK = 1.0  # seconds between two looks at a run's folder
_DONE = "finished:completed"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # Flower colours its log even in a pipe
_SAID = re.compile(r"fednoil: (.+)")  # what the ServerApp says when it gives up
# What Flower adds to that.
_AROUND = re.compile(r"ERROR :\s+Exit Code: \d+$|An unhandled exception occurred in|For more information, visit: |\s*$")


class EndedEarly(UserError):
    """A run has ended before its last round."""


def check_here(config: Config, out: Path, federation: Loopback, *, resume: bool, force: bool) -> None:
    """Refuse at once a folder, or a model that is not for the first node's data."""
    check(RunFolder(out), config, resume=resume, force=force)
    name, nodes = config.data.name, federation.folder / "home" / "nodes.json"
    if name == SITES and nodes.is_file():
        name = read_json(nodes)[0]["settings"].get("data", name)
    if name.partition(":")[0] in ("table", "features"):
        data = load(as_asked(name, config.data), site=True)
        build(config.model, data.image_shape, data.num_classes, Seed(0))


def flwr_run(bundle: Path, connection: str, federation: Loopback | None, out: Path) -> None:
    """Submit the app, show its log, and report how it ended; if this command is stopped, so is the run.

    A run that is refused before a round is played has not ended early: the reason is the whole error.
    """
    environment = federation.environment() if federation else dict(os.environ)
    flwr = str(Path(sys.executable).parent / "flwr")
    number, reason, before, done = None, "", _finished(out), _played(out)
    with subprocess.Popen(
        [flwr, "run", str(bundle), connection, "--stream"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C is for this process, which stops the run as well
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                plain = _COLOUR.sub("", line)
                if match := re.search(r"started run (\d+)", line):
                    number = match[1]
                if match := _SAID.match(plain):
                    reason = match[1]
                elif not _AROUND.match(plain):
                    print(line if sys.stdout.isatty() else plain, end="", flush=True)
        except BaseException:
            process.terminate()
            if number is not None:
                subprocess.run([flwr, "stop", number, connection], env=environment, capture_output=True, check=False)
            raise
    if number is None:
        raise UserError(f"flwr run did not start the app on '{connection}'; see its output above")
    status = _status(flwr, number, connection, environment)
    if status == _DONE:
        return
    if RunFolder(out).is_held():
        print(f"the SuperLink no longer follows the run, which goes on in {out}", flush=True)
        follow(out)
    elif before or not _finished(out) or not RunFolder(out).any_trained():
        if reason and _played(out) == done:
            raise UserError(reason)
        how = "failed" if status.endswith(":failed") else "was stopped"
        raise EndedEarly(f"the run {how}: {reason or 'see the log above'}")


def _status(flwr: str, number: str, connection: str, environment: dict[str, str]) -> str:
    command = [flwr, "list", connection, "--run-id", number, "--format", "json"]
    listed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    try:
        found = json.loads(listed.stdout or "{}").get("runs") or [{}]
    except ValueError:  # the SuperLink is away
        return "unknown"
    return str(found[0].get("status", "unknown"))


def follow(out: Path, sleep: Callable[[float], None] = time.sleep) -> None:
    """Show the rounds of a run that another process plays, until it ends; a run that has stopped is an error."""
    folder, shown = RunFolder(out), len(RunFolder(out).records())
    held = True
    while held:
        held = folder.is_held()
        for record in folder.records()[shown:]:
            known = (
                [] if record.test_accuracy is None else [f"{record.measure.split()[0]} {record.test_accuracy:.2f} %"]
            )
            print("  ".join([f"round {record.round}", *known, f"{record.wall_s:.1f} s"]), flush=True)
            shown = record.round
        if held:
            sleep(_LOOK)
    if not _finished(out):
        raise EndedEarly(f"the run in {out} has stopped after round {shown}")
    print(f"finished; results in {out}", flush=True)


def _played(out: Path) -> int:
    """When a round was last recorded; 0: never."""
    rounds = RunFolder(out).rounds_file
    return rounds.stat().st_mtime_ns if rounds.is_file() else 0


def _finished(out: Path) -> bool:
    return (out / "summary.json").is_file()
