"""Whole epochs of DivideMix and Jo-SRC against plain loops written from their papers, sample by sample.

The learners keep static shapes: full batches that wrap round, and masks. The loops below have lists of whatever size
the data give, `continue` where there is nothing to learn from, torch.optim, and Python's own arithmetic for splits,
targets and losses. Only the draws are shared: order, views, mixing shares and partners come from the learner's plan.
Both executors are held against them: client after client, and the GPU's, whose joint steps are what a graph captures;
here they run one by one, and tests/test_gpu.py compares the graphs with client after client.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from test_stack import stacked
from torch import Tensor, nn

from fednoil.augment import weak
from fednoil.config import load_config
from fednoil.executors import cuda
from fednoil.executors.base import Job, Result
from fednoil.executors.sequential import Sequential
from fednoil.experiment import Experiment, make_executor, make_experiment
from fednoil.learners.base import Client, Learner, Phase, Trainee, Turn
from fednoil.learners.josrc import Josrc

CLASSES = 4


class Plain:
    """Networks and optimisers as one would make them by hand."""

    def __init__(self, experiment: Experiment, start: dict[str, Tensor], names: tuple[str, ...]) -> None:
        self.modules: dict[str, nn.Module] = {}
        for name in names:
            module = copy.deepcopy(experiment.template)
            module.load_state_dict({k.split("/")[1]: t for k, t in start.items() if k.startswith(f"{name}/")})
            self.modules[name] = module.train()
        self.mean, self.std = (torch.tensor(v).view(1, -1, 1, 1) for v in experiment.normalisation)
        train = experiment.config.train
        self.sgd = {
            name: torch.optim.SGD(
                module.parameters(), lr=train.lr, momentum=train.momentum, weight_decay=train.weight_decay
            )
            for name, module in self.modules.items()
        }

    def __call__(self, name: str, images: Tensor) -> Tensor:
        return self.modules[name]((images.float() / 255 - self.mean) / self.std)

    def step(self, name: str, loss: Tensor) -> None:
        self.sgd[name].zero_grad()
        loss.backward()
        self.sgd[name].step()


def turn_of(
    values: dict[str, Any], round_idx: int, executor_name: str, client: int
) -> tuple[Experiment, Client, list[Phase], Result]:
    """One client's turn in `round_idx`, the phases that it was planned in, and what came out; stacked: among all."""
    experiment = make_experiment(load_config(values))
    alone, phases = make_executor(experiment, torch.device("cpu")), []
    assert isinstance(alone, Sequential)
    plan, plans = experiment.learner.plan, cuda.plans_of

    def noting(learner: Learner, trainees: Sequence[Trainee], epochs: range) -> list[list[Phase]]:
        found = plans(learner, trainees, epochs)
        phases.extend(*(own for one, own in zip(trainees, found, strict=True) if one.client.id == client))
        return found

    turn = Turn(round_idx, experiment.schedule.epochs(round_idx), experiment.seed.child("round", round_idx))
    jobs = [Job(k, experiment.initial_model(), {}, turn) for k in range(experiment.setting.num_clients)]
    if executor_name == "stacked":
        executor = stacked(experiment, len(jobs))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cuda, "plans_of", noting)
            result = next(r for r in executor.train(jobs) if r.client == client)
        assert (executor.alone, executor.reason) == (None, None)
    else:
        experiment.learner.plan = lambda *args: phases.extend(made := plan(*args)) or made  # type: ignore[method-assign]
        (result,) = alone.train([jobs[client]])
    return experiment, alone.clients[client], phases, result


def rows(phase: Phase) -> list[dict[str, Tensor]]:
    return [{name: t[s] for name, t in phase.tensors.items()} for s in range(phase.steps)]


def assert_close(module: nn.Module, got: dict[str, Tensor], name: str) -> None:
    """Within what a ReLU does to a value that one way of rounding puts above zero and another below: 3e-5 was seen."""
    for key, tensor in module.state_dict().items():
        torch.testing.assert_close(got[f"{name}/{key}"], tensor, rtol=2e-4, atol=1e-4, msg=f"{name}/{key}")


# --- DivideMix -----------------------------------------------------------------------------------------------------


def components(x: np.ndarray, weights: list[np.ndarray]) -> tuple[list[float], list[np.ndarray]]:
    """Means and weighted densities of two Gaussians fitted to `x` under the given responsibilities."""
    means, densities = [], []
    for w in weights:
        mean = float((w * x).sum() / w.sum())
        variance = float((w * (x - mean) ** 2).sum() / w.sum()) + 5e-4
        means.append(mean)
        densities.append(w.mean() * np.exp(-((x - mean) ** 2) / (2 * variance)) / math.sqrt(2 * math.pi * variance))
    return means, densities


