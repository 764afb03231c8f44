"""The node's side: its settings, its data in the federation's terms, its state on disk, and its work.

A node's process may live for a single message, so everything it must remember is in its state folder.
"""

from __future__ import annotations

import logging
import math
import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from fednoil.audit import run_audit
from fednoil.config import Config, load_config
from fednoil.config.axes import own_code
from fednoil.data import SITES, Dataset, Split, as_asked, forms, load
from fednoil.errors import UserError, nearest
from fednoil.executors.base import HeldOut, Job, Result
from fednoil.executors.local import Workbench
from fednoil.experiment import Experiment, assemble, make_bench, make_experiment, pick_device, resident
from fednoil.flower.agreement import Agreement, Site, misfit
from fednoil.flower.ledger import ScoreLedger, Terms
from fednoil.flower.memory import Memory
from fednoil.flower.messages import NAME, Refusal
from fednoil.flower.state import NodeState
from fednoil.learners.base import Client, Turn
from fednoil.learners.looks import confidences
from fednoil.sampling import Scoring
from fednoil.setting import Sites
from fednoil.tensors import Tensors, digest

log = logging.getLogger("flwr.fednoil")
_KEYS = ("client-id", "data", "state", "trust", "score-epsilon", "score-budget", "partition-id", "num-partitions")


@dataclass(frozen=True)
class NodeSettings:
    """What the node's operator has set with --node-config."""

    client_id: str
    data: str | None
    partition: int | None
    state: Path
    trust: tuple[str, ...]
    score_epsilon: float | None
    score_budget: float | None

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> NodeSettings:
        """Check Flower's node configuration."""
        for key in values:
            if key not in _KEYS:
                raise UserError(f"--node-config: unknown key '{key}'; known: {', '.join(_KEYS)}{nearest(key, _KEYS)}")
        data, partition = values.get("data"), values.get("partition-id")
        if data is None and partition is None:
            known = " or ".join(f'data="{form}"' for form in forms())
            raise UserError(f'--node-config: set client-id="…" and {known}')
        if data is not None and "client-id" not in values:
            raise UserError('--node-config: data without client-id; add client-id="a-name-that-stays"')
        client_id = str(values.get("client-id", f"client-{partition}"))
        if not NAME.fullmatch(client_id):
            raise UserError(f"--node-config: client-id = '{client_id}' must be letters, digits, '.', '_' or '-'")
        epsilon, budget = (_positive(key, values.get(key)) for key in ("score-epsilon", "score-budget"))
        if budget is not None and epsilon is None:
            raise UserError("--node-config: score-budget without score-epsilon, the share of it that one run may spend")
        state = Path(str(values.get("state", Path.home() / ".fednoil" / "nodes"))).expanduser()
        trust = tuple(str(values.get("trust", "")).split())
        own = None if data is None else str(data)
        number = None if own is not None or partition is None else _number("partition-id", partition)
        return cls(client_id, own, number, state, trust, epsilon, budget or epsilon)


