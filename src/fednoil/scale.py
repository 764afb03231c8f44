"""What counts as a large network and as many labels, wherever the default does something else for them.

Both borders were found with few networks and datasets (experiments/default): a large network memorises a client's
labels and benefits from what hurts a small one, and a client with few labels can't spare any.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

LARGE = 500_000  # trained parameters of a network
MANY = 500  # labels of a client


def is_large(model: nn.Module) -> bool:
    """Whether a network has many trained parameters; frozen ones don't count."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad) >= LARGE


def few_labels(sizes: Sequence[int]) -> bool:
    """Whether clients with so many samples have few on average."""
    return sum(sizes) < MANY * len(sizes)
