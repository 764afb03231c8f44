"""The noise that other benchmarks use, by worked numbers: FedCorr's levels, ranges, matrices, instances."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from conftest import fednoil
from made_labels import dataset_of, true_labels

from fednoil import metrics
from fednoil.config.loading import load_config
from fednoil.data.cifar import CIFAR10_CLASSES, CIFAR100_CLASSES
from fednoil.data.dataset import Dataset, Split
from fednoil.errors import UserError
from fednoil.labels import Labels, Truth
from fednoil.metrics import noise_ratios
from fednoil.noise import KINDS, apply, levels_of, prepare
from fednoil.noise.base import NoisyClient, Population
from fednoil.noise.files import label_chances as soft_chances
from fednoil.noise.files import pick_chances
from fednoil.noise.instance import Instance, flip_chances, label_chances
from fednoil.noise.matrix import transition
from fednoil.noise.pair import partners
from fednoil.noise.symmetric import Symmetric
from fednoil.noise.two_level import two_levels
from fednoil.seeds import Seed


def levels(clients: int, root: int = 0, **keys: object) -> np.ndarray:
    config = load_config({"noise": {"kind": "symmetric", **keys}}).noise
    return levels_of(config, (10,) * clients, Seed(root))[0]


def spoilt(labels: np.ndarray, num_classes: int, clients: int = 1, **keys: object) -> tuple[Labels, Truth]:
    """The labels dealt to clients in equal runs, with noise."""
    parts = tuple(np.array_split(np.arange(len(labels)), clients))
    return apply(dataset_of(labels, num_classes), parts, load_config({"noise": keys}).noise, Seed(3))


def test_fedcorrs_levels_by_its_own_generator() -> None:
    """Seed 1, eight clients, ρ = 0.6, τ = 0.5: binomials, then uniforms, of numpy's legacy generator."""
    theirs = np.random.RandomState(1)
    noisy = theirs.binomial(1, 0.6, 8).astype(bool)
    assert noisy.tolist() == [1, 0, 1, 1, 1, 1, 1, 1]
    expected = [0.698384, 0, 0.709597, 0.842610, 0.602226, 0.939059, 0.513694, 0.835234]
    assert two_levels(noisy, theirs.random_sample(8), 0.5, 1.0) == pytest.approx(expected, abs=1e-6)


def test_symmetric_labels_by_hand() -> None:
    """δ = 0.6, uniforms 0.10, 0.75, 0.59, 0.599, 0.61: samples 0, 2 and 3 are picked, and new labels are 4, 5, 1."""
    true = np.array([3, 3, 7, 0, 9])
    steps = (np.array([4, 0, 5, 1, 0]) - true) % 10  # of those that are not picked, anything
    rng = SimpleNamespace(
        random=lambda size: np.array([0.10, 0.75, 0.59, 0.599, 0.61]), integers=lambda low, high, size: steps
    )
    kind = Symmetric(None, cast(Any, None), Seed(0))
    client = NoisyClient(0, 0, 0.6, true, 10, np.zeros((5, 1, 1, 1), np.uint8), np.arange(5))
    assert kind.labels(client, cast(Any, rng)).tolist() == [4, 3, 5, 1, 9]


@pytest.mark.parametrize(
    ("rho", "tau", "ten", "hundred"),
    [
        (0.4, 0, 0.18, 0.198),
        (0.4, 0.5, 0.27, 0.297),
        (0.6, 0, 0.27, 0.297),
        (0.6, 0.5, 0.405, 0.4455),
        (0.8, 0, 0.36, 0.396),
        (0.8, 0.5, 0.54, 0.594),
    ],
)
def test_fedcorrs_share_of_wrong_labels(rho: float, tau: float, ten: float, hundred: float) -> None:
    """ρ (1 + τ)/2 (C − 1)/C over all clients: its new labels are drawn from all classes, the true one too."""
    for num_classes, expected in ((10, ten), (100, hundred)):
        labels = np.arange(200_000) % num_classes
        wrong = (num_classes - 1) / num_classes
        keys = {"levels": "two-level", "rho": rho, "ratios": [tau * wrong, wrong]}
        ratios = noise_ratios(*spoilt(labels, num_classes, 4000, kind="symmetric", **keys))
        assert ratios is not None
        # The level of a client has a standard deviation of less than 0.5: 0.008 for the mean of 4000.
        assert ratios.mean() == pytest.approx(expected, abs=0.025)


