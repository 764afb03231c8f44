"""Runs side by side, from their folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fednoil import metrics
from fednoil.config.loading import read_toml
from fednoil.data import SITES
from fednoil.errors import UserError
from fednoil.records.folder import Roster, RunFolder
from fednoil.records.older import in_todays_keys


def describe(path: Path) -> dict[str, Any]:
    """One row of a comparison; an unfinished run is summarised as far as it got."""
    folder = RunFolder(path)
    folder.check_is_run(" (no config.toml)")
    values = in_todays_keys(read_toml(path / "config.toml"))
    finished = (path / "summary.json").is_file()
    summary = folder.summary() if finished else _so_far(folder)
    return {
        "run": str(path),
        "method": method_name(values),
        "setting": setting_name(values, folder.roster()),
        "seed": values.get("run", {}).get("seed", 0),
        "finished": finished,
        **{k: v for k, v in summary.items() if not k.endswith("_hash") and k != "per_class_accuracy"},
    }


def _so_far(folder: RunFolder) -> dict[str, Any]:
    """The summary of the rounds there are."""
    records = folder.records()
    if not records:
        raise UserError(f"{folder.path} has no finished round yet")
    return metrics.summarise(records, ())


def method_name(values: dict[str, Any]) -> str:
    """`server+learner (schedule)`, plain cross-entropy and constant epochs left unsaid."""
    server = values.get("server", {}).get("name", "fedavg")
    learner = values.get("learner", {}).get("name", "erm")
    schedule = values.get("schedule", {}).get("name", "constant")
    name = server if learner == "erm" else f"{server}+{learner}"
    return name if schedule == "constant" else f"{name} ({schedule})"


def setting_name(values: dict[str, Any], roster: Roster | None = None) -> str:
    """Data, partition and noise in a few words; of a federation's sites, which share none of these, how many."""
    if values.get("data", {}).get("name") == SITES:
        return "own data of " + (f"{len(roster.founders)} sites" if roster else "sites")
    noise = values.get("noise", {})
    kind, levels = noise.get("kind", "none"), noise.get("levels", "groups")
    if levels != "groups":
        numbers = (f" {key}={value:g}" for key, value in noise.items() if key in ("rho", "tau", "low", "high"))
        kind += f"-{levels}{''.join(numbers)}"
    elif ratios := noise.get("ratios"):
        kind += f"-{min(ratios):g}" + (f"..{max(ratios):g}" if min(ratios) < max(ratios) else "")
    shared = noise.get("pair_map", noise.get("matrix_map", "per_client"))
    kind += f"-{shared}" if shared != "per_client" else ""
    data, partition = values.get("data", {}).get("name", "?"), values.get("partition", {}).get("kind", "iid")
    return f"{data} {partition} {kind}"


def short_names(paths: list[Path]) -> list[str]:
    """The folders' own names where these tell them apart, else the paths as given."""
    names = [path.name for path in paths]
    return names if len(set(names)) == len(names) and all(names) else [str(path) for path in paths]
