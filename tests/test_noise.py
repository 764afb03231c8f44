"""Label noise: transition matrices and groups by hand, realised rates, pair maps, and each bad input."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_labels import dataset_of, true_labels

from fednoil.config.loading import load_config, merge
from fednoil.data.dataset import Dataset
from fednoil.errors import UserError
from fednoil.labels import Labels, Truth
from fednoil.metrics import noise_ratios
from fednoil.noise import KIND_AXIS, apply, levels_of
from fednoil.noise.base import KindConfig, NoiseKind, NoiseLevels, NoisyClient, Population
from fednoil.noise.pair import Pair
from fednoil.noise.unchanged import AutoConfig
from fednoil.seeds import Seed

quick = settings(deadline=None, max_examples=30)
HIGH = [0.5, 0.6, 0.7, 0.8]


def clients_of(num_classes: int, clients: int, each: int) -> tuple[Dataset, tuple[np.ndarray, ...]]:
    """Labels in turn, and every K-th sample to the same client."""
    labels = np.arange(clients * each) // clients % num_classes
    return dataset_of(labels, num_classes), tuple(np.arange(k, clients * each, clients) for k in range(clients))


def make(**keys: object) -> KindConfig:
    return load_config({"noise": keys}).noise


def prepared(config: KindConfig, levels: list[float], num_classes: int, root: int = 0) -> NoiseKind:
    """The kind, ready for clients of these levels."""
    groups = np.arange(len(levels))
    sizes = (1,) * len(levels)
    population = Population(sizes, np.array(levels), groups, num_classes, (1, 2, 2), (0.5,), (0.5,))
    return KIND_AXIS.find(config.kind)(config, population, Seed(root).child("noise"))


def client_with(level: float, num_classes: int, labels: np.ndarray | None = None) -> NoisyClient:
    own = np.zeros(1, np.int64) if labels is None else labels
    index = np.arange(len(own))
    return NoisyClient(0, 0, level, own, num_classes, np.zeros((len(own), 1, 2, 2), np.uint8), index)


def matrix_of(kind: str, level: float, num_classes: int, offset: int = 1) -> np.ndarray:
    """The transition matrix of symmetric noise, or of pair noise with this offset."""
    made = prepared(make(kind=kind), [level], num_classes)
    if isinstance(made, Pair):
        made.offsets = np.array([offset])
    matrix = made.matrix(client_with(level, num_classes))
    assert matrix is not None
    return matrix


def offsets_of(config: KindConfig, clients: int, num_classes: int, root: int = 0) -> list[int]:
    levels, groups = levels_of(config, (1,) * clients, Seed(root))
    population = Population((1,) * clients, levels, groups, num_classes, (1, 2, 2), (0.5,), (0.5,))
    return Pair(config, population, Seed(root).child("noise")).offsets.tolist()  # type: ignore[arg-type]


def test_matrices_by_hand() -> None:
    symmetric = [[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6]]
    pair = [[0.6, 0.4, 0], [0, 0.6, 0.4], [0.4, 0, 0.6]]
    back = [[0.6, 0, 0.4], [0.4, 0.6, 0], [0, 0.4, 0.6]]
    assert matrix_of("symmetric", 0.4, 3) == pytest.approx(np.array(symmetric))
    assert matrix_of("pair", 0.4, 3) == pytest.approx(np.array(pair))
    assert matrix_of("pair", 0.4, 3, offset=2) == pytest.approx(np.array(back))


@quick
@given(ratio=st.floats(0, 1, exclude_max=True), num_classes=st.integers(2, 30), data=st.data())
def test_rows_sum_to_one(ratio: float, num_classes: int, data: st.DataObject) -> None:
    offset = data.draw(st.integers(1, num_classes - 1))
    for matrix in (
        matrix_of("symmetric", ratio, num_classes),
        matrix_of("pair", ratio, num_classes, offset),
    ):
        assert matrix.shape == (num_classes, num_classes)
        assert matrix.sum(1) == pytest.approx(np.ones(num_classes))
        assert np.diag(matrix) == pytest.approx(np.full(num_classes, 1 - ratio))


def levels_by(clients: int, *ratios: float) -> list[float]:
    return levels_of(make(kind="symmetric", ratios=list(ratios)), (1,) * clients, Seed(0))[0].tolist()


def groups_by(clients: int, count: int) -> list[int]:
    return levels_of(make(kind="symmetric", ratios=[0.5] * count), (1,) * clients, Seed(0))[1].tolist()


def test_groups_by_hand() -> None:
    assert groups_by(20, 4) == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    # floor(2k/5) for k = 0..4
    assert groups_by(5, 2) == [0, 0, 0, 1, 1]
    assert groups_by(3, 3) == [0, 1, 2]


def test_each_group_has_its_ratio() -> None:
    assert levels_by(20, *HIGH) == np.repeat(HIGH, 5).tolist()
    assert levels_by(3, 0.2) == [0.2] * 3
    assert levels_by(4, 0, 0.4) == [0, 0, 0.4, 0.4]
    assert levels_by(3, 0.1, 0.2, 0.3) == [0.1, 0.2, 0.3]


def test_without_ratios_everybody_has_the_same() -> None:
    levels, groups = levels_of(make(kind="symmetric"), (1,) * 3, Seed(0))
    assert levels.tolist() == [0.4] * 3
    assert groups.tolist() == [0] * 3


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
    data, parts = clients_of(num_classes, 1, size)
    noisy, truth = apply(data, parts, make(kind=kind, ratios=[ratio]), Seed(root))
    realised = noise_ratios(noisy, truth)
    assert realised is not None
    assert abs(realised[0] - ratio) <= 4 * np.sqrt(ratio * (1 - ratio) / size)
    assert noisy.given[0].min() >= 0
    assert noisy.given[0].max() < num_classes


@pytest.mark.parametrize("kind", ["symmetric", "pair"])
def test_draws_follow_the_matrix(kind: str) -> None:
    data, parts = clients_of(5, 1, 50_000)
    noisy, truth = apply(data, parts, make(kind=kind, ratios=[0.6]), Seed(4))
    counts = np.zeros((5, 5))
    np.add.at(counts, (true_labels(truth)[0], noisy.given[0]), 1)
    expected = prepared(make(kind=kind), [0.6], 5, root=4).matrix(client_with(0.6, 5))
    assert expected is not None
    # 10,000 draws a row: a standard deviation is at most .005.
    assert counts / 10_000 == pytest.approx(expected, abs=0.02)
    assert (counts[expected == 0] == 0).all()


def test_the_seed_decides() -> None:
    data, parts = clients_of(10, 4, 100)
    config = make(kind="symmetric", ratios=HIGH)
    first, again, other = (apply(data, parts, config, Seed(root))[0].given for root in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert all(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_a_client_draws_for_itself() -> None:
    data, parts = clients_of(10, 4, 100)
    config = make(kind="symmetric", ratios=[0.5])
    all_four = apply(data, parts, config, Seed(1))[0].given
    first_two = apply(data, parts[:2], config, Seed(1))[0].given
    assert all(np.array_equal(a, b) for a, b in zip(all_four, first_two, strict=False))
    wrong = [seen != data.train.labels[part] for seen, part in zip(all_four, parts, strict=True)]
    assert not np.array_equal(wrong[0], wrong[1])


def flips(sharing: str, num_classes: int = 10, clients: int = 20, root: int = 0) -> tuple[int, ...]:
    """The offsets, after checking that every wrong label is its client's partner class."""
    data, parts = clients_of(num_classes, clients, 30)
    config = make(kind="pair", map=sharing, ratios=[0.3, 0.5, 0.6, 0.8])
    noisy, truth = apply(data, parts, config, Seed(root))
    offsets = offsets_of(config, clients, num_classes, root)
    for seen, true, offset in zip(noisy.given, true_labels(truth), offsets, strict=True):
        assert ((seen == true) | (seen == (true + offset) % num_classes)).all()
        assert (seen != true).any()
    return tuple(offsets)


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


