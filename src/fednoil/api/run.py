"""A run in Python: its numbers, its model and its audit, in memory or in a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fednoil import findings, metrics
from fednoil.api.arrays import samples
from fednoil.api.audit import Audit
from fednoil.api.model import Classifier
from fednoil.api.rows import rows_by_name
from fednoil.api.table import Table
from fednoil.api.words import in_python
from fednoil.audit.cases import load_state, selecting
from fednoil.config.loading import Values, load_config, read_toml
from fednoil.config.schema import Config
from fednoil.data.elsewhere import are_given, own_sites
from fednoil.data.vectors import is_vector
from fednoil.devices import pick_device
from fednoil.errors import UserError, counted
from fednoil.executors.local import Workbench
from fednoil.experiment import Experiment
from fednoil.history import ACCURACY, RoundRecord
from fednoil.learners.base import chunks
from fednoil.predict import Known
from fednoil.records.compare import method_name
from fednoil.records.files import read_json
from fednoil.records.folder import Roster, RunFolder
from fednoil.records.model_file import load_model
from fednoil.records.older import in_todays_keys
from fednoil.records.store import InFolder, Store, check_best
from fednoil.rounds import RunState, final


class Run:
    """One experiment, finished or as far as it got.

    `fednoil.run` makes it and `fednoil.load` reads it from a folder. Accuracies are in percent; unknown values are
    None.
    """

    def __init__(
        self,
        name: str,
        values: Values,
        records: list[RoundRecord],
        summary: Mapping[str, Any] | None,
        played: Callable[[], tuple[Experiment, RunState]],
        path: Path | None = None,
        made_with: Mapping[str, Any] | None = None,
    ) -> None:
        self._name, self._path = name, path
        self._values, self._records, self._played = values, records, played
        self._made_with = dict(made_with or {})
        self._finished = summary is not None
        self._summary: dict[str, Any] = dict(summary) if summary is not None else _so_far(records)

    @classmethod
    def of(cls, store: Store, name: str) -> Run:
        """The run that a store holds."""
        experiment, state = store.experiment, store.state
        assert experiment is not None
        assert state is not None
        values = experiment.config.model_dump(mode="json")
        return cls(name, values, store.records, store.summary, lambda: (experiment, state), store.path, store.made_with)

    @property
    def name(self) -> str:
        """The name of its preset, file or folder, otherwise its method."""
        return self._name

    @property
    def path(self) -> Path | None:
        """Its folder; None in memory."""
        return self._path

    @property
    def finished(self) -> bool:
        """Whether all rounds were played."""
        return self._finished

    @property
    def summary(self) -> dict[str, Any]:
        """All numbers of the whole run, as in a run folder's summary.json."""
        return self._summary

    @property
    def accuracy(self) -> float | None:
        """Test accuracy after the last round, in percent; None without test images. If these were held out of the
        training images, it is agreement with their given labels, and `summary["measure"]` says so."""
        return self.summary.get("final_accuracy")

    @cached_property
    def config(self) -> Config:
        """All keys of the experiment."""
        return load_config({s: {k: v for k, v in keys.items() if v is not None} for s, keys in self._values.items()})

    @property
    def findings(self) -> list[str]:
        """What the run has found out, one sentence each: which classes are lost, how noisy the clients' labels are,
        which classes are hard, whether the model was still improving. The numbers are in `summary`."""
        return findings.sentences(self.summary)

    @cached_property
    def measures(self) -> dict[str, Any]:
        """Measures of the final model besides accuracy: balanced accuracy, macro F1, AUROC, calibration error, and by
        class recall, precision, F1, AUROC and the confusion matrix; on the test set (`test`), and for each client
        (`clients`) on its own test samples or, without any, on the given labels it holds out (`data.validation`)."""
        return final.measured(*self._played(), torch.device("cpu"))

    @cached_property
    def history(self) -> Table:
        """One row per round: `test_accuracy`, `test_loss`, `train_loss`, `local_epochs`, `selected` and more."""
        return Table.of([record.to_json() for record in self._records])

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the model's outputs."""
        return self._model[1]

    @property
    def model(self) -> Classifier:
        """The trained model as a torch module on the CPU, in eval mode: images [N, C, H, W] in, uint8 pixels or
        fractions in 0..1, or vectors [N, D] as the data have them; logits out."""
        return self._model[0]

    @cached_property
    def _model(self) -> tuple[Classifier, tuple[str, ...], tuple[int, ...], Known]:
        """The model, its classes' names, the shape of its images and, of a table's rows, the columns."""
        if self.path is not None and (file := self.path / "model.safetensors").is_file():
            names = [str(self._values.get(section, {}).get("name", "")) for section in ("model", "server", "learner")]
            loaded = load_model(file, tuple(name for name in names if ":" in name))
            mean, std = loaded.normalisation
            shape = loaded.image_shape
            known = Known(loaded.columns, shape[0], mean, std)
            return Classifier(loaded.bench, loaded.tensors, mean, std), loaded.class_names, shape, known
        experiment, state = self._played()
        dataset, tensors = (
            experiment.setting.dataset,
            experiment.server.exported(state.final(experiment.config.run.select)),
        )
        made_of = experiment.learner, experiment.template, experiment.normalisation, experiment.training
        bench = Workbench(*made_of, torch.device("cpu"), fixed=experiment.fixed)  # not where it was trained
        scale = experiment.normalisation if experiment.normalisation[0] else (dataset.mean, dataset.std)
        known = Known(dataset.about.columns, dataset.image_shape[0], *scale)
        return Classifier(bench, tensors, *scale), dataset.class_names, dataset.image_shape, known

    @in_python
    def probabilities(self, images: Any) -> np.ndarray:
        """The probability of each class for each image: float32 [N, classes]. Images as in `fednoil.run`; rows of a
        table also as a DataFrame or a pyarrow Table, or the path of a CSV or parquet file: columns are then found by
        their names."""
        model, _, shape, known = self._model
        array = rows_by_name(images, known) if is_vector(shape) else None
        array = samples(images, "images") if array is None else array
        if array.shape[1:] != shape:
            if 1 in (len(shape), array.ndim - 1):
                raise UserError(f"samples have the shape {list(array.shape[1:])}, the model takes {list(shape)}")
            sizes = ["×".join(map(str, (s[2], s[1], s[0]))) for s in (array.shape[1:], shape)]
            raise UserError(f"images are {sizes[0]} (width×height×channels), the model takes {sizes[1]}")
        device, tensor = next(model.parameters()).device, torch.from_numpy(array)
        with torch.no_grad():
            logits = [model(tensor[rows].to(device)).cpu() for rows in chunks(len(tensor), tensor)]
        return torch.softmax(torch.cat(logits), 1).numpy()

    @in_python
    def predict(self, images: Any) -> np.ndarray:
        """The most probable class of each image [N]: its number, or its name if your labels are names."""
        numbers = self.probabilities(images).argmax(1)
        return np.array(self.class_names)[numbers] if self._strings else numbers

    @property
    def _strings(self) -> bool:
        data = self.config.data
        if are_given(data.name):
            given = self._played()[0].given
            return given is not None and given.strings
        own = ":" in data.name or own_sites(data)
        return bool(own) and self.class_names != tuple(map(str, range(len(self.class_names))))

    @in_python
    def audit(
        self,
        client: str | int | None = None,
        *,
        method: str = "channel",
        device: str = "auto",
        select: str | None = None,
        folds: int | None = None,
    ) -> Audit:
        """Which labels are wrong, for all clients or for one, given by name or number. `select` (`last` or `best`) is
        the round whose model is used, in place of `run.select`. With `folds` the run is repeated that many times, each
        time without one fold of every client's samples, which that run then judges: slower, but better for few images.
        The default is five if the model has memorised some of at most 2,000 labels, otherwise 0."""
        experiment, state = self._played()
        if select is not None:
            experiment = replace(experiment, config=selecting(experiment.config, select))
            check_best(state, experiment, self.path or Path(self.name))
        seconds = self.summary.get("wall_s") if self.finished else None
        return Audit.of(experiment, state, client, method, pick_device(device, "device"), folds, self.path, seconds)

    @in_python
    def save(self, path: str | Path, *, force: bool = False) -> Run:
        """Write the run to a folder, as `fednoil.run(out=...)` does, and return it. An unfinished run can continue
        there with `fednoil.run(out=path, resume=True)`."""
        played = Store()
        played.experiment, played.state = self._played()
        file = None if self.path is None else self.path / "environment.json"
        recorded = read_json(file) if file is not None and file.is_file() else {}
        played.records, played.made_with = self._records, self._made_with or recorded
        played.summary = self.summary if self.finished else None
        folder = RunFolder(Path(path))
        if folder.is_run() and not force:
            raise UserError(f"{path} already has a run; add --force to replace it, or choose another folder")
        InFolder(Path(path), force=force).keep(played)
        return read_run(path)

    @property
    def _roster(self) -> Roster | None:
        return None if self.path is None else RunFolder(self.path).roster()

    def __repr__(self) -> str:
        rounds, planned = len(self._records), self._values.get("train", {}).get("rounds", "?")
        measure = self.summary.get("measure", ACCURACY)
        accuracy = "accuracy not known" if self.accuracy is None else f"{measure} {self.accuracy:.2f} %"
        played = counted(rounds, "round") if self.finished else f"{rounds} of {planned} rounds"
        where = "" if self.path is None else f", in {self.path}"
        return f"<fednoil.Run {self.name}: {method_name(self._values)}, {played}, {accuracy}{where}>"

    def _repr_html_(self) -> str:
        """For notebooks: the line and the last rounds."""
        shown = [c for c in _SHOWN if c in self.history.columns]
        table = Table(self.history[-5:].to_arrow().select(shown))._repr_html_() if self._records else ""
        return f"<p><code>{escape(repr(self))}</code></p>{table}"


_SHOWN = ("round", "test_accuracy", "test_loss", "train_loss", "val_accuracy", "local_epochs", "selected_noise")


def _so_far(records: list[RoundRecord]) -> dict[str, Any]:
    """The summary of the rounds so far."""
    if not records:
        return {"final_accuracy": None, "best_accuracy": None, "last10_accuracy": None, "rounds": 0}
    return metrics.summarise(records, ())


def read_run(path: str | Path, *, data_dir: str | Path | None = None) -> Run:
    """Read a run from its folder; `data_dir` is where to find a named dataset, for an audit."""
    folder = RunFolder(Path(path))
    folder.check_is_run(" (no config.toml)")
    values = in_todays_keys(read_toml(folder.path / "config.toml"))
    summary = folder.summary() if (folder.path / "summary.json").is_file() else None
    place = None if data_dir is None else Path(data_dir)
    cached: list[tuple[Experiment, RunState]] = []

    def played() -> tuple[Experiment, RunState]:
        if not cached:
            cached.append(load_state(folder.path, place))
        return cached[0]

    return Run(folder.path.resolve().name, values, folder.records(), summary, played, folder.path)


load = in_python(read_run)
