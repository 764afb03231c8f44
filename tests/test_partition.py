"""Partitions: the paper's sizes by hand, properties of every split, and each bad input."""

from __future__ import annotations

import itertools
import re
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fednoil.config.loading import load_config, merge
from fednoil.errors import UserError
from fednoil.partition import partition
from fednoil.partition.base import Partition, PartitionConfig, class_quotas, largest_remainder, tail_sizes
from fednoil.partition.bernoulli import presence, shared
from fednoil.partition.capped import capped
from fednoil.partition.classes import share_classes
from fednoil.partition.dirichlet import DirichletConfig, class_counts
from fednoil.partition.local import local_tests
from fednoil.partition.quantity import deal_evenly
from fednoil.records.older import in_todays_keys
from fednoil.seeds import Seed

quick = settings(deadline=None, max_examples=30)


def make(**keys: object) -> PartitionConfig:
    return load_config({"partition": keys}).partition


def balanced(num_classes: int, per_class: int) -> np.ndarray:
    """Labels 0, 1, …, C-1, 0, 1, …, as a dataset in mixed order would have."""
    return np.tile(np.arange(num_classes), per_class)


def counts_of(labels: np.ndarray, parts: tuple[np.ndarray, ...], num_classes: int) -> np.ndarray:
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
    parts = partition(labels, num_classes, make(samples_per_client=each), Seed(1))
    check_is_split(parts, 20, 20 * each)
    assert (counts_of(labels, parts, num_classes) == expected).all()


@quick
@given(
    labels=st.lists(st.integers(0, 4), min_size=12, max_size=200),
    clients=st.integers(1, 12),
    seed=st.integers(0, 2**63),
)
def test_iid_deals_everything_evenly(labels: list[int], clients: int, seed: int) -> None:
    array = np.array(labels)
    parts = partition(array, 5, make(clients=clients), Seed(seed))
    check_is_split(parts, clients, len(array))
    counts = counts_of(array, parts, 5)
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
    config = make(**{"kind": kind, "clients": clients, "beta": beta, "min_size": min_size, "samples_per_client": 40})
    parts = partition(labels, 10, config, Seed(seed))
    check_is_split(parts, clients, clients * 40)
    assert min(len(part) for part in parts) >= min_size
    pooled = counts_of(labels, parts, 10).sum(0)
    assert np.ptp(pooled) <= 1


