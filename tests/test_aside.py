"""Gradients of weights on a second stream: who waits for whom, with streams that only take notes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

from fednoil.executors.stack import Rows
from fednoil.kernels import aside
from fednoil.kernels.aside import beside, used
from fednoil.models.network import Network
from fednoil.models.stack import _ALONE, _LARGE, Stack, _pieces


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
    weights = torch.zeros(2, 3)
    with beside(second, {weights.data_ptr()}):  # pyright: ignore[reportArgumentType]
        use = used(weights)
        assert use is not None
        assert use.computed(doing(notes, 1), None) == 1
    assert notes == ["second waits for main", "on second", "gradient 1", "back", "main waits for second"]


def test_only_some_may_be_unfinished(second: Stream, notes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What they read is kept until then, and not for longer."""
    monkeypatch.setattr(aside, "_BEHIND", 2)
    weights = torch.zeros(4, 2, 3)
    with beside(second, {one.data_ptr() for one in weights}):  # pyright: ignore[reportArgumentType]
        for number in range(4):
            use = used(weights[number])
            assert use is not None
            use.computed(doing(notes, number), number)
            assert [reads for _, reads in use.step.unfinished] == list(range(number + 1))[-2:]
        step = use.step
    assert [note for note in notes if "event" in note] == ["main waits for event 1", "main waits for event 2"]
    assert not step.unfinished


def test_a_weight_used_twice_is_computed_where_it_is(second: Stream, notes: list[str]) -> None:
    """A stream that did nothing is not waited for either: a graph that is captured would not know it."""
    weights = torch.zeros(2, 3)
    with beside(second, {weights.data_ptr()}):  # pyright: ignore[reportArgumentType]
        for use in [used(weights), used(weights)]:
            assert use is not None
            use.computed(doing(notes, 1), None)
    assert notes == ["gradient 1"] * 2


def test_of_other_weights_nothing_is_noted(second: Stream) -> None:
    """Of none without a second stream, and after the step."""
    weights, other = torch.zeros(2, 3), torch.zeros(2, 3)
    with beside(None, {weights.data_ptr()}):
        assert used(weights) is None
    with beside(second, {weights.data_ptr()}):  # pyright: ignore[reportArgumentType]
        assert used(weights) is not None
        assert used(other) is None
    assert used(weights) is None


def test_an_error_ends_the_step(second: Stream, notes: list[str]) -> None:
    weights = torch.zeros(2, 3)

    def fails() -> None:
        with beside(second, {weights.data_ptr()}):  # pyright: ignore[reportArgumentType]
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert notes == []
    assert used(weights) is None


def test_all_but_small_parameters_of_a_large_network_stand_alone() -> None:
    """Up to the end of what is computed in half precision, if there is such a part."""
    large = [5, 7, _LARGE, 3, _ALONE, _ALONE - 1, 2]
    assert _pieces(large, sum(large)) == [[5, 7], [_LARGE], [3], [_ALONE], [_ALONE - 1, 2]]
    assert _pieces(large, 12 + _LARGE) == [[5, 7], [_LARGE]]
    assert _pieces([5, _ALONE, 9], _ALONE + 14) == [[5, _ALONE, 9]]
    assert _pieces([5], 0) == []


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 1 << 18, bias=False), torch.nn.Linear(1, 2, bias=False)
        self.third, self.norm = torch.nn.Linear(1, 3, bias=False), torch.nn.LayerNorm(2)


def test_only_parameters_that_stand_alone_have_gradients_that_nothing_else_reads() -> None:
    def network() -> Network:
        net = Network(Layers(), (), (), torch.device("cpu"), torch.bfloat16)
        net.memory = {"momentum": torch.zeros_like(net.params)}
        return net

    stack = Stack([network() for _ in range(3)])
    stacked = SimpleNamespace(stacks={"m": stack})
    rows = SimpleNamespace(params={"m": stack.params[1:]}, half={"m": stack.half[1:]}, stacked=stacked)
    leaves = {"m": Rows._leaves(rows, "m")}  # pyright: ignore[reportArgumentType]
    assert [part.shape[1] for part in leaves["m"]] == [1 << 20, 5, 4]
    assert Rows._alone(rows, leaves) == {stack.half[1].data_ptr()}  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("module", [torch.nn.Linear(3, 2, bias=False), torch.nn.LayerNorm(3)])
def test_parts_may_be_empty(module: torch.nn.Module) -> None:
    """All parameters are computed in half precision, or none."""
    net = Network(module, (), (), torch.device("cpu"), torch.bfloat16)
    named = net.named(*net.parts(net.params))
    assert {name: tensor.shape for name, tensor in named.items()} == net.trained
