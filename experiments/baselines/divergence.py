"""Why Jo-SRC diverges: its loss on one client's data, as published and without pushing views apart.

    python experiments/baselines/divergence.py                       # symmetric noise, 70 % wrong labels
    python experiments/baselines/divergence.py --pair --share 0.3    # each class mistaken for the next one
    python experiments/baselines/divergence.py --scores --share 0.554    # no training: what labels score, see `scores`

600 of the embedded images with wrong labels and a network of two hidden layers, which is fast on a CPU; 12,000
steps of the paper's optimiser, with the learner's own loss, schedule of the threshold and teacher. It prints for each
tenth of the steps, but for those of the warm-up: the threshold, the shares of samples that are clean and that fit
nowhere (unclean, and their views disagree), the distance of the latter's views in bits, and the greatest logit.
"""

from __future__ import annotations

import argparse
import copy
import statistics

import torch
from torch import Tensor, nn

from fednoil.augment import weak, weak_plan
from fednoil.config import load_config, preset
from fednoil.data import load
from fednoil.learners.base import Task
from fednoil.learners.josrc import (
    Josrc,
    JosrcConfig,
    clean_probability,
    distance,
    double_entropy,
    smooth,
)
from fednoil.seeds import Seed, integers, permutations, uniform

SAMPLES, STEPS, BATCH, CLASSES = 600, 12_000, 32, 10
ROUNDS = 150  # the steps stand for so many rounds of the schedule


def spoiled(labels: Tensor, share: float, pair: bool, seed: Seed) -> Tensor:
    """Labels with a share of them moved to another class, with `pair` to the next one."""
    keys = seed.keys(["whether", "whither"])
    wrong = uniform(keys[0], len(labels)) < share
    offset = torch.ones_like(labels) if pair else integers(keys[1], len(labels), 1, CLASSES)
    return torch.where(wrong, (labels + offset) % CLASSES, labels)


def objective(
    learner: Josrc, nets: tuple[nn.Module, nn.Module], views: list[Tensor], labels: Tensor, round_idx: int, push: float
) -> tuple[Tensor, list[float]]:
    """The loss of a batch for student and teacher, and what is told of it after the warm-up."""
    student, teacher = nets
    threshold = learner.threshold(round_idx)
    logits = [student(view) for view in views]
    log1, log2 = (torch.log_softmax(z, 1) for z in logits)
    given = smooth(labels, CLASSES, learner.smoothing)
    clean = clean_probability(log1.detach().exp(), given) >= threshold
    if round_idx <= learner.config.warmup:
        return (double_entropy(log1, log2, given) * clean).sum() / clean.sum().clamp_min(1), []
    with torch.no_grad():
        taught = torch.stack([torch.softmax(teacher(view), 1) for view in views]).mean(0)
    agree = log1.argmax(1) == log2.argmax(1)
    unclean = torch.where(agree[:, None], taught, torch.softmax(taught / 10, 1))
    outside, apart = ~(clean | agree), distance(log1, log2)
    fit = double_entropy(log1, log2, torch.where(clean[:, None], given, unclean)).mean()
    loss = (fit + (torch.where(outside, -push, 1.0) * apart).mean()) / 2
    away = apart[outside].mean().item() if outside.any() else 0.0
    shares = [clean.float().mean().item(), outside.float().mean().item()]
    return loss, [threshold, *shares, away, logits[0].abs().max().item(), loss.item()]


def train(push: float, share: float, pair: bool, seed: Seed) -> None:
    """Train, and print how it goes; `push` is the weight of pushing views apart, 1 as published."""
    dataset = load(load_config(preset("demo/fedavg")).data)
    pool = torch.tensor(dataset.train.images[:SAMPLES])
    labels = spoiled(torch.tensor(dataset.train.labels[:SAMPLES]).long(), share, pair, seed)
    mean, std = 255 * dataset.mean[0], 255 * dataset.std[0]
    torch.manual_seed(seed.root)
    layers = [nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, CLASSES)]
    student = nn.Sequential(*layers)
    teacher = copy.deepcopy(student)
    optimiser = torch.optim.SGD(student.parameters(), 0.05, momentum=0.5, weight_decay=1e-4)
    learner = Josrc(JosrcConfig(), Task(CLASSES, (1, 28, 28), BATCH, 0.05, ROUNDS))
    rows: list[list[float]] = []
    for step in range(STEPS):
        keys = seed.child(step).keys(["order", "first", "second"])
        chosen = permutations(keys[0], SAMPLES)[:BATCH]
        views = [(weak(pool, chosen, weak_plan(key[None], BATCH, 2)[0]).float() - mean) / std for key in keys[1:]]
        round_idx = 1 + step * ROUNDS // STEPS
        loss, row = objective(learner, (student, teacher), views, labels[chosen], round_idx, push)
        if not loss.isfinite():
            told(rows)
            print(f"| step {step + 1}: not finite; the least loss before {min(r[-1] for r in rows):.2g} | | | | |")
            return
        rows += [row] if row else []
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
                old.lerp_(new, 1 - learner.config.ema)
        if rows and (step + 1) % (STEPS // 10) == 0:
            told(rows)
            rows = []


def told(rows: list[list[float]]) -> None:
    """A line of the table: means of some steps, and of the logits the greatest."""
    threshold, clean, outside, away, top, _ = zip(*rows, strict=True)
    shares = f"{100 * statistics.mean(clean):.1f} % | {100 * statistics.mean(outside):.1f} %"
    print(f"| {threshold[-1]:.3f} | {shares} | {statistics.mean(away):.3g} | {max(top):.3g} |", flush=True)


def scores(share: float) -> None:
    """Print how a network that says the mean of all smoothed labels, a share of them wrong, scores its labels."""
    learner = Josrc(JosrcConfig(), Task(CLASSES, (1, 28, 28), BATCH, 0.05, ROUNDS))
    every = smooth(torch.arange(CLASSES), CLASSES, learner.smoothing)
    said = (1 - share) * every[:1] + share * every[1:].mean(0, keepdim=True)
    for label, title in ((0, "right"), (1, "wrong")):
        score = clean_probability(said, every[label][None]).item()
        after = [r for r in range(learner.config.warmup + 1, ROUNDS + 1) if learner.threshold(r) > score]
        passed = f"round {after[0]}" if after else f"never, {learner.threshold(ROUNDS):.3f} in round {ROUNDS}"
        print(f"{title}: says {said[0, label]:.2f}, scores {score:.3f}; threshold passes it: {passed}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", action="store_true", help="pair noise instead of symmetric")
    parser.add_argument("--share", type=float, default=0.7, help="share of wrong labels")
    parser.add_argument("--scores", action="store_true", help="only say what labels score")
    args = parser.parse_args()
    if args.scores:
        return scores(args.share)
    torch.set_num_threads(1)
    for push, title in ((1.0, "as published"), (0.0, "without pushing views apart")):
        print(f"\n| {title}: threshold to | clean | outside | distance of their views, bits | greatest logit |")
        print("|---|---|---|---|---|")
        train(push, args.share, args.pair, Seed(0))


if __name__ == "__main__":
    main()