def test_two_levels() -> None:
    drawn = levels(5000, levels="two-level", rho=0.3)
    noisy = drawn[drawn > 0]
    assert len(noisy) / 5000 == pytest.approx(0.3, abs=0.03)
    assert noisy.min() >= 0.5
    assert noisy.mean() == pytest.approx(0.75, abs=0.02)
    assert levels(50, levels="two-level", rho=0).tolist() == [0] * 50
    assert levels(50, levels="two-level", rho=1, ratios=[1, 1]).tolist() == [1] * 50
    assert levels(5000, levels="two-level", rho=1, ratios=[0.3, 0.5]).max() == pytest.approx(0.5, abs=0.01)


def test_linear_levels() -> None:
    many = levels(100, levels="linear", ratios=[0, 0.4])
    assert many[:2] == pytest.approx([0, 0.004])
    assert many[-1] == pytest.approx(0.396)
    assert many.mean() == pytest.approx(0.198)
    fifty = levels(50, levels="linear", ratios=[0, 0.4])
    assert fifty[-1] == pytest.approx(0.392)
    assert fifty.mean() == pytest.approx(0.196)
    assert levels(4, levels="linear", ratios=[0.2, 0.6]) == pytest.approx([0.2, 0.3, 0.4, 0.5])


def test_clients_ratios_differ_by_chance() -> None:
    """0.4 of all labels, 500 a client: a standard deviation of 2.2 points, as in FedNoisy's globalized noise."""
    ratios = noise_ratios(*spoilt(np.arange(500 * 400) % 10, 10, 400, kind="symmetric", ratios=[0.4]))
    assert ratios is not None
    assert 100 * ratios.std() == pytest.approx(2.2, abs=0.25)


def test_uniform_levels() -> None:
    drawn = levels(5000, levels="uniform", ratios=[0.3, 0.5])
    assert drawn.min() >= 0.3
    assert drawn.max() <= 0.5
    assert np.quantile(drawn, [0.25, 0.5, 0.75]) == pytest.approx([0.35, 0.4, 0.45], abs=0.01)
    assert levels(3, root=1, levels="uniform").tolist() != levels(3, root=2, levels="uniform").tolist()


def test_levels_without_groups_have_a_map_for_each_client() -> None:
    config = load_config({"noise": {"kind": "pair", "levels": "linear", "map": "per_group"}}).noise
    assert levels_of(config, (10,) * 5, Seed(0))[1].tolist() == [0, 1, 2, 3, 4]


def test_draws_follow_the_matrix() -> None:
    labels, config = np.arange(50_000) % 5, load_config({"noise": {"kind": "matrix"}}).noise
    kind, clients = prepare(dataset_of(labels, 5), (np.arange(50_000),), config, Seed(3))
    noisy, _ = spoilt(labels, 5, kind="matrix")
    counts = np.zeros((5, 5))
    np.add.at(counts, (labels, noisy.given[0]), 1)
    # 10,000 draws a row: a standard deviation is at most .005.
    assert counts / 10_000 == pytest.approx(kind.matrix(clients[0]), abs=0.02)


def test_habits_from_symmetric_to_pair() -> None:
    """With a large κ all wrong classes are alike, with a small one there is one for each class."""
    largest = {}
    for kappa in (0.001, 1e6):
        config = load_config({"noise": {"kind": "matrix", "kappa": kappa, "ratios": [0.5]}}).noise
        kind, clients = prepare(dataset_of(np.arange(10), 10), (np.arange(10),), config, Seed(0))
        matrix = kind.matrix(clients[0])
        assert matrix is not None
        largest[kappa] = (matrix - 0.5 * np.eye(10)).max(1)
    assert largest[1e6] == pytest.approx([0.5 / 9] * 10, abs=1e-3)
    assert np.median(largest[0.001]) == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize(("sharing", "different"), [("per_client", 6), ("per_group", 2), ("shared", 1)])
def test_who_shares_a_matrix(sharing: str, different: int) -> None:
    config = load_config({"noise": {"kind": "matrix", "map": sharing, "ratios": [0.3, 0.4]}}).noise
    parts = tuple(np.array_split(np.arange(12), 6))
    kind, clients = prepare(dataset_of(np.arange(12) % 4, 4), parts, config, Seed(0))
    assert len({kind.wrong(client).tobytes() for client in clients}) == different  # type: ignore[attr-defined]


