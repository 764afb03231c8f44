"""Plans: shapes, ranges, statistics, independence of columns and keys, bad input."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fednoil.augment import OP_LEVELS, OPS, strong_plan, weak_plan
from fednoil.errors import UserError
from fednoil.seeds import Seed

KEYS = Seed(5).keys(range(100))
ROWS = 20_000


def assert_uniform(values: torch.Tensor, low: int, high: int) -> None:
    """Each of low..high is drawn, and as often as the others within five standard deviations."""
    assert int(values.min()) == low
    assert int(values.max()) == high
    counts = torch.bincount(values.flatten().long() - low).double()
    p = 1 / (high - low + 1)
    spread = (values.numel() * p * (1 - p)) ** 0.5
    assert float((counts - values.numel() * p).abs().max()) < 5 * spread


@pytest.fixture(scope="module")
def strong() -> torch.Tensor:
    return strong_plan(KEYS, ROWS // 100, (28, 32)).view(ROWS, 13)


def test_weak_plan_is_uniform() -> None:
    plan = weak_plan(KEYS, ROWS // 100)
    assert plan.shape == (100, 200, 3)
    assert plan.dtype == torch.int32
    for column, (low, high) in enumerate([(0, 1), (-4, 4), (-4, 4)]):
        assert_uniform(plan[..., column], low, high)


def test_strong_plan_is_uniform(strong: torch.Tensor) -> None:
    weak = [(0, 1), (-4, 4), (-4, 4)]
    ranges = [*weak, *[(0, len(OPS) - 1), (1, OP_LEVELS), None, (0, 1)] * 2, (0, 27), (0, 31)]
    for column, limits in enumerate(ranges):
        values = strong[:, column]
        if limits is None:
            assert set(values.tolist()) == {-1, 1}
            assert_uniform((values + 1) // 2, 0, 1)
        else:
            assert_uniform(values, *limits)


def test_columns_and_neighbouring_samples_are_uncorrelated(strong: torch.Tensor) -> None:
    both = torch.cat([strong[:-1], strong[1:]], 1).double()
    off_diagonal = torch.corrcoef(both.t()) - torch.eye(26)
    assert float(off_diagonal.abs().max()) < 5 / ROWS**0.5


def test_weak_and_strong_plans_of_one_key_differ(strong: torch.Tensor) -> None:
    weak = weak_plan(KEYS, 200).view(-1, 3)
    same = (weak[:, 1:] == strong[:, 1:3]).double().mean()
    assert float(same) == pytest.approx(1 / 9, abs=0.01)
    first = strong_plan(KEYS, 1, (28, 32))[:, 0, :3]  # a plan's first numbers are the first of its stream
    assert float((weak_plan(KEYS, 1)[:, 0] == first).double().mean()) < 0.5


@pytest.mark.parametrize(("prob", "share"), [(0.0, 0.0), (0.25, 0.25), (1.0, 1.0)])
def test_probability_of_an_operation(prob: float, share: float) -> None:
    applied = strong_plan(KEYS, 100, (8, 8), prob=prob)[..., [6, 10]].double().mean()
    assert float(applied) == pytest.approx(share, abs=0.02 if 0 < prob < 1 else 0)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 9), count=st.integers(0, 9), pad=st.integers(0, 6), ops=st.integers(0, 3))
def test_ranges_shapes_and_prefixes(seed: int, count: int, pad: int, ops: int) -> None:
    keys = Seed(seed).keys(range(6)).view(2, 3)
    plan = strong_plan(keys, count, (5, 7), pad=pad, ops=ops)
    assert plan.shape == (2, 3, count, 5 + 4 * ops)
    assert bool((plan[..., 1:3].abs() <= pad).all())
    assert bool(((plan[..., -2:] >= 0) & (plan[..., -2:] < torch.tensor([5, 7]))).all())
    longer = strong_plan(keys, count + 2, (5, 7), pad=pad, ops=ops)
    assert torch.equal(longer[:, :, :count], plan)
    assert torch.equal(weak_plan(keys, count + 2, pad)[:, :, :count], weak_plan(keys, count, pad))
    assert torch.equal(strong_plan(keys[1, 2], count, (5, 7), pad=pad, ops=ops), plan[1, 2])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"keys": torch.zeros(2)}, "keys must be int64.* not torch.float32"),
        ({"count": -1}, "count = -1"),
        ({"pad": -2}, "pad = -2"),
        ({"size": (0, 3)}, r"size = \(0, 3\)"),
        ({"ops": -1}, "ops = -1"),
        ({"prob": 1.5}, "prob = 1.5"),
        ({"prob": float("nan")}, "prob = nan"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], words: str) -> None:
    good: dict[str, Any] = {"keys": KEYS, "count": 2, "size": (4, 4)}
    with pytest.raises(UserError, match=words):
        strong_plan(**{**good, **change})


def test_bad_weak_plan_is_named() -> None:
    with pytest.raises(UserError, match="pad = -1"):
        weak_plan(KEYS, 2, pad=-1)
