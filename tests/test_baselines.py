"""Baseline learners against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fednoil import rounds
from fednoil.augment import plain
from fednoil.config import load_config
from fednoil.experiment import make_executor, make_experiment
from fednoil.learners import dividemix_plan
from fednoil.learners.base import Client, Task, Turn
from fednoil.learners.dividemix import DivideMix, DivideMixConfig
from fednoil.learners.erm import Erm, ErmConfig
from fednoil.learners.josrc import Josrc, JosrcConfig, clean_probability, double_entropy, joint_loss, smooth
from fednoil.learners.mixmatch import mixed, mixmatch_loss, negative_entropy, refine, sharpen
from fednoil.learners.mixture import low_component, normalise
from fednoil.learners.small_loss import Coteaching, Jocor, forget_rate, kept, smallest
from fednoil.learners.small_loss import joint_loss as jocor_loss
from fednoil.seeds import Seed

P, Q = torch.tensor([[0.7, 0.2, 0.1]]), torch.tensor([[0.5, 0.4, 0.1]])


def josrc(classes: int = 10, rounds: int = 200, **keys: Any) -> Josrc:
    return Josrc(JosrcConfig(**keys), Task(classes, (1, 8, 8), 8, 0.05, rounds))


# --- Jo-SRC ------------------------------------------------------------------------------------------------------


def test_josrc_clean_probability() -> None:
    labels = smooth(torch.tensor([0]), 3, 0.6)
    assert labels[0].tolist() == pytest.approx([0.4, 0.3, 0.3])
    assert clean_probability(P, labels).item() == pytest.approx(0.925106, abs=1e-6)
    assert clean_probability(P, smooth(torch.tensor([2]), 3, 0.6)).item() == pytest.approx(0.863865, abs=1e-6)


@pytest.mark.parametrize(
    ("classes", "epsilon", "memorised", "one_hot", "uniform"),
    [
        (10, 0.6, 0.8094, 0.6042, 0.9087),
        (10, 0.5, 0.7050, 0.6887, 0.8532),
        (100, 0.6, 0.6394, None, 0.7941),
        (100, 0.5, None, None, 0.7213),
    ],
)
def test_why_the_smoothing_depends_on_the_classes(
    classes: int, epsilon: float, memorised: float | None, one_hot: float | None, uniform: float
) -> None:
    label, wrong = (smooth(torch.tensor([y]), classes, epsilon) for y in (0, 1))
    if memorised is not None:
        assert clean_probability(wrong, label).item() == pytest.approx(memorised, abs=1e-4)
    assert clean_probability(torch.full((1, classes), 1 / classes), label).item() == pytest.approx(uniform, abs=1e-4)
    if one_hot is not None:
        exact = F.one_hot(torch.tensor([0]), classes).float()
        assert clean_probability(exact, label).item() == pytest.approx(one_hot, abs=1e-4)
    assert josrc(classes).smoothing == (0.5 if classes == 10 else 0.6)


def test_josrc_losses() -> None:
    labels = smooth(torch.tensor([0]), 3, 0.6)
    assert double_entropy(P.log(), Q.log(), labels).item() == pytest.approx(2.559198, abs=1e-6)
    together = torch.tensor([True])
    assert joint_loss(P.log(), Q.log(), labels, together, 1.0).item() == pytest.approx(0.297085, abs=1e-6)
    assert joint_loss(P.log(), Q.log(), labels, ~together, 1.0).item() == pytest.approx(-0.297085, abs=1e-6)
    assert joint_loss(P.log(), Q.log(), labels, together, 0.5).item() == pytest.approx(1.428142, abs=1e-6)
    assert torch.softmax(P / 10, 1)[0].tolist() == pytest.approx([0.345663, 0.328804, 0.325533], abs=1e-6)


def test_josrc_s_loss_of_disagreeing_views_has_no_lower_bound() -> None:
    """Ten classes, views at m on class 0 and on class 1, target flat: CE 2 · 0.9 m and KL 2 m / ln 2, for large m.

    Half of each: (0.9 − 1.442695) m = −0.542695 m. With the weight of the consistency at 0 the loss rises by 1.8 m.
    """
    flat, outside = torch.full((1, 10), 0.1), torch.tensor([False])

    def loss(margin: float, alpha: float) -> float:
        views = torch.zeros(2, 1, 10)
        views[0, 0, 0] = views[1, 0, 1] = margin
        log1, log2 = torch.log_softmax(views, 2)
        return joint_loss(log1, log2, flat, outside, alpha).item()

    assert loss(1e4, 0.5) - loss(1e3, 0.5) == pytest.approx(-0.542695 * 9e3, rel=1e-5)
    assert loss(1e4, 0.0) - loss(1e3, 0.0) == pytest.approx(1.8 * 9e3, rel=1e-5)


def test_josrc_rests_where_everything_is_one_class() -> None:
    """A model that says the smoothed label of class 0 of every image: those labelled 0 are clean, others have 0.705.

    Their views agree, and the teacher's target is what is said already. The loss is the smoothed label's entropy,
    0.5 ln 2 + 0.5 ln 18 = 1.791759, in training; on balanced test data −0.1 ln 0.5 − 0.9 ln(0.5/9) = 2.670648.
    """
    said = smooth(torch.zeros(10, dtype=torch.long), 10, 0.5)
    clean = clean_probability(said, smooth(torch.arange(10), 10, 0.5))
    assert (clean >= 0.71).tolist() == [True] + 9 * [False]
    logits = said.log().requires_grad_()
    log = torch.log_softmax(logits, 1)
    loss = joint_loss(log, log, said, torch.ones(10, dtype=torch.bool), 0.5)
    assert loss.item() == pytest.approx(1.791759, abs=1e-5)
    assert torch.autograd.grad(loss, logits)[0].abs().max() < 1e-6
    assert F.cross_entropy(said.log(), torch.arange(10)).item() == pytest.approx(2.670648, abs=1e-5)


@pytest.mark.parametrize(
    ("e", "expected"), [(0, 0), (1, 0.075), (5, 0.375), (9, 0.675), (10, 0.75), (100, 0.844737), (199, 0.948947)]
)
def test_josrc_threshold(e: int, expected: float) -> None:
    assert josrc().threshold(e + 1) == pytest.approx(expected, abs=1e-6)


def test_when_a_wrong_label_learnt_by_heart_no_longer_passes_as_clean() -> None:
    """Its chance is .8094 at ε = .6, which the threshold passes after epoch 66 of 200, and .7050 at ε = .5: epoch 9."""
    for epsilon, last in ((0.6, 66), (0.5, 9)):
        label, wrong = (smooth(torch.tensor([y]), 10, epsilon) for y in (0, 1))
        chance = clean_probability(wrong, label).item()
        assert max(e for e in range(200) if chance >= josrc().threshold(e + 1)) == last


# --- Co-teaching and JoCoR ---------------------------------------------------------------------------------------


class Says:
    """A network that gives the same logits for any input."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return self.logits

    def train(self) -> None:
        self.mode = "train"