def test_an_instances_chances_by_hand() -> None:
    """a = x · W_0 = (−0.2, 0.4, −0.3); without class 0, e^0.4 and e^−0.3 share q = 0.3."""
    images, weights = np.array([[1, -1, 0.5]]), np.zeros((3, 3, 3))
    weights[0] = [[0.2, 0.1, -0.3], [0.4, 0, 0.1], [0, 0.6, 0.2]]
    found = label_chances(images, np.array([0]), np.array([0.3]), weights)
    assert found[0] == pytest.approx([0.7, 0.200456, 0.099544], abs=1e-6)


@pytest.mark.parametrize(("level", "mean"), [(0.1, 0.1288), (0.2, 0.2055), (0.3, 0.3004)])
def test_truncation_lifts_low_chances(level: float, mean: float) -> None:
    chances = flip_chances(200_000, level, Seed(0).numpy())
    assert chances.min() >= 0
    assert chances.max() <= 1
    assert chances.mean() == pytest.approx(mean, abs=1e-3)


def pictures(count: int) -> Dataset:
    rng = np.random.default_rng(1)
    images, labels = rng.integers(0, 256, (count, 1, 8, 8), dtype=np.uint8), np.arange(count) % 5
    return Dataset("pictures", Split(images, labels), Split(images[:1], labels[:1]), tuple("abcde"), (0.5,), (0.25,))


def test_the_wrong_class_follows_from_the_image() -> None:
    """The same images at another client, which draws for itself, are mistaken for the same classes."""
    data = pictures(2000)
    train = Split(np.concatenate([data.train.images] * 2), np.concatenate([data.train.labels] * 2))
    twice = replace(data, train=train)
    parts = (np.arange(2000), np.arange(2000, 4000))
    config = load_config({"noise": {"kind": "instance", "ratios": [0.6]}}).noise
    first, second = apply(twice, parts, config, Seed(0))[0].given
    both = (first != data.train.labels) & (second != data.train.labels)
    assert 500 < both.sum() < 1000  # 0.36 of 2000
    # With 64 pixels the largest chance is not yet nearly 1; of four wrong classes a fourth would agree by chance.
    assert (first == second)[both].mean() > 0.8
    other = apply(twice, parts, config, Seed(1))[0].given[0]
    both = (first != data.train.labels) & (other != data.train.labels)
    assert (first == other)[both].mean() < 0.4


def test_on_cifar_the_wrong_class_is_nearly_certain() -> None:
    """Images of 3,072 normalised pixels: the likeliest wrong class has over 0.99 of the wrong ones for 89 % of them."""
    rng = np.random.default_rng(0)
    images, weights = rng.standard_normal((2000, 3072)), rng.standard_normal((1, 3072, 10))
    found = label_chances(images, np.zeros(2000, np.int64), np.ones(2000), weights)
    assert (found.max(1) > 0.99).mean() == pytest.approx(0.89, abs=0.03)


def test_images_are_normalised_as_networks_see_them() -> None:
    """(1 − 0.5) / 0.25 = 2 for a white pixel, −2 for a black one."""
    config = load_config({"noise": {"kind": "instance"}}).noise
    kind, _ = prepare(pictures(10), (np.arange(10),), config, Seed(0))
    assert isinstance(kind, Instance)
    assert kind._normalised(np.array([[[[255, 0]]]], np.uint8)).tolist() == [[2.0, -2.0]]


def test_a_client_of_level_0_has_no_wrong_instance() -> None:
    data = pictures(100)
    config = load_config({"noise": {"kind": "instance", "ratios": [0.0, 0.5]}}).noise
    noisy, truth = apply(data, (np.arange(50), np.arange(50, 100)), config, Seed(0))
    ratios = noise_ratios(noisy, truth)
    assert ratios is not None
    assert ratios[0] == 0
    assert ratios[1] > 0.2


def test_classes_that_are_outvoted() -> None:
    """Class 0 is called 1 by 60 of 100, class 1 is right, class 2 has as many wrong labels but of two kinds."""
    true = np.repeat([0, 1, 2], 100)
    given = np.concatenate([np.repeat([0, 1], [40, 60]), np.full(100, 1), np.repeat([2, 0, 1], [40, 30, 30])])
    parts = [np.arange(150), np.arange(150, 300)]
    labels, truth = Labels(tuple(given[p] for p in parts)), Truth(tuple(true[p] for p in parts))
    assert metrics.outvoted(labels, truth, 3) == {}  # 60 against 40 may be chance: 2 standard deviations
    ten = Labels(tuple(np.tile(g, 10) for g in labels.given)), Truth(tuple(np.tile(t, 10) for t in true_labels(truth)))
    assert metrics.outvoted(*ten, 3) == {0: 1}
    assert metrics.outvoted(labels, Truth(None), 3) == {}


