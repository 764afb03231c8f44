"""Schedules against values computed from the paper's formulas."""

import re
from pathlib import Path

import pytest

from fednoil import runner
from fednoil.config import load_config
from fednoil.errors import UserError
from fednoil.schedules import Constant, Following, Schedule, make
from fednoil.schedules.base import ScheduleConfig


def falling_cosine(**keys: int) -> Schedule:
    return make({"name": "cosine", **keys})


def falling_logarithm(**keys: int) -> Schedule:
    return make({"name": "logarithm", **keys})


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
    assert falling_cosine(epochs=100, t_min=20, r_min=80).epochs(round_idx) == cosine
    assert falling_logarithm(epochs=100, t_min=20, r_min=80).epochs(round_idx) == log


@pytest.mark.parametrize(
    ("r_min", "round_idx", "cosine", "log"),
    [
        *[(10, 2, 99, 76), (10, 5, 81, 44), (10, 10, 20, 20)],
        *[(20, 2, 100, 81), (20, 5, 96, 57), (20, 10, 79, 39)],
        *[(40, 2, 100, 85), (40, 5, 99, 65), (40, 10, 95, 50), (40, 20, 78, 35), (40, 157, 20, 20)],
    ],
)
def test_other_r_min(r_min: int, round_idx: int, cosine: int, log: int) -> None:
    assert falling_cosine(r_min=r_min).epochs(round_idx) == cosine
    assert falling_logarithm(r_min=r_min).epochs(round_idx) == log


@pytest.mark.parametrize(
    ("r_min", "rounds", "cosine", "log"),
    [
        *[(10, 200, 4496, 4276), (20, 200, 5008, 4470), (40, 200, 6025, 4808), (80, 200, 8061, 5406)],
        *[(10, 150, 3496, 3276), (20, 150, 4008, 3470), (40, 150, 5025, 3808), (80, 150, 7061, 4406)],
    ],
)
def test_totals_and_matching_constant(r_min: int, rounds: int, cosine: int, log: int) -> None:
    for schedule, total in ((falling_cosine(r_min=r_min), cosine), (falling_logarithm(r_min=r_min), log)):
        assert schedule.total(rounds) == total
        constant = Constant.matching(schedule, rounds)
        assert constant.total(rounds) == total
        assert {constant.epochs(r) for r in range(1, rounds + 1)} <= {total // rounds, total // rounds + 1}


def test_one_fewer_from_a_round_on() -> None:
    """The demo's FedAvg: 298 local epochs, as FedNoiL has."""
    schedule = make({"name": "constant", "epochs": 15, "r_min": 19})
    assert [schedule.epochs(r) for r in (1, 18, 19, 20)] == [15, 15, 14, 14]
    assert schedule.total(20) == falling_cosine(epochs=30, t_min=8, r_min=10).total(20) == 298
    assert make({"name": "constant", "epochs": 1, "r_min": 2}).epochs(5) == 1


@pytest.mark.parametrize(
    "schedule",
    [
        falling_cosine(epochs=30, t_min=8, r_min=12),
        falling_logarithm(epochs=30, t_min=8, r_min=12),
        make({"name": "constant", "epochs": 7}),
    ],
)
def test_never_rises(schedule: Schedule) -> None:
    epochs = [schedule.epochs(r) for r in range(1, 100)]
    assert epochs == sorted(epochs, reverse=True)


@pytest.mark.parametrize(
    "keys",
    [{"name": "cosine", "r_min": 1}, {"name": "logarithm", "t_min": 5, "epochs": 4}, {"name": "constant", "epochs": 0}],
)
def test_bad_values(keys: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"r_min|t_min|epochs"):
        make(keys)


def test_rounds_count_from_one() -> None:
    with pytest.raises(ValueError, match="from 1"):
        falling_cosine().epochs(0)


class TwiceConfig(ScheduleConfig):
    start: int = 1


class Doubling(Schedule):
    """Twice as many epochs in each round as in the one before."""

    Config = TwiceConfig

    def epochs(self, round_idx: int) -> int:
        return self.config.start * 2 ** (round_idx - 1)


def test_a_schedule_of_the_users_own() -> None:
    config = load_config({"schedule": {"name": f"{__name__}:Doubling", "start": 3}})
    assert [make(config.schedule).epochs(r) for r in (1, 2, 3)] == [3, 6, 12]
    assert make(config.schedule).total(3) == 21


class AnyConfig(ScheduleConfig):
    value: float | int | str = 1


class Anything(Schedule):
    """Returns whatever it is given, as own code may."""

    Config = AnyConfig

    def epochs(self, round_idx: int) -> int:
        return self.config.value


@pytest.mark.parametrize("value", [0, -2, 1.5, "many"])
def test_a_schedule_must_return_whole_epochs(value: object, tmp_path: Path) -> None:
    name = f"{__name__}:Anything"
    message = f"schedule.name = '{name}' gives round 1 {value!r} local epochs; it must return a whole number"
    keys = {"schedule": {"name": name, "value": value}, "model": {"width": 2}, "run": {"device": "cpu"}}
    with pytest.raises(UserError, match=re.escape(message)):
        runner.run(load_config(keys), tmp_path / "run", runner.Silent())


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"name": "cosin"}, r"schedule.name = 'cosin' is unknown.*did you mean 'cosine'"),
        ({"name": f"{__name__}:TwiceConfig"}, "is not a class derived from fednoil.schedules.base.Schedule"),
        ({"t_min": 3}, "unknown key 'schedule.t_min'.*a key of cosine, logarithm"),
        ({"name": "cosine", "t_max": 9}, "'schedule.t_max' is now called schedule.epochs"),
        ({"name": "cosine", "t_min": 9, "epochs": 8}, "schedule.epochs = 8; schedule.name = 'constant' has no t_min"),
    ],
)
def test_bad_keys_get_one_line(keys: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_config({"schedule": keys})


@pytest.mark.parametrize(("common", "epochs"), [(0.0, 2), (0.024, 2), (0.025, 3), (0.25, 25), (0.5, 50), (1.0, 100)])
def test_agreement_makes_long_rounds_of_clients_that_learn_the_same(common: float, epochs: int) -> None:
    schedule = make({"name": "agreement", "t_min": 2, "epochs": 100})
    assert schedule.epochs(7) == 10  # nothing is known
    assert isinstance(schedule, Following)
    assert schedule.next_epochs(7, common) == epochs


def test_the_first_round_of_agreement_keeps_to_its_bounds() -> None:
    assert make({"name": "agreement", "t_min": 20, "epochs": 60}).epochs(1) == 20
    assert make({"name": "agreement", "t_min": 1, "epochs": 4}).epochs(1) == 4


def test_agreement_has_its_bounds_in_order() -> None:
    with pytest.raises(UserError, match=r"schedule\.t_min = 5 must not exceed schedule\.epochs = 4"):
        load_config({"schedule": {"name": "agreement", "t_min": 5, "epochs": 4}})