def clean_chances(losses: list[float]) -> list[float]:
    """Expectation-maximisation from the best split in two: at most 10 steps, less where the likelihood stands still."""
    x = np.array([(loss - min(losses)) / (max(losses) - min(losses)) for loss in losses])
    ordered = sorted(x)
    cuts = {c: np.var(ordered[:c]) * c + np.var(ordered[c:]) * (len(x) - c) for c in range(1, len(x))}
    upper = (x >= ordered[min(cuts, key=lambda c: cuts[c])]).astype(float)
    means, (low, high) = components(x, [1 - upper, upper])
    before = -math.inf
    for _ in range(10):
        bound = np.log(low + high).mean()
        means, (low, high) = components(x, [low / (low + high), high / (low + high)])
        if abs(bound - before) < 1e-2:
            break
        before = bound
    return list((low if means[0] < means[1] else high) / (low + high))


def sharpened(probs: list[float]) -> list[float]:
    squares = [p * p for p in probs]  # T = 1/2
    return [s / sum(squares) for s in squares]


def mean_of(predictions: list[Tensor], i: int) -> list[float]:
    return [sum(float(p[i][c]) for p in predictions) / len(predictions) for c in range(CLASSES)]


def divided_epoch(plain: Plain, client: Client, phases: list[Phase], lambda_u: float) -> list[int]:
    """One epoch of both networks after the warm-up; returns the sizes of the labelled sets."""
    chances = {}
    for name in ("a", "b"):
        plain.modules[name].eval()
        with torch.no_grad():
            probs = torch.softmax(plain(name, client.pool[client.index]), 1)
        chances[name] = clean_chances([-math.log(float(probs[i][y])) for i, y in enumerate(client.labels.tolist())])
    sizes = []
    for name, other, phase in zip("ab", "ba", phases, strict=True):
        position = {int(index): i for i, index in enumerate(client.index)}
        labelled = {i for i, w in enumerate(chances[other]) if w > 0.5}
        batches = rows(phase)
        seen = [position[int(i)] for batch in batches for i in batch["index"]]
        assert set(seen) == set(seen[: len(labelled)]) == labelled  # each once, and only then again
        assert {position[int(i)] for batch in batches for i in batch["u_index"]}.isdisjoint(labelled)
        sizes.append(len(labelled))
        plain.modules[name].train()
        plain.modules[other].eval()
        for batch in batches:
            x = [weak(client.pool, batch["index"], batch[view]) for view in ("first", "second")]
            u = [weak(client.pool, batch["u_index"], batch[f"u_{view}"]) for view in ("first", "second")]
            with torch.no_grad():
                own = [torch.softmax(plain(name, view), 1) for view in x]
                guesses = [torch.softmax(plain(net, view), 1) for net in (name, other) for view in u]
            targets_x = []
            for i, index in enumerate(batch["index"]):
                w, p = chances[other][position[int(index)]], mean_of(own, i)
                given = int(client.labels[position[int(index)]])
                targets_x.append(sharpened([w * (c == given) + (1 - w) * p[c] for c in range(CLASSES)]))
            targets_u = [sharpened(mean_of(guesses, i)) for i in range(len(batch["u_index"]))]
            images, targets = torch.cat([*x, *u]).float(), targets_x * 2 + targets_u * 2
            keep, partner = float(batch["share"]), batch["partner"].tolist()
            assert keep >= 0.5
            mixed = torch.stack([keep * images[i] + (1 - keep) * images[j] for i, j in enumerate(partner)])
            pairs = [(targets[i], targets[j]) for i, j in enumerate(partner)]
            wanted = [[keep * t[c] + (1 - keep) * other_t[c] for c in range(CLASSES)] for t, other_t in pairs]
            probs = torch.softmax(plain(name, mixed), 1)
            count = 2 * len(batch["index"])
            loss_x = sum(-wanted[i][c] * probs[i][c].log() for i in range(count) for c in range(CLASSES)) / count
            rest = range(count, len(wanted))
            loss_u = sum((probs[i][c] - wanted[i][c]) ** 2 for i in rest for c in range(CLASSES)) / len(rest) / CLASSES
            penalty = sum((1 / CLASSES) * torch.log((1 / CLASSES) / probs[:, c].mean()) for c in range(CLASSES))
            plain.step(name, loss_x + lambda_u * loss_u + penalty)
    return sizes


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_dividemix_is_its_plain_loop(values: dict[str, Any], executor: str) -> None:
    """Two epochs in round 5: warm-up over after 2, λ(e) = 25 · (4 − 2)/16."""
    values |= {"model": {"name": "test_rounds:bn_model"}, "learner": {"name": "dividemix", "warmup": 2}}
    values["train"]["lr"] = 0.01
    experiment, client, phases, result = turn_of(values, 5, executor, client=1)
    plain = Plain(experiment, experiment.initial_model(), ("a", "b"))
    training = [phase for phase in phases if phase.trains]
    assert [phase.kind for phase in phases if not phase.trains] == ["look", "divide"]  # once, between the two epochs
    sizes = [divided_epoch(plain, client, training[i : i + 2], 25 * 2 / 16) for i in (0, 2)]
    assert any(size % 8 for pair in sizes for size in pair)  # a batch had to wrap round
    assert len({size for pair in sizes for size in pair}) > 1  # and sizes depend on the data
    for name in ("a", "b"):
        assert_close(plain.modules[name], result.tensors, name)