def test_maps_that_are_shared_are_outvoted_and_others_are_not() -> None:
    labels = np.arange(40_000) % 10
    for sharing, lost in (("shared", 10), ("per_client", 0)):
        noisy, truth = spoilt(labels, 10, 20, kind="pair", map=sharing, ratios=[0.3, 0.5, 0.6, 0.8])
        assert len(metrics.outvoted(noisy, truth, 10)) == lost


@pytest.mark.parametrize(("sharing", "warned"), [("shared", True), ("per_client", False)])
def test_a_run_warns_where_labels_mislead(tmp_path: Path, sharing: str, warned: bool) -> None:
    keys = {"noise.kind": "pair", "noise.ratios": "[0.7]", "noise.map": sharing, "train.rounds": 1}
    small = {"schedule.epochs": 1, "model.width": 2, "run.device": "cpu"}
    sets = [part for key, value in (keys | small).items() for part in ("--set", f"{key}={value}")]
    status, shown, _ = fednoil("run", "demo/fedavg", "--out", tmp_path / "run", *sets)
    line = "warning: over all clients, 10 of 10 classes are mostly labelled as another one ('T-shirt/top' as 'Trouser')"
    assert status == 0
    assert (line in shown) == warned
    assert ("warning" in shown) == warned


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"levels": "two-level", "rho": 1.1}, r"noise\.rho = 1\.1: must be less than or equal to 1"),
        (
            {"levels": "two-level", "ratios": [-0.1, 1]},
            r"value 1 of noise\.ratios = -0\.1: must be greater than or equal to 0",
        ),
        ({"levels": "linear", "ratios": [0, 2]}, r"value 2 of noise\.ratios = 2"),
        ({"levels": "linear", "ratios": [0.3]}, r"noise\.ratios = \[0\.3\]: must be two numbers, the lowest level"),
        (
            {"levels": "uniform", "ratios": [0.5, 0.4]},
            r"noise\.ratios = \[0\.5, 0\.4\]: must be two numbers, the lowest",
        ),
        ({"levels": "beta", "ratios": [0.4]}, r"unknown key 'noise\.ratios'.*it is a key of groups"),
        ({"levels": "linear", "low": 0.4}, r"'noise\.low' is now called noise\.ratios"),
        ({"rho": 0.5}, r"unknown key 'noise\.rho'.*it is a key of two-level"),
        ({"kind": "matrix", "kappa": 0}, r"noise\.kappa = 0"),
        ({"kind": "instance", "map": "shared"}, r"unknown key 'noise\.map'.*it is a key of pair, matrix"),
    ],
)
def test_bad_settings(keys: dict[str, object], line: str) -> None:
    with pytest.raises(UserError, match=line):
        load_config({"noise": {"kind": "symmetric", **keys}})


# --- Other kinds and levels ------------------------------------------------------------------------------------------


def client_of(labels: list[int], level: float, num_classes: int) -> NoisyClient:
    true = np.array(labels)
    return NoisyClient(0, 0, level, true, num_classes, np.zeros((len(true), 1, 1, 1), np.uint8), np.arange(len(true)))


def kind_of(client: NoisyClient, names: tuple[str, ...] = (), **keys: Any) -> Any:
    """A kind of noise for one client."""
    config = load_config({"noise": keys}).noise
    population = Population(
        (len(client.labels),),
        np.array([client.level]),
        np.array([0]),
        client.num_classes,
        (1, 1, 1),
        (0.5,),
        (0.5,),
        names,
    )
    return KINDS[str(keys["kind"])](config, population, Seed(0))


def test_wrong_labels_among_a_clients_own_classes() -> None:
    """S = {1, 3, 4, 8} of ten: 1 → 3 (2 is not there), 3 → 4, 4 → 8, 8 → 1; symmetric: 1/3 each."""
    client = client_of([1, 3, 4, 8], 1.0, 10)
    pair = kind_of(client, kind="pair", map="shared", space="client")
    assert pair.labels(client, Seed(0).numpy()).tolist() == [3, 4, 8, 1]
    assert partners(10, 1, np.array([1, 3, 4, 8]))[[1, 3, 4, 8]].tolist() == [3, 4, 8, 1]
    symmetric = kind_of(client, kind="symmetric", space="client")
    row = symmetric.matrix(client)[3]
    assert row[[1, 4, 8]] == pytest.approx([1 / 3] * 3)
    assert row.sum() == pytest.approx(1)
    given = {int(symmetric.labels(client, Seed(root).numpy())[1]) for root in range(40)}
    assert given == {1, 4, 8}