def test_no_noise_and_unknown_noise_keep_the_labels() -> None:
    data, parts = clients_of(3, 2, 10)
    clean, truth = apply(data, parts, make(kind="none"), Seed(0))
    for seen, true, part in zip(clean.given, true_labels(truth), parts, strict=True):
        assert np.array_equal(seen, data.train.labels[part])
        assert np.array_equal(true, data.train.labels[part])
        assert not np.shares_memory(seen, true)
    ratios = noise_ratios(clean, truth)
    assert ratios is not None
    assert ratios.tolist() == [0, 0]
    own, unknown = apply(data, parts, make(kind="unknown"), Seed(0))
    assert not unknown.known
    assert noise_ratios(own, unknown) is None
    assert np.array_equal(own.given[1], data.train.labels[parts[1]])


def test_noise_ratio_by_hand() -> None:
    noisy = Labels((np.array([0, 1, 2, 0]), np.array([1])))
    ratios = noise_ratios(noisy, Truth((np.array([0, 1, 1, 0]), np.array([0]))))
    assert ratios is not None
    assert ratios.tolist() == [0.25, 1.0]


def test_learners_are_not_given_the_truth() -> None:
    assert [field.name for field in dataclasses.fields(Labels)] == ["given"]


@pytest.mark.parametrize("ratio", [-0.1, 1.0, 1.5, float("nan")])
def test_bad_ratio(ratio: float) -> None:
    with pytest.raises(UserError, match=r"value 1 of noise\.ratios = "):
        make(kind="symmetric", ratios=[ratio])


