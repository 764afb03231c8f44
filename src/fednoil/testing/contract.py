"""The parts of the contract that a single turn shows: plans, steps that a GPU can record, inputs left unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fednoil import rounds
from fednoil.executors.base import Job
from fednoil.executors.local import Workbench
from fednoil.executors.sequential import Sequential
from fednoil.experiment import Experiment, make_executor
from fednoil.learners.base import Client, Learner, Phase, Trainee, Turn, one_by_one
from fednoil.learners.capabilities import PlansTogether, adapts, capability
from fednoil.servers.base import Update, check_state
from fednoil.tensors import Tensors
from fednoil.testing.federation import ROUNDS, NotConforming

_WAITS = {
    "_local_scalar_dense": "reads a tensor's value (.item(), float(), an `if` on a tensor)",
    "nonzero": "makes a tensor whose size depends on values (nonzero, or indexing with a mask)",
    "masked_select": "makes a tensor whose size depends on values (masked_select, or indexing with a mask)",
    "_unique2": "makes a tensor whose size depends on values (unique)",
}
_DRAWS = ("rand", "randn", "randint", "randperm", "bernoulli", "multinomial", "normal", "uniform")


class _Calls(TorchFunctionMode):
    """Marks calls in which PyTorch itself reads values to check arguments, on a CPU only."""

    def __init__(self) -> None:
        super().__init__()
        self.checking = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.checking = getattr(func, "__name__", "") == "one_hot"
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.checking = False


class _Watch(TorchDispatchMode):
    """Watches every operation of a step and refuses what a CUDA graph can't record or repeat."""

    def __init__(self, calls: _Calls) -> None:
        super().__init__()
        self.calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.calls.checking:
            return func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name == "index" and any(isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
            name = "nonzero"
        if name in _WAITS:
            raise NotConforming(f"its step {_WAITS[name]}, so it can't run as a CUDA graph; use masks and torch.where")
        if name.rstrip("_").removesuffix("_like") in _DRAWS:
            raise NotConforming(f"its step draws random numbers ({name}); draw them in init or plan, from turn.seed")
        return func(*args, **(kwargs or {}))


def check_steps(experiment: Experiment) -> None:
    """A turn of two epochs in the first and the last round, every operation of its steps watched."""
    executor = make_executor(experiment, torch.device("cpu"))
    assert isinstance(executor, Sequential)
    bench, client, state = executor.bench, executor.clients[0], rounds.start(experiment)
    received, keep = experiment.server.model_for(state.server, 0), {}
    for round_idx in (1, ROUNDS):
        turns = {
            k: Turn(round_idx, 2, experiment.seed.child("round", round_idx, "client", k)) for k in executor.clients
        }
        _check_plans(bench, list(executor.clients.values()), received, list(turns.values()))
        job = Job(0, received, keep, turns[0])
        _check_turn(bench, client, job)
        keep = bench.update(client, job).keep


def _check_turn(bench: Workbench, client: Client, job: Job) -> None:
    learner = bench.learner
    data = {"labels": client.labels, "index": client.index, "pool": client.pool}
    untouched = {name: tensor.clone() for name, tensor in data.items()}
    state = bench.begin(client, job)
    _check_state(state)
    _check_survey(bench, client, job)
    if not adapts(learner, job.turn):
        _check_plan(bench, client, job.turn)
    shapes: dict[str, Any] = {}
    total = torch.zeros(())
    for part in bench.epoch_ranges(job.turn):
        for phase in bench.planned(client, state, job.turn, part):
            _check_phase(bench, phase, shapes)
            _check_views(learner, client.pool, phase)
            batch = {name: tensor[0] for name, tensor in phase.tensors.items()}
            before = dict(state)
            with _Calls() as calls, _Watch(calls):
                images = learner.views(client.pool, batch)
                bench.step(phase, {**batch, **images}, client.pool, state, total)
            if state.keys() != before.keys() or any(state[name] is not before[name] for name in before):
                raise NotConforming("its step replaces tensors of the state; change them in place (copy_, add_)")
    for name, tensor in data.items():
        if not torch.equal(tensor, untouched[name]):
            raise NotConforming(f"it changes the client's data ({name}), which all rounds share")


def _check_views(learner: Learner, pool: Tensor, phase: Phase) -> None:
    """The images of several steps at once must be those of each."""
    two = {name: tensor[:2] for name, tensor in phase.tensors.items()}
    each = [learner.views(pool, {n: t[step] for n, t in two.items()}) for step in range(min(2, phase.steps))]
    try:
        at_once = learner.views(pool, two)
    except (RuntimeError, IndexError, ValueError) as error:
        raise NotConforming(f"its views can't be made for several steps at once: {error}") from None
    if not all(torch.equal(torch.stack([one[name] for one in each]), at_once[name]) for name in each[0]):
        raise NotConforming("its views of several steps at once aren't those of each; a batch may have more dimensions")


def _check_state(state: object) -> None:
    if not isinstance(state, dict) or not all(isinstance(t, Tensor) for t in state.values()):
        raise NotConforming("init must return a dict of tensors")


def _check_survey(bench: Workbench, client: Client, job: Job) -> None:
    """A survey of a sample must not depend on the others: an executor may survey several clients at once."""
    if not bench.surveying:
        return
    bench.load(job.received, job.keep)
    asked = bench.surveying.asks(client, job.turn)
    whole, half = bench.survey(client, asked), len(client) // 2
    for name, tensor in {**asked, **whole}.items():
        if len(tensor) != len(client):
            raise NotConforming(f"'{name}' of its asks or survey has {len(tensor)} rows for {len(client)} samples")
    parts = []
    for rows in (slice(half, None), slice(half)):
        some = Client(-1, client.pool, client.index[rows], client.labels[rows])
        parts.append(bench.survey(some, {name: tensor[rows] for name, tensor in asked.items()}))
    for name, tensor in whole.items():
        if not torch.allclose(torch.cat([parts[1][name], parts[0][name]]).double(), tensor.double(), 1e-3, 1e-5):
            raise NotConforming(
                f"its survey gives another '{name}' for half of the client's samples; what depends on more than one "
                "sample belongs in init"
            )


def _check_plan(bench: Workbench, client: Client, turn: Turn) -> None:
    """Planning all epochs at once must equal planning each, unless the learner says that it adapts."""

    def planned(epochs: range) -> list[Phase]:
        return bench.learner.plan(bench.nets, client, bench.begin(client, _job(bench, client, turn)), turn, epochs)

    whole, parts = planned(range(turn.epochs)), [planned(range(e, e + 1)) for e in range(turn.epochs)]
    each = [phase for phases in parts for phase in phases]
    for kind, name in {(phase.kind, name) for phase in whole for name in phase.tensors}:
        found = [
            [p.tensors[name].flatten() for p in phases if p.kind == kind and name in p.tensors]
            for phases in (whole, each)
        ]
        if not all(found) or not torch.equal(*map(torch.cat, found)):
            raise NotConforming(
                f"planning all epochs at once gives another '{name}' than planning them one by one; draw it with one "
                "key per epoch (turn.seed.child(…).keys(epochs)), or let `adapts` say that it depends on the networks"
            )


def _check_plans(bench: Workbench, clients: Sequence[Client], received: Tensors, turns: Sequence[Turn]) -> None:
    """Planning several clients at once must equal planning each."""
    if not (together := capability(bench.learner, PlansTogether)):
        return

    epochs, found = bench.epoch_ranges(turns[0])[0], []
    for plans in (together.plans, partial(one_by_one, bench.learner)):
        bench.load(received, {})
        states = [bench.open(client, {}, turn) for client, turn in zip(clients, turns, strict=True)]
        trainees = list(map(Trainee, [bench.nets] * len(clients), clients, states, turns))
        found.append((plans(trainees, epochs), states))
    (at_once, states), (alone, own_states) = found
    pairs = list(zip(states, own_states, strict=True))
    for phases, own in zip(at_once, alone, strict=True):
        if [(p.kind, p.trains, set(p.tensors)) for p in phases] != [(p.kind, p.trains, set(p.tensors)) for p in own]:
            raise NotConforming("its `plans` gives other kinds of phases than `plan` does for each client")
        pairs += [(phase.tensors, other.tensors) for phase, other in zip(phases, own, strict=True)]
    for tensors, others in pairs:
        for name in tensors:
            if not torch.equal(tensors[name], others[name]):
                raise NotConforming(f"its `plans` gives another '{name}' than `plan` does for each client")


def _job(bench: Workbench, client: Client, turn: Turn) -> Job:
    shared = [role.name for role in bench.learner.roles if role.shared]
    tensors: Tensors = {}
    for name in shared:
        tensors |= bench.nets[name].dump(name)
    return Job(client.id, tensors, {}, turn)


def _check_phase(bench: Workbench, phase: Phase, shapes: dict[str, Any]) -> None:
    """Steps are the first dimension, steps of one kind have one shape, and only trained networks are trained."""
    lengths = {name: len(tensor) for name, tensor in phase.tensors.items()}
    if len(set(lengths.values())) != 1:
        raise NotConforming(f"the first dimension of a phase's tensors must be the steps, but there are {lengths}")
    still = {role.name for role in bench.learner.roles if not role.trained} & set(phase.trains)
    if still:
        raise NotConforming(f"a phase trains {sorted(still)}, but the role says that it is not trained")
    unknown = set(phase.trains) - bench.nets.keys()
    if unknown:
        raise NotConforming(f"a phase trains {sorted(unknown)}, but the roles are {sorted(bench.nets)}")
    shape = {name: (tuple(t.shape[1:]), t.dtype) for name, t in phase.tensors.items()}
    if shapes.setdefault(phase.kind, shape) != shape:
        raise NotConforming(f"steps of kind '{phase.kind}' have different shapes; fill batches, or use another kind")


def check_aggregation(experiment: Experiment) -> None:
    """The server returns a new state and leaves the old one and the updates as they were."""
    server, clients = experiment.server, range(experiment.setting.num_clients)
    state = server.init(experiment.initial_model())
    updates = [
        Update(k, {n: _moved(t, k) for n, t in server.model_for(state, k).items()}, {"samples": 16.0 + k, "steps": 4.0})
        for k in clients
    ]
    inputs: list[Mapping[str, Tensor]] = [state.tensors, *(u.tensors for u in updates)]
    before = [{name: t.clone() for name, t in tensors.items()} for tensors in inputs]
    found = server.aggregate(state, 1, updates)
    check_state(experiment.config.server.name, found, *(server.model_for(one, 0) for one in (found, state)))
    for now, then in zip(inputs, before, strict=True):
        if now.keys() != then.keys() or not all(torch.equal(now[name], then[name]) for name in then):
            raise NotConforming("aggregate changes its state or the updates in place; return a new ServerState")


def _moved(tensor: Tensor, client: int) -> Tensor:
    return tensor + 0.01 * (client + 1) if tensor.is_floating_point() else tensor + client
