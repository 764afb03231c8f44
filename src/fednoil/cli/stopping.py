"""Ctrl-C and SIGTERM as an exception that says how to go on."""

from __future__ import annotations


class Stopped(BaseException):
    """Ctrl-C or SIGTERM. Not a KeyboardInterrupt, of which the command-line library makes a silent exit."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.hint = ""  # how to go on with what was stopped
