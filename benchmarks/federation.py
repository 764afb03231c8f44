"""What a round costs on Flower: ours in our own simulator, ours in Flower's simulation engine, and Flower's own FedAvg.

All on the same model, partitions and noisy labels, 20 clients of which six train for the same number of epochs.
Flower's FedAvg is its own strategy with a client as one would write it in plain PyTorch; the views of images are the
package's in both. Each engine starts once; the first round, which starts workers and loads data, is listed separately.

    python benchmarks/federation.py [--rounds 6] [--epochs 20] [--width 12]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1"}

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from fednoil import rounds
from fednoil.augment import weak, weak_plan
from fednoil.config import Config, load_config, to_toml
from fednoil.experiment import make_executor, make_experiment
from fednoil.flower.client import app as our_client
from fednoil.flower.messages import content_bytes
from fednoil.flower.server import Assignment, play
from fednoil.flower.work import whole
from fednoil.schedules import make
from fednoil.seeds import Seed

LIMIT = 1.3
RESOURCES: dict[str, Any] = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}


def configuration(method: str, options: argparse.Namespace) -> Config:
    values: dict[str, Any] = {
        "noise": {"kind": "symmetric", "ratios": [0.5, 0.6, 0.7, 0.8]},
        "model": {"name": "cnn", "width": options.width},
        "schedule": {"epochs": options.epochs},
        "train": {"rounds": options.rounds},
        "run": {"device": "cpu"},
    }
    if method == "fednoil":
        values |= {"sampling": {"name": "score"}, "learner": {"name": "fednoil", "frac": 0.35}}
    return load_config(values)


plain_client = ClientApp()


@plain_client.train()
def train(message: Message, context: Context) -> Message:
    """Cross-entropy with weak views, in plain PyTorch."""
    torch.set_num_threads(1)
    order: Any = message.content["config"]
    experiment, k = whole(order["toml"], ()), int(context.node_config["partition-id"])
    config, setting = experiment.config, experiment.setting
    model = experiment.build_model("model")
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())  # pyright: ignore
    pool, index = torch.from_numpy(setting.dataset.train.images), torch.tensor(setting.parts[k])
    labels = torch.tensor(setting.labels.given[k])
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in experiment.normalisation)
    sgd = torch.optim.SGD(
        model.parameters(), lr=config.train.lr, momentum=config.train.momentum, weight_decay=config.train.weight_decay
    )
    size = config.train.batch_size
    for epoch in range(make(config.schedule).epochs(1)):
        places = torch.randperm(len(index))
        places = torch.cat([places, places[: -len(places) % size]])
        views = weak_plan(Seed(0).child(k, epoch).keys(["weak"]), len(places), config.train.pad)[0]
        for start in range(0, len(places), size):
            chosen = places[start : start + size]
            images = (weak(pool, index[chosen], views[start : start + size]).float() / 255 - mean) / std
            sgd.zero_grad()
            nn.functional.cross_entropy(model(images), labels[chosen]).backward()
            sgd.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(index)})}
    return Message(RecordDict(content), reply_to=message)


class Timed(FedAvg):
    """Flower's FedAvg with a clock and a count of bytes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(fraction_train=0.3, fraction_evaluate=0.0, **options)
        self.times, self.bytes = [time.perf_counter()], 0

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Any:
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self.bytes += sum(content_bytes(m.content) for m in messages)
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        assert all(reply.has_content() for reply in replies), "a client of Flower's FedAvg failed"
        self.bytes += sum(content_bytes(reply.content) for reply in replies)
        return super().aggregate_train(server_round, replies)


def flowers_fedavg(options: argparse.Namespace) -> dict[str, Any]:
    """Flower's own strategy in its engine, with the model tested at the server after each round."""
    text = to_toml(configuration("fedavg", options))
    experiment = whole(text, ())
    model, test = experiment.build_model("model"), experiment.setting.dataset.test
    images, labels = torch.tensor(test.images), torch.tensor(test.labels)
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in experiment.normalisation)
    strategy, server = Timed(), ServerApp()

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            right = (model((images.float() / 255 - mean) / std).argmax(1) == labels).float().mean()
        strategy.times.append(time.perf_counter())
        return MetricRecord({"accuracy": float(right)})

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy.start(
            grid,
            ArrayRecord(model.state_dict()),
            num_rounds=options.rounds,
            train_config=ConfigRecord({"toml": text}),
            evaluate_fn=evaluate,
        )

    run_simulation(server, plain_client, 20, backend_config=RESOURCES)
    seconds = [b - a for a, b in zip(strategy.times[1:], strategy.times[2:], strict=False)]
    return {"seconds": seconds, "bytes": strategy.bytes // options.rounds}


def on_flower(method: str, options: argparse.Namespace) -> dict[str, Any]:
    """Our rounds in Flower's engine."""
    server = ServerApp()
    with tempfile.TemporaryDirectory() as folder:
        text = to_toml(configuration(method, options))

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            play(grid, Assignment(text, f"{folder}/run"))

        run_simulation(server, our_client, 20, backend_config=RESOURCES)
        lines = (Path(folder) / "run" / "rounds.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    traffic = sum(r["bytes_down"] + r["bytes_up"] for r in records[1:]) // (len(records) - 1)
    return {"seconds": [r["wall_s"] for r in records], "bytes": traffic}


def simulated(method: str, options: argparse.Namespace) -> dict[str, Any]:
    """Our rounds in our simulator, one thread."""
    torch.set_num_threads(1)
    experiment = make_experiment(configuration(method, options))
    executor, state, records = make_executor(experiment, torch.device("cpu")), rounds.start(experiment), []
    for _ in range(options.rounds):
        state, record = rounds.play(experiment, executor, state)
        records.append(record)
    traffic = sum(r.bytes_down + r.bytes_up for r in records) // len(records)
    return {"seconds": [r.wall_s for r in records], "bytes": traffic}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--width", type=int, default=12)
    options = parser.parse_args()
    cases = {
        "FedNoiL, our simulator": lambda: simulated("fednoil", options),
        "FedAvg, our simulator": lambda: simulated("fedavg", options),
        "FedNoiL on Flower": lambda: on_flower("fednoil", options),
        "FedAvg on Flower, ours": lambda: on_flower("fedavg", options),
        "FedAvg on Flower, its own": lambda: flowers_fedavg(options),
    }
    medians = {}
    for name, measure in cases.items():
        with contextlib.redirect_stdout(io.StringIO()):
            found = measure()
        medians[name] = statistics.median(found["seconds"][1:])
        print(
            f"{name:28} {medians[name]:7.3f} s a round (median of {len(found['seconds']) - 1}), "
            f"first {found['seconds'][0]:6.2f} s, {found['bytes']:>12,} bytes a round",
            flush=True,
        )
    ratio = medians["FedNoiL on Flower"] / medians["FedAvg on Flower, its own"]
    print(f"FedNoiL on Flower / Flower's own FedAvg at {options.epochs} local epochs: {ratio:.2f} (at most {LIMIT})")
    if ratio > LIMIT:
        sys.exit(f"more than {LIMIT} times Flower's own FedAvg")


if __name__ == "__main__":
    main()