def with_losses(*losses: float) -> Says:
    """Answers whose cross-entropy for class 0 of two is each of `losses`: log(1 + e^x) with x = log(e^loss − 1)."""
    margin = (torch.tensor(losses).exp() - 1).log()
    return Says(torch.stack([torch.zeros_like(margin), margin], 1))


def two_networks(method: type, **keys: Any) -> float:
    """The loss of one step on four samples of which two count."""
    learner = method(method.Config(**keys), Task(2, (1, 8, 8), 4, 0.05, 20))
    nets: Any = {"a": with_losses(0.1, 0.9, 0.2, 1.5), "b": with_losses(0.3, 0.2, 1.0, 1.4)}
    batch = {"images": torch.zeros(4, 1, 8, 8), "labels": torch.zeros(4, dtype=torch.int64)}
    return learner.step(nets, batch["images"], batch, {"count": torch.tensor(2)}, "train").item()


def test_networks_pick_for_each_other_in_coteaching() -> None:
    """a has least loss on 0 and 2, b on 0 and 1: a learns (.1 + .9)/2 from b's choice and b (.3 + 1)/2 from a's."""
    assert two_networks(Coteaching) == pytest.approx(0.5 + 0.65, abs=1e-5)


def test_networks_pick_together_in_jocor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a weight on agreement the joint losses are .4, 1.1, 1.2 and 2.9: samples 0 and 1 count."""
    assert two_networks(Jocor) > 0.9 * 0.75
    monkeypatch.setattr(Jocor, "agreement", 0.0)
    assert two_networks(Jocor) == pytest.approx((0.4 + 1.1) / 2, abs=1e-5)


def test_forget_rate_ramps_over_ten_rounds() -> None:
    rates = [forget_rate(r, 0.4, 10) for r in range(1, 13)]
    assert rates[:3] == pytest.approx([0, 0.0444, 0.0889], abs=1e-4)
    assert rates[9:] == pytest.approx([0.4] * 3)


@pytest.mark.parametrize("method", [Coteaching, Jocor])
def test_in_the_end_frac_of_a_batch_is_trained_on(method: type) -> None:
    learner = method(method.Config(frac=0.75, ramp=3), Task(2, (1, 8, 8), 32, 0.05, 20))
    client = Client(0, torch.zeros(1, 1, 8, 8, dtype=torch.uint8), torch.zeros(1).long(), torch.zeros(1).long())
    counts = [int(learner.init({}, client, {}, Turn(r, 1, Seed(0)))["count"]) for r in (1, 2, 3, 9)]
    assert counts == [32, 28, 24, 24]


def test_a_whole_number_of_samples_is_kept_whole() -> None:
    """(1 − .8) · 10 is 1.9999999999999996 in floating point."""
    assert [kept(rate, 10) for rate in (0, 0.3, 0.45, 0.8, 0.9, 0.99)] == [10, 7, 5, 2, 1, 1]
    assert kept(0.5, 32) == 16


def test_of_equal_losses_the_first_are_smallest() -> None:
    assert smallest(torch.tensor([0.5, 0.2, 0.5, 0.5, 0.9]), torch.tensor(3)).tolist() == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_jocor_loss_by_hand() -> None:
    labels = torch.tensor([0])
    fit = -torch.log(torch.tensor(0.7)) - torch.log(torch.tensor(0.5))
    symmetric_kl = 0.297085 * torch.log(torch.tensor(2.0))
    got = jocor_loss(P.log(), Q.log(), labels, 0.1)
    assert got.item() == pytest.approx(float(0.9 * fit + 0.1 * symmetric_kl), abs=1e-5)


def test_a_step_that_trains_two_networks_counts_twice(values: dict[str, Any]) -> None:
    values["learner"] = {"name": "coteaching"}
    experiment = make_experiment(load_config(values))
    _, record = rounds.play(experiment, make_executor(experiment, torch.device("cpu")), rounds.start(experiment))
    assert record.train_batches == 2 * 2 * 2 * 3  # clients × epochs × networks × ceil(20 / 8)


# --- DivideMix -----------------------------------------------------------------------------------------------------


def component(values: torch.Tensor, chances: torch.Tensor) -> tuple[float, ...]:
    """Share, mean and variance, with the floor of 5e-4, of the Gaussian that values [1, n] belong to by chances."""
    x, w = values[0].double(), chances[0].double()
    mean = (w * x).sum() / w.sum()
    variance = (w * (x - mean).square()).sum() / w.sum() + 5e-4
    return tuple(float(v) for v in (w.mean(), mean, variance))


def test_gmm_oracles() -> None:
    losses = torch.tensor([[0.1, 0.2, 0.3, 2.0, 2.1, 2.2]])
    scaled = normalise(losses)
    assert scaled[0].tolist() == pytest.approx([0, 0.047619, 0.095238, 0.904762, 0.952381, 1], abs=1e-6)
    assert low_component(scaled)[0].tolist() == pytest.approx([1, 1, 1, 0, 0, 0], abs=1e-6)
    harder = normalise(torch.tensor([[0.1, 0.15, 0.2, 0.3, 0.5, 0.9, 1.4, 1.6, 1.8, 2.1]]))
    expected = [1, 1, 1, 1, 0.99995, 0.9425, 0.0021, 6e-5, 2e-6, 0]
    assert low_component(harder)[0].tolist() == pytest.approx(expected, abs=0.02)
    assert component(scaled, low_component(scaled)) == pytest.approx((0.5, 0.047619, 0.002012), abs=1e-6)
    assert component(scaled, 1 - low_component(scaled)) == pytest.approx((0.5, 0.952381, 0.002012), abs=1e-6)
    assert component(harder, low_component(harder)) == pytest.approx((0.5954, 0.1272, 0.0190), abs=0.005)
    assert component(harder, 1 - low_component(harder)) == pytest.approx((0.4046, 0.8077, 0.0190), abs=0.005)


def test_gmm_agrees_with_scikit_learn() -> None:
    mixture = pytest.importorskip("sklearn.mixture", reason="scikit-learn is not installed")
    rng = np.random.default_rng(0)
    rows = []
    for low, high, share in ((0.1, 0.8, 0.5), (0.2, 0.6, 0.3), (0.05, 0.9, 0.8)):
        clean = rng.random(400) < share
        values = np.where(clean, rng.normal(low, 0.06, 400), rng.normal(high, 0.15, 400)).clip(0)
        rows.append((values - values.min()) / (values.max() - values.min()))
    ours = low_component(torch.tensor(np.array(rows)))
    for row, chances in zip(rows, ours, strict=True):
        model = mixture.GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=0).fit(row[:, None])
        theirs = model.predict_proba(row[:, None])[:, model.means_.argmin()]
        assert np.abs(chances.numpy() - theirs).max() < 0.05
        assert ((chances.numpy() > 0.5) == (theirs > 0.5)).mean() > 0.99


def test_gmm_rows_do_not_influence_each_other() -> None:
    rows = torch.rand(3, 50)
    together = low_component(rows)
    for i in range(3):
        assert torch.allclose(low_component(rows[i : i + 1])[0], together[i], atol=1e-6)


def test_dividemix_targets() -> None:
    half = torch.tensor([[0.5, 0.3, 0.2]])
    assert sharpen(half, 0.5)[0].tolist() == pytest.approx([0.657895, 0.236842, 0.105263], abs=1e-6)
    refined = refine(half, torch.tensor([0]), torch.tensor([0.8]), 0.5)
    assert refined[0].tolist() == pytest.approx([0.993621, 0.004416, 0.001963], abs=1e-6)
    four = torch.tensor([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.2, 0.7, 0.1], [0.3, 0.5, 0.2]])
    guess = sharpen(four.mean(0, keepdim=True), 0.5)
    assert guess[0].tolist() == pytest.approx([0.398754, 0.562305, 0.038941], abs=1e-6)


def test_dividemix_mixes_the_larger_share_of_each_with_its_partner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draw of .3 becomes .7: inputs 1 and 3 are mixed to 1.6 and 2.4, and so are targets."""
    share = torch.tensor(0.7)
    assert mixed(torch.tensor([1.0, 3.0]), share, torch.tensor([1, 0])).tolist() == pytest.approx([1.6, 2.4])
    targets = mixed(torch.eye(2), share, torch.tensor([1, 0]))
    assert targets.flatten().tolist() == pytest.approx([0.7, 0.3, 0.3, 0.7])
    client = Client(0, torch.zeros(20, 1, 8, 8), torch.arange(20), torch.zeros(20, dtype=torch.int64))
    parts = dividemix_plan.parts_of([client], [Turn(1, 1, Seed(0))], 0)

    class Three:
        def beta(self, a: float, b: float, steps: int) -> np.ndarray:
            assert (a, b) == (4, 4)
            return np.full(steps, 0.3)

    monkeypatch.setattr(Seed, "numpy", lambda self: Three())
    for draws in dividemix_plan.draw(parts, 8, 4, 4.0, torch.device("cpu")):
        assert draws.share.tolist() == pytest.approx([0.7] * 3)
        assert draws.partner.sort(1).values.tolist() == [list(range(4 * 8))] * 3


