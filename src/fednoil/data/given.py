"""Data that a program hands over instead of naming: `fednoil.run(data=...)`.

A run folder keeps them as `data.npz`, so that it is as complete as one whose data have a name.
"""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from fednoil.data.dataset import Dataset, DatasetInfo, Owners, Split
from fednoil.data.elsewhere import ARRAYS
from fednoil.errors import UserError
from fednoil.files import write_bytes

FILE = "data.npz"


@dataclass(frozen=True, eq=False)
class Given:
    """All clients' samples, one client's after another's, as one dataset.

    `dataset.about.owners` says which client each sample belongs to; without it `partition` deals the samples.
    `true_labels` int64 [N] is for metrics, and `strings` says that labels came as text.
    """

    dataset: Dataset
    true_labels: np.ndarray | None = None
    strings: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """The clients' numbers of samples; () where there are no clients yet."""
        owners = self.dataset.about.owners
        return () if owners is None else owners.sizes

    @property
    def names(self) -> tuple[str, ...]:
        owners = self.dataset.about.owners
        return () if owners is None else owners.names

    @cached_property
    def name(self) -> str:
        """The `data.name` of a run on them, which distinguishes them from others: `arrays:` and a digest."""
        who = json.dumps([self.dataset.hash, self.sizes, self.names])
        return f"{ARRAYS}:{hashlib.sha256(who.encode()).hexdigest()[:8]}"

    def save(self, folder: Path) -> None:
        """Write them to a run's folder."""
        data, buffer = self.dataset, io.BytesIO()
        arrays = {
            "x_train": data.train.images,
            "y_train": data.train.labels,
            "x_test": data.test.images,
            "y_test": data.test.labels,
            "class_names": np.array(data.class_names),
            "sizes": np.array(self.sizes, np.int64),
            "names": np.array(self.names, str),
            "strings": np.array(self.strings),
            "mean": np.array(data.mean),
            "std": np.array(data.std),
        }
        if self.true_labels is not None:
            arrays["true_labels"] = self.true_labels
        np.savez(buffer, allow_pickle=False, **arrays)
        write_bytes(folder / FILE, buffer.getvalue())

    @classmethod
    def load(cls, folder: Path) -> Given:
        """Read them from a run's folder."""
        path = folder / FILE
        try:
            with np.load(path, allow_pickle=False) as file:
                found = dict(file)
            names, sizes = tuple(map(str, found["names"])), tuple(map(int, found["sizes"]))
            dataset = Dataset(
                ARRAYS,
                Split(found["x_train"], found["y_train"]),
                Split(found["x_test"], found["y_test"]),
                tuple(map(str, found["class_names"])),
                tuple(map(float, found["mean"])),
                tuple(map(float, found["std"])),
                DatasetInfo(owners=Owners.in_turn(sizes, names) if sizes else None),
            )
            return cls(dataset, found.get("true_labels"), bool(found["strings"]))
        except FileNotFoundError:
            raise UserError(f"{folder} has no {FILE}, the data that its run was given") from None
        except Exception as error:  # numpy and zip readers raise many kinds
            raise UserError(f"{path} is damaged: {error}") from None