def _number(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UserError(f"--node-config: {key} = {value!r} must be a whole number of at least 0")
    return value


def _positive(key: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UserError(f"--node-config: {key} = {value!r} must be a number above 0")
    return float(value)


@dataclass(frozen=True)
class Order:
    """What the server asks of this node in one message."""

    config: str
    run: str
    client: int
    round_idx: int
    epochs: int
    agreement: Agreement


@dataclass(frozen=True)
class Work:
    """What a node needs for a message: the experiment, a workbench, its samples, and what it holds out."""

    experiment: Experiment
    bench: Workbench
    client: Client
    test: Split


class Node:
    """One node at work on one order."""

    def __init__(self, settings: NodeSettings, order: Order) -> None:
        self.settings = settings
        self.order = order
        if settings.data is None:
            self.work = _partition_work(settings, order)
        else:
            self.work = _site_work(settings, order.config, order.client, order.agreement)
        self.state = NodeState(settings.state / settings.client_id / order.run)
        self.memory = Memory(self.state, self.work.client, self.work.experiment)

    def score(self, received: Tensors) -> float:
        """How clean the received model finds the labels here; with noise if server or operator ask for it."""
        order, sampling = self.order, self.work.experiment.sampling
        rounds = self.work.experiment.config.train.rounds
        if not isinstance(sampling, Scoring):
            raise Refusal("this run samples its clients without scores, so no score is sent")
        epsilon = self._epsilon()
        ledger = ScoreLedger(self.state.folder.parent)
        if epsilon is None:
            ledger.check_plain(order.run)
            found = self._confidences(sampling, received, self.state.keep_before(order.round_idx))
            return float(sampling.score(found))
        terms = Terms(rounds, epsilon, self.settings.score_budget)
        if (before := ledger.reported(order.run, order.round_idx, terms)) is not None:
            return before
        # Without what the client keeps: its samples have shaped that, so one of them could change more than its own
        # confidence. And where the received model overflows, a NaN sum would reveal the sample despite the noise.
        bounded = self._confidences(sampling, received, keep={}).nan_to_num(0.0).clamp(0.0, 1.0)
        plain = float(sampling.score(bounded))
        # From the system's entropy: noise from the run's seed could be subtracted by anyone who knows it.
        u = (secrets.randbits(53) + 0.5) * 2.0**-53
        noisy = sampling.private(plain, len(self.work.client), rounds / terms.epsilon, u)
        return ledger.record(order.run, order.round_idx, terms, noisy)

    def _epsilon(self) -> float | None:
        """The ε of this run's scores, the smaller of the server's and the operator's; None: no noise."""
        sampling = self.work.experiment.sampling
        wanted = sampling.config.epsilon if isinstance(sampling, Scoring) else None
        asked = (wanted, self.settings.score_epsilon)
        return min((e for e in asked if e is not None), default=None)

    def _confidences(self, sampling: Scoring, received: Tensors, keep: Tensors) -> torch.Tensor:
        bench, job = self.work.bench, self._job(received, keep)
        bench.load(job.received, job.keep)
        logits = bench.look(self.work.client)
        if bench.looking is not None:  # it will want them if this client is selected
            self.state.save_look(logits, digest({**received, **keep}))
        self.memory.look(self.order.round_idx, torch.softmax(logits, dim=1))
        return confidences(logits, self.work.client.labels, sampling.config.temperature)

    def train(self, received: Tensors) -> Result:
        """This client's turn; what it keeps stays in its state folder."""
        round_idx = self.order.round_idx
        keep = self.state.keep_before(round_idx)
        result = self.work.bench.update(self.work.client, self._job(received, keep, self._looked(received, keep)))
        if result.keep:
            self.state.save_keep(round_idx, result.keep, self.work.experiment.config.run.checkpoint_every)
        scored = isinstance(self.work.experiment.sampling, Scoring)
        self.memory.turn(round_idx, self.order.epochs, result.evidence, scored)
        if self._epsilon() is not None:
            # FedNoiL's own number depends on the sum of the confidences: it would reveal the score without its noise.
            steps = self.order.epochs * -(-len(self.work.client) // self.work.experiment.config.train.batch_size)
            result = replace(result, numbers={**result.numbers, "steps": float(steps)})
        return result

    def _looked(self, received: Tensors, keep: Tensors) -> torch.Tensor | None:
        """The logits behind this round's score, so that the data are not passed again."""
        if self.work.bench.looking is None:
            return None
        shape = (len(self.work.client), self.work.experiment.task.num_classes)
        return self.state.take_look(digest({**received, **keep}), shape)

    def audit(self, received: Tensors) -> float:
        """Find wrong labels with the final model, write them to the client's folder, and report their share.

        If scores have noise, the share is computed from the last score, which the server has: that costs no privacy.
        """
        work, client = self.work, self.work.client
        held_out = self.evaluate(received) if len(work.test) else None
        accuracy = None if held_out is None else 100 * held_out.right / held_out.samples
        work.bench.load({name: tensor.to(work.bench.device) for name, tensor in received.items()}, {})
        look = torch.softmax(work.bench.look(client), dim=1)
        data = self.settings.data or work.experiment.config.data.name
        case = self.memory.case(self.order.round_idx, look, self.settings.client_id, data, work.experiment, accuracy)
        summary = run_audit(case, self.state.folder / "audit")
        sampling, ledger = work.experiment.sampling, ScoreLedger(self.state.folder.parent)
        if self._epsilon() is None:
            ledger.check_plain(self.order.run)
            return float(summary["overall"]["noise_ratio"])
        last = ledger.last(self.order.run)
        if last is None or not isinstance(sampling, Scoring):
            raise Refusal("it reports its noise only through noisy scores, and has not reported any")
        return 1 - last / sampling.largest(len(client))

    def evaluate(self, received: Tensors) -> HeldOut:
        """Test the client's own model on what it holds out."""
        keep = self.state.keep_before(self.order.round_idx + 1)
        model = self.work.experiment.server.own_model(received, keep)
        images = resident(self.work.test.images, self.work.bench.device)
        labels = torch.from_numpy(self.work.test.labels)
        logits = self.work.bench.logits(model, images)
        loss = float(F.cross_entropy(logits.double(), labels))
        return HeldOut(int((logits.argmax(1) == labels).sum()), len(labels), loss)

    def _job(self, received: Tensors, keep: Tensors, looked: torch.Tensor | None = None) -> Job:
        order = self.order
        seed = self.work.experiment.seed.child("round", order.round_idx, "client", order.client)
        device = self.work.bench.device
        moved = {name: tensor.to(device) for name, tensor in received.items()}
        kept = {name: tensor.to(device) for name, tensor in keep.items()}
        known = None if looked is None else looked.to(device)
        return Job(order.client, moved, kept, Turn(order.round_idx, order.epochs, seed), known)


def introduce(settings: NodeSettings, config_text: str) -> Site:
    """What this node reports about itself before round 1."""
    config = configured(config_text, settings.trust)
    if settings.data is not None:
        if config.data.name != SITES:
            raise Refusal(f"it has its own data, but this run uses {config.data.name}")
        dataset = _own_data(settings.data, config_text, settings.trust)
        names, samples, held_out = dataset.class_names, len(dataset.train), len(dataset.test)
    else:
        if config.data.name == SITES:
            raise Refusal("it has no data of its own: --node-config has no data=")
        setting = whole(config_text, settings.trust).setting
        dataset, partition = setting.dataset, settings.partition
        assert partition is not None
        if not 0 <= partition < setting.num_clients:
            raise Refusal(f"its partition-id {partition} is not in 0..{setting.num_clients - 1} (partition.clients)")
        names, samples, held_out = dataset.class_names, len(setting.parts[partition]), 0
    return Site(
        settings.client_id, settings.partition, samples, held_out, names, dataset.image_shape, dataset.mean, dataset.std
    )


@lru_cache(maxsize=4)
def configured(text: str, trust: tuple[str, ...]) -> Config:
    """The server's configuration; code is imported only if the node's operator has named it."""
    values = tomllib.loads(text)
    for key, name in own_code(values).items():
        if name not in trust:
            raise Refusal(f"it doesn't trust the code '{name}' ({key}); its --node-config needs trust=\"{name}\"")
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


def _partition_work(settings: NodeSettings, order: Order) -> Work:
    experiment = whole(order.config, settings.trust)
    bench, pool = _partition_bench(order.config, settings.trust)
    setting, partition = experiment.setting, settings.partition
    if partition is None or partition != order.client or partition >= setting.num_clients:
        raise Refusal(f"it is client {partition}, not {order.client}")
    index, labels = (
        torch.from_numpy(np.ascontiguousarray(a).astype(np.int64)).to(bench.device)
        for a in (setting.parts[partition], setting.labels.given[partition])
    )
    return Work(experiment, bench, Client(order.client, pool, index, labels), setting.dataset.test)


@lru_cache(maxsize=2)
def _site_work(settings: NodeSettings, config_text: str, number: int, agreement: Agreement) -> Work:
    """The site's own data, with the federation's class numbers."""
    config = configured(config_text, settings.trust)
    assert settings.data is not None
    own = _own_data(settings.data, config_text, settings.trust)
    site = Site(
        settings.client_id, None, len(own.train), len(own.test), own.class_names, own.image_shape, own.mean, own.std
    )
    if reason := misfit(site, agreement):
        raise Refusal(reason)
    numbers = np.array([agreement.class_names.index(name) for name in own.class_names], np.int64)
    train, test = (Split(split.images, numbers[split.labels]) for split in (own.train, own.test))
    names = agreement.class_names
    dataset = Dataset(settings.client_id, train, test, names, agreement.mean, agreement.std, own.about)
    experiment = assemble(config, Sites.of(dataset, [settings.client_id], [len(own.train)]))
    device = _device(config)
    pool = resident(dataset.train.images, device)
    labels = torch.from_numpy(dataset.train.labels).to(device)
    client = Client(number, pool, torch.arange(len(labels), device=device), labels)
    return Work(experiment, make_bench(experiment, device), client, dataset.test)


def _device(config: Config) -> torch.device:
    """The node's own choice: the server can't know whether there is a GPU here."""
    return pick_device("cpu" if config.run.device == "cpu" else "auto")
