"""Logs as JSON lines, for programs that collect them."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


class JsonLines(logging.Formatter):
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
    lines.setFormatter(JsonLines())
    lines.setLevel(logging.INFO)
    FLOWER_LOGGER.addHandler(lines)
