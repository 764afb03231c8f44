"""What becomes of Ctrl-C and SIGTERM inside the command."""

from __future__ import annotations

from pathlib import Path


class Stopped(BaseException):
    """Ctrl-C or SIGTERM. Not a KeyboardInterrupt, of which the command-line library makes a silent exit."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.folder: Path | None = None  # of the run that was stopped
        self.command = "run"  # that goes on with it
