"""A newcomer writes each plugin as one file outside the package, checks it, and runs the command with all of them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import fednoil
from made_labels import true_labels

from fednoil.config.loading import load_config, read_toml
from fednoil.data import load
from fednoil.manifest import read_manifest
from fednoil.testing import (
    check_learner,
    check_noise_kind,
    check_noise_levels,
    check_partition,
    check_sampling,
    check_source,
)

FILES = {
    "newcomer_noise.py": '''
import numpy as np

from fednoil.noise.base import KindConfig, LevelsConfig, NoiseKind, NoiseLevels


class BrightConfig(KindConfig):
    shift: int = 1


class Bright(NoiseKind):
    """The brightest images are mistaken for another class, chance deciding near the border."""

    Config = BrightConfig

    def labels(self, client, rng):
        light = client.images.mean((1, 2, 3)) + rng.standard_normal(len(client.labels))
        wrong = np.zeros(len(light), bool)
        wrong[light.argsort()[len(light) - round(client.level * len(light)) :]] = True
        return np.where(wrong, (client.labels + self.config.shift) % client.num_classes, client.labels)


class OneInTwo(NoiseLevels):
    """Every second client is noisy."""

    Config = LevelsConfig

    def levels(self, sizes, seed):
        return np.arange(len(sizes)) % 2 * 0.4
''',
    "newcomer_partition.py": '''
from fednoil.partition.base import Partition, PartitionConfig


class InTurnConfig(PartitionConfig):
    offset: int = 0


class InTurn(Partition):
    """Samples in random order, one for each client in turn."""

    Config = InTurnConfig

    def deal(self, labels, num_classes, seed):
        order = seed.child("in turn").numpy().permutation(len(labels))
        return [order[(client + self.config.offset) % self.config.clients :: self.config.clients]
                for client in range(self.config.clients)]
''',
    "newcomer_data.py": '''
import numpy as np

from fednoil.data.base import DataConfig, Source
from fednoil.data.decoded import assemble


class StripesConfig(DataConfig):
    size: int = 8


class Stripes(Source):
    """Five classes of images: a bright line in one of five rows, and noise."""

    Config = StripesConfig
    own = False

    def read(self):
        rng = np.random.default_rng(0)
        splits = []
        for count in (400, 100):
            labels = np.arange(count) % 5
            images = rng.integers(0, 100, (count, 1, self.config.size, self.config.size), dtype=np.uint8)
            images[np.arange(count), 0, labels] = 200
            splits.append((images, labels))
        return assemble("stripes", *splits, [f"row {row}" for row in range(5)])
''',
    "newcomer_learner.py": '''
import torch

from fednoil.learners.erm import Erm, ErmConfig


class GeneralisedConfig(ErmConfig):
    power: float = 0.7


class Generalised(Erm):
    """Generalised cross-entropy (Zhang & Sabuncu, NeurIPS 2018): (1 - p^q) / q."""

    Config = GeneralisedConfig

    def step(self, nets, pool, batch, state, kind):
        chances = torch.softmax(nets["model"](batch["images"]), 1)
        given = chances.gather(1, batch["labels"][:, None])[:, 0]
        return ((1 - given.clamp(min=1e-6) ** self.config.power) / self.config.power).mean()
''',
    "newcomer_sampling.py": '''
from fednoil.sampling.score import ByScore


class Best(ByScore):
    """The clients with the highest scores."""

    def draw(self, shares, count, seed):
        return sorted(range(len(shares)), key=lambda place: -shares[place])[:count]
''',
}
SET = {
    "sampling.name": "newcomer_sampling:Best",
    "data.name": "newcomer_data:Stripes",
    "data.size": 9,
    "noise.kind": "newcomer_noise:Bright",
    "noise.shift": 2,
    "noise.levels": "newcomer_noise:OneInTwo",
    "partition.kind": "newcomer_partition:InTurn",
    "partition.offset": 3,
    "learner.name": "newcomer_learner:Generalised",
    "learner.power": 0.5,
}
SMALL = {
    "partition.clients": 4,
    "model.width": 2,
    "train.rounds": 2,
    "schedule.epochs": 1,
    "run.device": "cpu",
}


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the newcomer's files, in which the command is run."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
        monkeypatch.delitem(sys.modules, Path(name).stem, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def test_each_file_passes_its_check(outside: Path) -> None:
    check_source("newcomer_data:Stripes", size=12)
    check_noise_kind("newcomer_noise:Bright", shift=1)
    check_noise_levels("newcomer_noise:OneInTwo")
    check_partition("newcomer_partition:InTurn", offset=1)
    check_sampling("newcomer_sampling:Best")
    check_learner("newcomer_learner:Generalised", servers=["fedavg"], power=0.5)


def test_the_command_runs_with_all_of_them(outside: Path) -> None:
    sets = [part for key, value in (SET | SMALL).items() for part in ("--set", f"{key}={value}")]
    status, _, err = fednoil("run", "demo/fedavg", "--out", "run", *sets)
    assert (status, err) == (0, "")
    config = read_toml(outside / "run" / "config.toml")
    for key, value in SET.items():
        section, _, name = key.partition(".")
        assert config[section][name] == value
    data = load(load_config(config).data)
    parts, labels, truth = read_manifest(
        outside / "run" / "noise.parquet", data.train.labels, data.num_classes, data.hash
    )
    assert [len(part) for part in parts] == [100] * 4
    steps = [(given - true) % 5 for given, true in zip(labels.given, true_labels(truth), strict=True)]
    assert [np.count_nonzero(step) for step in steps] == [0, 40, 0, 40]
    assert set(np.concatenate(steps).tolist()) == {0, 2}
    assert fednoil("run", "--resume", "--out", "run", "--quiet") == (0, "", "")
    status, shown, err = fednoil("compare", "run", "--json")
    assert (status, err) == (0, "")
    assert "newcomer_noise:Bright-newcomer_noise:OneInTwo" in shown


def test_a_key_that_the_newcomer_does_not_have_is_refused(outside: Path) -> None:
    sets = ["--set", "noise.kind=newcomer_noise:Bright", "--set", "noise.map=shared"]
    status, _, err = fednoil("run", "demo/fedavg", "--out", "run", *sets)
    assert status == 2
    assert "unknown key 'noise.map'; known in noise: kind, shift, levels, ratios; it is a key of pair, matrix" in err