def test_dividemix_losses() -> None:
    half = torch.tensor([[0.5, 0.3, 0.2]])
    assert negative_entropy(half.log()).item() == pytest.approx(-1.029653, abs=1e-6)
    # labelled row whose target is the class of certainty 0.5, no unlabelled rows: CE + L_reg
    only_labelled = mixmatch_loss(half.log(), torch.tensor([[1.0, 0, 0]]), 1, 25.0)
    assert only_labelled.item() == pytest.approx(0.693147 + 0.070240, abs=1e-5)
    both = torch.tensor([[0.5, 0.3, 0.2], [0.7, 0.2, 0.1]])
    targets = torch.tensor([[1.0, 0, 0], [0.6, 0.3, 0.1]])
    mean = both.mean(0)
    prior = float((1 / 3 * (1 / 3 / mean).log()).sum())
    assert mixmatch_loss(both.log(), targets, 1, 2.0).item() == pytest.approx(
        0.693147 + 2 * 0.00666667 + prior, abs=1e-5
    )


@pytest.mark.parametrize(("penalty", "expected"), [(False, 0.693147), (True, 0.693147 - 1.029653)])
def test_the_warm_up_can_penalise_sure_predictions(
    penalty: bool, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Predictions (.5, .3, .2) of class 0: cross-entropy .693147, and Σ p log p = −1.029653, least for flat ones."""
    monkeypatch.setattr(DivideMix, "entropy_penalty", penalty)
    method = DivideMix(DivideMixConfig(), Task(3, (1, 8, 8), 8, 0.05, 200))
    nets: Any = {"a": Says(torch.tensor([[0.5, 0.3, 0.2]]).log()), "b": Says(torch.zeros(1, 3))}
    batch = {"first/images": torch.zeros(1, 1, 8, 8), "labels": torch.tensor([0])}
    assert method.step(nets, batch["first/images"], batch, {}, "plain-a").item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("pad", "flip", "views"), [(0, False, False), (0, True, True), (2, False, True)])
def test_images_as_they_are_need_no_plan_of_views(pad: int, flip: bool, views: bool) -> None:
    method = Erm(ErmConfig(), Task(3, (1, 8, 8), 4, 0.05, 20, pad=pad, flip=flip))
    pool = torch.randint(0, 256, (6, 1, 8, 8), dtype=torch.uint8)
    client = Client(0, pool, torch.arange(6), torch.arange(6) % 3)
    (phase,) = method.plan({}, client, {}, Turn(1, 8, Seed(0)), range(8))
    assert ("weak" in phase.tensors) == views
    same = torch.equal(method.views(pool, phase.tensors)["images"], plain(pool, phase.tensors["index"]))
    assert same == (not views)


class Penalised(DivideMix):
    entropy_penalty = True


def test_another_constant_is_a_class_of_ones_own(values: dict[str, Any]) -> None:
    """With the keys that DivideMix has."""
    values["learner"] = {"name": "test_baselines:Penalised", "warmup": 2}
    learner = make_experiment(load_config(values)).learner
    assert isinstance(learner, DivideMix)
    assert (learner.entropy_penalty, learner.config.warmup) == (True, 2)


@pytest.mark.parametrize(("e", "expected"), [(0, 0), (10, 0), (12, 3.125), (18, 12.5), (26, 25), (99, 25)])
def test_dividemix_ramp(e: int, expected: float) -> None:
    method = DivideMix(DivideMixConfig(), Task(10, (1, 8, 8), 8, 0.05, 200))
    assert method.weight_unlabelled(e + 1) == pytest.approx(expected)


@pytest.mark.parametrize("noise", [{"kind": "symmetric"}, {"kind": "none"}])
def test_dividemix_divides_and_trains(values: dict[str, Any], noise: dict[str, Any]) -> None:
    values |= {"learner": {"name": "dividemix", "warmup": 1, "ramp": 1}, "noise": noise}
    values["train"]["rounds"] = 3
    experiment = make_experiment(load_config(values))
    executor, state = make_executor(experiment, torch.device("cpu")), rounds.start(experiment)
    first = state.server.tensors
    assert not torch.equal(first["a/conv1.weight"], first["b/conv1.weight"])
    records = []
    for _ in range(3):
        state, record = rounds.play(experiment, executor, state)
        records.append(record)
    assert records[0].train_batches == 2 * 2 * 2 * 2  # clients × epochs × networks × ceil(20 / 16)
    assert records[0].label_precision is None
    assert 0 < records[-1].labelled_share <= 100
    assert not torch.equal(state.server.tensors["a/conv1.weight"], state.server.tensors["b/conv1.weight"])


@pytest.mark.parametrize(("labelled", "form"), [(1, "plain"), (2, "mix"), (19, "mix"), (20, "labelled")])
def test_dividemix_guards_small_sets(values: dict[str, Any], labelled: int, form: str) -> None:
    values["learner"] = {"name": "dividemix", "warmup": 0}
    experiment = make_experiment(load_config(values))
    executor = make_executor(experiment, torch.device("cpu"))
    client, method, bench = executor.clients[0], experiment.learner, executor.bench
    assert isinstance(method, DivideMix)
    chances = (torch.arange(20) < labelled).float()
    method.clean_chances = lambda losses, samples: torch.stack([1 - chances, chances])  # a trains on b's split
    turn = Turn(5, 1, Seed(0))
    bench.load(experiment.initial_model(), {})
    state = bench.open(client, {}, turn)
    phase = method.plan({}, client, state, turn, range(1))[0]
    assert phase.kind == f"{form}-a"
    assert state["drawn"].tolist() == chances.tolist()
    for net in bench.nets.values():
        net.train()
    for s in range(phase.steps):
        batch = {n: t[s] for n, t in phase.tensors.items()}
        batch |= method.views(client.pool, batch)
        loss = method.step(bench.nets, client.pool, batch, state, phase.kind)
        loss.backward()
        assert torch.isfinite(loss.detach())
    assert float(bench.nets["a"].grads.abs().sum()) > 0
    assert float(bench.nets["b"].grads.abs().sum()) == 0
