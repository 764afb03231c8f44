"""TensorBoard's event files beside a run's records, for those who watch runs there (`run.tensorboard = true`)."""

from __future__ import annotations

from typing import Any

from fednoil.errors import UserError
from fednoil.history import RoundRecord
from fednoil.records.folder import TENSORBOARD, RunFolder


class EventFiles:
    """Every number of every round as a scalar; rounds are steps.

    A resumed run writes the events of its earlier rounds again: those of rounds that are played again would otherwise
    be there twice.
    """

    def __init__(self, folder: RunFolder) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            raise UserError(
                "run.tensorboard = true needs the package tensorboard: pip install 'fednoil[tensorboard]', "
                "or leave the key out"
            ) from None
        self._make = SummaryWriter
        self._folder = folder
        self._writer: Any = None

    def start(self, done: list[RoundRecord]) -> None:
        self._folder.clear_events()
        self._writer = self._make(str(self._folder.path / TENSORBOARD))
        for record in done:
            self.round(record)

    def round(self, record: RoundRecord) -> None:
        for key, value in record.to_json().items():
            if key != "round" and isinstance(value, int | float):
                self._writer.add_scalar(key, value, record.round)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
