"""From the arguments of a command that runs something to a configuration, a folder and a device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fednoil.errors import UserError

if TYPE_CHECKING:
    import torch

    from fednoil.api.running import Resolved


def resolve(
    source: str | None,
    assignments: list[str],
    seed: str | None,
    device: str | None,
    out: Path | None,
    resume: bool,
    seeds: bool = False,
    sites: Sequence[str] = (),
) -> tuple[Resolved, Path]:
    """The run and folder for the arguments of `run`; with `seeds` the folder of several runs."""
    from fednoil.api.running import resolve as resolved
    from fednoil.config import parse_set
    from fednoil.config.source import is_file
    from fednoil.records.older import read_current

    register_study()
    changes = parse_set(assignments)
    if sites:
        if name := changes.get("data", {}).get("name"):
            raise UserError(f"data.name = '{name}' and --site both say where the data are; leave one of them out")
        changes["data"] = changes.get("data", {}) | {"name": "sites", "sites": _sites(sites)}
    if source is None and resume and out is not None:
        base: Any = read_current(_own_config(out, seeds))
    else:
        base = source or "demo"
    made = resolved(base, changes, seed=seed, device=device)
    if out is None:
        name = Path(str(source)).stem if source and is_file(source) else (source or "demo").replace("/", "-")
        of_seed = "" if made.config.run.seed == 0 else f"-seed{made.config.run.seed}"
        out = Path("runs") / f"{name}{'-seeds' if seeds else of_seed}"
    return made, out


def _sites(texts: Sequence[str]) -> dict[str, str]:
    """The sites that `--site NAME=DATA` names."""
    from fednoil.data import forms

    found: dict[str, str] = {}
    for text in texts:
        name, equals, data = (part.strip() for part in text.partition("="))
        if not equals or not name or not data:
            raise UserError(f"--site {text}: write NAME={' or NAME='.join(forms())}")
        if name in found:
            raise UserError(f"--site {text}: '{name}' has data already; each site needs its own name")
        found[name] = data
    return found


def register_study() -> None:
    """Register the presets of the paper's study and of the ranking, which are loaded when one of them is used."""
    from fednoil.config.presets import Family, register

    def paper() -> Family:
        from fednoil.study.presets import PAPER

        return PAPER

    def small() -> Family:
        from fednoil.study.presets import SMALL

        return SMALL

    def ranking() -> Family:
        from fednoil.bench.settings import PRESETS

        return PRESETS

    register("paper", paper)
    register("small", small)
    register("bench", ranking)


def asked_device(name: str) -> torch.device:
    """The device for `--device`, in a command without a configuration."""
    from fednoil.devices import pick_device

    if name not in ("auto", "cpu", "cuda"):
        raise UserError(f"--device '{name}' is unknown; choose auto, cpu or cuda")
    return pick_device(name, "--device")


def how_to_go_on(out: Path, seeds: str | None = None) -> str:
    """The command that resumes what was stopped in `out`; "" if there is nothing to resume yet."""
    if not any(out.glob(_wanted(seeds is not None))):
        return ""
    of_seeds = "" if seeds is None else f" --seeds {seeds}"
    return f"continue with: fednoil run --resume{of_seeds} --out {out}"


def _own_config(out: Path, seeds: bool) -> Path:
    """The configuration of the run in `out`, or of the first of several seeds."""
    found = sorted(out.glob(_wanted(seeds)))
    if not found:
        raise UserError(f"{out} has no run to resume (no {_wanted(seeds)}); name a preset or file to start one")
    return found[0]


def _wanted(seeds: bool) -> str:
    return "seed-*/config.toml" if seeds else "config.toml"