# --- Jo-SRC --------------------------------------------------------------------------------------------------------


def divergence(p: list[float], q: list[float]) -> float:
    """KL(p‖q) in bits."""
    return sum(a * math.log2(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def josrc_epochs(plain: Plain, client: Client, phase: Phase, threshold: float, warmup: bool) -> dict[str, int]:
    """All steps of a turn; returns how many samples were of each sort, and how many steps were skipped."""
    counts = dict.fromkeys(("clean", "agreed", "outside", "skipped"), 0)
    for batch in rows(phase):
        x = [weak(client.pool, batch["index"], batch[view]) for view in ("first", "second")]
        p1, p2 = (torch.softmax(plain("model", view), 1) for view in x)
        if not warmup:
            with torch.no_grad():
                taught = [torch.softmax(plain("teacher", view), 1) for view in x]
        targets, signs, used = [], [], []
        for i, y in enumerate(batch["labels"].tolist()):
            smooth = [0.5 if c == y else 0.5 / (CLASSES - 1) for c in range(CLASSES)]
            p = p1[i].tolist()
            middle = [(a + b) / 2 for a, b in zip(p, smooth, strict=True)]
            if 1 - (divergence(p, middle) + divergence(smooth, middle)) / 2 >= threshold:
                sort, target = "clean", smooth
            elif int(p1[i].argmax()) == int(p2[i].argmax()):
                sort, target = "agreed", None if warmup else mean_of(taught, i)
            else:
                sort = "outside"
                flat = [0.0] * CLASSES if warmup else [math.exp(s / 10) for s in mean_of(taught, i)]
                target = None if warmup else [f / sum(flat) for f in flat]
            counts[sort] += 1
            if target is not None:
                used.append(i)
                targets.append(target)
                signs.append(-1 if sort == "outside" else 1)
        if not used:
            counts["skipped"] += 1
            continue
        fit, apart = [], []
        for i, target, sign in zip(used, targets, signs, strict=True):
            fit.append(-sum(target[c] * (p1[i][c].log() + p2[i][c].log()) for c in range(CLASSES)))
            apart.append(sign * sum((p1[i][c] - p2[i][c]) * (p1[i][c] / p2[i][c]).log2() for c in range(CLASSES)))
        loss = sum(fit) / len(fit)
        plain.step("model", loss if warmup else 0.5 * loss + 0.5 * sum(apart) / len(apart))
        with torch.no_grad():
            pairs = zip(plain.modules["teacher"].parameters(), plain.modules["model"].parameters(), strict=True)
            for old, new in pairs:
                old.copy_(0.99 * old + 0.01 * new)
    return counts


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
@pytest.mark.parametrize(
    ("round_idx", "warmup", "thresholds", "threshold"),
    [(20, 20, (1.0, 1.0), 19 / 20), (7, 2, (0.94, 0.98), 0.94 + 0.04 * 4 / 18)],
)
def test_josrc_is_its_plain_loop(
    values: dict[str, Any],
    round_idx: int,
    warmup: int,
    thresholds: tuple[float, float],
    threshold: float,
    executor: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the warm-up, with batches that have no clean sample, and after it, with samples of all three sorts.

    Momentum 0.9 would show in the weights if a skipped step moved them.
    """
    values |= {"model": {"name": "test_rounds:bn_model"}, "learner": {"name": "josrc", "warmup": warmup}}
    monkeypatch.setattr(Josrc, "thresholds", thresholds)
    values["server"] = {"name": "centralized"}  # it keeps the teacher, to be looked at
    values["train"] |= {"rounds": 20, "lr": 0.01, "batch_size": 4, "momentum": 0.9}
    values["schedule"]["epochs"] = 1
    experiment, client, (phase,), result = turn_of(values, round_idx, executor, client=0)
    start = experiment.initial_model()
    start |= {name.replace("model/", "teacher/"): t for name, t in start.items()}
    plain = Plain(experiment, start, ("model", "teacher"))
    warming = round_idx - 1 < warmup
    counts = josrc_epochs(plain, client, phase, threshold, warming)
    assert counts["clean"] > 0
    assert counts["agreed"] > 0
    assert counts["outside"] > 0
    assert (counts["skipped"] > 0) == warming
    assert_close(plain.modules["model"], result.tensors, "model")
    assert_close(plain.modules["teacher"], result.keep, "teacher")
