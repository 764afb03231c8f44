"""All clients of a round at once on one GPU: stacked steps, captured as CUDA graphs and replayed.

A round's clients sit side by side (`StackedBench`). If their batches have the same shapes they run as one (`Rows`),
else beside each other on streams of their own. The plans of whole epochs, and the images they ask for, are made ahead
in large pieces; a graph then does `_STEPS` optimiser steps without the host. While it runs, the next epochs are
planned. A learner that can't be stacked runs in a graph for each client, and one that can't be captured runs eagerly,
with one warning that says why.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.dropout import _DropoutNd

from fednoil.executors.base import Job, Look, Progress, Result
from fednoil.executors.local import Workbench
from fednoil.executors.sequential import Sequential
from fednoil.executors.stack import Rows, StackedBench
from fednoil.learners.base import Client, Learner, Phase, Wrapped, acts
from fednoil.servers.sampling import client_scores
from fednoil.tensors import Tensors

Signature = tuple[object, ...]
_STEPS = 8  # optimiser steps in a graph; what is left over runs in graphs of one step
_GRAPHS = 128  # graphs kept; clients of many sizes would fill the memory otherwise
_PIXELS = 1 << 24  # pixels whose views are made at once: enough to fill a GPU, without filling its memory


class NotCapturable(Exception):
    """Why a learner's step can't be captured as a graph."""


@dataclass(frozen=True)
class Touched:
    """The names in its batch and state that a step looks at; the rest stays out of the graph."""

    batch: tuple[str, ...]
    state: tuple[str, ...]
    pixels: int  # of the images that one client's step is given


@dataclass
class Seat:
    """One client's turn: where it sits, its bench, and what it has done."""

    place: int
    bench: Workbench
    client: Client
    job: Job
    state: Tensors
    steps: int = 0
    updates: int = 0


@dataclass(frozen=True)
class Captured:
    """A graph of one or more steps of some rows, and the tensors it reads and writes, clients in front."""

    graph: torch.cuda.CUDAGraph
    batch: Tensors  # [K, steps, ...]
    state: Tensors
    active: Tensor | None  # [K, steps]


