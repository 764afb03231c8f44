"""The peers' rounds: pfl-research, BlazeFL, FedJAX and Flower's simulation, each in the way its authors recommend.

pfl: its simulated backend and FederatedAveraging in one process, with images that lie on the device (its data sets hold
tensors) and, for the ResNet18 on a GPU, its own bfloat16. It doesn't average BatchNorm's statistics. Several processes
on one GPU aren't possible: pfl joins its processes by NCCL, which refuses two of them on the same GPU.

BlazeFL: its thread pool, the mode that it recommends, with a trainer that does a client's work of the plain loop on
images that lie on the device. It wants Python without a global lock (3.14t); with one, threads only overlap. Its
process pool starts new processes every round, each with its own CUDA context, which takes longer than a round here.

FedJAX: its federated averaging on its jitted backend, with data as it takes them, NumPy arrays in the host's memory.
Its models have no state, so its ResNet18 has GroupNorm where the others have BatchNorm.

Flower: its simulation, as many clients at once as asked for, each in a process of Ray with its share of the GPU, where
it builds the images once. On a CPU one thread in each of as many processes as there are cores.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from peer_work import Model, Round, Style, Task, Work, as_usual, mean_of


def usual(work: Work) -> Style:
    """How peers compute that leave it to their user: eager steps of the small CNN are faster in float32."""
    return Style(half=work.device == "cuda" and work.task.name == "resnet18")


def pfl_rounds(work: Work) -> Iterator[Round]:
    """Scores and tests are bare forward passes, its cheapest way."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel

    style, task, number = usual(work), work.task, 0
    module: Any = work.local(style)
    module.loss = lambda x, y, eval=False: F.cross_entropy(module.train()(x), y)
    module.metrics = lambda x, y, eval=True: {"loss": Weighted(0.0, len(x))}  # asked for once, before the first round
    queue: list[int] = []

    def dataset(client: int) -> PyTorchTensorDataset:
        images, labels = work.clients[client]
        order = work.orders(client, number).flatten()[: len(images)]  # it repeats the order of the first epoch
        return PyTorchTensorDataset((images[order], labels[order]), user_id=str(client))

    data = FederatedDataset(dataset, lambda: queue.pop(0))
    backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()])
    central = torch.optim.SGD(module.parameters(), lr=1.0)
    model = PyTorchModel(module, work.sgd, central, amp_dtype=torch.bfloat16 if style.half else None)
    train = NNTrainHyperParams(local_batch_size=task.batch, local_num_epochs=task.epochs, local_learning_rate=work.lr)
    algorithm = FederatedAveraging()
    while True:
        number += 1  # `run` goes on where it ended, up to this round
        queue[:] = work.drawn(module, number)
        counts = {"train_cohort_size": task.selected, "val_cohort_size": 0}
        params = NNAlgorithmParams(number, evaluation_frequency=10**9, **counts)
        algorithm.run(params, backend, model, train, send_metrics_to_platform=False)
        yield work.accuracy(module, style), list(module.state_dict().values())


def blazefl_rounds(work: Work, at_once: int) -> Iterator[Round]:
    """Its pool of threads; each keeps the model that it trains."""
    from blazefl.core import ThreadPoolClientTrainer

    style, own = usual(work), threading.local()

    @dataclass
    class Package:
        client: int
        model: Model

    class Trainer(ThreadPoolClientTrainer[Package, tuple[int, Model]]):
        def __init__(self) -> None:
            self.num_parallels, self.device, self.device_count = at_once, work.device, 1
            self.cache: list[Package] = []
            self.stop_event = threading.Event()

        def worker(self, cid: int, device: str, payload: tuple[int, Model], stop_event: threading.Event) -> Package:
            number, received = payload
            model = own.model = getattr(own, "model", None) or work.local(style)
            model.load_state_dict(received)
            work.train(model, cid, number, style)
            return Package(cid, {name: t.clone() for name, t in model.state_dict().items()})

        def uplink_package(self) -> list[Package]:
            packages, self.cache = self.cache, []
            return packages

    server, trainer, number = work.local(style), Trainer(), 0
    while True:
        number += 1
        trainer.local_process((number, server.state_dict()), work.drawn(server, number))
        server.load_state_dict(mean_of([p.model for p in sorted(trainer.uplink_package(), key=lambda p: p.client)]))
        yield work.accuracy(server, style), list(server.state_dict().values())