@pytest.mark.parametrize(
    ("kind", "each"),
    [*itertools.product(["iid", "dirichlet", "quantity", "classes", "shards"], [None, 50]), ("mixture", 20)],
)
def test_the_seed_decides(kind: str, each: int | None) -> None:
    labels = balanced(10, 60)
    least = {"min_size": 5} if kind in ("dirichlet", "quantity") else {}
    config = make(kind=kind, clients=5, samples_per_client=each, **least)
    first, again, other = (partition(labels, 10, config, Seed(root)) for root in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_kinds_deal_the_same_pool() -> None:
    labels = balanced(10, 100)
    pools = [
        np.sort(np.concatenate(partition(labels, 10, config, Seed(9))))
        for config in (
            make(clients=5, samples_per_client=60),
            make(kind="dirichlet", clients=5, samples_per_client=60, min_size=10),
            make(kind="quantity", clients=5, samples_per_client=60, min_size=10),
        )
    ]
    assert len(pools[0]) == 300
    assert np.array_equal(pools[0], pools[1])
    assert np.array_equal(pools[0], pools[2])


@quick
@given(beta=st.floats(0.05, 50), clients=st.integers(1, 8), each=st.integers(1, 40), seed=st.integers(0, 2**63))
def test_mixtures_have_one_size(beta: float, clients: int, each: int, seed: int) -> None:
    labels = balanced(10, 400)
    config = make(kind="mixture", clients=clients, samples_per_client=each, beta=beta)
    parts = partition(labels, 10, config, Seed(seed))
    check_is_split(parts, clients, clients * each)
    assert {len(part) for part in parts} == {each}


def test_mixtures_have_the_right_law() -> None:
    """A client's share of a class has mean 1/4 and variance (1/4)(3/4)/(4β + 1)."""
    config = make(kind="mixture", clients=2000, samples_per_client=100, beta=0.5)
    labels = balanced(4, 100_000)
    shares = counts_of(labels, partition(labels, 4, config, Seed(0)), 4) / 100
    assert shares.mean(0) == pytest.approx([0.25] * 4, abs=0.02)
    assert shares.var(0) == pytest.approx([0.0625] * 4, abs=0.006)


@pytest.mark.parametrize("beta", [0.1, 0.5, 1.0])
def test_every_class_is_spread_alike_whatever_its_number(beta: float) -> None:
    """Over many draws each class reaches as many clients as any other, within four standard errors."""
    labels, draws = balanced(10, 240), 200
    config = make(kind="dirichlet", clients=20, beta=beta, min_size=1)
    parts = (partition(labels, 10, config, Seed(seed)) for seed in range(draws))
    holders = np.array([(counts_of(labels, part, 10) > 0).sum(0) for part in parts])  # [draws, classes]
    error = np.sqrt(holders.var(0) / draws)
    assert (np.abs(holders.mean(0) - holders.mean()) < 4 * error + 1e-9).all()


def test_dirichlet_shares_have_the_right_law() -> None:
    # One class only: the first client's share of Dir_4(β) has mean 1/4 and variance (1/4)(3/4)/(4β+1).
    config = DirichletConfig(clients=4, beta=0.5, min_size=1)
    rng = Seed(0).numpy()
    draws = np.array([class_counts(np.array([10_000]), config, rng)[0] for _ in range(4000)]) / 10_000
    assert draws.mean(0) == pytest.approx([0.25] * 4, abs=0.02)
    assert draws.var(0) == pytest.approx([0.0625] * 4, abs=0.006)


def test_quantity_keeps_the_class_mix() -> None:
    labels = balanced(10, 1000)
    config = make(kind="quantity", clients=20, beta=2.0)
    counts = counts_of(labels, partition(labels, 10, config, Seed(8)), 10)
    sizes = counts.sum(1)
    assert sizes.max() > 3 * sizes.min()
    # The deal is off by at most K/2 turns of 1/N, which is n_k·K/(2N) samples, and by one for rounding.
    assert (np.abs(counts - sizes[:, None] / 10) <= 2 + sizes[:, None] * 20 / 10_000).all()


def test_equal_turns_are_dealt_in_order() -> None:
    parts = deal_evenly(np.arange(6), np.array([2, 2, 2]))
    assert [part.tolist() for part in parts] == [[0, 3], [1, 4], [2, 5]]


def test_turns_of_unequal_clients_are_spread_over_the_deal() -> None:
    """One turn at 1/2, three at 1/6, 3/6 and 5/6: the single one comes second."""
    parts = deal_evenly(np.arange(4), np.array([1, 3]))
    assert [part.tolist() for part in parts] == [[1], [0, 2, 3]]


def test_what_does_not_divide_goes_to_any_class() -> None:
    quotas = {tuple(class_quotas(np.array([5, 5, 5]), 4, Seed(seed).numpy()).tolist()) for seed in range(30)}
    assert quotas == {(2, 1, 1), (1, 2, 1), (1, 1, 2)}


def test_a_split_may_use_the_last_sample() -> None:
    """Two clients with a mix of one class take all of it; a client may hold exactly `min_size`."""
    labels = np.zeros(10, dtype=np.int64)
    parts = partition(labels, 1, make(kind="mixture", clients=2, samples_per_client=5), Seed(0))
    check_is_split(parts, 2, 10)
    parts = partition(labels, 1, make(kind="quantity", clients=1, min_size=10), Seed(0))
    check_is_split(parts, 1, 10)


def test_classes_are_shared_by_hand() -> None:
    """Clients {0, 1}, {1, 2}, {2, 0}, {0, 2}: class 0 goes in three parts, class 1 in two, class 2 in three."""
    pool = [np.arange(0, 6), np.arange(10, 16), np.arange(20, 26)]
    parts = share_classes(pool, [[0, 1], [1, 2], [2, 0], [0, 2]])
    assert [part.tolist() for part in parts] == [
        [0, 1, 10, 11, 12],
        [13, 14, 15, 20, 21],
        [2, 3, 22, 23],
        [4, 5, 24, 25],
    ]


@quick
@given(clients=st.integers(1, 30), classes=st.integers(1, 6), seed=st.integers(0, 2**63))
def test_each_client_has_so_many_classes(clients: int, classes: int, seed: int) -> None:
    labels = balanced(6, 100)
    parts = partition(labels, 6, make(kind="classes", clients=clients, classes=classes), Seed(seed))
    counts = counts_of(labels, parts, 6)
    assert ((counts > 0).sum(1) == classes).all()
    assert (counts[np.arange(clients), np.arange(clients) % 6] > 0).all()
    shares = [column[column > 0] for column in counts.T]
    assert all(np.ptp(share) <= 1 for share in shares if len(share))
    assert all(share.sum() == 100 for share in shares if len(share))


def test_other_classes_are_drawn_evenly() -> None:
    labels = balanced(5, 4000)
    counts = counts_of(labels, partition(labels, 5, make(kind="classes", clients=2000, classes=2), Seed(0)), 5)
    # Of 2000 clients 400 have a class for certain and each of the 1600 others with chance 1/4: 800 ± 17.
    assert (counts > 0).sum(0) == pytest.approx([800] * 5, abs=70)


def test_shards_by_hand() -> None:
    """Eight samples of two classes in four shards of one class each, two for each client."""
    labels = np.array([0, 1] * 4)
    seen = set()
    for root in range(20):
        parts = partition(labels, 2, make(kind="shards", clients=2), Seed(root))
        check_is_split(parts, 2, 8)
        counts = counts_of(labels, parts, 2)
        assert counts.sum(1).tolist() == [4, 4]
        assert (counts % 2 == 0).all()
        seen.add(tuple(counts[0].tolist()))
    assert seen == {(4, 0), (2, 2), (0, 4)}


@quick
@given(clients=st.integers(1, 20), shards=st.integers(1, 5), seed=st.integers(0, 2**63))
def test_shards_hold_few_classes(clients: int, shards: int, seed: int) -> None:
    labels = balanced(10, 60)
    parts = partition(labels, 10, make(kind="shards", clients=clients, classes=shards), Seed(seed))
    check_is_split(parts, clients, 600)
    most = -(-600 // (clients * shards))  # samples of the largest shard
    touched = -(-most // 60) + 1  # classes that so many neighbours can belong to
    assert ((counts_of(labels, parts, 10) > 0).sum(1) <= shards * touched).all()
    assert max(len(part) for part in parts) - min(len(part) for part in parts) <= shards


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
        ({"kind": "classes", "clients": 4, "classes": 11}, ["partition.classes = 11", "use at most 10 classes"]),
        ({"kind": "classes", "clients": 60, "classes": 2}, ["partition.kind = 'classes'", "no sample"]),
        ({"kind": "shards", "clients": 4, "classes": 26}, ["partition.classes = 26", "104", "use at most 25$"]),
        (
            {"kind": "quantity", "clients": 10, "min_size": 10, "beta": 0.01},
            ["partition.beta = 0.01", "partition.clients = 10", "partition.min_size = 10", "larger beta"],
        ),
    ],
)
def test_impossible_splits_say_what_would_be_right(config: dict[str, object], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        partition(balanced(10, 10), 10, make(**config), Seed(0))
    assert all(word in f"{caught.value}$" for word in words)


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
        partition(labels, 3, make(clients=1), Seed(0))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"clients": 0}, "partition.clients = 0"),
        ({"samples_per_client": 0}, "partition.samples_per_client = 0"),
        ({"kind": "dirichlet", "beta": 0.0}, "partition.beta = 0"),
        ({"kind": "mixture", "beta": float("nan")}, "partition.beta = nan"),
        ({"kind": "quantity", "beta": 1e300}, r"partition.beta = 1e\+300"),
        ({"kind": "dirichlet", "min_size": 0}, "partition.min_size = 0"),
        ({"kind": "classes", "classes": 0}, "partition.classes = 0"),
        ({"kind": "shards", "classes": 0}, "partition.classes = 0"),
        ({"kind": "sorted"}, "partition.kind = 'sorted' is unknown; choose iid, "),
        ({"client": 20}, "unknown key 'partition.client'.*did you mean 'clients'"),
        ({"beta": 0.5}, "unknown key 'partition.beta'.*it is a key of dirichlet, quantity, mixture"),
        ({"kind": "shards", "shards": 2}, "'partition.shards' is now called partition.classes"),
    ],
)
def test_bad_settings(bad: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make(**bad)


def test_another_kind_keeps_the_keys_that_all_have() -> None:
    base = {"partition": {"kind": "dirichlet", "clients": 7, "beta": 0.1}}
    assert merge(base, {"partition": {"kind": "iid"}})["partition"] == {"kind": "iid", "clients": 7}
    assert merge(base, {"partition": {"kind": "dirichlet"}})["partition"] == base["partition"]


def test_recorded_runs_had_the_keys_of_all_kinds() -> None:
    """They meant nothing beside another kind, and are left out when a run of an earlier version is shown."""
    old = {"partition": {"kind": "iid", "clients": 4, "beta": 0.5, "cap": False, "min_size": 32}}
    old["noise"] = {"kind": "symmetric", "mode": "low", "pair_map": "per_client", "exact": False}
    config = load_config(in_todays_keys(old))
    assert config.partition == make(clients=4)
    assert config.noise.model_dump() == {
        "kind": "symmetric",
        "space": "all",
        "levels": "groups",
        "ratios": (0.3, 0.4, 0.5, 0.6),
    }


class Own(Partition):
    """What the test says, whatever the labels."""

    dealt: ClassVar[list[np.ndarray]]

    def deal(self, labels: np.ndarray, num_classes: int, seed: Seed) -> list[np.ndarray]:
        return self.dealt


@pytest.mark.parametrize(
    ("dealt", "line"),
    [
        ([[0, 1]], "Own' dealt to 1 clients, but partition.clients = 2"),
        ([[0, 1], []], "gave client 1 no sample"),
        ([[0, 1], [1, 2]], "dealt sample 1 more than once"),
        ([[0, 1], [3, 2]], "gave client 1 something other than indices 0 to 2"),
        ([[0, -1], [2]], "gave client 0 something other than indices 0 to 2"),
        ([[0.0, 1.0], [2.0]], "gave client 0 something other than indices 0 to 2"),
        ([[[0], [1]], [2]], "gave client 0 something other than indices 0 to 2"),
    ],
)
def test_what_is_no_split_is_refused(monkeypatch: pytest.MonkeyPatch, dealt: list[list[Any]], line: str) -> None:
    monkeypatch.setattr(Own, "dealt", [np.array(part) for part in dealt], raising=False)
    with pytest.raises(UserError, match=line):
        partition(np.array([0, 1, 1]), 2, make(kind=f"{__name__}:Own", clients=2), Seed(0))


def test_an_own_partition_is_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Own, "dealt", [np.array([2, 0], np.int32), np.array([1])], raising=False)
    parts = partition(np.array([0, 1, 1]), 2, make(kind=f"{__name__}:Own", clients=2), Seed(0))
    assert [part.tolist() for part in parts] == [[0, 2], [1]]
    assert all(part.dtype == np.int64 for part in parts)


