"""Ctrl-C, SIGTERM and a closed terminal as an exception that says how to continue, and the end of the parent process as
SIGTERM."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading


class Stopped(BaseException):
    """Ctrl-C, SIGTERM or a closed terminal (SIGHUP).

    Not a KeyboardInterrupt, which the command-line library turns into a silent exit.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.hint = ""  # how to continue


def stop_with_standard_input() -> None:
    """Stop when standard input ends: a parent holds it open, and the system closes it however the parent dies.

    Linux can signal a parent's death, but it signals that of the thread which started the process.
    """
    # A terminal sends Ctrl-C, or its end, to both, and the parent passes it on as SIGTERM: together they could stop a
    # run before it begins its last checkpoint.
    for name in ("SIGINT", "SIGHUP"):  # Windows has no SIGHUP
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    number = sys.stdin.fileno()

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(number, 4096):
                pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()
