"""What a command loads before it begins: no more than it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fednoil.devices import be_deterministic

HEAVY = (
    "pandas",
    "matplotlib",
    "sklearn",
    "scipy",
    "jinja2",
    "torch._dynamo",
    "torch._inductor",
    "sympy",
    "tensorboard",
    "mlflow",
    "wandb",
)


def loaded_by(program: str) -> set[str]:
    """Those of the heavy modules that a new interpreter has loaded after the program."""
    tell = f"import sys; print('loaded', *(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", f"{program}\n{tell}"], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_a_run_loads_no_more_than_it_needs(tiny_npz: Path, tmp_path: Path) -> None:
    values = {"data.name": f"npz:{tiny_npz}", "partition.clients": 4, "train.rounds": 1, "schedule.name": "constant"}
    changes = [f"--set={key}={value}" for key, value in {**values, "schedule.epochs": 1, "run.device": "cpu"}.items()]
    program = f"from fednoil.cli.main import app\napp({['run', 'demo', *changes, '--out', str(tmp_path / 'run')]}"
    assert loaded_by(f"{program}, standalone_mode=False)") == set()
    assert (tmp_path / "run" / "noise.parquet").is_file()


def test_a_run_that_need_not_be_deterministic_loads_no_compiler() -> None:
    assert loaded_by("from fednoil.devices import be_deterministic\nbe_deterministic(False)") == set()


def test_deterministic_until_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # which stays set otherwise
    for wanted in (True, False):
        be_deterministic(wanted)
        assert torch.are_deterministic_algorithms_enabled() is torch.backends.cudnn.deterministic is wanted
        assert torch.utils.deterministic.fill_uninitialized_memory is not wanted  # which takes time and changes nothing