def test_fedcorrs_classes_of_clients() -> None:
    """Seed 3, four clients, three classes, p = 0.7: class 1 is shared by clients 2 and 3 alone."""
    has = np.random.RandomState(3).binomial(1, 0.7, (4, 3)).astype(bool)
    assert has.astype(int).tolist() == [[1, 0, 1], [1, 0, 0], [1, 1, 1], [1, 1, 1]]
    counts = [shared(3000, row, 10.0, Seed(0).numpy()) for row in has.T]
    assert [np.flatnonzero(row).tolist() for row in counts] == [[0, 1, 2, 3], [2, 3], [0, 2, 3]]
    assert [int(row.sum()) for row in counts] == [3000] * 3


def test_no_client_and_no_class_is_left_out() -> None:
    for root in range(30):
        has = presence(3, 5, 0.2, Seed(root).numpy())
        assert has.any(1).all()
        assert has.any(0).all()
    many = presence(400, 50, 0.3, Seed(0).numpy())
    assert many.mean() == pytest.approx(0.3, abs=0.01)


def test_a_client_with_its_even_share_gets_nothing_of_later_classes() -> None:
    found = capped(np.array([0.5, 0.3, 0.2]), np.array([10, 4, 0]), 10)
    assert found == pytest.approx([0, 0.6, 0.4])
    assert capped(np.array([0.5, 0.5]), np.array([10, 12]), 10) == pytest.approx([0.5, 0.5])
    labels = np.repeat(np.arange(10), 500)
    config = load_config({"partition": {"kind": "capped", "clients": 20, "min_size": 10}}).partition
    parts = partition(labels, 10, config, Seed(0))
    first, last = (sum((labels[part] == c).any() for part in parts) for c in (0, 9))
    assert first > last
    assert sum(map(len, parts)) == 5000


