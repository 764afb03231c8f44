"""Conformance of samplings, schedules, models and data sources: all of the tables, and breaches that are found."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import tiny_arrays, write_folder
from test_data_parquet import shards
from test_data_shards import samples, saved, tar
from torch import Tensor, nn

from fednoil.data import SOURCES, Decoded, Source, assemble
from fednoil.data.dataset import DatasetInfo
from fednoil.data.elsewhere import Elsewhere
from fednoil.models import AXIS, MODELS
from fednoil.sampling import SAMPLINGS
from fednoil.sampling.score import ByScore
from fednoil.schedules import SCHEDULES, Schedule
from fednoil.seeds import Seed
from fednoil.testing import NotConforming, check_model, check_sampling, check_schedule, check_source


@pytest.mark.parametrize("name", SAMPLINGS)
def test_samplings(name: str) -> None:
    check_sampling(name)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name: str) -> None:
    check_schedule(name)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "timm"])
def test_models(name: str) -> None:
    check_model(name, **({"width": 4} if "width" in AXIS.config(name).model_fields else {}))


@pytest.mark.parametrize(
    "name", ["fashion-mnist-mini", *(n for n, c in SOURCES.items() if c.takes and not issubclass(c, Elsewhere))]
)
def test_sources(name: str, tiny_npz: Path, tmp_path: Path) -> None:
    write_folder(tmp_path / "photos", tiny_arrays(), ("a", "b", "c", "d"))
    places = {"npz": tiny_npz, "folder": tmp_path / "photos", "parquet": shards(tmp_path / "shards")}
    places["hf"] = saved(tmp_path / "saved", {"train": [0, 1] * 10, "test": [0, 1]})
    places["webdataset"] = tar(tmp_path / "train.tar", samples(["a", "b"] * 10))
    rows = [f"{path.relative_to(tmp_path)},{path.parent.name}" for path in sorted(tmp_path.glob("photos/*/*/*.png"))]
    places["csv"] = tmp_path / "list.csv"
    places["csv"].write_text("\n".join(["path,label", *rows]), encoding="utf-8")
    places["table"], places["features"] = tmp_path / "table.csv", tmp_path / "features.npz"
    places["table"].write_text("a,b,label\n" + "".join(f"{k},{'xy'[k % 2]},{'pq'[k % 2]}\n" for k in range(20)))
    np.savez(places["features"], x_train=np.eye(20, 3), y_train=np.arange(20) % 2)
    check_source(f"{name}:{places[name]}" if name in places else name)


class Lucky(ByScore):
    def draw(self, shares: Sequence[float], count: int, seed: Seed) -> list[int]:
        return torch.randperm(len(shares))[:count].tolist()


class Twice(ByScore):
    def draw(self, shares: Sequence[float], count: int, seed: Seed) -> list[int]:
        return [0] * count


class Nobody(ByScore):
    def count(self, clients: int) -> int:
        return 0


class Sharp(ByScore):
    """Its score moves by more than the noise hides."""

    def score(self, confidences: Tensor) -> Tensor:
        return 3 * super().score(confidences)

    def largest(self, size: int) -> float:
        return 3.0 * size


class Unbounded(ByScore):
    def score(self, confidences: Tensor) -> Tensor:
        return super().score(confidences) + 1


class Negative(ByScore):
    def shares(self, scores: Sequence[float]) -> list[float]:
        return [-1.0, *[2.0 / max(1, len(scores) - 1)] * (len(scores) - 1)]


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (Lucky, "uses a global random generator"),
        (Twice, "not 2 different places below 2"),
        (Nobody, "`count` gives 0"),
        (Sharp, "more than `sensitivity`"),
        (Unbounded, "`largest`"),
        (Negative, "`shares` must give one probability per client"),
    ],
)
def test_breaches_of_a_sampling(own: type, message: str) -> None:
    with pytest.raises(NotConforming, match=message):
        check_sampling(own)


class Counting(Schedule):
    def __init__(self, config: Any) -> None:
        self.asked = itertools.count(1)

    def epochs(self, round_idx: int) -> int:
        return next(self.asked)


class Empty(Schedule):
    def epochs(self, round_idx: int) -> int:
        return 5 - round_idx


class Miscounted(Schedule):
    def epochs(self, round_idx: int) -> int:
        return 2

    def total(self, rounds: int) -> int:
        return rounds


class Fractional(Schedule):
    def epochs(self, round_idx: int) -> int:
        return round_idx / 2


class Unfitting(Schedule):
    def epochs(self, round_idx: int) -> int:
        return 2

    def fitted(self, rounds: int, *, large: bool, sizes: Sequence[int]) -> Schedule:
        return Empty(self.config) if large else self


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (Counting, "depend on earlier calls"),
        (Empty, "round 5 has 0 epochs"),
        (Miscounted, "`total` is not the sum"),
        (Fractional, "round 1 has 0.5 epochs, not a whole number"),
        (Unfitting, "round 5 has 0 epochs"),
    ],
)
def test_breaches_of_a_schedule(own: type, message: str) -> None:
    with pytest.raises(NotConforming, match=message):
        check_schedule(own)


def flat(image_shape: tuple[int, int, int], num_classes: int) -> nn.Linear:
    return nn.Linear(int(np.prod(image_shape)), num_classes)


def zeros(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    layer = flat(image_shape, num_classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


def numpys(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    layer = flat(image_shape, num_classes)
    layer.weight.data += float(np.random.rand())  # noqa: NPY002
    return nn.Sequential(nn.Flatten(), layer)


class Unused(nn.Module):
    def __init__(self, image_shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        self.layer, self.spare = flat(image_shape, num_classes), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1))


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (f"{__name__}:zeros", "another seed gives the same weights"),
        (f"{__name__}:numpys", "uses a global random generator"),
        (Unused, "'spare.weight' no finite gradient"),
        (f"{__name__}:flat", "fails on images of shape"),
    ],
)
def test_breaches_of_a_model(own: str | type, message: str) -> None:
    with pytest.raises(NotConforming, match=message):
        check_model(own)


class Drawn(Source):
    """Random images, the same each time."""

    generator = np.random.default_rng

    def read(self) -> Decoded:
        rng = type(self).generator(0)
        images, labels = rng.integers(0, 256, (8, 1, 4, 4)).astype(np.uint8), np.arange(8) % 2
        return assemble("drawn", (images, labels), (images, labels), None)


RNG = np.random.default_rng(0)


class Changing(Drawn):
    @staticmethod
    def generator(seed: int) -> np.random.Generator:
        return RNG


class Unnamed(Drawn):
    def read(self) -> Decoded:
        decoded = super().read()
        return Decoded(decoded.train, decoded.test, decoded.class_names, DatasetInfo(items=("x",) * len(decoded.train)))


class Forgetful(Drawn):
    cached = True


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (Changing, "reading it twice gives different images"),
        (Unnamed, "a different name"),
        (Forgetful, "`cached` needs `files`"),
    ],
)
def test_breaches_of_a_source(own: type, message: str) -> None:
    check_source(Drawn)
    with pytest.raises(NotConforming, match=message):
        check_source(own)
