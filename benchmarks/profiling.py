"""Where the time of a turn goes: every kernel with its launches and its share, the GPU's idle time, the host's stages.

    python benchmarks/profiling.py [--preset NAME] [--learner NAME] [--clients 6] [--epochs 10] [--device cuda]
                                   [--rows 40] [--json FILE]

Some clients' turn of a preset (or of the demo's setting) is played until nothing new is compiled or captured, then once
more by the clock with the host's stages noted, and once under PyTorch's profiler. `--learner` takes a name of
`benchmarks/learners.py` in place of the preset's own learner. The profiler makes launches longer, so shares and idle
time are of the profiled turn; the other one's length stands beside it. On a CPU the executor is the same without
graphs, and what is counted are PyTorch's own operations.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from fednoil.executors import cuda
from fednoil.executors.base import Job
from fednoil.executors.capture import Graphs, Portion
from fednoil.executors.cuda import CudaGraphs
from fednoil.executors.local import Workbench
from fednoil.experiment import Experiment, make_bench, make_executor
from floor import check_device
from learners import CASES, jobs_of, settings

WARM_TURNS = 3  # a shape gets its long graph when it comes the second time
NAME = 90  # characters of a kernel's name
# Operations that only look at their tensor in another way.
VIEWS = frozenset(
    [
        "view",
        "as_strided",
        "permute",
        "expand",
        "unsqueeze",
        "squeeze",
        "transpose",
        "slice",
        "select",
        "detach",
        "alias",
        "t",
        "split",
        "split_with_sizes",
        "unbind",
        "narrow",
        "view_as",
        "unflatten",
        "flatten",
        "movedim",
        "chunk",
        "unsafe_view",
        "_unsafe_view",
        "expand_as",
        "lift_fresh",
        "result_type",
        "resolve_conj",
        "resolve_neg",
        "reshape",
        "_reshape_alias",
        "unsafe_split",
        "tensor_split",
        "diagonal",
        "resize_",
        "set_",
        "to",
        "as_strided_",
        "new_empty",
        "detach_",
        "zero_",
        "item",
        "contiguous",
    ]
)
# What the host does in a turn: whose attribute it is. Captures are part of the replays.
STAGES: dict[str, list[tuple[Any, str]]] = {
    "survey": [(cuda, "surveys"), (Workbench, "begin")],
    "plan": [(cuda, "_planned")],
    "replay": [(CudaGraphs, "_play")],
    "of that, capture": [(Graphs, "_capture")],
    "finish": [(CudaGraphs, "_finish")],
}


class Span(NamedTuple):
    """One launch: microseconds of a common clock."""

    name: str
    start: float
    end: float


def executor_of(experiment: Experiment, device: torch.device, clients: int) -> CudaGraphs:
    """The GPU's executor; on a CPU its steps run one by one."""
    plain = make_executor(experiment, device)
    everyone = plain.clients  # pyright: ignore[reportAttributeAccessIssue]
    return CudaGraphs(lambda: make_bench(experiment, device), everyone, torch.empty(0, device=device), clients)


def short(name: str) -> str:
    """A kernel's name without what all of them have."""
    for noise in ("void ", "at::native::", "(anonymous namespace)::", "at::"):
        name = name.replace(noise, "")
    return re.sub(r"\(.*\)$", "", name).strip()[:NAME]


def spans_of(events: Sequence[FunctionEvent], device: torch.device) -> list[Span]:
    """The launches among a profiler's events: kernels and copies of a GPU, or a CPU's innermost operations on data."""
    if device.type == "cuda":
        found = [e for e in events if e.device_type == DeviceType.CUDA and not e.is_user_annotation]
    else:
        found = [e for e in events if _works(e) and not any(map(_works, _within(e)))]
    return [Span(short(e.name), e.time_range.start, e.time_range.end) for e in found]


def _works(event: FunctionEvent) -> bool:
    """Whether a CPU's event is an operation that would be a kernel on a GPU."""
    name = event.name.removeprefix("aten::")
    return name != event.name and name not in VIEWS and not name.startswith("empty")


def _within(event: FunctionEvent) -> Iterator[FunctionEvent]:
    for child in event.cpu_children:
        yield child
        yield from _within(child)


def table(spans: Sequence[Span], steps: int) -> list[dict[str, Any]]:
    """Kernels by the time they take in all; shares are of the time from the first launch to the end of the last."""
    kinds: dict[str, list[float]] = {}
    for span in spans:
        kinds.setdefault(span.name, []).append(span.end - span.start)
    length = max(s.end for s in spans) - min(s.start for s in spans)
    rows = [
        {
            "kernel": name,
            "launches": len(times),
            "launches_a_step": len(times) / max(steps, 1),
            "us": sum(times) / len(times),
            "ms": sum(times) / 1000,
            "share": sum(times) / length,
        }
        for name, times in kinds.items()
    ]
    return sorted(rows, key=lambda row: -row["ms"])


