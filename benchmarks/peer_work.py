"""The same federated round in our engine, a plain PyTorch loop, pfl and Flower's simulation.

A round: all 20 clients score their 150 images with the global model, six are drawn by these scores and trained for an
epoch with batches of 30, their models are averaged and the mean is tested on 1,000 images. Model, optimiser, data and
labels are the same objects. The loop and the peers work on images that are normalised once ahead; ours normalises
each batch. `benchmarks/peers.py` runs this file in an environment that has the peers, and it prints seconds as JSON:

    python benchmarks/peer_work.py [--threads 1] [--rounds 20] [--flower]
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fednoil import rounds
from fednoil.config import load_config
from fednoil.experiment import Experiment, make_executor, make_experiment
from fednoil.learners.looks import TEMPERATURE

CLIENTS, SELECTED, BATCH = 20, 6, 30  # 150 images are five full batches
VALUES: dict[str, Any] = {
    "partition": {"clients": CLIENTS},
    "noise": {"kind": "symmetric"},
    "model": {"name": "peer_work:SmallCNN"},
    "server": {"name": "fedavg"},
    "sampling": {"name": "score", "fraction": SELECTED / CLIENTS},
    "learner": {"name": "erm"},
    "schedule": {"epochs": 1},
    "train": {"rounds": 1000, "batch_size": BATCH, "pad": 0, "flip": False},
}
Model = dict[str, Tensor]


class SmallCNN(nn.Sequential):
    """9,098 parameters: so little arithmetic that the cost of the engine shows."""

    channels_last = True  # may have its images in that layout; which layout they have is up to the engine

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int) -> None:
        blocks: list[nn.Module] = []
        for inputs, outputs in ((image_shape[0], 8), (8, 16)):
            blocks += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        super().__init__(*blocks, nn.Flatten(), nn.Linear(16 * 7 * 7, num_classes))


class Work:
    """What a client and the server do in a round, in plain PyTorch: for the loop and for the peers."""

    def __init__(self) -> None:
        self.experiment = make_experiment(load_config(VALUES))
        setting, train = self.experiment.setting, self.experiment.config.train
        mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in self.experiment.normalisation)

        def ready(images: Any) -> Tensor:
            return (torch.tensor(images).float() / 255 - mean) / std

        images = ready(setting.dataset.train.images)
        pairs = zip(setting.parts, setting.labels.given, strict=True)
        self.clients = [(images[torch.tensor(part)], torch.tensor(given)) for part, given in pairs]
        self.test = ready(setting.dataset.test.images), torch.tensor(setting.dataset.test.labels).long()
        self.model = self.experiment.build_model("model")
        self.sgd = partial(torch.optim.SGD, momentum=train.momentum, weight_decay=train.weight_decay)
        self.lr = train.lr

    @torch.no_grad()
    def score(self, model: nn.Module, client: int) -> float:
        """Σ of the confidences in the given labels: what a client sends to the server."""
        images, labels = self.clients[client]
        probs = torch.softmax(model(images) / TEMPERATURE, dim=1)
        return float(probs.gather(1, labels[:, None]).sum())

    def train(self, model: nn.Module, client: int) -> None:
        """One epoch."""
        images, labels = self.clients[client]
        sgd = self.sgd(model.parameters(), lr=self.lr)
        for chosen in torch.randperm(len(images)).split(BATCH):
            sgd.zero_grad()
            F.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            sgd.step()

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        images, labels = self.test
        return 100 * float((model(images).argmax(1) == labels).float().mean())


def draw(scores: list[float]) -> list[int]:
    """Distinct clients, drawn by their scores."""
    return torch.multinomial(torch.tensor(scores), SELECTED).tolist()


def mean_of(models: list[Model]) -> Model:
    """All clients have as many images."""
    return {name: torch.stack([m[name] for m in models]).mean(0) for name in models[0]}


def plain_rounds(work: Work) -> Iterator[float]:
    """The plain loop; yields the accuracy of each round."""
    server, local = copy.deepcopy(work.model), copy.deepcopy(work.model)
    while True:
        models = []
        for client in draw([work.score(server, k) for k in range(CLIENTS)]):
            local.load_state_dict(server.state_dict())
            work.train(local, client)
            models.append({name: t.clone() for name, t in local.state_dict().items()})
        server.load_state_dict(mean_of(models))
        yield work.accuracy(server)


def our_rounds(experiment: Experiment) -> Iterator[float]:
    """The reference executor."""
    executor, state = make_executor(experiment, torch.device("cpu")), rounds.start(experiment)
    while True:
        state, record = rounds.play(experiment, executor, state)
        yield record.test_accuracy


def pfl_rounds(work: Work) -> Iterator[float]:
    """pfl's simulated backend and FederatedAveraging; scores and tests are bare forward passes, its cheapest way."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel

    module: Any = copy.deepcopy(work.model)
    module.loss = lambda x, y: F.cross_entropy(module(x), y)
    module.metrics = lambda x, y: {"loss": Weighted(0.0, len(x))}  # asked for once, before the first round
    queue: list[int] = []

    def dataset(client: int) -> PyTorchTensorDataset:
        images, labels = work.clients[client]
        order = torch.randperm(len(images))
        return PyTorchTensorDataset((images[order], labels[order]), user_id=str(client))

    data = FederatedDataset(dataset, lambda: queue.pop(0))
    backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()])
    model = PyTorchModel(module, work.sgd, torch.optim.SGD(module.parameters(), lr=1.0))
    train = NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=work.lr)
    algorithm, number = FederatedAveraging(), 0
    while True:
        number += 1  # `run` goes on where it ended, up to this round
        queue[:] = draw([work.score(module, k) for k in range(CLIENTS)])
        params = NNAlgorithmParams(number, evaluation_frequency=10**9, train_cohort_size=SELECTED, val_cohort_size=0)
        algorithm.run(params, backend, model, train, send_metrics_to_platform=False)
        yield work.accuracy(module)


