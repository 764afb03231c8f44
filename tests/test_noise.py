"""Label noise: transition matrices and groups by hand, realised rates, pair maps, and each bad input."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fednoil.errors import UserError
from fednoil.noise import (
    Labels,
    NoiseConfig,
    Truth,
    apply,
    groups,
    noise_ratios,
    ratios_for,
    transition_matrix,
)
from fednoil.seeds import Seed

quick = settings(deadline=None, max_examples=30)


def clients_of(num_classes: int, clients: int, each: int) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Labels in turn, and every K-th sample to the same client."""
    labels = np.arange(clients * each) // clients % num_classes
    return labels, tuple(np.arange(k, clients * each, clients) for k in range(clients))


def make(**settings_: object) -> NoiseConfig:
    return NoiseConfig.model_validate(settings_)


def test_matrices_by_hand() -> None:
    symmetric = [[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6]]
    pair = [[0.6, 0.4, 0], [0, 0.6, 0.4], [0.4, 0, 0.6]]
    back = [[0.6, 0, 0.4], [0.4, 0.6, 0], [0, 0.4, 0.6]]
    assert transition_matrix("symmetric", 0.4, 3) == pytest.approx(np.array(symmetric))
    assert transition_matrix("pair", 0.4, 3) == pytest.approx(np.array(pair))
    assert transition_matrix("pair", 0.4, 3, offset=2) == pytest.approx(np.array(back))


def test_matrices_of_the_paper_sizes() -> None:
    row = transition_matrix("symmetric", 0.8, 10)[0]
    assert row == pytest.approx([0.2] + [0.0888889] * 9, abs=1e-7)
    hundred = transition_matrix("symmetric", 0.5, 100)
    assert hundred[~np.eye(100, dtype=bool)] == pytest.approx(np.full(9900, 0.00505051), abs=1e-8)


@quick
@given(ratio=st.floats(0, 1, exclude_max=True), num_classes=st.integers(2, 30), data=st.data())
def test_rows_sum_to_one(ratio: float, num_classes: int, data: st.DataObject) -> None:
    offset = data.draw(st.integers(1, num_classes - 1))
    for matrix in (
        transition_matrix("symmetric", ratio, num_classes),
        transition_matrix("pair", ratio, num_classes, offset),
    ):
        assert matrix.shape == (num_classes, num_classes)
        assert matrix.sum(1) == pytest.approx(np.ones(num_classes))
        assert np.diag(matrix) == pytest.approx(np.full(num_classes, 1 - ratio))


@quick
@given(ratio=st.floats(0.001, 0.999), num_classes=st.integers(2, 30), data=st.data())
def test_pair_rows_have_two_entries(ratio: float, num_classes: int, data: st.DataObject) -> None:
    offset = data.draw(st.integers(1, num_classes - 1))
    matrix = transition_matrix("pair", ratio, num_classes, offset)
    assert (np.count_nonzero(matrix, axis=1) == 2).all()
    assert matrix[num_classes - 1, offset - 1] == ratio


