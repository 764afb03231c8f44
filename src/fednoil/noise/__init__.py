"""Wrong labels, added to each client's samples after the partition, by kind and levels: each is one file and one line
in the tables below."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fednoil.data.cache import remember_hash
from fednoil.data.dataset import Dataset
from fednoil.errors import UserError
from fednoil.labels import NO_CLASS, Labels, Truth, check_labels
from fednoil.noise.base import KindConfig, NoiseKind, NoiseLevels, NoisyClient, Parts, Population, ReplacesImages
from fednoil.noise.files import Confusable, Transition
from fednoil.noise.groups import Groups
from fednoil.noise.human import Human
from fednoil.noise.instance import Instance
from fednoil.noise.manifest import Manifest
from fednoil.noise.matrix import Matrix
from fednoil.noise.openset import OpenSet
from fednoil.noise.pair import Pair, PairDown
from fednoil.noise.ranges import LinearLevels, UniformLevels
from fednoil.noise.similar import Semantic, Superclass
from fednoil.noise.some import Beta, Fixed
from fednoil.noise.symmetric import Symmetric, SymmetricAll, SymmetricTen
from fednoil.noise.two_level import TwoLevel
from fednoil.noise.unchanged import Auto, Clean, Unknown
from fednoil.plugins import Axis
from fednoil.seeds import Seed

KINDS: dict[str, type[NoiseKind]] = {
    "auto": Auto,
    "none": Clean,
    "unknown": Unknown,
    "symmetric": Symmetric,
    "symmetric-all": SymmetricAll,
    "symmetric-ten": SymmetricTen,
    "pair": Pair,
    "pair-down": PairDown,
    "semantic": Semantic,
    "superclass": Superclass,
    "matrix": Matrix,
    "transition": Transition,
    "confusable": Confusable,
    "instance": Instance,
    "openset": OpenSet,
    "cifar-n": Human,
    "manifest": Manifest,
}
LEVELS: dict[str, type[NoiseLevels]] = {
    "groups": Groups,
    "two-level": TwoLevel,
    "linear": LinearLevels,
    "uniform": UniformLevels,
    "fixed": Fixed,
    "beta": Beta,
}

KIND_AXIS = Axis("noise", NoiseKind, KINDS, default="auto", key="kind")
LEVELS_AXIS = Axis("noise", NoiseLevels, LEVELS, default="groups", key="levels")


def apply(dataset: Dataset, parts: Parts, config: KindConfig, seed: Seed) -> tuple[Labels, Truth]:
    """Give each client its labels, some of them wrong; `parts` are the indices of its training samples."""
    kind, clients = prepare(dataset, parts, config, seed)
    # Separate copies: a learner that writes to its labels must not reach the truth.
    true = tuple(_true(kind, client) for client in clients)
    given = tuple(_given(kind, config.kind, client, seed) for client in clients)
    return Labels(given), Truth(true if kind.knows_truth else None)


def _true(kind: NoiseKind, client: NoisyClient) -> np.ndarray:
    labels = client.labels.copy()
    if isinstance(kind, ReplacesImages):
        labels[kind.outliers(client)[0]] = NO_CLASS
    return labels


def changes_images(config: KindConfig) -> bool:
    """Whether the noise puts other images in the place of some."""
    return issubclass(KIND_AXIS.find(config.kind), ReplacesImages)


def with_outliers(dataset: Dataset, parts: Parts, config: KindConfig, seed: Seed) -> Dataset:
    """The dataset as the clients have it: with images of no class in the place of some, where the noise has such."""
    if not changes_images(config):
        return dataset
    kind, clients = prepare(dataset, parts, config, seed)
    assert isinstance(kind, ReplacesImages)
    images = np.array(dataset.train.images)
    for client in clients:
        rows, others = kind.outliers(client)
        images[client.index[rows]] = others
    return remember_hash(replace(dataset, train=replace(dataset.train, images=images)), dataset.hash)


def prepare(dataset: Dataset, parts: Parts, config: KindConfig, seed: Seed) -> tuple[NoiseKind, list[NoisyClient]]:
    """The kind of noise, ready for the clients, and the clients as it sees them."""
    check_labels(dataset.train.labels, dataset.num_classes)
    cls = KIND_AXIS.find(config.kind)
    clients = _clients(dataset, parts, config, cls, seed)
    population = Population(
        sizes=tuple(len(part) for part in parts),
        levels=np.array([client.level for client in clients]),
        groups=np.array([client.group for client in clients]),
        num_classes=dataset.num_classes,
        image_shape=dataset.image_shape,
        mean=dataset.mean,
        std=dataset.std,
        class_names=dataset.class_names,
    )
    return cls(config, population, seed.child("noise")), clients


def _clients(dataset: Dataset, parts: Parts, config: KindConfig, cls: type[NoiseKind], seed: Seed) -> list[NoisyClient]:
    """The clients with their levels and groups."""
    levels, groups = np.zeros(len(parts)), np.zeros(len(parts), dtype=np.int64)
    if cls.uses_levels:
        if dataset.num_classes < 2:
            raise UserError(f"label noise needs at least 2 classes, but the data has {dataset.num_classes}")
        levels, groups = levels_of(config, tuple(len(part) for part in parts), seed)
    return [
        NoisyClient(
            number=k,
            group=int(groups[k]),
            level=float(levels[k]),
            labels=dataset.train.labels[part].astype(np.int64),
            num_classes=dataset.num_classes,
            pool=dataset.train.images,
            index=part,
        )
        for k, part in enumerate(parts)
    ]


def levels_of(config: Any, sizes: tuple[int, ...], seed: Seed) -> tuple[np.ndarray, np.ndarray]:
    """Each client's level, float64 [K], and group, int64 [K], as configured."""
    axis, clients = LEVELS_AXIS, len(sizes)
    rule = axis.find(config.levels)(config)
    levels, groups = np.asarray(rule.levels(sizes, seed.child("noise"))), np.asarray(rule.groups(clients))
    said = f"{axis.path} = '{config.levels}'"
    if levels.shape != (clients,) or groups.shape != (clients,):
        raise UserError(f"{said} gave {levels.shape} levels and {groups.shape} groups; there are {clients} clients")
    wrong = levels[~((levels >= 0) & (levels <= 1))]
    if len(wrong):
        raise UserError(f"{said} gave the level {wrong[0]}; a level must be 0 to 1")
    return levels.astype(np.float64), groups


def _given(kind: NoiseKind, name: str, client: NoisyClient, seed: Seed) -> np.ndarray:
    """The labels of one client as int64 [n]; impossible labels are refused."""
    given = np.array(kind.labels(client, seed.child("noise", "client", client.number).numpy()))
    said = f"noise.kind = '{name}' gave client {client.number}"
    if given.shape != client.labels.shape or not np.issubdtype(given.dtype, np.integer):
        raise UserError(
            f"{said} labels of type {given.dtype} and shape {given.shape}; "
            f"they must be whole numbers of shape {client.labels.shape}"
        )
    wrong = given[(given < 0) | (given >= client.num_classes)]
    if len(wrong):
        raise UserError(f"{said} the label {wrong[0]}; it must be 0 to {client.num_classes - 1}")
    return given.astype(np.int64)