@lru_cache(maxsize=1)
def _flower_client() -> Work:
    """Each of Flower's processes builds the data once."""
    torch.set_num_threads(1)
    return Work()


def flower_rounds(count: int) -> dict[str, Any]:
    """Flower's simulation, one thread in each of as many processes as there are cores.

    `cpu` adds up the server's and the clients' processes. Ray's own come on top and are not counted.
    """
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    client, server = ClientApp(), ServerApp()
    found: dict[str, Any] = {"seconds": [], "cpu": []}

    def received(message: Message) -> nn.Module:
        module = _flower_client().model
        module.load_state_dict(message.content["model"].to_torch_state_dict())
        return module

    def reply(message: Message, score: float, **records: ArrayRecord) -> Message:
        numbers = MetricRecord({"score": score, "pid": os.getpid(), "cpu": time.process_time()})
        return Message(RecordDict({"numbers": numbers, **records}), reply_to=message)

    @client.query("score")
    def score(message: Message, context: Context) -> Message:
        return reply(message, _flower_client().score(received(message), int(context.node_config["partition-id"])))

    @client.train()
    def train(message: Message, context: Context) -> Message:
        module = received(message)
        _flower_client().train(module, int(context.node_config["partition-id"]))
        return reply(message, 0.0, model=ArrayRecord(module.state_dict()))

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        work = Work()
        clocks: dict[int, float] = {}  # of the clients' processes, as last reported
        while len(nodes := list(grid.get_node_ids())) < CLIENTS:
            time.sleep(0.05)

        def ask(kind: str, to: list[int]) -> list[Message]:
            content = RecordDict({"model": ArrayRecord(work.model.state_dict())})
            replies = list(grid.send_and_receive([Message(content, node, kind) for node in to]))
            if failed := [r.error for r in replies if r.has_error()]:
                raise RuntimeError(f"a client failed: {failed[0].reason}")
            for numbers in (r.content["numbers"] for r in replies):
                clocks[int(numbers["pid"])] = max(clocks.get(int(numbers["pid"]), 0.0), float(numbers["cpu"]))
            return replies

        for _ in range(count):
            began, cpu = time.perf_counter(), time.process_time() + sum(clocks.values())
            replies = ask("query.score", nodes)
            drawn = draw([float(r.content["numbers"]["score"]) for r in replies])
            models = ask("train", [replies[k].metadata.src_node_id for k in drawn])
            work.model.load_state_dict(mean_of([m.content["model"].to_torch_state_dict() for m in models]))
            found["accuracy"] = work.accuracy(work.model)
            found["cpu"].append(time.process_time() + sum(clocks.values()) - cpu)
            found["seconds"].append(time.perf_counter() - began)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=CLIENTS, backend_config=resources)
    return found


def alternating(engines: dict[str, Iterator[float]], count: int) -> dict[str, Any]:
    """Rounds of all engines in turn, so that other load on the machine affects all alike.

    With one thread the process's own seconds (`cpu`) are more reliable than the wall clock if other programs run too.
    """
    found: dict[str, Any] = {name: {"seconds": [], "cpu": []} for name in engines}
    names = list(engines)
    for number in range(count):
        for name in (
            names[number % len(names) :] + names[: number % len(names)]
        ):  # the order changes from round to round
            began, cpu = time.perf_counter(), time.process_time()
            found[name]["accuracy"] = next(engines[name])
            found[name]["cpu"].append(time.process_time() - cpu)
            found[name]["seconds"].append(time.perf_counter() - began)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--flower", action="store_true", help="Flower alone: its rounds can't alternate with others'")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    logging.disable(logging.CRITICAL)
    if given.flower:
        os.environ |= {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}  # of its processes
        os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        import peer_work  # Flower's processes find its functions by the module's name, and this one is __main__

        result = {"flower": peer_work.flower_rounds(given.rounds)}
    else:
        work = Work()
        makers: dict[str, Callable[[], Iterator[float]]] = {
            "plain": lambda: plain_rounds(work),
            "fednoil": lambda: our_rounds(work.experiment),
            "pfl": lambda: pfl_rounds(work),
        }
        result = alternating({name: make() for name, make in makers.items()}, given.rounds)
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