def idle(spans: Sequence[Span]) -> tuple[float, float]:
    """Milliseconds from the first launch to the end of the last, and those of them in which nothing ran."""
    ordered = sorted(spans, key=lambda span: span.start)
    begin = end = ordered[0].start
    gaps = 0.0
    for span in ordered:
        gaps += max(0.0, span.start - end)
        end = max(end, span.end)
    return (end - begin) / 1000, gaps / 1000


@contextlib.contextmanager
def noted(owner: Any, name: str, note: Callable[[float, tuple[Any, ...]], None]) -> Iterator[None]:
    """Call `note` with the seconds of each call of a function, and its arguments."""
    plain: Callable[..., Any] = getattr(owner, name)

    def noting(*args: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return plain(*args, **named)
        finally:
            note(time.perf_counter() - began, args)

    setattr(owner, name, noting)
    try:
        yield
    finally:
        setattr(owner, name, plain)


def clocked(executor: CudaGraphs, jobs: Sequence[Job], device: torch.device) -> dict[str, Any]:
    """Seconds of a turn, of the host's stages in it, and its joint optimiser steps."""
    stages, steps = dict.fromkeys(STAGES, 0.0), 0

    def add(stage: str) -> Callable[[float, tuple[Any, ...]], None]:
        def note(seconds: float, _: tuple[Any, ...]) -> None:
            stages[stage] += seconds

        return note

    def count(_: float, args: tuple[Any, ...]) -> None:
        nonlocal steps
        portion: Portion = args[-1]
        steps += portion.steps if portion.trains else 0

    with contextlib.ExitStack() as stack:
        for stage, places in STAGES.items():
            for owner, name in places:
                stack.enter_context(noted(owner, name, add(stage)))
        stack.enter_context(noted(Graphs, "play", count))
        began = time.perf_counter()
        executor.train(jobs)
        host = time.perf_counter() - began
        if device.type == "cuda":
            torch.cuda.synchronize()
    return {"seconds": time.perf_counter() - began, "host_seconds": host, "stages": stages, "steps": steps}


def measure(experiment: Experiment, jobs: Sequence[Job], device: torch.device) -> dict[str, Any]:
    """Everything that is reported about a turn."""
    executor = executor_of(experiment, device, len(jobs))
    for _ in range(WARM_TURNS):
        executor.train(jobs)
    found = clocked(executor, jobs, device)
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    with profile(activities=activities, acc_events=True) as profiler:
        executor.train(jobs)
        if device.type == "cuda":
            torch.cuda.synchronize()
    spans = spans_of(profiler.events(), device)
    if not spans:
        raise SystemExit(f"the profiler saw nothing that ran on {device}; on a GPU it needs CUPTI")
    length, gaps = idle(spans)
    found |= {
        "profiled_ms": length,
        "idle_ms": gaps,
        "launches": len(spans),
        "kernels": table(spans, found["steps"]),
    }
    return found | {"graphs": len(executor.graphs), "alone": executor.alone, "eager": executor.reason}


def lines(found: dict[str, Any], rows: int) -> Iterator[str]:
    """What is printed."""
    yield "| kernel | launches a step | µs a launch | ms in all | share of the turn |"
    yield "|---|---|---|---|---|"
    for row in found["kernels"][:rows]:
        name = row["kernel"].replace("|", "/")
        yield f"| {name} | {row['launches_a_step']:.2f} | {row['us']:.2f} | {row['ms']:.2f} | {row['share']:.1%} |"
    rest = found["kernels"][rows:]
    if rest:
        launches, ms = sum(row["launches"] for row in rest), sum(row["ms"] for row in rest)
        share = sum(row["share"] for row in rest)
        yield (
            f"| {len(rest)} others | {launches / max(found['steps'], 1):.2f} | {1000 * ms / launches:.2f} | "
            f"{ms:.2f} | {share:.1%} |"
        )
    yield (
        f"{found['steps']} joint steps, {found['launches']} launches, {found['graphs']} graphs; profiled the turn took "
        f"{found['profiled_ms']:.1f} ms, of which nothing ran in {found['idle_ms']:.1f} ms "
        f"({found['idle_ms'] / found['profiled_ms']:.1%})"
    )
    yield (
        f"without the profiler {1000 * found['seconds']:.1f} ms; the host was busy or waiting for "
        f"{1000 * found['host_seconds']:.1f} ms: "
        + ", ".join(f"{stage} {1000 * seconds:.1f}" for stage, seconds in found["stages"].items())
    )
    for why in filter(None, (found["alone"], found["eager"])):
        yield f"not all at once: {why}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset")
    parser.add_argument("--learner", choices=list(CASES), help="default: the preset's, or fednoil")
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--width", type=int, default=32, help="of the CNN where there is no preset")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, default=40, help="kernels to print")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    check_device(args.device)
    case = args.learner or (None if args.preset else "fednoil")
    section, round_idx = CASES[case] if case else (None, 20)
    found = measure(*jobs_of(settings(section, args), round_idx, args), torch.device(args.device))
    print("\n".join(lines(found, args.rows)))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
