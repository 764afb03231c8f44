"""The conformance suite for combinations of a server and a learner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from fednoil.config.schema import Config
from fednoil.errors import UserError
from fednoil.executors.base import Job, Result
from fednoil.experiment import Experiment, assemble
from fednoil.learners import LEARNERS
from fednoil.servers import SERVERS
from fednoil.tensors import Tensors
from fednoil.testing.contract import check_aggregation, check_steps
from fednoil.testing.executors import check_side_by_side
from fednoil.testing.federation import Circumstances, NotConforming, Trace, play, tiny_config, tiny_setting
from fednoil.testing.setting import path_of

# Keys with which three rounds show what a method does: clusters that split, the time after a warm-up or visits. Of
# FedCorr they show the first stage.
SERVER_KEYS: dict[str, dict[str, Any]] = {
    "cfl": {"name": "fednoil.testing.splitting:Splitting"},
    "fednoro": {"warmup": 1},
    "feddiv": {"name": "fednoil.testing.filtering:Filtering"},
    "fedgr": {"passes": 1},
}
LEARNER_KEYS: dict[str, dict[str, Any]] = {
    "dividemix": {"warmup": 1},
    "josrc": {"warmup": 1},
    "fednoil": {"frac": 0.5, "xi": 0.3},
    "fednoil-plus": {"frac": 0.5},
    "coteaching": {"ramp": 2},
    "jocor": {"ramp": 2},
    "fednoro": {"ramp": 2},
    "fedgr": {"xi": 0.3},
}

# One circumstance at a time, to find which of them matters, and what is wrong then.
_CAUSES: tuple[tuple[Circumstances, str], ...] = (
    (Circumstances(), "two runs with the same seed differ; draw every random number in init or plan, from turn.seed"),
    (
        Circumstances(generators=1),
        "results depend on a global random generator; draw every random number in init or plan, from turn.seed",
    ),
    (
        Circumstances(backwards=True),
        "results depend on the order in which clients train; keep nothing on the object: what a client remembers goes "
        "into Final.keep, what a server remembers into ServerState",
    ),
    (
        Circumstances(checkpoints=True),
        "a run resumed from a checkpoint ends differently; keep nothing on the object: what a client remembers "
        "goes into Final.keep (tensors), what a server remembers into ServerState",
    ),
    (Circumstances(garbage=True), "results depend on true labels; only given labels (client.labels) may be used"),
)


def cases() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Every server of the package with every learner, as sections of a configuration."""
    servers = [{"name": name, **SERVER_KEYS.get(name, {})} for name in SERVERS]
    learners = [{"name": name, **LEARNER_KEYS.get(name, {})} for name in LEARNERS]
    return [(server, learner) for learner in learners for server in servers]


def check_learner(learner: str | type, *, servers: Iterable[str] = tuple(SERVERS), **keys: Any) -> None:
    """Check a learner, `my_module:MyLearner` or the class itself, with each of the servers; `keys` are its own."""
    for server in servers:
        check_method({"name": server, **SERVER_KEYS.get(server, {})}, {"name": path_of(learner), **keys})


def check_server(server: str | type, *, learners: Iterable[str] = tuple(LEARNERS), **keys: Any) -> None:
    """Check a server, `my_module:MyServer` or the class itself, with each of the learners; `keys` are its own."""
    for learner in learners:
        check_method({"name": path_of(server), **keys}, {"name": learner, **LEARNER_KEYS.get(learner, {})})


def check_method(
    server: dict[str, Any], learner: dict[str, Any], sampling: dict[str, Any] | None = None, *, vectors: bool = False
) -> None:
    """Check one combination, given as sections of a configuration, on pictures or on vectors; clients are sampled by
    score by default."""
    config = tiny_config(server, learner, sampling, vectors=vectors)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with tiny tensors more threads only wait for each other: 13 times the CPU time
    try:
        _check(config)
    except (NotConforming, UserError) as error:
        raise NotConforming(f"{learner['name']} under {server['name']}: {error}") from error.__cause__
    finally:
        torch.set_num_threads(threads)


def check_on(device: torch.device, server: dict[str, Any], learner: dict[str, Any]) -> str | None:
    """Check that clients learn the same side by side on this device as one after another on a CPU; returns what
    prevents running them side by side, if anything."""
    config = tiny_config(server, learner)
    return check_side_by_side(config, play(config, Circumstances()), device)


