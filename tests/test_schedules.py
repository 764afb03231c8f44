"""Schedules against values computed from the paper's formulas."""

import re
from pathlib import Path
from typing import Any

import pytest

from fednoil import runner
from fednoil.config import load_config
from fednoil.errors import UserError
from fednoil.records.folder import RunFolder
from fednoil.schedules import Constant, Schedule, make
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


WRONG_EPOCHS = (0, 2.5, "0 %", "ten")
EPOCHS = "must be a whole number of at least 1, 'auto', or a share of that such as '30 %'"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"name": "cosin"}, r"schedule.name = 'cosin' is unknown.*did you mean 'cosine'"),
        ({"name": "agreement"}, "'agreement' is unknown; choose constant, cosine, logarithm, network or your own"),
        ({"name": f"{__name__}:TwiceConfig"}, "is not a class derived from fednoil.schedules.base.Schedule"),
        ({"t_min": 3}, "unknown key 'schedule.t_min'.*a key of cosine, logarithm"),
        ({"name": "network", "t_min": 3}, "unknown key 'schedule.t_min'; known in schedule: name, epochs; "),
        *(({"name": "network", "epochs": wrong}, f"^schedule.epochs = {wrong!r}: {EPOCHS}$") for wrong in WRONG_EPOCHS),
    ],
)
def test_bad_keys_get_one_line(keys: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_config({"schedule": keys})


@pytest.mark.parametrize(("sizes", "epochs"), [([500], 10), ([499], 50), ([900, 100], 10), ([900, 99], 50), ([], 10)])
def test_a_small_network_has_the_same_epochs_in_every_round(sizes: list[int], epochs: int) -> None:
    """Ten, and 50 at clients with fewer than 500 samples on average, or in fewer than 100 rounds; a number that is set
    is what there is."""
    schedule = make({"name": "network"})
    fitted = schedule.fitted(200, large=False, sizes=sizes)
    assert {fitted.epochs(r) for r in range(1, 201)} == {epochs}
    assert {schedule.epochs(r) for r in range(1, 201)} == {10}  # as it was
    assert schedule.fitted(100, large=False, sizes=sizes).epochs(1) == epochs
    assert schedule.fitted(99, large=False, sizes=sizes).epochs(1) == 50
    part = make({"name": "network", "epochs": "20 %"}).fitted(100, large=False, sizes=sizes)
    assert part.total(9) == 9 * epochs / 5
    for large in (False, True):
        assert make({"name": "network", "epochs": 2}).fitted(9, large=large, sizes=sizes).total(9) == 18
    with pytest.raises(ValueError, match="from 1"):
        schedule.epochs(0)


@pytest.mark.parametrize("sizes", [[100, 200], [1000]])
def test_a_large_network_has_the_papers_falling_epochs(sizes: list[int]) -> None:
    """100 epochs that fall to 20 within two fifths of 200 rounds."""
    fitted, paper = make({"name": "network"}).fitted(200, large=True, sizes=sizes), falling_logarithm()
    assert [fitted.epochs(r) for r in range(1, 201)] == [paper.epochs(r) for r in range(1, 201)]


@pytest.mark.parametrize(
    ("rounds", "epochs"),
    [(1, [10]), (2, [10, 2]), (3, [10, 2, 2]), (5, [10, 2, 2, 2, 2]), (8, [10, 5, 2, 2, 2, 2, 2, 2])],
)
def test_a_large_network_in_few_rounds(rounds: int, epochs: list[int]) -> None:
    """They fall by round 2 at the earliest; by round 3 of 8, with 2 + 8 (1 − log 2 / log 3) = 4.95 in round 2."""
    fitted = make({"name": "network", "epochs": "10 %"}).fitted(rounds, large=True, sizes=[600])
    assert [fitted.epochs(r) for r in range(1, rounds + 1)] == epochs


@pytest.mark.parametrize(("large", "epochs"), [(False, [5, 5]), (True, [10, 2])])
def test_a_run_has_the_epochs_of_its_network(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, large: bool, epochs: list[int]
) -> None:
    monkeypatch.setattr("fednoil.experiment.is_large", lambda _: large)
    values |= {"schedule": {"name": "network", "epochs": "10 %"}, "train": {"rounds": 2}}
    runner.run(load_config(values), tmp_path / "run", runner.Silent())
    assert [record.local_epochs for record in RunFolder(tmp_path / "run").records()] == epochs


@pytest.mark.parametrize(
    ("epochs", "share", "spread"), [("auto", 0.3, "30 %"), ("50 %", 0.3, "15 %"), ("auto", 0.001, "1 %"), (10, 0.3, 3)]
)
def test_fewer_epochs_where_more_clients_train(epochs: str | int, share: float, spread: str | int) -> None:
    config = load_config({"schedule": {"name": "network", "epochs": epochs}}).schedule
    assert config.spread(share) == {"epochs": spread}
    load_config({"schedule": {"name": "network", "epochs": spread}})


def test_epochs_that_depend_on_the_number_of_rounds_are_named() -> None:
    assert load_config({"schedule": {"name": "network"}}).by_total() == ["schedule.name = 'network'"]
    assert load_config({"schedule": {"name": "logarithm"}}).by_total() == []
