"""Where a run's numbers are also written, for those who watch runs there: TensorBoard, MLflow, Weights & Biases.

Each is an optional package. A logger that fails while the run goes on is left out from there on: the numbers are in
rounds.jsonl, and a run that is resumed writes those that are missing.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from fednoil.config.schema import Config
from fednoil.errors import UserError
from fednoil.history import RoundRecord
from fednoil.records.environment import note
from fednoil.records.files import read_json
from fednoil.records.folder import TENSORBOARD, WANDB, RunFolder

_PROJECT = "fednoil"


def numbers(record: RoundRecord) -> dict[str, float]:
    """Every number of a round by its name in rounds.jsonl."""
    values = record.to_json().items()
    return {key: float(value) for key, value in values if key != "round" and isinstance(value, int | float)}


class Logger(ABC):
    """A logger that receives every round once; rounds are its steps."""

    def __init__(self, folder: RunFolder, config: Config) -> None:
        self.folder, self.config = folder, config

    @abstractmethod
    def start(self, done: Sequence[RoundRecord]) -> None:
        """Open it for a run of which these rounds are done."""

    @abstractmethod
    def round(self, record: RoundRecord) -> None: ...

    @abstractmethod
    def close(self, *, finished: bool) -> None: ...

    def parameters(self) -> dict[str, str]:
        sections = self.config.model_dump(mode="json").items()
        return {f"{section}.{key}": str(value) for section, keys in sections for key, value in keys.items()}

    def known(self, name: str) -> dict[str, Any]:
        """What an earlier start of this run has noted here."""
        with suppress(UserError, OSError, AttributeError):
            found = read_json(self.folder.path / "environment.json").get(name)
            return found if isinstance(found, dict) else {}
        return {}

    def missing(self, name: str) -> NoReturn:
        raise UserError(
            f"run.log = '{name}' needs the package {name}: pip install 'fednoil[{name}]', or leave the key out"
        ) from None


class TensorBoard(Logger):
    """Event files in the run's folder. A resumed run writes those of its earlier rounds again: rounds that are played
    again would otherwise be there twice."""

    def __init__(self, folder: RunFolder, config: Config) -> None:
        super().__init__(folder, config)
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            self.missing("tensorboard")
        self._make, self._writer = SummaryWriter, None

    def start(self, done: Sequence[RoundRecord]) -> None:
        self.folder.clear_events()
        self._writer = self._make(str(self.folder.path / TENSORBOARD))
        for record in done:
            self.round(record)

    def round(self, record: RoundRecord) -> None:
        assert self._writer is not None
        for key, value in numbers(record).items():
            self._writer.add_scalar(key, value, record.round)

    def close(self, *, finished: bool) -> None:
        if self._writer is not None:
            self._writer.close()


class Mlflow(Logger):
    """A run of MLflow, where its own variables say (MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME). A resumed run
    continues it; rounds that it already has are not written again."""

    def __init__(self, folder: RunFolder, config: Config) -> None:
        super().__init__(folder, config)
        try:
            from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]
        except ImportError:
            self.missing("mlflow")
        self._client_of, self._client, self._id, self._last = MlflowClient, None, "", 0

    def start(self, done: Sequence[RoundRecord]) -> None:
        self._client = client = self._client_of()
        self._id = str(self.known("mlflow").get("run_id", ""))
        try:
            history = client.get_metric_history(self._id, "wall_s") if self._id else []
            self._last = max((point.step for point in history), default=0)
            client.update_run(self._id, status="RUNNING")
        except Exception:  # what a store without this run raises depends on where it is
            self._id, self._last = self._new(client), 0
        for record in done:
            self.round(record)

    def _new(self, client: Any) -> str:
        from mlflow.entities import Param  # pyright: ignore[reportMissingImports]

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
        found = client.get_experiment_by_name(name)
        experiment = client.create_experiment(name) if found is None else found.experiment_id
        made = client.create_run(experiment, run_name=self.folder.path.resolve().name).info.run_id
        params = [Param(key, value[:6000]) for key, value in self.parameters().items()]
        client.log_batch(made, params=params[:100])  # as many as a call may have; an experiment has at most 80 keys
        note(self.folder, mlflow={"run_id": made})
        return made

    def round(self, record: RoundRecord) -> None:
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]

        assert self._client is not None
        if record.round > self._last:
            now = int(1000 * time.time())
            points = [Metric(key, value, now, record.round) for key, value in numbers(record).items()]
            self._client.log_batch(self._id, metrics=points)

    def close(self, *, finished: bool) -> None:
        if self._client is not None:
            self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")


class Wandb(Logger):
    """A run of Weights & Biases in the run's folder, offline unless WANDB_MODE says otherwise. A resumed run replaces
    what it has written offline; what was sent is continued. Nothing about the machine is collected."""

    def __init__(self, folder: RunFolder, config: Config) -> None:
        super().__init__(folder, config)
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError:
            self.missing("wandb")
        self._wandb, self._run = wandb, None

    def start(self, done: Sequence[RoundRecord]) -> None:
        known = str(self.known("wandb").get("run_id", ""))
        if known:
            for old in (self.folder.path / WANDB).glob(f"offline-run-*-{known}"):
                shutil.rmtree(old, ignore_errors=True)
        name = known or uuid.uuid4().hex[:12]
        quiet = self._wandb.Settings(
            silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True, x_disable_meta=True
        )
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            id=name,
            name=self.folder.path.resolve().name,
            dir=self.folder.path,
            mode=os.environ.get("WANDB_MODE", "offline"),
            config=self.parameters(),
            resume="allow",
            settings=quiet,
        )
        note(self.folder, wandb={"run_id": name})
        for record in done:
            self.round(record)

    def round(self, record: RoundRecord) -> None:
        assert self._run is not None
        self._run.log(numbers(record), step=record.round)

    def close(self, *, finished: bool) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if finished else 1)


LOGGERS: dict[str, type[Logger]] = {"tensorboard": TensorBoard, "mlflow": Mlflow, "wandb": Wandb}


class Loggers:
    """All loggers of a run."""

    def __init__(self, folder: RunFolder, config: Config) -> None:
        self._open = {name: LOGGERS[name](folder, config) for name in config.run.log}
        self._say: Callable[[str], None] = print

    def start(self, done: Sequence[RoundRecord], say: Callable[[str], None]) -> None:
        """Open them; one that can't be opened ends the run, which has not begun."""
        self._say = say
        for name, logger in self._open.items():
            try:
                logger.start(done)
            except Exception as error:  # each package has its own kinds
                raise UserError(f"run.log = '{name}' can't be written: {_line(error)}; or leave the key out") from None

    def round(self, record: RoundRecord) -> None:
        self._each(lambda logger: logger.round(record))

    def close(self, *, finished: bool) -> None:
        self._each(lambda logger: logger.close(finished=finished))

    def _each(self, call: Callable[[Logger], None]) -> None:
        for name, logger in list(self._open.items()):
            try:
                call(logger)
            except Exception as error:
                del self._open[name]
                self._say(f"run.log = '{name}' failed and is left out from here on: {_line(error)}")


def _line(error: Exception) -> str:
    """The first line of what went wrong."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