def fedjax_forward(network: str) -> Callable[[Any], Any]:
    """The same networks in Haiku, channels last; the ResNet18 with GroupNorm."""
    import haiku as hk
    import jax

    def norm(x: Any) -> Any:
        return hk.GroupNorm(groups=32)(x)

    def conv(x: Any, outputs: int, size: int, stride: int = 1) -> Any:
        return hk.Conv2D(outputs, size, stride, with_bias=False)(x)

    def block(x: Any, outputs: int, stride: int) -> Any:
        y = jax.nn.relu(norm(conv(x, outputs, 3, stride)))
        y = norm(conv(y, outputs, 3))
        return jax.nn.relu(y + (norm(conv(x, outputs, 1, stride)) if stride > 1 else x))

    def cnn(x: Any) -> Any:
        for outputs in (32, 64):
            x = hk.max_pool(jax.nn.relu(hk.Conv2D(outputs, 5)(x)), 2, 2, "VALID")
        return hk.Linear(10)(hk.Flatten()(x))

    def resnet18(x: Any) -> Any:
        x = jax.nn.relu(norm(conv(x, 64, 3)))
        for stage in range(4):
            x = block(block(x, 64 * 2**stage, 2 if stage else 1), 64 * 2**stage, 1)
        return hk.Linear(10)(x.mean((1, 2)))

    forward = {"cnn": cnn, "resnet18": resnet18}[network]
    return lambda batch: forward(batch["x"])


def fedjax_rounds(work: Work, gpu: bool) -> Iterator[Round]:
    import jax
    import jax.numpy as jnp

    if not hasattr(jax, "tree_map"):  # a name that JAX has dropped since FedJAX's last version
        jax.tree_map = jax.tree_util.tree_map  # pyright: ignore[reportAttributeAccessIssue]
    import fedjax
    import haiku as hk

    if gpu and jax.default_backend() != "gpu":
        raise RuntimeError("JAX sees no GPU here")
    task = work.task
    clients = [
        fedjax.ClientDataset({"x": x.permute(0, 2, 3, 1).cpu().numpy(), "y": y.cpu().numpy().astype(np.int32)})
        for x, y in work.clients
    ]
    forward = hk.transform(fedjax_forward(task.name))
    loss = lambda batch, logits: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], logits)  # noqa: E731
    sample = {name: values[: task.batch] for name, values in clients[0].all_examples().items()}
    model = fedjax.create_model_from_haiku(forward, sample, loss, {"accuracy": fedjax.metrics.Accuracy()})
    momentum = work.sgd.keywords["momentum"]
    hparams = fedjax.ShuffleRepeatBatchHParams(batch_size=task.batch, num_epochs=task.epochs, seed=0)
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model), fedjax.optimizers.sgd(work.lr, momentum), fedjax.optimizers.sgd(1.0), hparams
    )
    images, labels = work.test[0].permute(0, 2, 3, 1).cpu().numpy(), work.test[1].cpu().numpy()
    right = jax.jit(lambda params, x, y: (jnp.argmax(forward.apply(params, None, {"x": x}), 1) == y).sum())
    parts = [slice(k, k + 1000) for k in range(0, len(labels), 1000)]
    on_device = [(jnp.asarray(images[part]), jnp.asarray(labels[part])) for part in parts]
    state, number = algorithm.init(model.init(jax.random.PRNGKey(0))), 0
    while True:
        number += 1
        keys = jax.random.split(jax.random.PRNGKey(number), task.selected)
        drawn = zip(work.drawn(work.model, number), keys, strict=True)
        state, _ = algorithm.apply(state, [(client, clients[client], key) for client, key in drawn])
        found = sum(int(right(state.params, x, y)) for x, y in on_device)
        tensors = [torch.from_numpy(np.array(leaf)) for leaf in jax.tree_util.tree_leaves(state.params)]
        yield 100 * found / len(labels), tensors


