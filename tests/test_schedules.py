"""Schedules against values computed from the paper's formulas."""

import pytest

from fednoil.schedules import Constant, ConstantConfig, Cosine, DecayConfig, Logarithm, Schedule


@pytest.mark.parametrize(
    ("round_idx", "cosine", "log"),
    [
        (1, 100, 100),
        (2, 100, 87),
        (3, 100, 80),
        (5, 100, 71),
        (10, 99, 58),
        (20, 94, 45),
        (40, 77, 33),
        (60, 51, 25),
        (79, 22, 20),
        (80, 20, 20),
        (81, 20, 20),
        (150, 20, 20),
        (200, 20, 20),
        (317, 20, 20),
    ],
)
def test_paper_schedule(round_idx: int, cosine: int, log: int) -> None:
    assert Cosine(t_max=100, t_min=20, r_min=80).epochs(round_idx) == cosine
    assert Logarithm(t_max=100, t_min=20, r_min=80).epochs(round_idx) == log


@pytest.mark.parametrize(
    ("r_min", "round_idx", "cosine", "log"),
    [
        *[(10, 2, 99, 76), (10, 5, 81, 44), (10, 10, 20, 20)],
        *[(20, 2, 100, 81), (20, 5, 96, 57), (20, 10, 79, 39)],
        *[(40, 2, 100, 85), (40, 5, 99, 65), (40, 10, 95, 50), (40, 20, 78, 35), (40, 157, 20, 20)],
    ],
)
def test_other_r_min(r_min: int, round_idx: int, cosine: int, log: int) -> None:
    assert Cosine(r_min=r_min).epochs(round_idx) == cosine
    assert Logarithm(r_min=r_min).epochs(round_idx) == log


@pytest.mark.parametrize(
    ("r_min", "rounds", "cosine", "log"),
    [
        *[(10, 200, 4496, 4276), (20, 200, 5008, 4470), (40, 200, 6025, 4808), (80, 200, 8061, 5406)],
        *[(10, 150, 3496, 3276), (20, 150, 4008, 3470), (40, 150, 5025, 3808), (80, 150, 7061, 4406)],
    ],
)
def test_totals_and_matching_constant(r_min: int, rounds: int, cosine: int, log: int) -> None:
    for schedule, total in ((Cosine(r_min=r_min), cosine), (Logarithm(r_min=r_min), log)):
        assert schedule.total(rounds) == total
        constant = Constant.matching(schedule, rounds)
        assert constant.total(rounds) == total
        assert {constant.epochs(r) for r in range(1, rounds + 1)} <= {total // rounds, total // rounds + 1}


@pytest.mark.parametrize("schedule", [Cosine(30, 8, 12), Logarithm(30, 8, 12), Constant(7)])
def test_never_rises(schedule: Schedule) -> None:
    epochs = [schedule.epochs(r) for r in range(1, 100)]
    assert epochs == sorted(epochs, reverse=True)


@pytest.mark.parametrize("make", [lambda: Cosine(r_min=1), lambda: Logarithm(t_min=5, t_max=4), lambda: Constant(0)])
def test_bad_values(make) -> None:
    with pytest.raises(ValueError, match=r"r_min|t_min|epochs"):
        make()


def test_rounds_count_from_one() -> None:
    with pytest.raises(ValueError, match="from 1"):
        Cosine().epochs(0)


def test_a_short_start_puts_the_schedule_off() -> None:
    config = DecayConfig(name="logarithm", warmup_rounds=3, warmup_epochs=2)
    assert [config.build().epochs(r) for r in (1, 3, 4, 5, 83, 84)] == [2, 2, 100, 87, 20, 20]
    assert [ConstantConfig(epochs=7, warmup_rounds=1).build().epochs(r) for r in (1, 2)] == [1, 7]
    assert ConstantConfig(epochs=7).build().total(5) == 35