def _check(config: Config) -> None:
    experiment = assemble(config, tiny_setting(config))
    check_steps(experiment)
    check_aggregation(experiment)
    usual = play(config, Circumstances())
    unusual = play(config, Circumstances(generators=1, backwards=True, checkpoints=True, garbage=True))
    _check_finite(usual)
    for trace in (usual, unusual):
        _check_memory(trace)
    _check_messages(config, usual)
    if not _same(usual, unusual):
        for circumstances, wrong in _CAUSES:
            if not _same(usual, play(config, circumstances)):
                raise NotConforming(wrong)
        raise NotConforming("results depend on several circumstances together: order of clients, checkpoints, "
                            "global random generators, true labels")  # fmt: skip
    check_side_by_side(config, usual, torch.device("cpu"))


def _same(a: Trace, b: Trace) -> bool:
    """Whether two runs ended with the same bits, for server and clients."""
    if repr(a.state.server.values) != repr(b.state.server.values) or a.state.keep.keys() != b.state.keep.keys():
        return False
    kept = (_equal(a.state.keep[k], b.state.keep[k]) for k in a.state.keep)
    remembered = _equal(a.state.evidence, b.state.evidence) and _equal(a.state.average, b.state.average)
    return _equal(a.state.server.tensors, b.state.server.tensors) and remembered and all(kept)


def _equal(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def _check_finite(trace: Trace) -> None:
    for name, tensor in trace.state.server.tensors.items():
        if not torch.isfinite(tensor).all():
            raise NotConforming(f"after {len(trace.records)} rounds the server's '{name}' is not finite")


def _check_memory(trace: Trace) -> None:
    """A client's next turn gets what its last one kept, whatever rounds and checkpoints come between."""
    memory: dict[int, Tensors] = {}
    for jobs, results in zip(trace.jobs, trace.results, strict=True):
        memory |= {r.client: r.keep for r in trace.answers.get(jobs[0].turn.round_idx, []) if r.keep}
        for job in jobs:
            if not _equal(job.keep, memory.get(job.client, {})):
                raise NotConforming(f"client {job.client} did not get back in round {job.turn.round_idx} what it kept")
        memory |= {r.client: r.keep for r in results if r.keep}


def _check_messages(config: Config, trace: Trace) -> None:
    """Clients send the networks they share and plain numbers; the record counts the bytes that were sent."""
    experiment = assemble(config, tiny_setting(config))
    shared = {role.name for role in experiment.learner.roles if role.shared}
    for jobs, results, record in zip(trace.jobs, trace.results, trace.records, strict=True):
        answers = trace.answers.get(record.round, [])
        for result in results:
            networks = {name.split("/")[0] for name in result.tensors}
            if networks != shared:
                raise NotConforming(f"a client sent {sorted(networks)}, but the roles share {sorted(shared)}")
            _check_numbers("Final.numbers", result, {"samples", "steps", *experiment.learner.sends})
        for result in answers:
            _check_numbers("a review's numbers", result, set(experiment.learner.reports))
        up = sum(sum(t.nbytes for t in r.tensors.values()) + 8 * len(r.numbers) for r in [*results, *answers])
        down, up = _bytes(jobs, trace.asked.get(record.round, []), record.client_scores, experiment, up)
        expected = (0, 0) if experiment.server.pools else (down, up)
        if (record.bytes_down, record.bytes_up) != expected:
            raise NotConforming(
                f"round {record.round} reports {record.bytes_down} bytes down and {record.bytes_up} up, "
                f"but {expected[0]} and {expected[1]} were sent"
            )


def _check_numbers(where: str, result: Result, declared: set[str]) -> None:
    """A message holds floats that the learner has declared."""
    wrong = [name for name, value in result.numbers.items() if not isinstance(value, float)]
    if wrong:
        raise NotConforming(f"{where}['{wrong[0]}'] is not a float: a message holds tensors and floats only")
    if set(result.numbers) != declared:
        raise NotConforming(
            f"{where} are {sorted(result.numbers)}, but `sends` and `reports` declare {sorted(declared)}"
        )


def _bytes(
    jobs: Sequence[Job], asked: Sequence[Job], scores: object, experiment: Experiment, up: int
) -> tuple[int, int]:
    """Everyone gets the model once if there is a review or a query for scores, otherwise those who train do."""
    clients, model = experiment.setting.num_clients, sum(t.nbytes for t in jobs[0].received.values())
    down = model * (clients if asked or scores is not None else len(jobs))
    down += sum(16 + 8 * len(job.turn.signals) for job in jobs) + sum(8 + 8 * len(job.turn.signals) for job in asked)
    return (down, up) if scores is None else (down + 8 * clients, up + 8 * clients)