def test_more_ratios_than_clients() -> None:
    data, parts = clients_of(3, 3, 5)
    with pytest.raises(UserError, match=r"noise.ratios has 4 ratios.*partition.clients = 3: give at most 3"):
        apply(data, parts, make(kind="symmetric", ratios=HIGH), Seed(0))
    assert apply(data, parts, make(kind="none", ratios=HIGH), Seed(0))[0].given[0].tolist() == [0, 1, 2, 0, 1]


def test_noise_needs_two_classes() -> None:
    data, parts = clients_of(1, 4, 5)
    for kind in ("symmetric", "pair"):
        with pytest.raises(UserError, match="at least 2 classes, but the data has 1"):
            apply(data, parts, make(kind=kind), Seed(0))
    assert apply(data, parts, make(kind="none"), Seed(0))[0].given[0].tolist() == [0] * 5


def test_labels_out_of_range() -> None:
    with pytest.raises(UserError, match="label 7 of sample 1 is out of range"):
        apply(dataset_of(np.array([0, 7]), 3), (np.array([0, 1]),), make(kind="none"), Seed(0))


def test_kinds_without_labels_of_their_own_are_programming_errors() -> None:
    data, parts = clients_of(3, 1, 3)
    with pytest.raises(ValueError, match="use `read`"):
        apply(data, parts, make(kind="manifest", file="noise.parquet"), Seed(0))
    with pytest.raises(ValueError, match="'auto' must be resolved"):
        apply(data, parts, AutoConfig(), Seed(0))


class Shifting(NoiseKind):
    """Every label moved by a number that may be too large."""

    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        return client.labels + 1


class Short(NoiseKind):
    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        return client.labels[1:]


class InPlace(NoiseKind):
    """Writes to the true labels that it is shown."""

    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        client.labels[:] = 0
        return np.ones_like(client.labels)


def test_a_kind_cannot_change_the_truth() -> None:
    data, parts = clients_of(3, 2, 5)
    noisy, truth = apply(data, parts, make(kind=f"{__name__}:InPlace"), Seed(0))
    assert [given.tolist() for given in noisy.given] == [[1] * 5] * 2
    assert [true.tolist() for true in true_labels(truth)] == [[0, 1, 2, 0, 1]] * 2
    assert data.train.labels.tolist() == [0, 0, 1, 1, 2, 2, 0, 0, 1, 1]


