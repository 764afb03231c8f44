"""Labels that people gave: CIFAR-10N and CIFAR-100N (Wei et al., ICLR 2022), read from the user's own file.

`CIFAR-10_human.pt` and `CIFAR-100_human.pt` of https://github.com/UCSC-REAL/cifar-10-100n are under the licence CC
BY-NC 4.0 and are not part of this package. They are zip files with a pickle, from which only arrays are read. Their
clean labels must equal the dataset's, one by one: the order of images differs between libraries.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from fednoil.data.restricted import load_dict
from fednoil.errors import UserError
from fednoil.noise.base import NoiseKind, NoisyClient, Population, UnlevelledConfig
from fednoil.seeds import Seed

_KEYS = {
    "worst": "worse_label",
    "aggregate": "aggre_label",
    "random1": "random_label1",
    "random2": "random_label2",
    "random3": "random_label3",
}
_FINE = "noisy_label"  # the only labels of CIFAR-100N that have its hundred classes
_LIMIT = 100_000_000  # bytes of the pickle; the official ones have under 3 MB


class HumanConfig(UnlevelledConfig):
    kind: Literal["cifar-n"] = "cifar-n"
    file: str = Field(default="", description="path of the file that the noise comes from")
    people: Literal["worst", "aggregate", "random1", "random2", "random3"] = Field(
        default="worst", description="which of three people's labels are given; CIFAR-100N has one person's"
    )


class Human(NoiseKind):
    """The labels of the file, for the images that a client holds."""

    Config = HumanConfig
    uses_levels = False

    def __init__(self, config: HumanConfig, population: Population, seed: Seed) -> None:
        super().__init__(config, population, seed)
        self._clean, self._given = read_labels(config.file, config.people, population.num_classes)

    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        said = f"noise.file = '{self.config.file}'"
        if len(self._clean) != len(client.pool):
            raise UserError(
                f"{said} has labels of {len(self._clean)} images, but the data have {len(client.pool)} training images"
            )
        wrong = np.flatnonzero(self._clean[client.index] != client.labels)
        if len(wrong):
            image = client.index[wrong[0]]
            raise UserError(
                f"{said}: its clean label of training image {image} is {self._clean[image]}, the dataset's is "
                f"{client.labels[wrong[0]]}; it belongs to other data, or to another order of the images"
            )
        return self._given[client.index]


def read_labels(file: str, people: str, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """The clean and the given labels of a file, int64 [N] each."""
    if not file:
        raise UserError("noise.kind = 'cifar-n' needs noise.file, the path of CIFAR-10_human.pt or CIFAR-100_human.pt")
    said = f"noise.file = '{file}'"
    values = load_dict(_pickle(Path(file), said), said)
    name = _FINE if _FINE in values else _KEYS[people]
    found = []
    for key in ("clean_label", name):
        array = values.get(key)
        if not isinstance(array, np.ndarray):
            raise UserError(f"{said} has no labels '{key}'; it has {', '.join(sorted(values)[:8])}")
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise UserError(f"{said}: '{key}' is {array.dtype} {list(array.shape)}; labels are whole numbers in a row")
        if len(array) and not 0 <= array.min() <= array.max() < num_classes:
            raise UserError(
                f"{said}: '{key}' has labels {array.min()} to {array.max()}; the data have {num_classes} classes"
            )
        found.append(array.astype(np.int64))
    clean, given = found
    if len(clean) != len(given):
        raise UserError(f"{said} has {len(clean)} clean labels but {len(given)} of '{name}'")
    return clean, given


def _pickle(path: Path, said: str) -> bytes:
    """The pickle inside a file that `torch.save` has written."""
    try:
        with zipfile.ZipFile(path) as archive:
            member = next((m for m in archive.infolist() if m.filename.rpartition("/")[2] == "data.pkl"), None)
            if member is None:
                raise UserError(f"{said} holds no data.pkl; it must be a file of CIFAR-N, such as CIFAR-10_human.pt")
            if member.file_size > _LIMIT:
                raise UserError(f"{said}: {member.filename} claims {member.file_size} bytes; get the file again")
            return archive.read(member)
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise UserError(
            f"{said} can't be read ({error}); it must be a file of CIFAR-N, such as CIFAR-10_human.pt"
        ) from None