class _Recorder(dict[str, Tensor]):
    """A dictionary that remembers which names were asked for."""

    def __init__(self, values: Tensors) -> None:
        super().__init__(values)
        self.names: dict[str, None] = {}

    def __getitem__(self, name: str) -> Tensor:
        self.names[name] = None
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        found = super().__contains__(name)
        if found:
            self.names[str(name)] = None
        return found

    def get(self, name: str, default: Any = None) -> Any:
        found = name in self
        return self[name] if found else default

    def __iter__(self) -> Iterator[str]:
        self.names |= dict.fromkeys(super().keys())
        return super().__iter__()

    def keys(self) -> Any:
        self.names |= dict.fromkeys(super().keys())
        return super().keys()

    def items(self) -> Any:
        self.names |= dict.fromkeys(super().keys())
        return super().items()

    def values(self) -> Any:
        self.names |= dict.fromkeys(super().keys())
        return super().values()


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
        self.bench = StackedBench([make_bench() for _ in range(parallel)])
        device = self.bench.benches[0].device
        self.losses = torch.zeros(parallel, device=device)
        self.graphed = device.type == "cuda"  # on a CPU the same steps run one by one, for tests
        self.streams = [torch.cuda.Stream() for _ in range(parallel)] if self.graphed else []
        self.pools = [torch.cuda.graph_pool_handle() for _ in range(parallel)] if self.graphed else []
        self.graphs: dict[Signature, Captured] = {}
        self.held: list[object] = []  # what streams still read must not be given to others
        self.touched: dict[Signature, Touched] = {}
        self.seen: set[Signature] = set()
        self.reason: str | None = None  # why steps are not captured
        self.alone: str | None = None  # why clients are not stacked
        self.told = False
        if any(isinstance(m, _DropoutNd) and m.p > 0 for m in self.bench.benches[0].modules()):
            self._give_up("the model has dropout, whose random numbers a graph can't take from the run's seed")

    def _give_up(self, reason: str) -> None:
        """Run eagerly from now on, and say once why."""
        self.reason = reason
        warnings.warn(f"clients run one after another, not as CUDA graphs: {reason}", stacklevel=3)
        if self.graphed:
            torch.cuda.synchronize()
        self.graphs.clear()

    def scores(self, jobs: Sequence[Job], sampling: str, temperature: float) -> dict[int, Look]:
        """Clients that received the same model and keep none are asked in one pass over all their samples."""
        bench, first = self.eager.bench, jobs[0]
        if not _usual(bench.learner) or any(job.received is not first.received or job.keep for job in jobs):
            return self.eager.scores(jobs, sampling, temperature)
        clients = [self.clients[job.client] for job in jobs]
        bench.load(first.received, {})
        everyone, probabilities = bench.learner.look(bench.nets, _together(clients), temperature)
        assert probabilities is not None
        sizes = [len(c) for c in clients]
        looks = map(Look, client_scores(everyone.split(sizes), sampling), probabilities.split(sizes))
        return dict(zip((job.client for job in jobs), looks, strict=True))

    def test_logits(self, model: Tensors) -> Tensor:
        return self.eager.test_logits(model)

    def train(self, jobs: Sequence[Job], progress: Progress | None = None) -> list[Result]:
        results: list[Result] = []
        seats = len(self.bench.benches)
        while len(results) < len(jobs):
            rest = jobs[len(results) :]
            if self.reason is not None:
                return results + self.eager.train(rest, progress)
            try:
                results += self._train_together(rest[:seats])
            except NotCapturable as error:
                self._join()
                if self.alone is None and min(seats, len(rest)) > 1:
                    self.alone = str(error)  # a client on its own may do better
                else:
                    self._give_up(str(error))
                continue
            if self.alone and not self.told:
                self.told = True
                warnings.warn(f"each client runs in CUDA graphs of its own: {self.alone}", stacklevel=2)
            if progress:
                progress(len(results) / len(jobs))
        return results

    def _train_together(self, jobs: Sequence[Job]) -> list[Result]:
        try:
            return self._finish(self._trained(jobs))
        finally:
            self._join()  # nothing may go on with memory that is about to be freed

    def _trained(self, jobs: Sequence[Job]) -> list[Seat]:
        learner = self.bench.benches[0].learner
        before = _attributes(learner)
        self.losses.zero_()
        seats, found = [], self._surveys(jobs)
        for place, job in enumerate(jobs):
            bench, client = self.bench.benches[place], self.clients[job.client]
            seats.append(Seat(place, bench, client, job, bench.begin(client, job, found.get(job.client))))
        for epochs in seats[0].bench.chunks(max(job.turn.epochs for job in jobs)):
            if seats[0].bench.learner.adaptive or any(t.state for t in self.touched.values()):
                self._join()  # else the next epochs are planned while the last ones run
            plans = [_planned(seat, epochs) for seat in seats]
            for number in range(max(map(len, plans))):
                ready = [(seat, plan[number]) for seat, plan in zip(seats, plans, strict=True) if number < len(plan)]
                if _attributes(learner) != before:
                    raise NotCapturable(
                        "its init or plan changes the learner itself; what it keeps belongs in the state"
                    )
                for run in self._runs(ready):
                    self._play(run)
        self._join()
        return seats

    def _surveys(self, jobs: Sequence[Job]) -> dict[int, Tensors]:
        """The surveys of clients that received the same model and keep none, each model asked once."""
        bench, found = self.eager.bench, {}
        groups: dict[int, list[Job]] = {}
        for job in jobs:
            if not job.keep and acts(bench.learner, "survey") and _usual(bench.learner):
                groups.setdefault(id(job.received), []).append(job)
        for group in groups.values():
            clients = [self.clients[job.client] for job in group]
            asked = [bench.learner.asks(c, job.turn) for c, job in zip(clients, group, strict=True)]
            bench.load(group[0].received, {})
            together = {name: torch.cat([one[name] for one in asked]) for name in asked[0]}
            answers = bench.survey(_together(clients), together)
            pieces = {name: tensor.split([len(c) for c in clients]) for name, tensor in answers.items()}
            for place, job in enumerate(group):
                found[job.client] = {name: parts[place] for name, parts in pieces.items()}
        return found

    def _join(self) -> None:
        for stream in self.streams:
            torch.cuda.current_stream().wait_stream(stream)
        self.held.clear()

    def _finish(self, seats: Sequence[Seat]) -> list[Result]:
        """The results, after one look at whether all is finite."""
        here = slice(0, len(seats))
        finite = torch.stack([torch.isfinite(s.params[here]).all(1) for s in self.bench.stacks.values()]).all(0)
        numbers = torch.stack([self.losses[here], finite.float()]).tolist()
        return [
            seat.bench.finish(seat.client, seat.job, seat.state, loss / max(seat.steps, 1), seat.updates, bool(good))
            for seat, loss, good in zip(seats, *numbers, strict=True)
        ]

    def _runs(self, ready: Sequence[tuple[Seat, Phase]]) -> list[list[tuple[Seat, Phase]]]:
        """All together where their steps have the same shapes, else each on its own.

        Neighbours of the same shape among others could run together too, but each new set of neighbours would be one
        more graph to capture, which takes longer than it saves.
        """
        shapes = {_shape(phase, seat.state, self._look(seat, phase)) for seat, phase in ready}
        neighbours = all(seat.place == ready[0][0].place + n for n, (seat, _) in enumerate(ready))
        if len(shapes) == 1 and neighbours and self.alone is None:
            return [list(ready)]
        return [[one] for one in ready]

    def _look(self, seat: Seat, phase: Phase) -> Touched:
        """Which tensors a step of this kind looks at, found by one step that leaves no trace."""
        key = (phase.kind, phase.trains, tuple(phase.tensors), tuple(seat.state))
        if key not in self.touched:
            self._join()  # the look uses the seat's networks, which may still be training
            copies = {name: tensor.clone() for name, tensor in seat.state.items()}
            state = _Recorder(copies)
            row = {name: tensor[0] for name, tensor in phase.tensors.items()}
            images = seat.bench.learner.views(seat.client.pool, row)
            batch, names = _Recorder({**row, **images}), {*row, *images}
            generator = _generator_state(self.losses.device)
            with _unchanged(self.bench, slice(seat.place, seat.place + 1)):
                seat.bench.optimise(phase, batch, seat.client.pool, state, torch.zeros((), device=self.losses.device))
            if dict.keys(state) != copies.keys() or any(dict.get(state, n) is not c for n, c in copies.items()):
                raise NotCapturable("its step replaces or adds tensors of the state; it must change them in place")
            if not torch.equal(generator, _generator_state(self.losses.device)):
                raise NotCapturable("its step draws random numbers, which a graph can't take from the run's seed")
            self.touched[key] = Touched(
                tuple(n for n in batch.names if n in names),
                tuple(n for n in state.names if n in seat.state),
                sum(t.numel() for t in images.values()),
            )
        return self.touched[key]

    def _play(self, run: Sequence[tuple[Seat, Phase]]) -> None:
        """All steps of one phase of some neighbours."""
        seats, phases = [seat for seat, _ in run], [phase for _, phase in run]
        touched = self._look(*run[0])
        counts = [phase.steps for phase in phases]
        plan = {name: _side_by_side([p.tensors[name] for p in phases], max(counts)) for name in phases[0].tensors}
        for seat, phase in run:
            seat.steps += phase.steps
            seat.updates += phase.steps * len(phase.trains)
        self.held += [plan, phases]
        # Shapes that come only once are not worth a long graph: it takes as long to capture as eight steps eagerly.
        shape = (seats[0].place, len(seats), _shape(phases[0], seats[0].state, touched))
        size = _STEPS if shape in self.seen else 1
        self.seen.add(shape)
        with self._on_streams(seats):
            state = {name: torch.stack([seat.state[name] for seat in seats]) for name in touched.state}
            ends = torch.tensor(counts).to(self.losses.device, non_blocking=True)[:, None]
            rows = Rows(self.bench, seats[0].place, len(seats))
            rows.refresh(phases[0].trains)
            views = seats[0].bench.learner.views
            for start, stop in _pieces(max(counts), len(seats) * touched.pixels):
                piece = {name: tensor[:, start:stop] for name, tensor in plan.items()}
                piece |= views(seats[0].client.pool, piece)
                piece = {name: piece[name] for name in touched.batch}
                for first, last, frozen in _portions(start, stop, min(counts), size):
                    part = {name: tensor[:, first - start : last - start] for name, tensor in piece.items()}
                    active = None
                    if frozen:
                        active = torch.arange(first, last, device=self.losses.device) < ends
                    self._steps(rows, phases[0], part, seats[0].client.pool, state, active, last - first)
            for place, seat in enumerate(seats):
                for name in touched.state:
                    seat.state[name].copy_(state[name][place])

    def _on_streams(self, seats: Sequence[Seat]) -> Any:
        return _Streams([self.streams[seat.place] for seat in seats]) if self.graphed else _Streams([])

    def _steps(
        self,
        rows: Rows,
        phase: Phase,
        batch: Tensors,
        pool: Tensor,
        state: Tensors,
        active: Tensor | None,
        steps: int,
    ) -> None:
        """Steps of one portion: by a graph, or one by one where there are none."""
        total = self.losses[rows.first : rows.first + rows.count]
        if not self.graphed:
            _run(rows, phase, batch, pool, state, total, active, steps)
            return
        shapes = tuple((n, t.dtype, t.shape) for tensors in (batch, state) for n, t in tensors.items())
        key = (rows.first, rows.count, phase.kind, phase.trains, steps, active is not None, shapes)
        if key not in self.graphs:
            if len(self.graphs) >= _GRAPHS:
                torch.cuda.synchronize()
                del self.graphs[next(iter(self.graphs))]  # the one unused for longest
            self.graphs[key] = self._capture(rows, phase, batch, pool, state, active, steps)
        captured = self.graphs[key] = self.graphs.pop(key)
        _copy(batch, captured.batch)
        _copy(state, captured.state)
        if active is not None and captured.active is not None:
            captured.active.copy_(active)
        captured.graph.replay()
        _copy(captured.state, state)

    def _capture(
        self,
        rows: Rows,
        phase: Phase,
        batch: Tensors,
        pool: Tensor,
        state: Tensors,
        active: Tensor | None,
        steps: int,
    ) -> Captured:
        """Capture steps on the current stream; networks and state are left as they were."""
        batch, state = ({n: t.clone() for n, t in tensors.items()} for tensors in (batch, state))
        active = None if active is None else active.clone()
        here = slice(rows.first, rows.first + rows.count)
        total, stream = self.losses[here], torch.cuda.current_stream()
        before, graph = total.clone(), torch.cuda.CUDAGraph()
        try:
            with _unchanged(self.bench, here):
                _run(rows, phase, batch, pool, state, total, active, steps=1)  # libraries choose and allocate
                total.copy_(before)
            torch.cuda.synchronize()
            graph.capture_begin(pool=self.pools[rows.first], capture_error_mode="thread_local")
            try:
                _run(rows, phase, batch, pool, state, total, active, steps)
            except BaseException:
                with contextlib.suppress(RuntimeError):  # the capture is spoilt; the first error is the one to tell
                    graph.capture_end()
                raise
            graph.capture_end()
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # the step has run eagerly before, so it is the capture that fails
            stream.synchronize()
            raise NotCapturable(_why(error)) from error
        return Captured(graph, batch, state, active)


