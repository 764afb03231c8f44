"""What a node needs for an order: the server's configuration, its own samples in the federation's terms, a workbench.

All of it is made once a process, as far as messages share it; code is imported only if the operator has named it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import torch

from fednoil.config import Config, load_config
from fednoil.config.axes import own_code
from fednoil.data import SITES, Dataset, Split, as_asked, load
from fednoil.devices import pick_device
from fednoil.executors.local import Workbench
from fednoil.experiment import Experiment, assemble, make_bench, make_experiment, resident
from fednoil.flower.messages import Refusal
from fednoil.flower.settings import NodeSettings
from fednoil.flower.terms import CommonTerms, Founders, Site, misfit
from fednoil.learners.base import Client
from fednoil.seeds import Seed
from fednoil.setting import Sites, deal


@dataclass(frozen=True)
class Order:
    """What the server asks this node to do in one message."""

    config: str
    run: str
    client: int
    round_idx: int
    epochs: int
    agreement: CommonTerms
    founders: Founders
    signals: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Work:
    """What a node needs for a message: the experiment, a workbench, its samples, what it holds out, and the fold of its
    samples that the run leaves out, if any."""

    experiment: Experiment
    bench: Workbench
    client: Client
    test: Split
    left: Client | None = None


def introduce(settings: NodeSettings, config_text: str) -> Site:
    """What this node reports about itself before round 1."""
    config = configured(config_text, settings.trust)
    if settings.data is not None:
        if config.data.name != SITES:
            raise Refusal(f"it has its own data, but this run uses {config.data.name}; set data.name={SITES}")
        dataset = _own_data(settings.data, config_text, settings.trust)
        samples, held_out = int(_trained(settings, config, dataset).sum()), len(dataset.test)
    else:
        if config.data.name == SITES:
            raise Refusal("it has no data of its own; start it with --data")
        setting = whole(config_text, settings.trust).setting
        dataset, partition = setting.dataset, settings.partition
        assert partition is not None
        if not 0 <= partition < setting.num_clients:
            raise Refusal(f"its partition-id {partition} is not in 0..{setting.num_clients - 1} (partition.clients)")
        samples, held_out = len(setting.parts[partition]), 0
    return Site.of(settings.client_id, settings.partition, samples, held_out, dataset)


@lru_cache(maxsize=4)
def configured(text: str, trust: tuple[str, ...]) -> Config:
    """The server's configuration; code is imported only if the node's operator has named it."""
    values = tomllib.loads(text)
    for key, name in own_code(values).items():
        if name not in trust:
            raise Refusal(f"it doesn't trust the code '{name}' ({key}); start it with --trust {name}")
    return load_config(values)


@lru_cache(maxsize=2)
def whole(config_text: str, trust: tuple[str, ...]) -> Experiment:
    """The experiment with all simulated partitions, made once per process."""
    return make_experiment(configured(config_text, trust))


@lru_cache(maxsize=2)
def _own_data(name: str, config_text: str, trust: tuple[str, ...]) -> Dataset:
    """The node's data, in the size that the server asks for."""
    return load(as_asked(name, configured(config_text, trust).data), site=True)


@lru_cache(maxsize=2)
def _partition_bench(config_text: str, trust: tuple[str, ...]) -> tuple[Workbench, torch.Tensor]:
    experiment = whole(config_text, trust)
    device = _device(experiment.config)
    return make_bench(experiment, device), resident(experiment.setting.dataset.train.images, device)


def partition_work(settings: NodeSettings, order: Order) -> Work:
    experiment = whole(order.config, settings.trust)
    bench, pool = _partition_bench(order.config, settings.trust)
    setting, partition = experiment.setting, settings.partition
    if partition is None or partition != order.client or partition >= setting.num_clients:
        raise Refusal(f"it is client {partition}, not {order.client}")

    def client(part: np.ndarray, given: np.ndarray) -> Client:
        arrays = (np.ascontiguousarray(a).astype(np.int64) for a in (part, given))
        return Client(order.client, pool, *(torch.from_numpy(a).to(bench.device) for a in arrays))

    own = client(setting.parts[partition], setting.labels.given[partition])
    left = setting.left and client(setting.left.parts[partition], setting.left.given[partition])
    return Work(experiment, bench, own, setting.dataset.test, left)


def _trained(settings: NodeSettings, config: Config, own: Dataset) -> np.ndarray:
    """Which of a site's training images the run trains on: bool [n]."""
    if (left_out := config.data.left_out) is None:
        return np.ones(len(own.train), bool)
    fold, count = left_out
    if count > len(own.train):
        raise Refusal(f"it has {len(own.train)} samples, too few for {count} folds (data.validation)")
    return deal(own.train.labels, count, Seed(config.run.seed), settings.client_id) != fold


@lru_cache(maxsize=2)
def site_work(
    settings: NodeSettings, config_text: str, number: int, agreement: CommonTerms, founders: Founders
) -> Work:
    """The site's own data, with the federation's class numbers."""
    config = configured(config_text, settings.trust)
    assert settings.data is not None
    own = _own_data(settings.data, config_text, settings.trust)
    trained = _trained(settings, config, own)
    samples = int(trained.sum())
    if reason := misfit(Site.of(settings.client_id, None, samples, len(own.test), own), agreement):
        raise Refusal(reason)
    dataset = agreement.fitted(replace(own, name=settings.client_id))
    sizes = founders.sizes
    experiment = assemble(config, Sites.of(dataset, [str(k) for k in range(len(sizes))], sizes))
    device = _device(config)
    pool, labels = resident(dataset.train.images, device), torch.from_numpy(dataset.train.labels)

    def client(rows: np.ndarray) -> Client:
        index = torch.from_numpy(np.flatnonzero(rows))
        return Client(number, pool, index.to(device), labels[index].to(device))

    left = client(~trained) if config.data.left_out else None
    return Work(experiment, make_bench(experiment, device), client(trained), dataset.test, left)


def _device(config: Config) -> torch.device:
    """The node's own choice: the server can't know whether there is a GPU here."""
    return pick_device("cpu" if config.run.device == "cpu" else "auto")
