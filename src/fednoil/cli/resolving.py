"""From the arguments of a command that runs something to a configuration and a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fednoil.errors import UserError


def resolve(
    source: str | None, assignments: list[str], seed: str | None, device: str | None, out: Path | None, resume: bool
) -> tuple[Any, Path]:
    """The configuration and the folder that the arguments of `run` ask for."""
    from fednoil.config import load_config, merge, parse_set, preset, preset_names, read_toml

    changes = parse_set(assignments)
    if seed is not None:
        changes.setdefault("run", {})["seed"] = seed
    if device is not None:
        changes.setdefault("run", {})["device"] = device
    is_file = (
        source is not None and source not in preset_names() and (source.endswith(".toml") or Path(source).is_file())
    )
    if source is None and resume and out is not None:
        if not (out / "config.toml").is_file():
            raise UserError(f"{out} holds no run to go on with (no config.toml); name a preset or file to start one")
        base = read_toml(out / "config.toml")  # a run's own folder says what it is
    elif is_file:
        base = read_toml(Path(str(source)))
    else:
        base = preset(source or "demo")
    config = load_config(merge(base, changes))
    if out is None:
        name = Path(str(source)).stem if is_file else (source or "demo").replace("/", "-")
        out = Path("runs") / (name if config.run.seed == 0 else f"{name}-seed{config.run.seed}")
    return config, out
