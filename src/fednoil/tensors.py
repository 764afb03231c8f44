"""What crosses between client and server, and simple arithmetic on it.

A message is a flat `dict[str, Tensor]` and a flat `dict[str, float]`, nothing else. Tensors of a network are
called `<network>/<name in the module>`, so two networks of one client can't collide.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor

from fednoil.errors import UserError

Tensors = dict[str, Tensor]
Numbers = dict[str, float]


def message_bytes(tensors: Tensors, numbers: Numbers) -> int:
    """Bytes of the payload: each tensor's elements, and eight for each number."""
    return sum(t.numel() * t.element_size() for t in tensors.values()) + 8 * len(numbers)


def joined(batches: Sequence[Tensor]) -> Tensor:
    """Batches of images [B, C, H, W] as one.

    They are joined as rows: a GPU takes one launch for tensors of up to four dimensions, of which `torch.vmap` is one.
    """
    return torch.cat([images.flatten(1) for images in batches]).unflatten(1, batches[0].shape[1:])


def weighted_mean(messages: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
    """Σ_k w_k θ_k / Σ_k w_k, summed in the order given; whole-number tensors take the largest.

    Floating tensors are averaged in float32, BatchNorm statistics included; counters such as BatchNorm's
    number of batches can't be averaged and take the maximum.
    """
    total = float(sum(weights))
    shares = [w / total for w in weights]
    mean: Tensors = {}
    for name, first in messages[0].items():
        if not first.is_floating_point():
            mean[name] = torch.stack([m[name] for m in messages]).amax(0)
            continue
        out = first * shares[0]
        for message, share in zip(messages[1:], shares[1:], strict=True):
            out.add_(message[name], alpha=share)
        mean[name] = out
    return mean


def digest(tensors: Tensors) -> str:
    """SHA-256 of tensors with their names, types and shapes."""
    found = hashlib.sha256()
    for name, tensor in sorted(cpu(tensors).items()):
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(tensor.flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def cpu(tensors: Tensors) -> Tensors:
    """The same tensors on the host, contiguous, for files and records."""
    return {name: t.detach().to("cpu").contiguous() for name, t in tensors.items()}


def read_tensors(path: Path) -> Tensors:
    """The tensors of a safetensors file."""
    try:
        return load_file(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except (safetensors.SafetensorError, ValueError):
        raise UserError(f"{path} is damaged or not a safetensors file") from None
