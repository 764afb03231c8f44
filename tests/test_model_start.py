"""`model.start`: a run that begins with the weights of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import assert_same
from safetensors.torch import load_file, save_file

from fednoil import rounds
from fednoil.config import load_config
from fednoil.errors import UserError
from fednoil.experiment import make_experiment
from fednoil.runner import Silent, run


def begun(values: dict[str, Any], start: Path | None = None) -> dict[str, torch.Tensor]:
    values["model"] = {**values["model"], **({} if start is None else {"start": str(start)})}
    return rounds.start(make_experiment(load_config(values))).server.tensors


def test_a_run_goes_on_from_another_ones_model(values: dict[str, Any], tmp_path: Path) -> None:
    values["train"]["rounds"] = 1
    run(load_config(values), tmp_path / "first", Silent())
    path = tmp_path / "first" / "model.safetensors"
    values["run"]["seed"] = 7
    random = begun(values)
    assert_same(begun(values, path), {f"model/{name}": tensor for name, tensor in load_file(path).items()})
    assert not torch.equal(random["model/head.weight"], begun(values, path)["model/head.weight"])
    summary = run(load_config(values), tmp_path / "second", Silent())
    assert summary["rounds"] == 1
    path.unlink()
    assert run(load_config(values), tmp_path / "second", Silent(), resume=True) == summary


def test_one_network_is_for_both_and_two_are_for_two(values: dict[str, Any], tmp_path: Path) -> None:
    values["learner"] = {"name": "dividemix"}
    own = begun(values)
    nets = sorted({name.split("/")[0] for name in own})
    save_file({name.split("/")[1]: t for name, t in own.items() if name.startswith(nets[0])}, tmp_path / "one")
    save_file(own, tmp_path / "both")
    one = begun(values, tmp_path / "one")
    assert all(torch.equal(t, own[f"{nets[0]}/{name.split('/')[1]}"]) for name, t in one.items())
    assert_same(begun(values, tmp_path / "both"), own)


def test_a_file_that_does_not_fit_is_refused_before_anything_is_made(values: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    fits = {name.split("/")[1]: tensor for name, tensor in begun(values).items()}
    values["model"]["start"] = str(path)

    def refused() -> str:
        with pytest.raises(UserError) as caught:
            run(load_config(values), tmp_path / "run", Silent())
        assert not (tmp_path / "run").exists()
        return str(caught.value)

    assert refused().startswith(f"model.start: cannot read {path}: No such file or directory")
    path.write_bytes(b"no tensors")
    assert refused().startswith(
        f"model.start: {path} is damaged or not a safetensors file; safetensors.torch.save_file"
    )
    save_file({k: v for k, v in fits.items() if k != "head.bias"}, path)
    assert "doesn't fit: it has no 'head.bias' (4,); it must be of a model as `model` says" in refused()
    save_file(fits | {"head.bias": torch.zeros(3)}, path)
    assert "doesn't fit: 'head.bias' is (3,), not (4,); it must" in refused()
