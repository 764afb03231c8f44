"""Keeps nodes running: one process for each, forked from a parent that has loaded the code once.

A node that dies, for lack of memory for example, is restarted. Pages that no node changes exist once for all of them,
so thirty nodes fit on a small machine.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fednoil.errors import UserError
from fednoil.flower.logs import use_plain
from fednoil.flower.resident import NodeSetup, orphaned_after, serve
from fednoil.records.files import write_json

log = logging.getLogger("flwr.fednoil")
_AGAIN = 2.0  # seconds until a node that died is restarted
_REFUSED = 3  # exit status of a node that can't be helped by another start
_LOOK = 0.2
_GRACE = 10.0  # seconds that a node has to take its leave
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Terminated(BaseException):
    """SIGTERM: the node signs off at the SuperLink and ends."""


class Keeper:
    """Nodes of this machine, by name; `pids` is a file that says which processes they are."""

    def __init__(self, places: Sequence[NodeSetup], pids: Path | None = None) -> None:
        self.places = {place.name: place for place in places}
        self.pids = pids
        self.running: dict[int, str] = {}  # process -> name
        self._stopped, self._patience = False, 0.0

    def keep(self) -> int:
        """Run all nodes until SIGTERM or SIGINT, or until none can go on; returns an exit status."""
        for number in _SIGNALS:
            signal.signal(number, self._stop)
        gc.collect()
        gc.freeze()  # otherwise a child's first collection would write to, and so copy, every page
        for name in self.places:
            self._start(name)
        again: dict[str, float] = {}
        refused = 0
        while self.running or again:
            ended, status = self._ended()
            if self._stopped and time.monotonic() > self._patience:
                self._send(signal.SIGKILL)
            if ended is not None and not self._stopped:
                code = os.waitstatus_to_exitcode(status)
                refused += code == _REFUSED
                if code not in (0, _REFUSED):
                    log.error("%s has ended (%s); restarting it", ended, _word(code))
                    again[ended] = time.monotonic() + _AGAIN
            for name in [name for name, when in again.items() if time.monotonic() >= when or self._stopped]:
                del again[name]
                if not self._stopped:
                    self._start(name)
        return 2 if refused else 0

    def _ended(self) -> tuple[str | None, int]:
        """A node that has ended, and how."""
        pid, status = os.waitpid(-1, os.WNOHANG) if self.running else (0, 0)
        if pid == 0:
            time.sleep(_LOOK)
            return None, 0
        return self.running.pop(pid, None), status

    def _start(self, name: str) -> None:
        sys.stdout.flush()
        parent = os.getpid()
        # Until the child has its own handlers, a signal to it waits; the parent's would lose it.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        pid = os.fork()
        if pid == 0:
            os._exit(_node(self.places[name], parent))
        self.running[pid] = name
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        if self.pids is not None:
            write_json(self.pids, {name: pid for pid, name in self.running.items()})

    def _stop(self, number: int, frame: object) -> None:
        self._stopped, self._patience = True, time.monotonic() + _GRACE
        self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        for pid in self.running:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _node(place: NodeSetup, parent: int) -> int:
    """One node, in its own process and process group."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if place.log is not None:
        with place.log.open("a") as log_file:
            os.dup2(log_file.fileno(), sys.stdout.fileno())
            os.dup2(log_file.fileno(), sys.stderr.fileno())
        use_plain()
    status = 1
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        serve(place, orphaned_after(parent))
        status = 0
    except UserError as error:
        print(f"fednoil: {error}", file=sys.stderr)
        status = _REFUSED
    except Terminated:
        status = 0
    except Exception:
        log.exception("%s has failed", place.name)
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _end(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    raise Terminated


def _word(code: int) -> str:
    return f"by signal {-code}" if code < 0 else f"status {code}"
