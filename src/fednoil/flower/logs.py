"""Logs in files: as JSON lines, for programs that collect them, or as text without colours."""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import sys
import threading
from datetime import UTC, datetime

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class JsonFormatter(logging.Formatter):
    """One object a line: when, how serious, from where, what, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        values = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            values["error"] = self.formatException(record.exc_info)
        return json.dumps(values, ensure_ascii=False)


def use_json() -> None:
    """Let Flower's logger, and ours below it, write JSON lines."""
    from flwr.supercore.logger import FLOWER_LOGGER

    for handler in list(FLOWER_LOGGER.handlers):  # Flower's own handler has no use for a formatter
        FLOWER_LOGGER.removeHandler(handler)
    lines = logging.StreamHandler(sys.stdout)
    lines.setFormatter(JsonFormatter())
    lines.setLevel(logging.INFO)
    FLOWER_LOGGER.addHandler(lines)


def use_plain() -> None:
    """Let Flower's logger write times and no colours, unless it writes to a terminal."""
    from flwr.supercore.logger import update_console_handler

    if not sys.stderr.isatty():
        update_console_handler(colored=False, timestamps=True)


def wrap_output() -> None:
    """Write all that this process and its children print as JSON lines: Flower's own processes print text."""
    read, write = os.pipe()
    out = os.dup(1)
    for stream in (1, 2):
        os.dup2(write, stream)
    os.close(write)

    def copy() -> None:
        with os.fdopen(read, errors="replace") as lines, os.fdopen(out, "w") as to:
            for line in lines:
                to.write(as_json(line))
                to.flush()

    thread = threading.Thread(target=copy, name="output", daemon=True)
    thread.start()

    def end() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        thread.join(1.0)  # a child may still hold its end

    atexit.register(end)


def as_json(line: str) -> str:
    """A line as it is if it is an object of JSON, otherwise as the message of one."""
    try:
        if isinstance(json.loads(line), dict):
            return line
    except ValueError:
        pass
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    values = {"at": now, "level": "info", "logger": "output", "message": _COLOUR.sub("", line).rstrip("\n")}
    return json.dumps(values, ensure_ascii=False) + "\n"