@pytest.mark.parametrize(
    ("kind", "mode", "expected", "mean"),
    [
        ("symmetric", "high", (0.5, 0.6, 0.7, 0.8), 0.65),
        ("pair", "high", (0.3, 0.5, 0.6, 0.8), 0.55),
        ("symmetric", "low", (0.3, 0.4, 0.5, 0.6), 0.45),
        ("pair", "low", (0.3, 0.4, 0.5, 0.6), 0.45),
    ],
)
@pytest.mark.parametrize("clients", [20, 100])
def test_paper_groups(kind: str, mode: str, expected: tuple[float, ...], mean: float, clients: int) -> None:
    ratios = ratios_for(make(kind=kind, mode=mode), clients)
    assert ratios.tolist() == np.repeat(expected, clients // 4).tolist()
    assert ratios.mean() == pytest.approx(mean)


def test_groups_by_hand() -> None:
    assert groups(20, 4).tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    # floor(2k/5) for k = 0..4
    assert groups(5, 2).tolist() == [0, 0, 0, 1, 1]
    assert groups(3, 3).tolist() == [0, 1, 2]


def test_own_ratios() -> None:
    assert ratios_for(make(kind="pair", ratios=[0.2]), 3).tolist() == [0.2] * 3
    assert ratios_for(make(kind="symmetric", ratios=[0, 0.4]), 4).tolist() == [0, 0, 0.4, 0.4]
    assert ratios_for(make(kind="symmetric", ratios=[0.1, 0.2, 0.3]), 3).tolist() == [0.1, 0.2, 0.3]
    assert ratios_for(make(kind="none", ratios=[0.4]), 2).tolist() == [0, 0]


# Four standard deviations are left now and then by chance: the same examples every time.
@settings(quick, derandomize=True)
@given(
    kind=st.sampled_from(["symmetric", "pair"]),
    ratio=st.floats(0.05, 0.95),
    num_classes=st.integers(2, 20),
    root=st.integers(0, 1000),
)
def test_realised_rate_is_near_the_ratio(kind: str, ratio: float, num_classes: int, root: int) -> None:
    size = 4000
    labels, parts = clients_of(num_classes, 1, size)
    noisy, truth = apply(labels, parts, num_classes, make(kind=kind, ratios=[ratio]), Seed(root))
    realised = noise_ratios(noisy, truth)
    assert realised is not None
    assert abs(realised[0] - ratio) <= 4 * np.sqrt(ratio * (1 - ratio) / size)
    assert noisy.given[0].min() >= 0
    assert noisy.given[0].max() < num_classes


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("kind", ["symmetric", "pair"])
def test_draws_follow_the_matrix(kind: str, exact: bool) -> None:
    labels, parts = clients_of(5, 1, 50_000)
    noisy, truth = apply(labels, parts, 5, make(kind=kind, ratios=[0.6], exact=exact), Seed(4))
    assert truth.labels is not None
    counts = np.zeros((5, 5))
    np.add.at(counts, (truth.labels[0], noisy.given[0]), 1)
    expected = transition_matrix("symmetric", 0.6, 5)
    if kind == "pair":
        expected = transition_matrix("pair", 0.6, 5, noisy.offsets[0])
    # 10,000 draws a row: a standard deviation is at most .005.
    assert counts / 10_000 == pytest.approx(expected, abs=0.02)
    assert (counts[expected == 0] == 0).all()


@quick
@given(ratio=st.floats(0, 0.999), each=st.integers(1, 200), kind=st.sampled_from(["symmetric", "pair"]))
def test_exact_flips_that_many(ratio: float, each: int, kind: str) -> None:
    labels, parts = clients_of(4, 3, each)
    noisy, truth = apply(labels, parts, 4, make(kind=kind, ratios=[ratio], exact=True), Seed(0))
    realised = noise_ratios(noisy, truth)
    assert realised is not None
    assert realised * each == pytest.approx([np.floor(ratio * each + 0.5)] * 3)


def test_exact_rounds_half_up() -> None:
    # 0.5 · 5 + 0.5 = 3
    labels, parts = clients_of(2, 1, 5)
    noisy, _ = apply(labels, parts, 2, make(kind="symmetric", ratios=[0.5], exact=True), Seed(0))
    assert np.count_nonzero(noisy.given[0] != labels) == 3


def test_the_seed_decides() -> None:
    labels, parts = clients_of(10, 4, 100)
    config = make(kind="symmetric")
    first, again, other = (apply(labels, parts, 10, config, Seed(root))[0].given for root in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert all(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_a_client_draws_for_itself() -> None:
    labels, parts = clients_of(10, 4, 100)
    config = make(kind="symmetric", ratios=[0.5])
    all_four = apply(labels, parts, 10, config, Seed(1))[0].given
    first_two = apply(labels, parts[:2], 10, config, Seed(1))[0].given
    assert all(np.array_equal(a, b) for a, b in zip(all_four, first_two, strict=False))
    wrong = [seen != labels[part] for seen, part in zip(all_four, parts, strict=True)]
    assert not np.array_equal(wrong[0], wrong[1])


def flips(pair_map: str, num_classes: int = 10, clients: int = 20, root: int = 0) -> tuple[int, ...]:
    """The offsets, after checking that every wrong label is its client's partner class."""
    labels, parts = clients_of(num_classes, clients, 30)
    config = make(kind="pair", pair_map=pair_map)
    noisy, truth = apply(labels, parts, num_classes, config, Seed(root))
    assert truth.labels is not None
    for seen, true, offset in zip(noisy.given, truth.labels, noisy.offsets, strict=True):
        assert ((seen == true) | (seen == (true + offset) % num_classes)).all()
        assert (seen != true).any()
    return noisy.offsets


def test_pair_maps() -> None:
    assert flips("shared") == (1,) * 20
    by_group = np.array(flips("per_group")).reshape(4, 5)
    assert (by_group == by_group[:, :1]).all()
    assert len(set(by_group[:, 0].tolist())) == 4
    by_client = flips("per_client", clients=200)
    assert set(by_client) == set(range(1, 10))
    assert flips("per_client", root=1) != flips("per_client", root=2)


def test_groups_share_offsets_when_there_are_too_few() -> None:
    assert set(flips("per_group", num_classes=3)) <= {1, 2}
    # With C - 1 = 4 offsets for four groups each is used once.
    assert sorted(flips("per_group", num_classes=5)[::5]) == [1, 2, 3, 4]
    assert flips("per_client", num_classes=2) == (1,) * 20


def test_symmetric_noise_has_no_offset() -> None:
    labels, parts = clients_of(10, 4, 10)
    assert apply(labels, parts, 10, make(kind="symmetric"), Seed(0))[0].offsets == (0,) * 4


def test_no_noise_and_unknown_noise_keep_the_labels() -> None:
    labels, parts = clients_of(3, 2, 10)
    clean, truth = apply(labels, parts, 3, make(kind="none"), Seed(0))
    assert truth.labels is not None
    for seen, true, part in zip(clean.given, truth.labels, parts, strict=True):
        assert np.array_equal(seen, labels[part])
        assert np.array_equal(true, labels[part])
        assert not np.shares_memory(seen, true)
    ratios = noise_ratios(clean, truth)
    assert ratios is not None
    assert ratios.tolist() == [0, 0]
    own, unknown = apply(labels, parts, 3, make(kind="unknown"), Seed(0))
    assert unknown.labels is None
    assert noise_ratios(own, unknown) is None
    assert np.array_equal(own.given[1], labels[parts[1]])


def test_noise_ratio_by_hand() -> None:
    noisy = Labels((np.array([0, 1, 2, 0]), np.array([1])), (0, 0))
    ratios = noise_ratios(noisy, Truth((np.array([0, 1, 1, 0]), np.array([0]))))
    assert ratios is not None
    assert ratios.tolist() == [0.25, 1.0]


def test_learners_are_not_given_the_truth() -> None:
    assert [field.name for field in dataclasses.fields(Labels)] == ["given", "offsets"]


@pytest.mark.parametrize("ratio", [-0.1, 1.0, 1.5, float("nan")])
@pytest.mark.parametrize("kind", ["symmetric", "pair"])
def test_bad_ratio(kind: str, ratio: float) -> None:
    with pytest.raises(UserError, match=f"noise ratio {ratio} .*at least 0 and below 1"):
        transition_matrix(kind, ratio, 3)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="ratios"):
        make(kind=kind, ratios=[ratio])


@pytest.mark.parametrize("offset", [0, 3, -1])
def test_bad_offset(offset: int) -> None:
    with pytest.raises(UserError, match=f"pair offset {offset} must be 1 to 2"):
        transition_matrix("pair", 0.4, 3, offset)


def test_more_ratios_than_clients() -> None:
    with pytest.raises(UserError, match=r"noise.ratios has 4 ratios.*partition.clients = 3: give at most 3"):
        ratios_for(make(kind="symmetric"), 3)


def test_noise_needs_two_classes() -> None:
    labels, parts = clients_of(1, 4, 5)
    for kind in ("symmetric", "pair"):
        with pytest.raises(UserError, match="at least 2 classes, but the data has 1"):
            apply(labels, parts, 1, make(kind=kind), Seed(0))
    assert apply(labels, parts, 1, make(kind="none"), Seed(0))[0].given[0].tolist() == [0] * 5


def test_labels_out_of_range() -> None:
    with pytest.raises(UserError, match="label 7 of sample 1 is out of range"):
        apply(np.array([0, 7]), (np.array([0, 1]),), 3, make(kind="none"), Seed(0))


def test_unresolved_kinds_are_programming_errors() -> None:
    labels, parts = clients_of(3, 1, 3)
    for config in (make(), make(kind="manifest", manifest="noise.parquet")):
        with pytest.raises(ValueError, match=f"'{config.kind}' must be resolved"):
            apply(labels, parts, 3, config, Seed(0))
    with pytest.raises(ValueError, match="'unknown' has no ratios"):
        ratios_for(make(kind="unknown"), 3)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"kind": "manifest"}, "needs noise.manifest"),
        ({"kind": "manifest", "manifest": ""}, "needs noise.manifest"),
        ({"kind": "pair", "manifest": "a.parquet"}, 'noise.manifest = "a.parquet" is only for'),
        ({"manifest": "a.parquet"}, 'but noise.kind is "auto"'),
        ({"ratios": [0.4]}, 'noise.ratios needs noise.kind = "symmetric" or "pair"'),
        ({"kind": "pair", "ratios": []}, "ratios"),
        ({"kind": "gaussian"}, "kind"),
        ({"mode": "medium"}, "mode"),
        ({"pair_map": "global"}, "pair_map"),
        ({"ratio": 0.4}, "ratio"),
    ],
)
def test_bad_settings(bad: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        NoiseConfig.model_validate(bad)
