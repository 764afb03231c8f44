"""Open-set noise (Wang et al., CVPR 2018): some of a client's images show none of the classes, and keep a label.

A client of level ρ has exactly floor(ρ · n) of its images replaced by others: those of a file, drawn without repeats as
long as there are enough, or, without a file, images of random pixels. Of the remaining labels a share `closed` is wrong
as well, each other class with equal chance. The truth of a replaced image is no class at all (`NO_CLASS`): its label
counts as wrong whatever it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from fednoil.errors import UserError
from fednoil.noise.base import KindConfig, NoisyClient, Population, ReplacesImages
from fednoil.noise.files import FILE
from fednoil.seeds import Seed


class OpenSetConfig(KindConfig):
    kind: Literal["openset"] = "openset"
    file: str = Field(default="", description=FILE)
    closed: float = Field(default=0.0, ge=0, le=1, description="share of the labels of the other images that are wrong")


class OpenSet(ReplacesImages):
    Config = OpenSetConfig

    def __init__(self, config: OpenSetConfig, population: Population, seed: Seed) -> None:
        super().__init__(config, population, seed)
        self._seed, self._images = seed.child("openset"), self._read() if config.file else None
        self._order = None if self._images is None else self._seed.child("order").numpy().permutation(len(self._images))
        counts = [exactly(level, size) for level, size in zip(population.levels, population.sizes, strict=True)]
        self._starts = np.cumsum([0, *counts])

    def _read(self) -> np.ndarray:
        """The images of the file: uint8 [M, channels, height, width], or float32 [M, columns]."""
        file, shape = self.config.file, self.population.image_shape
        try:
            found = np.load(Path(file), allow_pickle=False, mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"noise.file = '{file}': it cannot be read ({error}); it must be a .npy file") from None
        kind = "float32" if len(shape) == 1 else "uint8"
        if found.shape[1:] != shape or str(found.dtype) != kind or not len(found):
            raise UserError(
                f"noise.file = '{file}' holds {found.dtype} {list(found.shape)}; images in the place of others must be "
                f"{kind} [any number, {', '.join(map(str, shape))}]"
            )
        return found

    def outliers(self, client: NoisyClient) -> tuple[np.ndarray, np.ndarray]:
        size, seed = len(client.labels), self._seed.child("client", client.number)
        rows = np.sort(seed.numpy().permutation(size)[: exactly(client.level, size)])
        if self._images is not None and self._order is not None:
            places = (self._starts[client.number] + np.arange(len(rows))) % len(self._order)
            return rows, self._images[self._order[places]]
        rng, shape = seed.child("pixels").numpy(), (len(rows), *self.population.image_shape)
        if len(shape) == 2:
            return rows, rng.standard_normal(shape).astype(np.float32)
        return rows, rng.integers(0, 256, shape, dtype=np.uint8)

    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        given, (outside, _) = client.labels.copy(), self.outliers(client)
        inside = np.setdiff1d(np.arange(len(given)), outside)
        wrong = rng.permutation(inside)[: exactly(self.config.closed, len(inside))]
        given[wrong] = (given[wrong] + rng.integers(1, client.num_classes, len(wrong))) % client.num_classes
        return given


def exactly(share: float, size: int) -> int:
    """floor(share · size), of the share as it is written."""
    return int(share * size + 1e-9)
