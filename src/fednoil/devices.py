"""Where a run computes, and how exactly."""

from __future__ import annotations

import os

import torch

from fednoil.config import Config
from fednoil.errors import UserError


def pick_device(name: str, key: str = "run.device") -> torch.device:
    """Where samples are; `auto` takes a CUDA GPU if there is one; a refusal names the `key`.

    Apple's GPU (`mps`) has the networks alone (`networks_on`): it doesn't know float64, which many methods need.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError(f"{key} = 'cuda', but PyTorch sees no CUDA GPU here; use 'cpu' or 'auto'")
    if name == "mps" and not torch.backends.mps.is_available():
        raise UserError(f"{key} = 'mps', but PyTorch sees no GPU of Apple's here; use 'cpu' or 'auto'")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device("cpu" if name == "mps" else name)


def networks_on(config: Config, device: torch.device) -> torch.device:
    """Where the networks of a run are, given where its samples are. A federation's node that has no GPU of Apple's uses
    its CPU."""
    apple = config.run.device == "mps" and device.type == "cpu" and torch.backends.mps.is_available()
    return torch.device("mps") if apple else device


def pick_precision(name: str, device: torch.device) -> str:
    """The precision of convolutions and matrix products there: `float32`, `tf32` or `bfloat16`.

    CUDA GPUs have either both bfloat16 and TF32 or neither; those without TF32 compute in float32, as all else does.
    """
    recent = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if name == "auto":
        return "bfloat16" if recent else "float32"
    if name == "bfloat16" and device.type == "cuda" and not recent:
        gpu = torch.cuda.get_device_name(device)
        raise UserError(f"run.precision = 'bfloat16', but the {gpu} can't multiply in it; use 'float32' or 'auto'")
    return "float32" if name == "tf32" and not recent else name


def multiply_in_tf32(wanted: bool) -> None:
    """Whether products of float32 numbers on a GPU are TF32's, our own kernels' too; cuDNN's are by default."""
    torch.backends.cudnn.allow_tf32 = wanted
    torch.backends.cuda.matmul.allow_tf32 = wanted


def be_deterministic(wanted: bool) -> None:
    """Whether PyTorch takes only algorithms that give the same bits each time; our own kernels always do."""
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if wanted != torch.are_deterministic_algorithms_enabled():
        # Imports PyTorch's compiler: two thirds of the time of `import torch`.
        torch.use_deterministic_algorithms(wanted)
        # PyTorch would fill all new memory, for programs that read what they haven't written: 15 to 22 % more time.
        torch.utils.deterministic.fill_uninitialized_memory = not wanted  # pyright: ignore[reportAttributeAccessIssue]
    torch.backends.cudnn.deterministic = wanted


def one_by_one(device: torch.device) -> str | None:
    """Why clients train one after another on a GPU that isn't NVIDIA's."""
    maker = "Apple's" if device.type == "mps" else "AMD's" if device.type == "cuda" and torch.version.hip else None
    return maker and f"clients run one after another: only NVIDIA's GPUs train all of a round at once, not {maker}"
