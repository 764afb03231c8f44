"""What runs are called when they are put side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fednoil.data import SITES
from fednoil.data.elsewhere import are_given, at_nodes
from fednoil.errors import counted
from fednoil.records.folder import Roster

_LISTS = ("per_class_accuracy", "classes", "clients")


def described(
    values: dict[str, Any], roster: Roster | None, summary: Mapping[str, Any], finished: bool
) -> dict[str, Any]:
    """What a run with this configuration and summary is, in a comparison's columns."""
    return {
        "method": method_name(values),
        "setting": setting_name(values, roster),
        "seed": values.get("run", {}).get("seed", 0),
        "finished": finished,
        **{k: v for k, v in summary.items() if not k.endswith("_hash") and k not in _LISTS},
    }


def method_name(values: dict[str, Any]) -> str:
    """`server+learner (schedule)`, plain cross-entropy and constant epochs left unsaid."""
    server = values.get("server", {}).get("name", "fedavg")
    learner = values.get("learner", {}).get("name", "erm")
    schedule = values.get("schedule", {}).get("name", "constant")
    name = server if learner == "erm" else f"{server}+{learner}"
    return name if schedule == "constant" else f"{name} ({schedule})"


def setting_name(values: dict[str, Any], roster: Roster | None = None) -> str:
    """Data, partition and noise in a few words; for a federation's sites, which share none of these, their number."""
    if of_sites(values):
        return "own data of " + (counted(len(roster.founders), "site") if roster else "sites")
    if are_given(str(name := values.get("data", {}).get("name"))):
        return f"{name}, {values.get('partition', {}).get('clients', '?')} clients"
    return " ".join(filter(None, setting_words(values)))


def of_sites(values: dict[str, Any]) -> bool:
    """Whether each client is a site with its own data, in a federation or in a simulation of one."""
    data = values.get("data", {})
    return at_nodes(data) or (data.get("name") == SITES and values.get("partition", {}).get("kind") == "given")


def setting_words(values: dict[str, Any]) -> tuple[str, str, str]:
    """Data, partition and noise, a few words each; "" for what is not the configuration's to say."""
    name, noise = str(values.get("data", {}).get("name", "?")), values.get("noise", {})
    if are_given(name):
        return name, "", ""
    if noise.get("kind") == "manifest":  # which takes the place of the partition as well
        return name, f"clients of {Path(str(noise.get('file', ''))).name}", ""
    kind, levels = noise.get("kind", "none"), noise.get("levels", "groups")
    kind += f"-{levels}" if levels != "groups" else ""
    kind += f" rho={noise['rho']:g}" if "rho" in noise else ""
    if ratios := noise.get("ratios"):
        span = f"{min(ratios):g}" + (f"..{max(ratios):g}" if min(ratios) < max(ratios) else "")
        kind += f"-{span}" if levels == "groups" else f" {span}"
    shared = noise.get("map", "per_client")
    kind += f"-{shared}" if shared != "per_client" else ""
    kind = "" if kind == "unknown" else kind  # nobody knows how many of the user's own labels are wrong
    split = str(values.get("partition", {}).get("kind", "iid"))
    return name, "by site" if split == "given" else split, kind


def short_names(paths: list[Path]) -> list[str]:
    """The folders' own names where these differ, otherwise the paths as given."""
    names = [path.name for path in paths]
    return names if len(set(names)) == len(names) and all(names) else [str(path) for path in paths]
