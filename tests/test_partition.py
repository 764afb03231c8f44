"""Partitions: the paper's sizes by hand, properties of every split, and each bad input."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fednoil import partition as module
from fednoil.errors import UserError
from fednoil.partition import PartitionConfig, class_quotas, largest_remainder, partition
from fednoil.seeds import Seed

quick = settings(deadline=None, max_examples=30)


def balanced(num_classes: int, per_class: int) -> np.ndarray:
    """Labels 0, 1, …, C-1, 0, 1, …, as a dataset in mixed order would have."""
    return np.tile(np.arange(num_classes), per_class)


def class_counts(labels: np.ndarray, parts: tuple[np.ndarray, ...], num_classes: int) -> np.ndarray:
    """Samples of each class at each client: [K, C]."""
    return np.array([np.bincount(labels[part], minlength=num_classes) for part in parts])


def check_is_split(parts: tuple[np.ndarray, ...], clients: int, total: int) -> None:
    """One sorted int64 array per client, no index twice, `total` in all."""
    together = np.concatenate(parts)
    assert len(parts) == clients
    assert len(together) == len(np.unique(together)) == total
    for part in parts:
        assert part.dtype == np.int64
        assert (np.diff(part) > 0).all()


@pytest.mark.parametrize(
    ("num_classes", "per_class", "each", "expected"),
    [(10, 6000, 600, 60), (10, 5000, 500, 50), (100, 500, 1000, 10)],
)
def test_paper_sizes_are_balanced(num_classes: int, per_class: int, each: int, expected: int) -> None:
    labels = balanced(num_classes, per_class)
    parts = partition(labels, num_classes, PartitionConfig(samples_per_client=each), Seed(1))
    check_is_split(parts, 20, 20 * each)
    assert (class_counts(labels, parts, num_classes) == expected).all()


@quick
@given(
    labels=st.lists(st.integers(0, 4), min_size=12, max_size=200),
    clients=st.integers(1, 12),
    seed=st.integers(0, 2**63),
)
def test_iid_deals_everything_evenly(labels: list[int], clients: int, seed: int) -> None:
    array = np.array(labels)
    parts = partition(array, 5, PartitionConfig(clients=clients), Seed(seed))
    check_is_split(parts, clients, len(array))
    counts = class_counts(array, parts, 5)
    assert np.ptp(counts.sum(1)) <= 1
    assert (np.ptp(counts, axis=0) <= 1).all()


@quick
@given(
    # From 0.4 on the chance that 2,000 draws all miss is negligible.
    beta=st.floats(0.4, 50),
    clients=st.integers(1, 8),
    min_size=st.integers(1, 10),
    kind=st.sampled_from(["dirichlet", "quantity"]),
    seed=st.integers(0, 2**63),
)
def test_uneven_splits_keep_min_size(beta: float, clients: int, min_size: int, kind: str, seed: int) -> None:
    labels = balanced(10, 40)
    config = PartitionConfig.model_validate(
        {"kind": kind, "clients": clients, "beta": beta, "min_size": min_size, "samples_per_client": 40}
    )
    parts = partition(labels, 10, config, Seed(seed))
    check_is_split(parts, clients, clients * 40)
    assert min(len(part) for part in parts) >= min_size
    pooled = class_counts(labels, parts, 10).sum(0)
    assert np.ptp(pooled) <= 1


@pytest.mark.parametrize(
    ("kind", "each"), [*itertools.product(["iid", "dirichlet", "quantity"], [None, 50]), ("mixture", 20)]
)
def test_the_seed_decides(kind: str, each: int | None) -> None:
    labels = balanced(10, 60)
    config = PartitionConfig.model_validate({"kind": kind, "clients": 5, "samples_per_client": each, "min_size": 5})
    first, again, other = (partition(labels, 10, config, Seed(root)) for root in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_kinds_deal_the_same_pool() -> None:
    labels = balanced(10, 100)
    pools = [
        np.sort(np.concatenate(partition(labels, 10, config, Seed(9))))
        for config in (
            PartitionConfig(clients=5, samples_per_client=60),
            PartitionConfig(kind="dirichlet", clients=5, samples_per_client=60, min_size=10),
            PartitionConfig(kind="quantity", clients=5, samples_per_client=60, min_size=10),
        )
    ]
    assert len(pools[0]) == 300
    assert np.array_equal(pools[0], pools[1])
    assert np.array_equal(pools[0], pools[2])


@quick
@given(beta=st.floats(0.05, 50), clients=st.integers(1, 8), each=st.integers(1, 40), seed=st.integers(0, 2**63))
def test_mixtures_have_one_size(beta: float, clients: int, each: int, seed: int) -> None:
    labels = balanced(10, 400)
    config = PartitionConfig(kind="mixture", clients=clients, samples_per_client=each, beta=beta)
    parts = partition(labels, 10, config, Seed(seed))
    check_is_split(parts, clients, clients * each)
    assert {len(part) for part in parts} == {each}


def test_mixtures_have_the_right_law() -> None:
    """A client's share of a class has mean 1/4 and variance (1/4)(3/4)/(4β + 1)."""
    config = PartitionConfig(kind="mixture", clients=2000, samples_per_client=100, beta=0.5)
    labels = balanced(4, 100_000)
    shares = class_counts(labels, partition(labels, 4, config, Seed(0)), 4) / 100
    assert shares.mean(0) == pytest.approx([0.25] * 4, abs=0.02)
    assert shares.var(0) == pytest.approx([0.0625] * 4, abs=0.006)