def test_a_client_with_one_class_has_no_wrong_class_of_its_own() -> None:
    client = client_of([2, 2, 2], 0.5, 4)
    with pytest.raises(UserError, match=r"noise.space = 'client': client 0 has labels of one class only"):
        kind_of(client, kind="symmetric", space="client").labels(client, Seed(0).numpy())
    clean = replace(client, level=0.0)
    assert kind_of(clean, kind="symmetric", space="client").labels(clean, Seed(0).numpy()).tolist() == [2, 2, 2]


def test_symmetric_noise_with_the_true_class() -> None:
    """Nominal 0.8 of ten classes is 0.72 wrong; picked samples 0, 2, 3 get 3, 5, 1, of which the first stays right."""
    client = client_of([3, 3, 7, 0, 9], 0.8, 10)
    kind = kind_of(client, kind="symmetric-all")
    assert 1 - kind.matrix(client)[0, 0] == pytest.approx(0.72)
    rng = SimpleNamespace(
        random=lambda size: np.array([0.10, 0.75, 0.59, 0.599, 0.61]),
        integers=lambda low, high, size: np.array([3, 0, 5, 1, 0]),
    )
    given = kind.labels(replace(client, level=0.6), cast(Any, rng))
    assert given.tolist() == [3, 3, 5, 1, 9]
    assert (given != client.labels).mean() == pytest.approx(0.4)


def test_fedcorrs_code_names_the_first_ten_of_a_hundred_classes() -> None:
    """Level 0.5: of a class up to 9 0.45 are wrong, of another one 0.5."""
    client = client_of([3, 50] * 5000, 0.5, 100)
    kind = kind_of(client, kind="symmetric-ten")
    assert kind.matrix(client).sum(1) == pytest.approx(np.ones(100))
    assert 1 - np.diag(kind.matrix(client))[[3, 50]] == pytest.approx([0.45, 0.5])
    given = kind.labels(client, Seed(0).numpy())
    wrong = given != client.labels
    assert wrong[::2].mean() == pytest.approx(0.45, abs=0.03)
    assert set(given[wrong].tolist()) == set(range(10))
    ten, usual = client_of([3, 5, 9] * 20, 0.8, 10), kind_of(client_of([3, 5, 9], 0.8, 10), kind="symmetric-all")
    same = kind_of(ten, kind="symmetric-ten").labels(ten, Seed(1).numpy())
    assert same.tolist() == usual.labels(ten, Seed(1).numpy()).tolist()


def test_pairs_downwards() -> None:
    client = client_of([0, 1, 9], 1.0, 10)
    assert kind_of(client, kind="pair-down").labels(client, Seed(0).numpy()).tolist() == [9, 0, 8]


def test_semantic_noise() -> None:
    """CIFAR-10: 9 → 1, 2 → 0, 4 → 7, 3 ↔ 5; half of the classes, so half of ε is wrong."""
    client = client_of(list(range(10)), 1.0, 10)
    kind = kind_of(client, CIFAR10_CLASSES, kind="semantic")
    assert kind.labels(client, Seed(0).numpy()).tolist() == [0, 1, 0, 5, 7, 3, 6, 7, 8, 1]
    half = replace(client, level=0.4)
    assert (1 - np.diag(kind.matrix(half))).mean() == pytest.approx(0.2)
    digits = kind_of(client, tuple("0123456789"), kind="semantic")
    assert digits.labels(client, Seed(0).numpy()).tolist() == [0, 1, 7, 8, 4, 6, 5, 1, 8, 9]
    with pytest.raises(UserError, match=r"noise.kind = 'semantic' knows the classes of CIFAR-10 or MNIST, not a, b, c"):
        kind_of(client, tuple("abcdefghij"), kind="semantic")


def test_superclass_noise() -> None:
    """beaver → dolphin → otter → seal → whale → beaver; all hundred classes are in a circle of five."""
    client = client_of(list(range(100)), 1.0, 100)
    given = kind_of(client, CIFAR100_CLASSES, kind="superclass").labels(client, Seed(0).numpy())
    at = CIFAR100_CLASSES.index
    assert [CIFAR100_CLASSES[given[at(name)]] for name in ("beaver", "whale", "baby")] == ["dolphin", "beaver", "boy"]
    steps = np.arange(100)
    one = kind_of(client, CIFAR100_CLASSES, kind="superclass").labels(client, Seed(0).numpy())
    for turn in range(5):
        steps = one[steps]
        assert (steps == np.arange(100)).all() == (turn == 4)


