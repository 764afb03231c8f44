"""All clients of a round at once on one GPU: who sits where, and which steps run together.

A round's clients sit side by side (`StackedBench`), those with most steps first. Those whose batches have the same
shapes, or whose learner can make them so, run as one (`Rows`), with fewer of them as clients finish; where there are
several shapes, group after group, and clients that have few or nobody to run with each on its own stream. Whole epochs
are planned, and their images gathered, ahead of time in large pieces; a graph (`Graphs`) then does `STEPS` optimiser
steps without the host. While it runs, the next epochs are planned. A learner that can't be stacked runs in a graph for
each client, and one that can't be captured runs eagerly, with one warning that says why.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.modules.dropout import _DropoutNd

from fednoil.errors import Slower
from fednoil.executors import portions
from fednoil.executors.asking import current, looks, scored, surveys
from fednoil.executors.attributes import attributes
from fednoil.executors.base import HeldOut, Job, Look, Progress, Result
from fednoil.executors.capture import Graphs, NotCapturable, Portion, Signature
from fednoil.executors.local import Workbench
from fednoil.executors.sequential import Sequential
from fednoil.executors.stack import Rows, StackedBench
from fednoil.executors.touch import Touched, touched_by
from fednoil.learners.base import Client, Phase, Trainee
from fednoil.learners.capabilities import EvensBatches, IndexesState, adapts, capability
from fednoil.learners.capabilities import plans as plans_of
from fednoil.sampling import Scoring
from fednoil.tensors import Tensors

_GROUP = 4  # clients of one shape that run as one while the others wait; streams side by side are faster for fewer

Ready = list[tuple["Seat", Phase]]


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


class CudaGraphs:
    """All clients of a round train together, `parallel` at a time."""

    def __init__(
        self,
        make_bench: Callable[[], Workbench],
        clients: Mapping[int, Client],
        test_images: Tensor,
        parallel: int,
        validation: Mapping[int, Client] | None = None,
    ) -> None:
        self.eager = Sequential(make_bench(), clients, test_images, validation)
        self.clients = clients
        benches: list[Workbench] = []
        for _ in range(parallel):
            benches.append(make_bench())
            benches[-1].share(self.eager.bench)  # now, so that a large frozen part is never in memory twice
        self.bench = StackedBench(benches)
        device = self.bench.benches[0].device
        self.losses = torch.zeros(parallel, device=device)
        self.graphs = Graphs(device, parallel)
        self.touched: dict[Signature, Touched] = {}
        self.seen: set[Signature] = set()
        self.reason: str | None = None  # why steps are not captured
        self.alone: str | None = None  # why clients are not stacked
        self.slower: str | None = None  # what was reported about either
        indexes = capability(self.bench.benches[0].learner, IndexesState)
        self.indexed = indexes.indexed() if indexes else ()
        # Whether the samples of a batch affect each other.
        self.mixes = any(net.mixes for net in self.bench.benches[0].nets.values())
        if any(isinstance(m, _DropoutNd) and m.p > 0 for m in self.bench.benches[0].modules()):
            self._give_up("the model has dropout, whose random numbers a graph can't take from the run's seed")

    def _give_up(self, reason: str) -> None:
        """Run eagerly from now on, and say once why."""
        self.reason = reason
        self._report(f"clients run one after another, not as CUDA graphs: {reason}")
        self.graphs.clear()

    def _report(self, slower: str) -> None:
        self.slower = slower
        warnings.warn(slower, Slower, stacklevel=3)

    def scores(self, jobs: Sequence[Job], sampling: Scoring) -> dict[int, Look]:
        """Clients that received the same model and keep none share one pass over all their samples."""
        clients = current(self.clients, jobs)
        return scored(looks(self.eager.bench, clients, jobs), clients, jobs, sampling)

    def review(self, jobs: Sequence[Job]) -> list[Result]:
        """With one pass over the samples of all clients that received the same model and keep none."""
        bench, clients = self.eager.bench, current(self.clients, jobs)
        looked = looks(bench, clients, jobs)
        return [bench.review(clients[job.client], job, looked[job.client]) for job in jobs]

    def test_logits(self, model: Tensors) -> Tensor:
        return self.eager.test_logits(model)

    def held_out(self, jobs: Sequence[Job]) -> dict[int, HeldOut]:
        return self.eager.held_out(jobs)

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
                self.graphs.join()
                if self.alone is None and min(seats, len(rest)) > 1:
                    self.alone = str(error)  # a client on its own may do better
                else:
                    self._give_up(str(error))
                continue
            if self.alone and self.slower is None:
                self._report(f"each client runs in its own CUDA graphs: {self.alone}")
            if progress:
                progress(len(results) / len(jobs))
        return results

    def _train_together(self, jobs: Sequence[Job]) -> list[Result]:
        largest_first = sorted(jobs, key=lambda job: -len(self.clients[job.client]))
        try:
            results = {r.client: r for r in self._finish(self._trained(largest_first))}
            return [results[job.client] for job in jobs]
        finally:
            self.graphs.join()  # nothing may still use memory that is about to be freed

    def _trained(self, jobs: Sequence[Job]) -> list[Seat]:
        learner = self.bench.benches[0].learner
        before = attributes(learner)
        self.losses.zero_()
        bench, seats, clients = self.eager.bench, [], current(self.clients, jobs)
        if bench.looking:
            missing = looks(bench, clients, [job for job in jobs if job.looked is None])
            jobs = [replace(job, looked=missing.get(job.client, job.looked)) for job in jobs]
        found = surveys(bench, clients, jobs)
        alike = all(job.received is jobs[0].received and not job.keep for job in jobs)
        if alike:
            self.bench.load(jobs[0].received, len(jobs))
        for place, job in enumerate(jobs):
            bench, client = self.bench.benches[place], clients[job.client]
            seats.append(Seat(place, bench, client, job, bench.begin(client, job, found.get(job.client), alike)))
        longest = max((job.turn for job in jobs), key=lambda turn: turn.epochs)
        for epochs in seats[0].bench.epoch_ranges(longest):
            if adapts(learner, longest) or any(t.state for t in self.touched.values()):
                self.graphs.join()  # otherwise the next epochs are planned while these run
            plans = _planned(seats, epochs)
            if epochs.start == 0:  # those that are done first then take no part in what is left
                self._move([seat for seat, _ in sorted(plans, key=lambda one: -sum(p.steps for p in one[1]))])
            for number in range(max(len(plan) for _, plan in plans)):
                ready = [(seat, plan[number]) for seat, plan in plans if number < len(plan)]
                if attributes(learner) != before:
                    raise NotCapturable(
                        "its init or plan changes the learner itself; what it keeps belongs in the state"
                    )
                for group in self._groups(self._evened(ready)):
                    self._play_group(group, seats)
                before = attributes(learner)  # a step may have filled a cache for the others
        self.graphs.join()
        return sorted(seats, key=lambda seat: seat.place)

    def _move(self, seats: Sequence[Seat]) -> bool:
        """Seat all clients in this order; false if they must stay, because a state has a part of a network itself."""
        places = [seat.place for seat in seats]
        if places == sorted(places):
            return True
        if self.bench.holds(tensor for seat in seats for tensor in seat.state.values()):
            return False
        self.graphs.join()
        self.bench.reorder(places)
        self.losses[: len(places)] = self.losses[places]
        for place, seat in enumerate(seats):
            seat.place, seat.bench = place, self.bench.benches[place]
        return True

    def _finish(self, seats: Sequence[Seat]) -> list[Result]:
        """The results, after one check that everything is finite."""
        here = slice(0, len(seats))
        finite = torch.stack([torch.isfinite(s.params[here]).all(1) for s in self.bench.stacks.values()]).all(0)
        numbers = torch.stack([self.losses[here], finite.float()]).tolist()
        return [
            seat.bench.finish(seat.client, seat.job, seat.state, loss / max(seat.steps, 1), seat.updates, bool(good))
            for seat, loss, good in zip(seats, *numbers, strict=True)
        ]

    def _evened(self, ready: Ready) -> Ready:
        """The phases with batches of fewer shapes, if the learner can even them out without changing a loss."""
        evens = capability(self.bench.benches[0].learner, EvensBatches)
        if evens is None or self.mixes or self.alone:
            return ready
        forms: dict[Signature, Ready] = {}
        for seat, phase in ready:
            forms.setdefault((phase.kind, phase.trains, tuple(phase.tensors)), []).append((seat, phase))
        found: Ready = []
        for form in forms.values():
            batches = [phase.tensors for _, phase in form]
            if len({_sizes(phase) for _, phase in form}) > 1:
                batches = evens.evened(batches) or batches
            found += [(seat, replace(phase, tensors=b)) for (seat, phase), b in zip(form, batches, strict=True)]
        return found

    def _groups(self, ready: Ready) -> list[Ready]:
        """Those whose steps have the same shapes, the largest group first; few of a shape are by themselves, unless
        they are all."""
        groups: dict[Signature, Ready] = {}
        for seat, phase in sorted(ready, key=lambda one: one[0].place):
            groups.setdefault(self._shape(seat, phase), []).append((seat, phase))
        found: list[Ready] = []
        for group in sorted(groups.values(), key=lambda group: -len(group)):
            together = self.alone is None and (len(groups) == 1 or len(group) >= _GROUP)
            found += [group] if together else [[one] for one in group]
        return found

    def _play_group(self, group: Ready, everybody: Sequence[Seat]) -> None:
        """A client by itself runs where it sits, and so do all. Other groups move to the first seats and take some of
        the others along, frozen: so the same graphs serve groups of any clients and of several sizes."""
        if len(group) == 1 or len(group) == len(everybody):
            return self._play(group, len(group))
        first = {seat.place for seat, _ in group}
        if not self._move(sorted(everybody, key=lambda seat: (seat.place not in first, seat.place))):
            for one in group:
                self._play([one], 1)
            return None
        counts = [phase.steps for _, phase in group] + [0] * (len(everybody) - len(group))
        return self._play(group, portions.taking_part(counts, 0))

    def _shape(self, seat: Seat, phase: Phase) -> Signature:
        """What must be equal for two clients' steps to run as one."""
        touched = self._look(seat, phase)
        batch = tuple((name, t.dtype, t.shape[1:]) for name, t in phase.tensors.items())
        state = [(name, seat.state[name]) for name in touched.state]
        rows = tuple((name, t.dtype, t.shape[1:] if name in self.indexed else t.shape) for name, t in state)
        return (phase.kind, phase.trains, batch, rows)

    def _look(self, seat: Seat, phase: Phase) -> Touched:
        """Which tensors a step of this kind reads."""
        key = (phase.kind, phase.trains, tuple(phase.tensors), tuple(seat.state))
        if key not in self.touched:
            self.graphs.join()  # the look uses the seat's networks, which may still be training
            self.touched[key] = touched_by(phase, self.bench, seat.place, seat.client, seat.state)
        return self.touched[key]

    def _play(self, run: Ready, width: int) -> None:
        """All steps of one phase of some neighbours, with others beside them, frozen, up to `width`."""
        seats, phases = [seat for seat, _ in run], [phase for _, phase in run]
        touched, shape = self._look(*run[0]), self._shape(*run[0])
        counts = [phase.steps for phase in phases] + [0] * (width - len(run))
        rows_of = portions.rows_of(counts, self.losses.device)
        plan = {name: portions.side_by_side([p.tensors[name] for p in phases], rows_of) for name in phases[0].tensors}
        for seat, phase in run:
            seat.steps += phase.losses
            seat.updates += phase.steps * len(phase.trains)
        self.graphs.held += [plan, phases]
        one, place, pool = phases[0], seats[0].place, seats[0].client.pool
        # Shapes that occur only once are not worth a long graph: capturing it takes as long as eight eager steps.
        size = portions.STEPS if (place, width, shape) in self.seen else 1
        self.seen.add((place, width, shape))
        with self.graphs.on_streams(place, width):
            state = {name: portions.rows_alike([s.state[name] for s in seats], width) for name in touched.state}
            ends = torch.tensor(counts).to(self.losses.device, non_blocking=True)[:, None]
            rows = {width: Rows(self.bench, place, width)}
            rows[width].refresh(one.trains)
            for start, stop in portions.pieces(max(counts), width * touched.pixels):
                most = portions.taking_part(counts, start)
                piece = {name: tensor[:most, start:stop] for name, tensor in plan.items()}
                piece |= seats[0].bench.learner.views(pool, piece)
                piece = {name: piece[name] for name in touched.batch}
                for first, last, busy, frozen in portions.portions(start, stop, counts, size):
                    part = {name: tensor[:busy, first - start : last - start] for name, tensor in piece.items()}
                    active = torch.arange(first, last, device=self.losses.device) < ends[:busy] if frozen else None
                    here = rows[busy] = rows.get(busy) or Rows(self.bench, place, busy)
                    own = {name: tensor[:busy] for name, tensor in state.items()}
                    total = self.losses[place : place + busy]
                    self.graphs.play(Portion(here, one.kind, one.trains, part, pool, own, total, active, last - first))
            for name, kept in state.items():
                own = [seat.state[name] for seat in seats]
                new = [k[: len(o)] if o.dim() else k for k, o in zip(kept, own, strict=False)]
                torch._foreach_copy_(own, new)  # pyright: ignore[reportPrivateImportUsage]


def _planned(seats: Sequence[Seat], epochs: range) -> list[tuple[Seat, list[Phase]]]:
    """Each seat with its phases, for those of the epochs that it has; seats with the same epochs are planned at
    once."""
    groups: dict[range, list[Seat]] = {}
    for seat in seats:
        groups.setdefault(range(epochs.start, min(epochs.stop, seat.job.turn.epochs)), []).append(seat)
    plans: dict[int, list[Phase]] = {}
    for own, group in groups.items():
        trainees = [Trainee(s.bench.nets, s.client, s.state, s.job.turn) for s in group]
        found = plans_of(group[0].bench.learner, trainees, own) if own else [[] for _ in group]
        for s, phases in zip(group, found, strict=True):
            plans[s.place] = s.bench.ready(phases, s.job.turn)
    return [(seat, plans[seat.place]) for seat in seats]


def _sizes(phase: Phase) -> Signature:
    """The shapes of a phase's batches."""
    return tuple(tensor.shape[1:] for tensor in phase.tensors.values())