def test_small_beta_is_more_skewed_than_large() -> None:
    labels = balanced(10, 500)
    shares = {}
    for beta in (0.1, 100.0):
        config = PartitionConfig(kind="dirichlet", clients=10, beta=beta)
        counts = class_counts(labels, partition(labels, 10, config, Seed(2)), 10)
        shares[beta] = (counts.max(1) / counts.sum(1)).mean()
    # An even mix has a largest share of 0.1.
    assert shares[0.1] > 0.4
    assert shares[100.0] < 0.16


@pytest.mark.parametrize("beta", [0.1, 0.5, 1.0])
def test_every_class_is_spread_alike_whatever_its_number(beta: float) -> None:
    """Over many draws each class reaches as many clients as any other, within four standard errors."""
    labels, draws = balanced(10, 240), 200
    config = PartitionConfig(kind="dirichlet", clients=20, beta=beta, min_size=1)
    parts = (partition(labels, 10, config, Seed(seed)) for seed in range(draws))
    holders = np.array([(class_counts(labels, part, 10) > 0).sum(0) for part in parts])  # [draws, classes]
    error = np.sqrt(holders.var(0) / draws)
    assert (np.abs(holders.mean(0) - holders.mean()) < 4 * error + 1e-9).all()


def test_with_a_cap_full_clients_get_nothing_of_later_classes() -> None:
    labels = balanced(20, 50)
    config = PartitionConfig(kind="dirichlet", clients=4, beta=0.3, min_size=1, cap=True)
    counts = class_counts(labels, partition(labels, 20, config, Seed(5)), 20)
    held = np.cumsum(counts, axis=1)
    # With C = 20 classes of 50 and 4 clients the even share is 250.
    full = held[:, :-1] >= 250
    assert full.any()
    assert (counts[:, 1:][full] == 0).all()


def test_dirichlet_shares_have_the_right_law() -> None:
    # One class only: the first client's share of Dir_4(β) has mean 1/4 and variance (1/4)(3/4)/(4β+1).
    config = PartitionConfig(kind="dirichlet", clients=4, beta=0.5, min_size=1)
    rng = Seed(0).numpy()
    draws = np.array([module._class_counts(np.array([10_000]), config, rng)[0] for _ in range(4000)]) / 10_000
    assert draws.mean(0) == pytest.approx([0.25] * 4, abs=0.02)
    assert draws.var(0) == pytest.approx([0.0625] * 4, abs=0.006)


def test_quantity_keeps_the_class_mix() -> None:
    labels = balanced(10, 1000)
    config = PartitionConfig(kind="quantity", clients=20, beta=2.0)
    counts = class_counts(labels, partition(labels, 10, config, Seed(8)), 10)
    sizes = counts.sum(1)
    assert sizes.max() > 3 * sizes.min()
    # The deal is off by at most K/2 turns of 1/N, which is n_k·K/(2N) samples, and by one for rounding.
    assert (np.abs(counts - sizes[:, None] / 10) <= 2 + sizes[:, None] * 20 / 10_000).all()


def test_equal_turns_are_dealt_in_order() -> None:
    parts = module._deal_evenly(np.arange(6), np.array([2, 2, 2]))
    assert [part.tolist() for part in parts] == [[0, 3], [1, 4], [2, 5]]


def test_turns_of_unequal_clients_are_spread_over_the_deal() -> None:
    """One turn at 1/2, three at 1/6, 3/6 and 5/6: the single one comes second."""
    parts = module._deal_evenly(np.arange(4), np.array([1, 3]))
    assert [part.tolist() for part in parts] == [[1], [0, 2, 3]]


def test_what_does_not_divide_goes_to_any_class() -> None:
    quotas = {tuple(class_quotas(np.array([5, 5, 5]), 4, Seed(seed).numpy()).tolist()) for seed in range(30)}
    assert quotas == {(2, 1, 1), (1, 2, 1), (1, 1, 2)}