class _Streams:
    """Work on the first of some streams, after all of them and before all of them."""

    def __init__(self, streams: Sequence[torch.cuda.Stream]) -> None:
        self.streams = streams
        self.context = torch.cuda.stream(streams[0] if streams else None)

    def __enter__(self) -> None:
        if self.streams:
            for other in (torch.cuda.current_stream(), *self.streams[1:]):
                self.streams[0].wait_stream(other)
        self.context.__enter__()

    def __exit__(self, *error: object) -> None:
        self.context.__exit__(*error)  # pyright: ignore[reportArgumentType]
        for other in self.streams[1:]:
            other.wait_stream(self.streams[0])


class _unchanged:
    """Put the networks of some rows back as they were."""

    def __init__(self, bench: StackedBench, here: slice) -> None:
        self.tensors = [
            tensor[here]
            for stack in bench.stacks.values()
            for tensor in (stack.params, stack.grads, stack.momentum, stack.half, *stack.others.values())
            if tensor is not None
        ]

    def __enter__(self) -> None:
        self.copies = [tensor.clone() for tensor in self.tensors]

    def __exit__(self, *error: object) -> None:
        for tensor, copy in zip(self.tensors, self.copies, strict=True):
            tensor.copy_(copy)


def _together(clients: Sequence[Client]) -> Client:
    """The samples of several clients as if one had them."""
    index, labels = (torch.cat([getattr(c, name) for c in clients]) for name in ("index", "labels"))
    return Client(-1, clients[0].pool, index, labels)


