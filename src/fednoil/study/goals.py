"""What the study runs: the paper's tables, and our own questions. Every preset of the study belongs to a goal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

NOISY = ("symmetric-high", "symmetric-low", "pair-high", "pair-low")
_ALL = ("fashion-mnist", "cifar10", "cifar100")
_BASELINES = tuple(
    f"{server}+{learner}" for server in ("fedavg", "apfl", "krum", "cfl") for learner in ("dividemix", "josrc")
)
_CENTRALIZED = ("centralized+dividemix", "centralized+josrc")
FEDNOIL = ("fednoil-cosine", "fednoil-logarithm")
ABLATION = ("fednoil-logarithm", "fednoil-uniform-clients", "fednoil-uniform-local")


@dataclass(frozen=True)
class Goal:
    """Cells that belong together: every combination of the parts. A goal without methods needs no runs."""

    title: str
    datasets: tuple[str, ...] = ("cifar10",)
    settings: tuple[str, ...] = ("iid",)
    noises: tuple[str, ...] = ("symmetric-high",)
    methods: tuple[str, ...] = ()
    figure: str | None = None  # drawn from these runs

    def cells(self) -> Iterator[tuple[str, str, str, str]]:
        """Dataset, setting, noise and method of each cell."""
        return itertools.product(self.datasets, self.settings, self.noises, self.methods)


TABLES: dict[str, Goal] = {
    "table1": Goal(
        "Table 1: FedNoiL and baselines on three datasets",
        _ALL,
        ("iid", "non-iid"),
        NOISY,
        (*_CENTRALIZED, "fedavg", "fedprox", *_BASELINES, *FEDNOIL),
    ),
    "table2": Goal(
        "Table 2: 100 clients, and clients of unequal size",
        settings=("100-clients", "imbalanced"),
        noises=NOISY,
        methods=("fedavg", *_BASELINES, *FEDNOIL),
    ),
    "table3": Goal(
        "Table 3: either level of sampling made uniform", _ALL, ("iid",), NOISY[::2], ABLATION, figure="ablation"
    ),
    "table4": Goal(
        "Table 4: without semi-supervised learning", noises=NOISY, methods=("fednoil-logarithm", "fednoil-no-ssl")
    ),
    "clean": Goal("Clean labels: FedAvg and FedNoiL", noises=("clean",), methods=("fedavg", "fednoil-logarithm")),
}

_OURS = ("fashion-mnist", "cifar10")  # our own questions use these
BEYOND: tuple[Goal, ...] = (
    Goal(
        "Clients that differ more", _OURS, ("non-iid-0.5", "non-iid-0.1"), NOISY, ("fedavg", *FEDNOIL, "fednoil-plus")
    ),
    Goal("Nobody knows the noise", _OURS, ("iid", "non-iid"), (*NOISY, "clean"), ("fednoil-auto", "fednoil-plus")),
    Goal("Clean labels elsewhere", _OURS, ("iid", "non-iid"), ("clean",), ("fedavg", *FEDNOIL)),
    Goal(
        "Table 4 where clients differ, and on smaller images", _OURS, ("iid", "non-iid"), NOISY[:1], ("fednoil-no-ssl",)
    ),
    Goal(
        "One map of pair noise for all", ("fashion-mnist",), ("iid",), ("pair-high-shared", "pair-low-shared"), FEDNOIL
    ),
    Goal(
        "The size of D^x by client",
        ("fashion-mnist",),
        ("iid", "non-iid", "non-iid-0.5"),
        NOISY,
        tuple(f"{method}-total" for method in FEDNOIL),
    ),
    Goal(
        "Table 3 with the size of D^x by client",
        ("fashion-mnist",),
        noises=NOISY[::2],
        methods=tuple(f"{method}-total" for method in ABLATION[1:]),
    ),
    Goal(
        "Table 4 with the size of D^x by client",
        noises=NOISY,
        methods=("fednoil-logarithm-total", "fednoil-no-ssl-total"),
    ),
    Goal("CIFAR-100 without semi-supervision", ("cifar100",), methods=("fednoil-no-ssl", "fednoil-plus")),
    Goal("What reaches the paper's number on CIFAR-10", ("cifar10",), ("iid", "non-iid"), NOISY, ("fednoil-recipe",)),
    Goal("The same on CIFAR-100", ("cifar100",), methods=("fednoil-recipe",)),
)
SMALL_BEYOND: tuple[Goal, ...] = (
    Goal("Nobody knows the noise", noises=(*NOISY, "clean"), methods=("fednoil-auto", "fednoil-plus")),
)
