"""The setting of an experiment: which images, dealt how, with which wrong labels, and what is kept for validation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fednoil import manifest, noise, partition
from fednoil.config.schema import Config
from fednoil.data import load, normalised
from fednoil.data.dataset import Dataset, Owners
from fednoil.data.given import Given
from fednoil.data.images import Progress
from fednoil.errors import UserError, counted
from fednoil.labels import Labels, Truth
from fednoil.seeds import Seed


@dataclass(frozen=True)
class Validation:
    """Samples of each client that it doesn't train on: indices of the training set, and their given labels.

    They are held out for validation, or are the fold that a run leaves out.
    """

    parts: tuple[np.ndarray, ...]
    given: tuple[np.ndarray, ...]

    def pooled(self) -> Validation:
        return Validation((np.concatenate(self.parts),), (np.concatenate(self.given),))


@dataclass(frozen=True)
class Setting:
    """Data × partition × noise, of what clients train on. `truth` is for metrics; code that trains never gets it."""

    dataset: Dataset
    parts: tuple[np.ndarray, ...]
    labels: Labels
    truth: Truth
    validation: Validation | None = field(default=None, kw_only=True)
    left: Validation | None = field(default=None, kw_only=True)  # the fold that a run leaves out
    names: tuple[str, ...] = field(default=(), kw_only=True)  # of the clients; () if they only have numbers

    @property
    def num_clients(self) -> int:
        return len(self.parts)

    def pooled(self) -> Setting:
        """All clients' samples, with the labels their clients gave them, as those of one client."""
        labels = Labels((np.concatenate(self.labels.given),))
        held, left = (kept and kept.pooled() for kept in (self.validation, self.left))
        parts, truth = (np.concatenate(self.parts),), self.truth.pooled()
        return replace(self, parts=parts, labels=labels, truth=truth, validation=held, left=left, names=())

    def with_validation(self, share: float, seed: Seed) -> Setting:
        """Keep `share` of each client's samples, drawn at random, out of what it trains on."""
        picks = []
        for k, part in enumerate(self.parts):
            count = int(share * len(part) + 0.5)
            if not 0 < count < len(part):
                called = self.names[k] if self.names else k
                raise UserError(
                    f"data.validation = {share} keeps {count} of the {len(part)} samples of client {called} out of "
                    "training; at least one must stay on each side: choose another share, or leave the client out"
                )
            held = np.zeros(len(part), bool)
            held[seed.child("validation", k).numpy().permutation(len(part))[:count]] = True
            picks.append(held)
        setting, held_out = self._split(picks)
        return replace(setting, validation=held_out)

    def dealt(self, count: int, seed: Seed) -> tuple[np.ndarray, ...]:
        """The fold of each client's samples, in 0..count − 1."""
        for k, part in enumerate(self.parts):
            if not 2 <= count <= len(part):
                called = self.names[k] if self.names else k
                most = min(len(part) for part in self.parts)
                why = f"client {called} has {len(part)} samples to deal to them" if count > 1 else "two are the fewest"
                what = f"choose 2 to {most}" if most >= 2 else "leave the client out"
                raise UserError(f"{counted(count, 'fold')}: {why}; {what}")
        names = self.names or range(self.num_clients)
        return tuple(deal(given, count, seed, name) for given, name in zip(self.labels.given, names, strict=True))

    def without_fold(self, fold: int, count: int, seed: Seed) -> Setting:
        """Keep one fold of each client's samples out of what it trains on."""
        setting, left = self._split([of == fold for of in self.dealt(count, seed)])
        return replace(setting, left=left)

    def _split(self, picks: Sequence[np.ndarray]) -> tuple[Setting, Validation]:
        """The setting without the samples of each client that are picked, bool [n], and those."""

        def split(arrays: Sequence[np.ndarray], picked: bool) -> tuple[np.ndarray, ...]:
            return tuple(a[pick == picked] for a, pick in zip(arrays, picks, strict=True))

        given = self.labels.given
        kept = replace(
            self,
            parts=split(self.parts, False),
            labels=replace(self.labels, given=split(given, False)),
            truth=self.truth.kept([~pick for pick in picks]),
        )
        return kept, Validation(split(self.parts, True), split(given, True))

    def manifest_hash(self) -> str:
        return manifest.manifest_hash(self.parts, self.labels, self.truth)


@dataclass(frozen=True)
class Sites(Setting):
    """The setting of a federation: who takes part and how many samples each has. Their images and labels are not
    here, nor is anything known of their noise."""

    @classmethod
    def of(cls, dataset: Dataset, names: Sequence[str], sizes: Sequence[int]) -> Sites:
        """Sites called `names` with `sizes` samples; of `dataset` only classes, shape and normalisation are used."""
        parts = tuple(np.broadcast_to(np.int64(0), (size,)) for size in sizes)  # lengths that take no memory
        return cls(dataset, parts, Labels(()), Truth(None), names=tuple(names))

    def pooled(self) -> Setting:
        raise UserError("server.name = 'centralized' pools the clients' data, which never leave them in a federation")

    def manifest_hash(self) -> str:
        """SHA-256 over names and sizes: all that is known about who has what."""
        roster = [[name, len(part)] for name, part in zip(self.names, self.parts, strict=True)]
        return hashlib.sha256(json.dumps(roster).encode()).hexdigest()


def deal(given: np.ndarray, count: int, seed: Seed, client: str | int) -> np.ndarray:
    """The fold of each of a client's samples [n]: one after another within each given class, in an order drawn by the
    seed and the client's name."""
    order = seed.child("audit", "folds", client).numpy().permutation(len(given))
    order = order[np.argsort(given[order], kind="stable")]
    folds = np.empty(len(given), np.int64)
    folds[order] = np.arange(len(given)) % count
    return folds


def make_setting(
    config: Config, data_dir: Path | None, seed: Seed, given: Given | None = None, decoding: Progress | None = None
) -> Setting:
    """Load the data, deal it to clients, add label noise and hold some out for validation."""
    dataset = (
        load(config.data, data_dir, progress=decoding) if given is None else normalised(given.dataset, config.data)
    )
    setting = _make_setting(config, dataset, seed, given or Given(dataset))
    setting = setting.with_validation(config.data.held_out, seed) if config.data.held_out else setting
    left_out = config.data.left_out
    return setting if left_out is None else setting.without_fold(*left_out, seed)


def _make_setting(config: Config, dataset: Dataset, seed: Seed, given: Given) -> Setting:
    read = noise.KIND_AXIS.find(config.noise.kind).read(config.noise, dataset)
    owners = dataset.about.owners
    if read is not None:
        return Setting(dataset, *read, names=_names(owners, read[0]))
    parts = partition.partition(dataset.train.labels, dataset.num_classes, config.partition, seed, owners)
    names = owners.names if owners is not None and config.partition.kind == "given" else ()
    labels, truth = noise.apply(dataset, parts, config.noise, seed)
    if given.true_labels is not None:
        truth = Truth(tuple(given.true_labels[part] for part in parts))
    return Setting(noise.with_outliers(dataset, parts, config.noise, seed), parts, labels, truth, names=names)


def _names(owners: Owners | None, parts: Sequence[np.ndarray]) -> tuple[str, ...]:
    """The owners' names, if each of `parts` has only samples of the owner in the same place."""
    if owners is None or len(owners.names) != len(parts):
        return ()
    return owners.names if all((owners.numbers[part] == k).all() for k, part in enumerate(parts)) else ()
