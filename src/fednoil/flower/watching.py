"""How a federation is doing, for people, container healthchecks and Prometheus.

A run is judged by its folder and a node by the file that it writes while it waits and works, so nothing here can
disturb either of them.
"""

from __future__ import annotations

import os
import ssl
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from fednoil.config.loading import read_toml
from fednoil.errors import UserError
from fednoil.flower.state import make_own
from fednoil.history import RoundRecord
from fednoil.records.files import read_json, write_json
from fednoil.records.folder import RunFolder

_FILE = "health.json"
_EVERY, _OLD = 5.0, 60.0  # seconds between two signs of life of a node that waits, and after which it counts as dead
_FORGOTTEN = (
    180.0  # seconds after which no server sees a node online that was killed; Flower's heartbeat takes 60 to 90
)
WAITING = "waiting"
_NAMED = 10  # nodes in one line


@dataclass(frozen=True)
class RunStatus:
    """How far a run is: `records` of its rounds, of `rounds` in all, and whether a process plays it now."""

    out: Path
    rounds: int
    records: list[RoundRecord]
    going_on: bool
    finished: bool

    def words(self) -> str:
        """One line for people."""
        how = "finished" if self.finished else "goes on" if self.going_on else "stopped"
        parts = [f"run {self.out}: round {len(self.records)} of {self.rounds}, {how}"]
        if self.records:
            last = self.records[-1]
            known = "" if last.test_accuracy is None else f", {last.measure.split()[0]} {last.test_accuracy:.2f} %"
            some = last.nodes or []
            there = f" of {len(some)} nodes ({', '.join(some[:_NAMED])}{', …' if len(some) > _NAMED else ''})"
            trained = f"{len(last.trained or last.selected)}{there if some else ''} trained"
            parts.append(f"last round {last.wall_s:.1f} s, {trained}{known}")
            parts += [f"ε = {last.epsilon:.3g}"] if last.epsilon is not None else []
            parts += [f"failed: {', '.join(last.failed)}"] if last.failed else []
            parts += [f"refused: {', '.join(last.refused)}"] if last.refused else []
        return "; ".join(parts)

    def values(self) -> dict[str, Any]:
        """The same for programs."""
        last = self.records[-1].to_json() if self.records else None
        return {
            "out": str(self.out),
            "round": len(self.records),
            "rounds": self.rounds,
            "going_on": self.going_on,
            "finished": self.finished,
            "last": last,
        }


def run_status(out: Path) -> RunStatus:
    """The state of the run in a folder."""
    folder = RunFolder(out)
    folder.check_is_run(" (no config.toml)")
    going_on = folder.is_held()
    rounds = int(read_toml(out / "config.toml").get("train", {}).get("rounds", 0))
    finished = not going_on and (out / "summary.json").is_file()
    return RunStatus(out, rounds, folder.records(), going_on, finished)


def metrics(status: RunStatus) -> str:
    """A run in Prometheus's text format."""
    records = status.records
    last = records[-1] if records else None
    found: dict[str, tuple[str, str, float | None]] = {
        "round": ("gauge", "Rounds played", len(records)),
        "rounds": ("gauge", "Rounds of the run", status.rounds),
        "going_on": ("gauge", "1 while a process plays the run", int(status.going_on)),
        "finished": ("gauge", "1 when the run is finished", int(status.finished)),
        "nodes": ("gauge", "Nodes in the last round", last and len(last.nodes or ())),
        "trained": ("gauge", "Clients whose updates were used in the last round", last and len(last.trained or ())),
        "refused": ("gauge", "Nodes refused in the last round", last and len(last.refused or ())),
        "limited": ("gauge", "Clients limited in the last round", last and len(last.limited or ())),
        "failures_total": ("counter", "Failed replies of nodes", sum(len(r.failed or ()) for r in records)),
        "epsilon": ("gauge", "Privacy spent so far, at delta 1e-5", last and last.epsilon),
        "round_seconds": ("gauge", "Seconds of the last round", last and last.wall_s),
        "sent_bytes_total": ("counter", "Bytes to the nodes", sum(r.bytes_down for r in records)),
        "received_bytes_total": ("counter", "Bytes from the nodes", sum(r.bytes_up for r in records)),
        "accuracy_percent": ("gauge", "Accuracy, or agreement with held-out labels", last and last.test_accuracy),
    }
    lines = []
    for name, (kind, words, value) in found.items():
        if value is not None:
            lines += [f"# HELP fednoil_{name} {words}.", f"# TYPE fednoil_{name} {kind}", f"fednoil_{name} {value}"]
    return "\n".join(lines) + "\n"


def metrics_server(out: Path, host: str, port: int) -> ThreadingHTTPServer:
    """Serves a run's metrics at /metrics; it may begin before the run does."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = 404, ""
            if self.path.partition("?")[0] == "/metrics":
                try:
                    status, text = 200, metrics(run_status(out))
                except UserError as error:
                    begun = RunFolder(out).is_run()
                    status, text = (503, f"{error}\n") if begun else (200, "")
            self.send_response(status)
            self.send_header("content-type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    try:
        return ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise UserError(f"--host {host} --port {port}: {error.strerror}") from None


class Pulse:
    """A node's signs of life, in its client's folder."""

    def __init__(self, folder: Path) -> None:
        self.file, self._last = folder / _FILE, 0.0
        make_own(folder)

    def beat(self, doing: str = WAITING) -> None:
        """Record what the node is doing; while it waits, every few seconds."""
        now = time.time()
        if doing != WAITING or now - self._last >= _EVERY:
            self._last = 0.0 if doing != WAITING else now
            write_json(self.file, {"at": now, "pid": os.getpid(), "doing": doing}, private=True)


def lived_lately(folder: Path) -> bool:
    """Whether the server may still see an earlier process of this node online."""
    try:
        return time.time() - float(read_json(folder / _FILE)["at"]) < _FORGOTTEN
    except (UserError, KeyError, TypeError, ValueError):
        return False


def check_node(folder: Path) -> str:
    """What a node is doing; UserError if it isn't alive."""
    if not (folder / _FILE).is_file():
        raise UserError(f"{folder / _FILE} is not there: the node has never been online with this --state and --name")
    found = read_json(folder / _FILE)
    try:
        age, pid, doing = time.time() - float(found["at"]), int(found["pid"]), str(found["doing"])
        if not 0 < pid < 1 << 31:  # not a process, but a group of them, or nothing at all
            raise ValueError
    except (KeyError, TypeError, ValueError, OverflowError):
        raise UserError(f"{folder / _FILE} is damaged; the node writes it again within seconds") from None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        raise UserError(f"the node's process has ended; it was last heard from {age:.0f} s ago") from None
    except PermissionError:  # alive, and owned by another user
        pass
    if doing == WAITING and age > _OLD:
        raise UserError(f"the node has not been heard from for {age:.0f} s; it can't reach the server")
    return f"{doing}, for {age:.0f} s" if doing != WAITING else "online, waiting for work"


def check_reachable(certificate: Path, port: int) -> str:
    """That the server answers on this machine; UserError if it doesn't."""
    try:
        context = ssl.create_default_context(cafile=str(certificate))
        found = httpx.get(f"https://localhost:{port}/health", verify=context, timeout=10)
    except (httpx.HTTPError, OSError) as error:
        raise UserError(f"no answer from the server at localhost:{port}: {type(error).__name__} {error}") from None
    if found.status_code != 200:
        raise UserError(f"the server at localhost:{port} answers with status {found.status_code}")
    return f"the server answers at localhost:{port}"
