"""Gradients of weights on a second stream: who waits for whom, with streams that only take notes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch

from fednoil.kernels import aside
from fednoil.kernels.aside import ALONE, beside, used
from fednoil.models.stack import _LARGE, _pieces


class Stream:
    """Notes what it waits for; events have the number of what was done before them."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes, self.events = name, notes, 0

    def wait_stream(self, other: Stream) -> None:
        self.notes.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: int) -> None:
        self.notes.append(f"{self.name} waits for event {event}")

    def record_event(self) -> int:
        self.events += 1
        return self.events


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def second(notes: list[str], monkeypatch: pytest.MonkeyPatch) -> Stream:
    main, stream = Stream("main", notes), Stream("second", notes)

    @contextlib.contextmanager
    def on(one: Stream) -> Iterator[None]:
        notes.append(f"on {one.name}")
        yield
        notes.append("back")

    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    monkeypatch.setattr(torch.cuda, "stream", on)
    return stream


def doing(notes: list[str], number: int) -> Callable[[], int]:
    def work() -> int:
        notes.append(f"gradient {number}")
        return number

    return work


def test_each_begins_after_what_is_done_and_all_are_awaited_at_the_end(second: Stream, notes: list[str]) -> None:
    weights = torch.zeros(2, ALONE)
    with beside(second):  # pyright: ignore[reportArgumentType]
        use = used(weights)
        assert use is not None
        assert use.computed(doing(notes, 1), None) == 1
    assert notes == ["second waits for main", "on second", "gradient 1", "back", "main waits for second"]


def test_only_some_may_be_unfinished(second: Stream, notes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What they read is kept until then, and not for longer."""
    monkeypatch.setattr(aside, "_BEHIND", 2)
    weights = torch.zeros(4, 2, ALONE)
    with beside(second):  # pyright: ignore[reportArgumentType]
        for number in range(4):
            use = used(weights[number])
            assert use is not None
            use.computed(doing(notes, number), number)
            assert [reads for _, reads in use.step.unfinished] == list(range(number + 1))[-2:]
        step = use.step
    assert [note for note in notes if "event" in note] == ["main waits for event 1", "main waits for event 2"]
    assert not step.unfinished


@pytest.mark.parametrize("case", ["used twice", "small"])
def test_others_are_computed_where_they_are(second: Stream, notes: list[str], case: str) -> None:
    """A stream that did nothing is not waited for either: a graph that is captured would not know it."""
    weights = torch.zeros(2, ALONE - (case == "small"))
    with beside(second):  # pyright: ignore[reportArgumentType]
        uses = [used(weights) for _ in range(2 if case == "used twice" else 1)]
        for use in uses:
            assert use is not None
            use.computed(doing(notes, 1), None)
    assert notes == ["gradient 1"] * len(uses)


def test_without_a_second_stream_nothing_is_noted(notes: list[str]) -> None:
    with beside(None):
        assert used(torch.zeros(2, ALONE)) is None
    assert used(torch.zeros(2, ALONE)) is None


def test_an_error_ends_the_step(second: Stream, notes: list[str]) -> None:
    def fails() -> None:
        with beside(second):  # pyright: ignore[reportArgumentType]
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert notes == []
    assert used(torch.zeros(2, ALONE)) is None


def test_all_but_small_parameters_of_a_large_network_stand_alone() -> None:
    """Up to the end of what is computed in half precision, if there is such a part."""
    large = [5, 7, _LARGE, 3, ALONE, ALONE - 1, 2]
    assert _pieces(large, sum(large)) == [12, _LARGE, 3, ALONE, ALONE + 1]
    assert _pieces(large, 12 + _LARGE) == [12, _LARGE]
    assert _pieces([5, ALONE, 9], ALONE + 14) == [ALONE + 14]
    assert _pieces([5], 0) == []