def test_a_matrix_from_a_file(tmp_path: Path) -> None:
    """ε = 0.4 and R of the worked example, as T for one client; its rows must sum to 1."""
    wrong = np.array([[0, 0.7, 0.3], [0.5, 0, 0.5], [0.1, 0.9, 0]])
    expected = [[0.6, 0.28, 0.12], [0.2, 0.6, 0.2], [0.04, 0.36, 0.6]]
    np.save(tmp_path / "t.npy", transition(0.4, wrong))
    np.savetxt(tmp_path / "t.csv", transition(0.4, wrong), delimiter=",")
    client = client_of([0] * 3000 + [2] * 3000, 0.0, 3)
    for name in ("t.npy", "t.csv"):
        kind = kind_of(client, kind="transition", file=str(tmp_path / name))
        assert kind.matrix(client) == pytest.approx(np.array(expected))
        given = kind.labels(client, Seed(0).numpy())
        assert np.bincount(given[:3000]) / 3000 == pytest.approx(expected[0], abs=0.03)
    np.save(tmp_path / "bad.npy", np.array([[0.5, 0.2, 0.3], [1, 0, 0], [0.2, 0.2, 0.2]]))
    with pytest.raises(UserError, match=r"noise.file = '.*bad.npy': each row must be .* row 2 sums to 0.6"):
        kind_of(client, kind="transition", file=str(tmp_path / "bad.npy"))
    np.save(tmp_path / "below.npy", np.array([[[1, 0, 0], [0, 1, 0], [-0.2, 0, 1.2]]]))
    with pytest.raises(UserError, match=r"row 2 of matrix 0 has -0\.2"):
        kind_of(client, kind="transition", file=str(tmp_path / "below.npy"))
    (tmp_path / "empty.csv").write_text("\n")
    with pytest.raises(UserError, match=r"it cannot be read \(it is empty\)"):
        kind_of(client, kind="transition", file=str(tmp_path / "empty.csv"))
    np.save(tmp_path / "small.npy", np.eye(2))
    with pytest.raises(UserError, match=r"holds float64 \[2, 2\]; it must hold one matrix \[3, 3\] or one for each"):
        kind_of(client, kind="transition", file=str(tmp_path / "small.npy"))
    np.save(tmp_path / "pickle.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="it cannot be read"):
        kind_of(client, kind="transition", file=str(tmp_path / "pickle.npy"))
    with pytest.raises(UserError, match=r"needs noise\.file"):
        kind_of(client, kind="transition")


def test_confusable_samples(tmp_path: Path) -> None:
    soft = np.array([[0.8, 0.1, 0.1], [0.5, 0.4, 0.1], [0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])
    labels = np.array([0, 0, 0, 1])
    assert pick_chances(soft, labels) == pytest.approx([0.090909, 0.227273, 0.363636, 0.318182], abs=1e-6)
    expected = [[0, 0.5, 0.5], [0, 0.8, 0.2], [0, 0.375, 0.625], [0.857143, 0, 0.142857]]
    assert soft_chances(soft, labels) == pytest.approx(np.array(expected), abs=1e-6)
    np.save(tmp_path / "soft.npy", soft)
    client = client_of(labels.tolist(), 0.5, 3)
    kind = kind_of(client, kind="confusable", file=str(tmp_path / "soft.npy"))
    for root in range(5):
        assert (kind.labels(client, Seed(root).numpy()) != labels).sum() == 2  # exactly floor(0.5 · 4)


def test_a_fixed_number_of_noisy_clients() -> None:
    for root in range(5):
        found = levels(20, root, levels="fixed", rho=0.63, ratios=[0.3, 0.5])
        assert (found > 0).sum() == 12  # floor(0.63 · 20)
        assert ((found[found > 0] >= 0.3) & (found[found > 0] <= 0.5)).all()
    assert (levels(20, 0, levels="fixed") > 0).tolist() != (levels(20, 1, levels="fixed") > 0).tolist()


def test_beta_levels() -> None:
    """Beta(0.1, 0.1): most clients are nearly clean or nearly all wrong, and they are sorted."""
    found = levels(4000, levels="beta")
    assert (np.diff(found) >= 0).all()
    assert found.mean() == pytest.approx(0.5, abs=0.03)
    assert ((found < 0.1) | (found > 0.9)).mean() == pytest.approx(0.813, abs=0.02)
