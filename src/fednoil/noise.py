"""Wrong labels, added to each client's samples after the partition, with that client's own ratio.

Clients come in groups of equal noise. Symmetric noise moves a label to any other class with equal chance,
pair noise to one partner class. The true labels leave this module as a value of their own, `Truth`, that is
handed to the metrics alone, so that a learner can't read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from fednoil.errors import UserError
from fednoil.partition import check_labels
from fednoil.section import Section
from fednoil.seeds import Seed

DEFAULT_RATIOS = {
    ("symmetric", "high"): (0.5, 0.6, 0.7, 0.8),
    ("symmetric", "low"): (0.3, 0.4, 0.5, 0.6),
    ("pair", "high"): (0.3, 0.5, 0.6, 0.8),
    ("pair", "low"): (0.3, 0.4, 0.5, 0.6),
}
"""The noise ratios of the FedNoiL paper's four groups, by kind and mode."""

Ratio = Annotated[float, Field(ge=0, lt=1)]


class NoiseConfig(Section):
    """Which labels are made wrong.

    `ratios` holds one noise ratio for each of G equal groups of clients; without it they come from `kind`
    and `mode`. `pair_map` says who shares a partner map; `exact` flips a fixed count instead of tossing a
    coin for each sample; `manifest` is the path of a file to take the labels from.
    """

    kind: Literal["auto", "none", "unknown", "symmetric", "pair", "manifest"] = "auto"
    mode: Literal["high", "low"] = "high"
    ratios: Annotated[tuple[Ratio, ...], Field(min_length=1)] | None = None
    pair_map: Literal["per_client", "per_group", "shared"] = "per_client"
    exact: bool = False
    manifest: str | None = None

    @model_validator(mode="after")
    def _keys_fit_kind(self) -> NoiseConfig:
        if self.kind == "manifest" and not self.manifest:
            raise ValueError('noise.kind = "manifest" needs noise.manifest, the path of a noise manifest')
        if self.kind != "manifest" and self.manifest is not None:
            raise ValueError(
                f'noise.manifest = "{self.manifest}" is only for noise.kind = "manifest", '
                f'but noise.kind is "{self.kind}"'
            )
        # `auto` never adds noise: whoever gives ratios alone would take a clean run for a noisy one. Beside
        # an explicit kind they may stay, so that `noise.kind` can be switched over in a config that has them.
        if self.kind == "auto" and self.ratios is not None:
            raise ValueError('noise.ratios needs noise.kind = "symmetric" or "pair", but noise.kind is "auto"')
        return self


@dataclass(frozen=True, eq=False)
class Labels:
    """What the clients see: `given` labels int64 [n_k] and the pair `offsets` (0: no pair noise)."""

    given: tuple[np.ndarray, ...]
    offsets: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Truth:
    """The true `labels` int64 [n_k] of each client, for metrics only; None where nobody knows them."""

    labels: tuple[np.ndarray, ...] | None


def transition_matrix(
    kind: Literal["symmetric", "pair"], ratio: float, num_classes: int, offset: int = 1
) -> np.ndarray:
    """P[true class, given class] of label noise: float64 [C, C].

    Symmetric noise never lands on the true class; pair noise takes class i to (i + offset) mod C.
    """
    _check_ratio(ratio)
    _check_classes(num_classes)
    if kind == "symmetric":
        matrix = np.full((num_classes, num_classes), ratio / (num_classes - 1))
        np.fill_diagonal(matrix, 1 - ratio)
        return matrix
    if not 1 <= offset < num_classes:
        raise UserError(f"pair offset {offset} must be 1 to {num_classes - 1} with {num_classes} classes")
    identity = np.eye(num_classes)
    return (1 - ratio) * identity + ratio * np.roll(identity, offset, axis=1)


def groups(clients: int, count: int) -> np.ndarray:
    """The group, floor(count · k / clients), of each client k: int64 [clients]."""
    return np.arange(clients, dtype=np.int64) * count // clients


def ratios_for(config: NoiseConfig, clients: int) -> np.ndarray:
    """The noise ratio of each client that `config` asks for (not the realised one): float64 [clients]."""
    if config.kind == "none":
        return np.zeros(clients)
    ratios = _group_ratios(config, clients)
    return np.array(ratios)[groups(clients, len(ratios))]