def test_a_split_may_use_the_last_sample() -> None:
    """Two clients with a mix of one class take all of it; a client may hold exactly `min_size`."""
    labels = np.zeros(10, dtype=np.int64)
    parts = partition(labels, 1, PartitionConfig(kind="mixture", clients=2, samples_per_client=5), Seed(0))
    check_is_split(parts, 2, 10)
    parts = partition(labels, 1, PartitionConfig(kind="quantity", clients=1, min_size=10), Seed(0))
    check_is_split(parts, 1, 10)


def test_largest_remainder_by_hand() -> None:
    # 10 samples: 4.5, 3.3, 2.2 floor to 4, 3, 2 and the one left goes to the remainder .5.
    assert largest_remainder(np.array([0.45, 0.33, 0.22]), 10).tolist() == [5, 3, 2]


@quick
@given(weights=st.lists(st.floats(0.001, 1), min_size=1, max_size=20), total=st.integers(1, 10_000))
def test_largest_remainder_sums_and_is_near(weights: list[float], total: int) -> None:
    shares = np.array(weights) / np.sum(weights)
    sizes = largest_remainder(shares, total)
    assert sizes.sum() == total
    assert (np.abs(sizes - shares * total) < 1 + 1e-9).all()


def test_scarce_classes_give_all_they_have() -> None:
    # 2 + 4 + 7 + 7: the class of 2 is used up, then the class of 4, and 14 are left for two classes.
    quotas = class_quotas(np.array([2, 100, 4, 100]), 20, Seed(0).numpy())
    assert quotas.tolist() == [2, 7, 4, 7]


@quick
@given(available=st.lists(st.integers(0, 30), min_size=1, max_size=10), data=st.data())
def test_quotas_are_as_equal_as_can_be(available: list[int], data: st.DataObject) -> None:
    stock = np.array(available)
    total = data.draw(st.integers(0, int(stock.sum())))
    quotas = class_quotas(stock, total, Seed(1).numpy())
    assert quotas.sum() == total
    assert (quotas <= stock).all()
    # A class that still has samples is at most one below the largest quota.
    assert (quotas[quotas < stock] >= quotas.max() - 1).all()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"clients": 101}, ["partition.clients = 101", "100 training samples", "use at most 100"]),
        (
            {"clients": 3, "samples_per_client": 34},
            ["partition.samples_per_client = 34", "102", "at most 33, or partition.clients of at most 2"],
        ),
        (
            {"kind": "dirichlet", "clients": 4},
            ["partition.min_size = 32", "128", "at most 25, or partition.clients of at most 3"],
        ),
        ({"clients": 2, "samples_per_client": 101}, ["partition.samples_per_client = 101", "use at most 50$"]),
        (
            {"kind": "quantity", "clients": 4, "min_size": 10, "samples_per_client": 9},
            ["partition.min_size = 10", "40", "36", "use at most 9$"],
        ),
        (
            # A tiny beta gives whole classes of 10 to one client, which can't make eight clients of 12.
            {"kind": "dirichlet", "clients": 8, "min_size": 12, "beta": 0.001},
            ["partition.beta = 0.001", "partition.clients = 8", "partition.min_size = 12", "larger beta"],
        ),
        ({"kind": "mixture", "clients": 4}, ["partition.samples_per_client", "size of every client"]),
        (
            # Four clients of one class each, of which there are ten.
            {"kind": "mixture", "clients": 4, "samples_per_client": 20, "beta": 1e-6},
            ["partition.beta = 1e-06", "100 training samples", "less than 20"],
        ),
        (
            {"kind": "quantity", "clients": 10, "min_size": 10, "beta": 0.01},
            ["partition.beta = 0.01", "partition.clients = 10", "partition.min_size = 10", "larger beta"],
        ),
    ],
)
def test_impossible_splits_say_what_would_be_right(config: dict[str, object], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        partition(balanced(10, 10), 10, PartitionConfig.model_validate(config), Seed(0))
    assert all(word in f"{caught.value}$" for word in words)


def test_iid_does_not_need_min_size() -> None:
    parts = partition(balanced(10, 10), 10, PartitionConfig(clients=50), Seed(0))
    check_is_split(parts, 50, 100)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.array([0, 1, 3]), "label 3 of sample 2 .* 0 to 2"),
        (np.array([0, -1, 2]), "label -1 of sample 1 .* 0 to 2"),
        (np.array([0.0, 1.0]), "float64"),
        (np.array([[0, 1]]), re.escape("(1, 2)")),
    ],
)
def test_bad_labels(labels: np.ndarray, words: str) -> None:
    with pytest.raises(UserError, match=words):
        partition(labels, 3, PartitionConfig(clients=1), Seed(0))


@pytest.mark.parametrize(
    "bad",
    [
        {"clients": 0},
        {"samples_per_client": 0},
        {"beta": 0.0},
        {"beta": float("nan")},
        {"beta": 1e300},
        {"min_size": 0},
        {"kind": "sorted"},
        {"client": 20},
    ],
)
def test_bad_settings(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(bad))):
        PartitionConfig.model_validate(bad)