def _inner(learner: Learner) -> Learner:
    """The learner inside all wrappings."""
    return _inner(learner.inner) if isinstance(learner, Wrapped) else learner


def _usual(learner: Learner) -> bool:
    """Whether its confidences are those of single samples; a learner's own may look at whole clients."""
    return _inner(learner).confidence.__func__ is Learner.confidence


def _attributes(learner: Learner) -> dict[str, int]:
    """What a learner and those inside it hold, told by identity."""
    found = {f"{type(learner).__name__}.{name}": id(value) for name, value in vars(learner).items()}
    return found | _attributes(learner.inner) if isinstance(learner, Wrapped) else found


def _generator_state(device: torch.device) -> Tensor:
    """The state of PyTorch's own generator, which nothing of the package draws from."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _why(error: Exception) -> str:
    """In a learner's terms, what PyTorch has to say about a step that it can't map or capture."""
    text = (str(error) or type(error).__name__).splitlines()[0]
    low = text.lower()
    if any(word in low for word in ("dynamic", "data-dependent", "nonzero", "boolean mask")):
        return f"its step has shapes or branches that depend on values ({text})"
    if ".item()" in low or "captur" in low:
        return f"its step waits for a value on the host ({text})"
    return f"its step can't be captured ({text})"


def _planned(seat: Seat, epochs: range) -> list[Phase]:
    """A seat's phases of those of the epochs that it has."""
    mine = range(epochs.start, min(epochs.stop, seat.job.turn.epochs))
    return seat.bench.planned(seat.client, seat.state, seat.job.turn, mine) if mine else []