class Wild(NoiseLevels):
    def levels(self, sizes: tuple[int, ...], seed: Seed) -> np.ndarray:
        return np.array([0.5] * (len(sizes) - 1) + [1.5])


class Few(NoiseLevels):
    def levels(self, sizes: tuple[int, ...], seed: Seed) -> np.ndarray:
        return np.array([0.5])


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"kind": f"{__name__}:Shifting"}, "Shifting' gave client 0 the label 3; it must be 0 to 2"),
        ({"kind": f"{__name__}:Short"}, r"gave client 0 labels of type int64 and shape \(4,\).*shape \(5,\)"),
        ({"kind": "pair", "levels": f"{__name__}:Wild"}, "Wild' gave the level 1.5; a level must be 0 to 1"),
        ({"kind": "pair", "levels": f"{__name__}:Few"}, r"gave \(1,\) levels and \(2,\) groups; there are 2 clients"),
        ({"kind": f"{__name__}:Labels"}, "is not a class derived from fednoil.noise.base.NoiseKind"),
        ({"kind": "pair", "levels": f"{__name__}:Short"}, "is not a class derived from fednoil.noise.base.NoiseLevels"),
    ],
)
def test_what_is_not_noise_is_refused(keys: dict[str, object], line: str) -> None:
    data, parts = clients_of(3, 2, 5)
    with pytest.raises(UserError, match=line):
        apply(data, parts, make(**keys), Seed(0))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"kind": "manifest"}, "needs noise.file"),
        ({"kind": "manifest", "file": ""}, "needs noise.file"),
        ({"kind": "pair", "file": "a.parquet"}, "unknown key 'noise.file'.*it is a key of .*manifest"),
        ({"file": "a.parquet"}, "unknown key 'noise.file'.*it is a key of .*manifest"),
        ({"ratios": [0.4]}, 'noise.ratios needs a noise.kind such as "symmetric"'),
        ({"levels": f"{__name__}:Few"}, 'noise.levels needs a noise.kind such as "symmetric"'),
        ({"kind": "gaussian"}, "noise.kind = 'gaussian' is unknown"),
        ({"kind": 3}, "noise.kind = 3: must be a name"),
        ({"kind": "pair", "levels": "equal"}, "noise.levels = 'equal' is unknown"),
        ({"kind": "pair", "map": "global"}, "noise.map = 'global'"),
        ({"kind": "symmetric", "map": "shared"}, "unknown key 'noise.map'.*it is a key of pair, matrix"),
        ({"kind": "pair", "ratio": 0.4}, "unknown key 'noise.ratio'.*did you mean 'ratios'"),
    ],
)
def test_bad_settings(bad: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make(**bad)


def test_a_clean_run_is_recorded_without_levels() -> None:
    for keys in ({"kind": "none", "ratios": [0.5]}, {"kind": "none"}, {}):
        config = load_config({"noise": keys})
        assert config.model_dump(mode="json")["noise"] == {"kind": "none"}
        assert config.hash() == load_config({}).hash()
    noisy = load_config({"noise": {"kind": "pair", "ratios": [0.5]}})
    assert list(noisy.model_dump()["noise"]) == ["kind", "space", "map", "levels", "ratios"]


def test_another_kind_keeps_the_levels_and_drops_its_own_keys() -> None:
    base = {"noise": {"kind": "pair", "map": "shared", "ratios": [0.3]}}
    assert merge(base, {"noise": {"kind": "symmetric"}})["noise"] == {"kind": "symmetric", "ratios": [0.3]}
    assert merge(base, {"noise": {"exact": True}})["noise"] == {**base["noise"], "exact": True}
    other = merge(base, {"noise": {"levels": "own:Levels", "low": 0.1}})["noise"]
    assert other == {"kind": "pair", "map": "shared", "levels": "own:Levels", "low": 0.1}
