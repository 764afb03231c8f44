"""Many clients at once on one GPU, each an epoch at a time as one CUDA graph on a stream of its own.

The learner's step is captured once per shape and replayed; what changes from step to step (the plan's rows) is
copied into the graph's own tensors before a replay. Clients of different sizes have graphs of their own, so
nothing is padded and a client with fewer steps simply ends earlier. A learner whose step can't be captured runs
eagerly, with one warning that says why.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.modules.dropout import _DropoutNd

from fednoil.executors.base import Job, Progress, Result
from fednoil.executors.local import Workbench
from fednoil.executors.sequential import Sequential
from fednoil.learners.base import Client, Phase
from fednoil.tensors import Tensors

Signature = tuple[object, ...]
_GRAPHS = 8  # graphs a slot keeps; clients of many sizes would fill the memory otherwise


class NotCapturable(Exception):
    """Why a learner's step can't be captured as a graph."""


@dataclass(frozen=True)
class Captured:
    """A graph of one or more steps, and the tensors it reads and writes."""

    graph: torch.cuda.CUDAGraph
    batches: Tensors  # as the plan's, with the captured number of steps first
    state: Tensors
    total: Tensor


@dataclass
class Slot:
    """A place for one client: networks, a stream, and the graphs captured on them."""

    bench: Workbench
    stream: torch.cuda.Stream
    graphs: dict[Signature, Captured] = field(default_factory=dict)


class CudaGraphs:
    """All clients of a round train together, `parallel` at a time."""

    def __init__(
        self,
        make_bench: Callable[[], Workbench],
        clients: Mapping[int, Client],
        test_images: Tensor,
        parallel: int,
    ) -> None:
        self.eager = Sequential(make_bench(), clients, test_images)
        self.clients = clients
        self.slots = [Slot(make_bench(), torch.cuda.Stream()) for _ in range(parallel)]
        self.reason: str | None = None  # why the step is not captured
        dropout = [m for m in self.slots[0].bench.modules() if isinstance(m, _DropoutNd) and m.p > 0]
        if dropout:
            self._give_up("the model has dropout, whose random numbers a graph can't take from the run's seed")

    def _give_up(self, reason: str) -> None:
        """Run eagerly from now on, and say once why."""
        self.reason = reason
        warnings.warn(f"clients run one after another, not as CUDA graphs: {reason}", stacklevel=3)
        torch.cuda.synchronize()
        self.slots.clear()

    def scores(self, jobs: Sequence[Job], sampling: str, temperature: float) -> dict[int, float]:
        return self.eager.scores(jobs, sampling, temperature)

    def test_logits(self, model: Tensors) -> Tensor:
        return self.eager.test_logits(model)

    def train(self, jobs: Sequence[Job], progress: Progress | None = None) -> list[Result]:
        results: list[Result] = []
        while len(results) < len(jobs):
            if self.reason is not None:
                return results + self.eager.train(jobs[len(results) :], progress)
            results += self._train_together(jobs[len(results) : len(results) + len(self.slots)])
            if progress:
                progress(len(results) / len(jobs))
        return results

    def _train_together(self, jobs: Sequence[Job]) -> list[Result]:
        """One client a slot; the slots take turns in launching their next graph."""
        turns = [_Turn(slot, self.clients[job.client], job) for slot, job in zip(self.slots, jobs, strict=False)]
        running = {turn: turn.launches() for turn in turns}
        try:
            while running:
                for turn, launches in list(running.items()):
                    with torch.cuda.stream(turn.slot.stream):
                        if next(launches, None) is None:
                            del running[turn]
        except NotCapturable as error:
            self._give_up(str(error))
            return self.eager.train(jobs)
        results = []
        for turn in turns:
            with torch.cuda.stream(turn.slot.stream):
                results.append(turn.finish())
            torch.cuda.current_stream().wait_stream(turn.slot.stream)
        return results


class _Turn:
    """One client's turn in a slot."""

    def __init__(self, slot: Slot, client: Client, job: Job) -> None:
        self.slot, self.client, self.job = slot, client, job
        self.state: Tensors = {}
        self.total = torch.zeros((), device=slot.bench.device)
        self.steps = self.updates = 0

    def launches(self) -> Iterator[bool]:
        """Do the whole turn, pausing after each launch; to be run on the slot's stream."""
        bench, turn = self.slot.bench, self.job.turn
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        self.state = bench.begin(self.client, self.job)
        for epochs in bench.chunks(turn.epochs):
            for phase in bench.planned(self.client, self.state, turn, epochs):
                # An epoch a graph, or a step where the length of an epoch depends on the data.
                steps, rest = divmod(phase.steps, len(epochs))
                steps = 1 if bench.learner.adaptive or rest or not steps else steps
                captured = self._captured(phase, steps)
                _copy(self.state, captured.state)
                captured.total.zero_()
                for start in range(0, phase.steps, steps):
                    for name, tensor in phase.tensors.items():
                        captured.batches[name].copy_(tensor[start : start + steps])
                    captured.graph.replay()
                    yield True
                _copy(captured.state, self.state)
                self.total += captured.total
                self.steps += phase.steps
                self.updates += phase.steps * len(phase.trains)

    def _captured(self, phase: Phase, steps: int) -> Captured:
        graphs, signature = self.slot.graphs, _signature(phase, self.state, steps)
        if signature not in graphs:
            if len(graphs) >= _GRAPHS:
                torch.cuda.current_stream().synchronize()
                del graphs[next(iter(graphs))]  # the one unused for longest
            graphs[signature] = _capture(self.slot.bench, self.client.pool, phase, self.state, steps)
        graphs[signature] = graphs.pop(signature)
        return graphs[signature]

    def finish(self) -> Result:
        return self.slot.bench.finish(self.client, self.job, self.state, self.total, self.steps, self.updates)


def _capture(bench: Workbench, pool: Tensor, phase: Phase, state: Tensors, steps: int) -> Captured:
    """Capture `steps` steps on the current stream; networks and state are left as they were."""
    networks = {name: net.dump(name) for name, net in bench.nets.items()}
    momenta = {name: net.momentum.clone() for name, net in bench.nets.items()}
    batches = {name: tensor[:steps].clone() for name, tensor in phase.tensors.items()}
    static = {name: tensor.clone() for name, tensor in state.items()}
    total = torch.zeros((), device=bench.device)

    def run() -> None:
        for s in range(steps):
            bench.step(phase, {name: t[s] for name, t in batches.items()}, pool, static, total)

    before = {name: id(tensor) for name, tensor in static.items()}
    run()  # libraries choose and allocate before the capture
    if {name: id(tensor) for name, tensor in static.items()} != before:
        raise NotCapturable("its step replaces tensors of the state; it must change them in place")
    stream = torch.cuda.current_stream()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=stream):
            run()
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise NotCapturable(f"capturing its step failed: {str(error).splitlines()[0]}") from error
    for name, net in bench.nets.items():
        net.load(networks[name], name)
        net.momentum.copy_(momenta[name])
    return Captured(graph, batches, static, total)


def _signature(phase: Phase, state: Tensors, steps: int) -> Signature:
    """What must be equal for a graph to be used again."""
    tensors = (*phase.tensors.items(), *state.items())
    shapes = tuple(
        (name, t.dtype, t.shape[1:] if i < len(phase.tensors) else t.shape) for i, (name, t) in enumerate(tensors)
    )
    return (phase.kind, phase.trains, steps, shapes)


def _copy(source: Tensors, target: Tensors) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])
