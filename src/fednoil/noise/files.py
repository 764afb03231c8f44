"""Noise from a file of probabilities: a matrix for all clients or for each, or soft labels of every sample."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from fednoil.errors import UserError
from fednoil.noise.base import KindConfig, NoiseKind, NoisyClient, Population, UnlevelledConfig, drawn
from fednoil.seeds import Seed

FILE = "path of the file that the noise comes from"


class TransitionConfig(UnlevelledConfig):
    kind: Literal["transition"] = "transition"
    file: str = Field(default="", description=FILE)


class ConfusableConfig(KindConfig):
    kind: Literal["confusable"] = "confusable"
    file: str = Field(default="", description=FILE)


def probabilities(kind: str, file: str, shapes: dict[str, tuple[int, ...]]) -> np.ndarray:
    """The probabilities in a .npy file, or a .csv file where they are a matrix, of one of the `shapes`; float64."""
    said = f"noise.kind = '{kind}' needs noise.file, a .npy or .csv file" if not file else f"noise.file = '{file}'"
    try:
        if not file:
            raise ValueError
        found = _read(Path(file))
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{said}{f': it cannot be read ({error})' if file else ''}") from None
    found = np.asarray(found)
    if found.dtype.kind not in "fiu" or found.shape not in shapes.values():
        wanted = " or ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise UserError(f"{said} holds {found.dtype} {list(found.shape)}; it must hold {wanted}")
    found = found.astype(np.float64)
    sums = found.sum(-1)
    wrong = np.argwhere(~((np.abs(sums - 1) <= 1e-3) & (found >= 0).all(-1)))
    if len(wrong):
        at = tuple(wrong[0])
        row = f"row {at[-1]}{f' of matrix {at[0]}' if len(at) > 1 else ''}"
        what = f"has {found[at].min():g}" if found[at].min() < 0 else f"sums to {sums[at]:g}"
        raise UserError(f"{said}: each row must be probabilities that sum to 1; {row} {what}")
    return found / sums[..., None]


def _read(path: Path) -> np.ndarray:
    if path.suffix != ".csv":
        return np.load(path, allow_pickle=False)
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    if not any(map(str.strip, lines)):
        raise ValueError("it is empty")  # numpy would print a warning
    return np.loadtxt(lines, delimiter=",", ndmin=2)


class Transition(NoiseKind):
    """A label of class i becomes j with the probability in row i, column j, of the file's matrix; the file has one
    matrix for everybody, or one for each client."""

    Config = TransitionConfig
    uses_levels = False

    def __init__(self, config: TransitionConfig, population: Population, seed: Seed) -> None:
        super().__init__(config, population, seed)
        one = (population.num_classes, population.num_classes)
        shapes = {"one matrix": one, "one for each client": (len(population.sizes), *one)}
        found = probabilities(config.kind, config.file, shapes)
        self._matrices = np.broadcast_to(found, (len(population.sizes), *one))

    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        return drawn(self.matrix(client)[client.labels], rng)

    def matrix(self, client: NoisyClient) -> np.ndarray:
        return self._matrices[client.number]


class Confusable(NoiseKind):
    """Samples that a reference model confuses are mislabelled, as FedNoRo does: the file has its soft labels of every
    training sample. For a client of level ρ exactly floor(ρ · n) samples are drawn, more likely those with a low
    probability of the true class, and each gets another class by its soft label."""

    Config = ConfusableConfig
    _soft: np.ndarray | None = None  # of all training samples: read once, for the first client

    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        if self._soft is None:
            shapes = {"a soft label for each training sample": (len(client.pool), client.num_classes)}
            self._soft = probabilities(self.config.kind, self.config.file, shapes)
        soft = self._soft[client.index]
        chances, count = pick_chances(soft, client.labels), int(client.level * len(client.labels) + 1e-9)
        count = min(count, int((chances > 0).sum()))
        given = client.labels.copy()
        if count:
            rows = rng.choice(len(given), count, replace=False, p=chances)
            given[rows] = drawn(label_chances(soft[rows], client.labels[rows]), rng)
        return given


def pick_chances(soft: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The chance [n] of each sample to be the first that is mislabelled, ∝ 1 − the soft label at its class."""
    doubt = 1 - soft[np.arange(len(labels)), labels]
    return doubt / doubt.sum() if doubt.sum() > 0 else np.zeros(len(labels))


def label_chances(soft: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Soft labels [n, C] without the true class, with sum 1."""
    others = soft.copy()
    others[np.arange(len(labels)), labels] = 0
    return others / others.sum(1, keepdims=True)
