"""Cells on a Ray cluster: Ray decides what runs where, and every finished run ends up in one folder here.

Where a worker sees the output folder (one machine, a shared file system) it writes there, and a stopped cell resumes
from its checkpoint. Elsewhere it writes to its own disk and sends the finished run back.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fednoil.batch.cell import Cell
from fednoil.batch.workers import Outcome, View
from fednoil.config import load_config
from fednoil.errors import UserError
from fednoil.files import write_bytes
from fednoil.runner import Silent, run


def run_on_ray(
    cells: Sequence[Cell], out: Path, data_dir: Path | None, view: View, address: str, per_gpu: int
) -> list[Outcome]:
    """Run the cells as Ray tasks: one CPU each and, where the cluster has GPUs, 1/`per_gpu` of one."""
    ray, ours = _connect(address)
    token = out / f".ray-{uuid.uuid4().hex}"  # a worker that sees it shares the file system
    try:
        out.mkdir(parents=True, exist_ok=True)
        token.touch()
        gpus = 1 / per_gpu if ray.cluster_resources().get("GPU") else 0
        task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=1)(_run_cell)
        where = str(data_dir.resolve()) if data_dir else None
        began = time.perf_counter()
        pending = {}
        for cell in cells:
            values = cell.config.model_dump(mode="json", exclude_none=True)
            places = str((out / cell.folder).resolve()), str(token.resolve()), where
            pending[task.remote(values, *places, cell.origin)] = cell
        outcomes = {}
        while pending:
            for ref in ray.wait(list(pending), timeout=1.0)[0]:
                cell = pending.pop(ref)
                outcomes[cell] = _collect(ray, ref, cell, out, time.perf_counter() - began)
                view.ended(outcomes[cell])
        return [outcomes[cell] for cell in cells]
    finally:
        token.unlink(missing_ok=True)
        if ours:
            ray.shutdown()


def import_ray() -> Any:
    """Ray, or what to do about its absence."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray  # pyright: ignore[reportMissingImports]  (an extra)
    except ImportError:
        raise UserError("--ray needs the package ray: pip install 'fednoil[ray]'") from None
    return ray


def _connect(address: str) -> tuple[Any, bool]:
    """Join the cluster at `address`; `auto` is the one that runs here, or else a new one on this machine alone.

    Returns Ray, and whether it is ours to leave: a process that has joined a cluster already stays in it.
    """
    ray = import_ray()
    if ray.is_initialized():
        return ray, False
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    where = {"include_dashboard": False} if address == "auto" else {"address": address}
    try:
        ray.init(**where, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(f"--ray {address}: no cluster there ({error}); `ray start --head` starts one") from None
    return ray, True


def _run_cell(
    values: dict[str, Any], folder: str, token: str, data_dir: str | None, origin: dict[str, Any] | None
) -> tuple[str, dict[str, bytes]]:
    """On a worker: run, and return why it failed or the files that the driver can't see."""
    shared = Path(token).is_file()
    with tempfile.TemporaryDirectory() as own:
        target = Path(folder) if shared else Path(own) / "run"
        try:
            data = Path(data_dir) if data_dir else None
            run(load_config(values), target, Silent(), data_dir=data, resume=True, origin=origin)
        except UserError as error:
            return str(error), {}
        if shared:
            return "", {}
        files = [path for path in target.rglob("*") if path.is_file() and path.name != ".lock"]
        return "", {str(path.relative_to(target)): path.read_bytes() for path in files}


def _collect(ray: Any, ref: Any, cell: Cell, out: Path, seconds: float) -> Outcome:
    try:
        reason, files = ray.get(ref)
    except ray.exceptions.RayError as error:
        return Outcome(cell, "failed", str(error).strip().splitlines()[-1], seconds)
    # The summary says that a run is finished: it comes last.
    for name in sorted(files, key=lambda name: name == "summary.json"):
        path = out / cell.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, files[name])
    return Outcome(cell, "failed" if reason else "done", reason, seconds)