def apply(
    labels: np.ndarray,
    parts: tuple[np.ndarray, ...],
    num_classes: int,
    config: NoiseConfig,
    seed: Seed,
) -> tuple[Labels, Truth]:
    """Give each client its labels, some of them wrong.

    `labels` [N] are the dataset's own, `parts` one array of indices into them per client. The kinds `auto`
    and `manifest` are settled before this is called.
    """
    if config.kind in ("auto", "manifest"):
        raise ValueError(f"noise kind '{config.kind}' must be resolved before noise.apply")
    check_labels(labels, num_classes)
    # Two separate copies: a learner that writes to its labels must not reach the truth.
    true = tuple(labels[part].astype(np.int64) for part in parts)
    own = Labels(tuple(t.copy() for t in true), (0,) * len(parts))
    if config.kind == "unknown":
        return own, Truth(None)
    if config.kind == "none":
        return own, Truth(true)
    _check_classes(num_classes)
    ratios = ratios_for(config, len(parts))
    offsets = _offsets(config, len(parts), num_classes, seed)
    given = tuple(
        _corrupt(t, ratio, offset, num_classes, config.exact, seed.child("noise", "client", k).numpy())
        for k, (t, ratio, offset) in enumerate(zip(true, ratios, offsets, strict=True))
    )
    return Labels(given, offsets), Truth(true)


def noise_ratios(labels: Labels, truth: Truth) -> np.ndarray | None:
    """The realised share of wrong labels of each client: float64 [K], or None if the truth is unknown."""
    if truth.labels is None:
        return None
    pairs = zip(labels.given, truth.labels, strict=True)
    return np.array([np.count_nonzero(given != true) / max(len(true), 1) for given, true in pairs])


def _group_ratios(config: NoiseConfig, clients: int) -> tuple[float, ...]:
    """One ratio per group, from the config or else the paper's."""
    if config.kind not in ("symmetric", "pair"):
        raise ValueError(f"noise kind '{config.kind}' has no ratios")
    ratios = config.ratios or DEFAULT_RATIOS[config.kind, config.mode]
    if len(ratios) > clients:
        raise UserError(
            f"noise.ratios has {len(ratios)} ratios, {list(ratios)}, but partition.clients = {clients}: "
            f"give at most {clients}, one per group of clients"
        )
    return ratios


def _check_ratio(ratio: float) -> None:
    # Written so that NaN fails too.
    if not 0 <= ratio < 1:
        raise UserError(f"noise ratio {ratio} is out of range: it must be at least 0 and below 1")


def _check_classes(num_classes: int) -> None:
    if num_classes < 2:
        raise UserError(f"label noise needs at least 2 classes, but the data has {num_classes}")


def _offsets(config: NoiseConfig, clients: int, num_classes: int, seed: Seed) -> tuple[int, ...]:
    """Each client's step from a class to its pair partner, 1..C-1; 0 without pair noise."""
    rng = seed.child("noise", "offsets").numpy()
    if config.kind != "pair":
        offsets = np.zeros(clients, dtype=np.int64)
    elif config.pair_map == "shared":
        offsets = np.ones(clients, dtype=np.int64)
    elif config.pair_map == "per_client":
        offsets = rng.integers(1, num_classes, size=clients)
    else:
        count = len(_group_ratios(config, clients))
        # Distinct while there are enough, so that no two groups agree on a wrong labelling.
        drawn = 1 + rng.choice(num_classes - 1, size=count, replace=count > num_classes - 1)
        offsets = drawn[groups(clients, count)]
    return tuple(int(offset) for offset in offsets)


def _corrupt(
    true: np.ndarray, ratio: float, offset: int, num_classes: int, exact: bool, rng: np.random.Generator
) -> np.ndarray:
    """One draw for each label of `true` [n] from its row of the transition matrix: int64 [n].

    `offset` 0 means symmetric noise. With `exact`, floor(ratio · n + ½) labels are wrong, no more or fewer.
    """
    size = len(true)
    if exact:
        flipped = np.zeros(size, dtype=bool)
        flipped[rng.choice(size, int(np.floor(ratio * size + 0.5)), replace=False)] = True
    else:
        flipped = rng.random(size) < ratio
    step = offset if offset else rng.integers(1, num_classes, size=size)
    return np.where(flipped, (true + step) % num_classes, true)