@cache
def _flower_work(task: Task, device: str) -> tuple[Work, nn.Module]:
    """Each of Flower's processes builds the data, and the model that it trains, once."""
    torch.set_num_threads(1)
    as_usual()
    work = Work(task, device)
    return work, work.local(usual(work))


def flower_simulation(task: Task, device: str, at_once: int, during: Callable[[Any], None]) -> None:
    """Calls `during` with an engine whose rounds Flower's clients play, as long as they are there.

    Its `clock` adds up the server's and the clients' processes. Ray's own come on top and are not counted.
    """
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    client, server = ClientApp(), ServerApp()
    clocks: dict[int, float] = {}  # of the clients' processes, as last reported

    def received(message: Message) -> tuple[Work, nn.Module]:
        work, module = _flower_work(task, device)
        module.load_state_dict(message.content["model"].to_torch_state_dict())
        return work, module

    def reply(message: Message, score: float, **records: ArrayRecord) -> Message:
        numbers = MetricRecord({"score": score, "pid": os.getpid(), "cpu": time.process_time()})
        return Message(RecordDict({"numbers": numbers, **records}), reply_to=message)

    @client.query("score")
    def score(message: Message, context: Context) -> Message:
        work, module = received(message)
        return reply(message, work.score(module, int(context.node_config["partition-id"])))

    @client.query("id")
    def number(message: Message, context: Context) -> Message:
        return reply(message, float(context.node_config["partition-id"]))

    @client.train()
    def train(message: Message, context: Context) -> Message:
        work, module = received(message)
        place, turn = int(context.node_config["partition-id"]), int(message.content["round"]["number"])
        work.train(module, place, turn, usual(work))
        return reply(message, 0.0, model=ArrayRecord(module.state_dict()))

    def played(grid: Grid) -> Iterator[Round]:
        work = Work(task, device)
        style, model, number = usual(work), work.local(usual(work)), 0

        def ask(kind: str, to: list[int]) -> list[Message]:
            about = ConfigRecord({"number": number})
            content = RecordDict({"model": ArrayRecord(model.state_dict()), "round": about})
            replies = list(grid.send_and_receive([Message(content, node, kind) for node in to]))
            if failed := [r.error for r in replies if r.has_error()]:
                raise RuntimeError(f"a client failed: {failed[0].reason}")
            for numbers in (r.content["numbers"] for r in replies):
                clocks[int(numbers["pid"])] = max(clocks.get(int(numbers["pid"]), 0.0), float(numbers["cpu"]))
            return replies

        while len(nodes := list(grid.get_node_ids())) < task.clients:
            time.sleep(0.05)
        scored = task.name == "demo"
        if not scored:
            nodes = [
                r.metadata.src_node_id
                for r in sorted(ask("query.id", nodes), key=lambda r: r.content["numbers"]["score"])
            ]
        while True:
            number += 1
            scores = None
            if scored:
                replies = ask("query.score", nodes)
                nodes = [r.metadata.src_node_id for r in replies]
                scores = [float(r.content["numbers"]["score"]) for r in replies]
            models = ask("train", [nodes[k] for k in work.drawn(model, number, scores)])
            models.sort(key=lambda reply: nodes.index(reply.metadata.src_node_id))
            state = mean_of([m.content["model"].to_torch_state_dict() for m in models])
            model.load_state_dict(state)
            yield work.accuracy(model, style), list(model.state_dict().values())

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        during(lambda: played(grid), lambda: time.process_time() + sum(clocks.values()))

    share = 1 / at_once if device == "cuda" else 0.0
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": share}}
    run_simulation(server, client, num_supernodes=task.clients, backend_config=resources)