def test_a_long_tail() -> None:
    sizes = tail_sizes(5000, 10, 100)
    assert sizes == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    assert sum(sizes) == 12406
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 500))
    config = load_config({"partition": {"clients": 5, "imbalance": 100}}).partition
    parts = partition(labels, 10, config, Seed(0))
    counts = np.bincount(labels[np.concatenate(parts)], minlength=10)
    assert counts.tolist() == tail_sizes(500, 10, 100)
    with pytest.raises(UserError, match=r"partition\.imbalance"):
        load_config({"partition": {"imbalance": 0.5}})


def test_test_samples_are_dealt_as_training_samples_are() -> None:
    """Client 0 has three quarters of class 0 and nothing of class 1; nobody has class 2."""
    trained = [np.repeat([0, 3], [30, 5]), np.repeat([0, 1, 3], [10, 7, 5])]
    tested = np.repeat([0, 1, 2, 3], [8, 4, 6, 3])
    own = local_tests(trained, tested, 4, Seed(0))
    assert [np.bincount(tested[rows], minlength=4).tolist() for rows in own] == [[6, 0, 0, 2], [2, 4, 0, 1]]
    assert len(np.unique(np.concatenate(own))) == 15
    other = local_tests(trained, tested, 4, Seed(1))
    assert any(not np.array_equal(*pair) for pair in zip(own, other, strict=True))
    empty = local_tests([np.zeros(0, np.int64), np.array([1])], tested, 4, Seed(0))
    assert [len(rows) for rows in empty] == [0, 4]
