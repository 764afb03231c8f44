"""The tables of README.md, from results/*.json; a device that has no results yet has a line that says so.

python benchmarks/charts.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fednoil.kernels import KERNELS
from fednoil.pages.marked import fill

HERE = Path(__file__).resolve().parent
Results = dict[str, Any]


def load(folder: Path) -> dict[str, Results]:
    """The results that are there, by name: cuda, peers, checkpoints-cpu, checkpoints-cuda, …"""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def number(value: float) -> str:
    """Three digits, without a power of ten."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def many_clients_table(found: dict[str, Results]) -> str:
    """Rounds of few clients among many, against one among 100; files have the same size on every device."""
    known = [found[name] for name in ("many-clients-cpu", "many-clients-h200")]
    devices = ", ".join(results["device"].replace(", ", " with ") for results in known)
    lines = [
        f"{devices}:\n",
        "| clients | a round | drawn by | against 100 | MiB | checkpoint, KiB | record, bytes |",
        "|---|---|---|---|---|---|---|",
    ]
    for first, *others in zip(*(results["rows"] for results in known), strict=True):
        both = ("/".join(str(row[key]) for row in (first, *others)) for key in ("ratio", "memory_mib"))
        cells = [first["selected"], first["sampling"], *both, first["checkpoint_kib"], first["record_bytes"]]
        lines.append(f"| {first['clients']:,} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def peers_table(results: Results) -> str:
    """Ratios to the plain loop with as many threads."""
    lines = [
        "| engine | threads | own seconds: best, median | wall clock: best, median | accuracy, % |",
        "|---|---|---|---|---|",
    ]
    pfl, flower = results["peers"]
    names = {"plain": "plain PyTorch loop", "fednoil": "fednoil", "pfl": pfl, "flower": flower}
    for row in results["rows"]:
        threads = f"1 in each of {results['cores']} processes" if row["engine"] == "flower" else results["threads"]
        ratios = [f"{row[f'{c}_best_ratio']:.2f}, {row[f'{c}_median_ratio']:.2f}" for c in ("cpu", "wall")]
        lines.append(f"| {names[row['engine']]} | {threads} | {' | '.join(ratios)} | {row['accuracy']:.1f} |")
    return "\n".join(lines)


NAMES = {
    "plain": "plain PyTorch loop",
    "plain-bfloat16": "bfloat16, channels_last",
    "plain-compiled": "compiled",
    "flower": "flwr",
}
TASKS = {"cnn": "CNN", "resnet18": "ResNet18"}


def peers_gpu_table(results: Results) -> str:
    """All engines on one GPU, with a number for each network, and how many times as fast ours is; what is missing."""
    rows = {(row["task"], row["engine"]): row for row in results["rows"]}
    tasks = [task for task in TASKS if any(task == of for of, _ in rows)]
    lines = [
        f"{results['device']}, commit {results['commit']}; {' and '.join(TASKS[task] for task in tasks)}:",
        "",
        "| engine | client-steps/s | images/s | peak GiB | accuracy, % | same bits | ours |",
        "|---|---|---|---|---|---|---|",
    ]
    for engine in dict.fromkeys(engine for _, engine in rows):
        found, name = [rows[task, engine] for task in tasks], NAMES.get(engine, engine)
        if all("failed" in row for row in found):
            continue
        cells = [[_shown(row.get(key), show) for row in found] for key, show in _SHOWN.items()]
        name = f"{name} {results['versions'].get(name, '')}".rstrip()
        lines.append(f"| {name} | {' | '.join('/'.join(cell) for cell in cells)} |")
    failed = [
        f"{NAMES.get(e, e)} on the {TASKS[t]} ({row['failed']})" for (t, e), row in rows.items() if "failed" in row
    ]
    return "\n".join([*lines, *(["", f"Not measured: {', '.join(failed)}."] if failed else [])])


def _shown(value: Any, show: Callable[[Any], str]) -> str:
    return "–" if value is None else show(value)


_SHOWN: dict[str, Callable[[Any], str]] = {
    "client_steps_a_second": number,
    "images_a_second": number,
    "peak_gib": number,
    "accuracy": lambda value: f"{value:.1f}",
    "equal": lambda value: "yes" if value else "no",
    "ours_is_times_as_fast": lambda value: f"{value:.1f}×",
}


STYLES = {
    "bare float32": "bare PyTorch, float32 (TF32 in convolutions, as PyTorch has it)",
    "bare float32, no TF32": "bare PyTorch, float32 without TF32",
    "bare bfloat16 NHWC": "bare PyTorch, bfloat16, channels_last",
    "sequential float32": "client after client (`run.parallel=0`), float32",
    "sequential bfloat16": "client after client, bfloat16",
    "labelled": "all at once, 6 clients, steps of 32 images (no pseudo-labels)",
}


def steps_table(results: Results) -> str:
    """Milliseconds of a client's step by style and model, and how many times as fast six at once are."""
    models = {"cnn": "CNN", "resnet18": "ResNet18"}
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for row in results["rows"]:
        at_once = f"all at once, {row['clients']} client{'s' if row['clients'] > 1 else ''}"
        table.setdefault(STYLES.get(row["style"], at_once), {})[row["model"]] = row
    turns = {row["style"].split()[0]: row["epochs"] for row in results["rows"] if "epochs" in row}
    after = turns.get("sequential", turns["stacked"])
    after = f", client after client of {after}" if after != turns["stacked"] else ""
    lines = [
        f"{results['device']}, PyTorch {results['torch']}; turns of {turns['stacked']} epochs{after}.",
        "",
        "| ms of a client's step | " + " | ".join(models.values()) + " | GiB: " + ", ".join(models.values()) + " |",
        "|---|---|---|---|",
    ]
    for name, cells in table.items():
        times = [number(cells[m]["ms"]) if m in cells else "–" for m in models]
        memory = [number(cells[m]["gib"]) if m in cells and cells[m]["gib"] else "–" for m in models]
        lines.append(f"| {name} | {' | '.join(times)} | {', '.join(memory)} |")
    six = table["all at once, 6 clients"]
    for name in [STYLES[style] for style in ("bare float32", "sequential float32") if STYLES[style] in table]:
        ratios = [f"{table[name][m]['ms'] / six[m]['ms']:.1f} ×" for m in models]
        lines.append(f"| six at once against {re.sub(r' [(].*?[)]', '', name)} | {' | '.join(ratios)} | |")
    return "\n".join(lines)


def checkpoints_table(found: dict[str, Results]) -> str:
    """The share of a run on each device that was measured."""
    lines = ["| device | run | a checkpoint every | share of the run |", "|---|---|---|---|"]
    for name in ("checkpoints-cpu", "checkpoints-cuda"):
        for row in found[name]["rows"]:
            share = f"{row['share_percent']:.4f} %"
            lines.append(f"| {found[name]['device']} | {row['what']} | {row['every']} rounds | {share} |")
    return "\n".join(lines)


def end_to_end_table(results: Results) -> str:
    """Whole commands by the newest version that was timed."""
    lines = ["| preset | rounds | compiled kernels | rounds, s | whole command, s |", "|---|---|---|---|---|"]
    groups: dict[tuple[str, int, str], list[Results]] = {}
    for row in (row for row in results["runs"] if "/non-iid/" not in row["command"]):
        groups.setdefault((row["command"].split()[-1], row["rounds"], row["kernels"]), []).append(row)
    for (preset, rounds, kernels), rows in groups.items():
        spans = [_span([row[key] for row in rows]) for key in ("rounds_s", "whole_command_s")]
        lines.append(f"| `{preset}` | {rounds} | {kernels} | {' | '.join(spans)} |")
    return "\n".join(lines)


def _span(values: list[float]) -> str:
    return "–".join(f"{value:.1f}" for value in sorted({min(values), max(values)}))


CASES = {
    "fashion-mnist": "CNN",
    "five runs": "CNN, 30 clients",
    "cifar10": "ResNet18",
    "cifar10 before": "ResNet18, commit 071eef8",
}


def kernels_table(results: Results) -> str:
    """Milliseconds of a turn without each kernel, and how many times as long that is as with all, the largest first."""
    times, cases = results["ms"], [case for case in CASES if case in results["ms"]]
    gains = {
        name: {case: times[case][name] / times[case]["all"] for case in cases if name in times[case]}
        for name in sorted({name for case in cases for name in times[case]} - {"all"})
    }
    lines = [
        f"{results['device']}, turns of {results['epochs']} epochs, commit {results['commit']}:",
        "",
        f"| ms without | {' | '.join(CASES[case] for case in cases)} | |",
        "|---|" + "---|" * len(cases) + "---|",
        f"| none | {' | '.join(number(times[case]['all']) for case in cases)} | |",
    ]
    for name in sorted(gains, key=lambda name: -max(gains[name].values())):
        gain = gains[name]
        cells = [f"{number(times[case][name])} ({gain[case]:.2f} ×)" if case in gain else "–" for case in cases]
        lines.append(f"| `{name}` | {' | '.join(cells)} | {'kept' if name in KERNELS else 'deleted'} |")
    return "\n".join(lines)


def goals_table(found: dict[str, Results]) -> str:
    """What the goals of small steps, uneven clients and many runs are held against."""
    steps, uneven, runs = (found[name] for name in ("small-steps-h200", "uneven-h200", "many-runs-h200"))
    small = next(row for row in steps["rows"] if row["style"] == "labelled")
    lines = [f"{steps['device']}, PyTorch {steps['torch']}.", "", "| what | measured | goal |", "|---|---|---|"]
    lines.append(f"| ms of a ResNet18's step of 32 images, six clients | {small['ms']:.3f} | 0.5 |")
    for row in uneven["rows"]:
        alone = "one run" if row["runs"] == 1 else f"{row['runs']} runs together"
        lines.append(f"| a non-IID step against an IID one, `{row['learner']}`, {alone} | {row['ratio']:.2f} | 1.2 |")
    best = min(runs["runs"], key=lambda run: run["together_s"])
    lines.append(
        f"| s for seeds {runs['seeds']} of `{runs['preset']}` | {best['together_s']:.1f} | {runs['goal_s']:g} |"
    )
    shares = f"{best['training_s']:.0f} s are training and {best['rounds_s']:.0f} s all rounds"
    return "\n".join([*lines, "", f"Of the five seeds' time {shares}."])


def nodes_table(results: Results) -> str:
    """Rounds over real nodes of one machine."""
    lines = [
        f"Medians of {results['rounds']} rounds on {results['cores']} cores.",
        "",
        "| nodes | up, s | a round, s | CPU seconds a round | memory, GiB | load |",
        "|---|---|---|---|---|---|",
    ]
    names = ("nodes", "up_s", "round_s", "cpu_s_a_round", "memory_gib", "load")
    return "\n".join([*lines, *(f"| {' | '.join(str(row[name]) for name in names)} |" for row in results["rows"])])


def tables(found: dict[str, Results]) -> dict[str, str]:
    """The text between `<!-- NAME -->` and `<!-- end -->` in README.md."""
    return {
        "peers gpu": peers_gpu_table(found["peers-gpu"]),
        "peers": peers_table(found["peers"]),
        "many clients": many_clients_table(found),
        "checkpoints": checkpoints_table(found),
        "nodes": nodes_table(found["nodes"]),
        "end to end": end_to_end_table(found["end-to-end-h200"]),
        "steps": steps_table(found["gpu-steps-h200"]),
        "kernels": kernels_table(found["kernels-h200"]),
        "goals": goals_table(found),
    }


def main() -> None:
    found = load(HERE / "results")
    readme = HERE / "README.md"
    readme.write_text(fill(readme.read_text(encoding="utf-8"), tables(found)), encoding="utf-8")


if __name__ == "__main__":
    main()
