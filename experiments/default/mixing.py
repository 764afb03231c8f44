"""Should clients with a few hundred labels mix pairs? The same runs with mixup and without, for `table.py`.

    PYTHONPATH=experiments/default python experiments/default/mixing.py runs
    python experiments/default/table.py runs/digits--*

scikit-learn's digits at four sites of 350 with 5 to 45 % wrong labels, as in docs/tutorial.ipynb; a tenth of each is
held out.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import fednoil
from fednoil.learners.fednoil_plus import FedNoilPlus

SHARES = {"north": 0.05, "east": 0.15, "south": 0.3, "west": 0.45}
KEYS = {"train.rounds": 15, "train.pad": 1, "schedule.epochs": 15, "data.validation": 0.1}
LEARNERS = {"mix": "mixing:Always", "no-mix": "fednoil-plus"}


class Always(FedNoilPlus):
    """The default with mixup for all clients."""

    mixes_from = 0  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]


def play(seed: int, variant: str, out: Path) -> None:
    digits, rng = load_digits(), np.random.default_rng(seed)
    images, truth = digits.images / 16, digits.target
    order = rng.permutation(len(images))
    sites = {}
    for (name, share), rows in zip(SHARES.items(), np.split(order[397:], 4), strict=True):
        errors = (rng.random(len(rows)) < share) * rng.integers(1, 10, len(rows))
        sites[name] = images[rows], (truth[rows] + errors) % 10
    keys = {**KEYS, "run.device": "cpu", "learner.name": LEARNERS[variant]}
    test = images[order[:397]], truth[order[:397]]
    folder = out / f"digits--sites--mixed--{variant}--seed{seed}"
    fednoil.run("demo", data=sites, test=test, seed=seed, set=keys, progress=False, out=folder)


if __name__ == "__main__":
    for number in range(3):
        for name in LEARNERS:
            play(number, name, Path(sys.argv[1]))