def _shape(phase: Phase, state: Tensors, touched: Touched) -> Signature:
    """What must be equal for two clients' steps to run as one."""
    batch = tuple((name, t.dtype, t.shape[1:]) for name, t in phase.tensors.items())
    return (phase.kind, phase.trains, batch, tuple((name, state[name].shape) for name in touched.state))


def _side_by_side(tensors: Sequence[Tensor], steps: int) -> Tensor:
    """[K, steps, ...]; a client with fewer steps repeats its last one, frozen."""
    longest = [t if len(t) == steps else torch.cat([t, t[-1:].expand(steps - len(t), *t.shape[1:])]) for t in tensors]
    return torch.stack(longest)


def _pieces(steps: int, pixels: int) -> Iterator[tuple[int, int]]:
    """Spans of steps whose images, of so many pixels a step, are made at once."""
    size = max(1, _PIXELS // max(1, pixels) // _STEPS) * _STEPS
    return ((start, min(start + size, steps)) for start in range(0, steps, size))


def _portions(start: int, stop: int, whole: int, most: int) -> Iterator[tuple[int, int, bool]]:
    """Cut steps start..stop into those that a graph does at once; from step `whole` on some clients are frozen."""
    while start < stop:
        frozen = start >= whole
        left = (stop if frozen else min(stop, whole)) - start
        size = most if left >= most else 1
        yield start, start + size, frozen
        start += size


def _run(
    rows: Rows,
    phase: Phase,
    batch: Tensors,
    pool: Tensor,
    state: Tensors,
    total: Tensor,
    active: Tensor | None,
    steps: int,
) -> None:
    for s in range(steps):
        row = {name: tensor[:, s] for name, tensor in batch.items()}
        rows.step(phase.kind, phase.trains, row, pool, state, total, None if active is None else active[:, s])


def _copy(source: Tensors, target: Tensors) -> None:
    if target:
        torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage]
            list(target.values()), [source[name] for name in target]
        )
