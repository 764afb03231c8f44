"""Rare classes count as much as frequent ones: logit adjustment (Menon et al., ICLR 2021).

In training a network's logits are shifted by the log of the client's share of each given class, so that the network
need not learn how frequent the classes are. Outside training nothing is shifted. The shift is a buffer outside the
network's state: it is neither sent nor kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

SHIFT = "class_shift"


def balanced(module: nn.Module, num_classes: int) -> nn.Module:
    """The module with logits that a `class_shift` [C] moves in training."""
    module.register_buffer(SHIFT, torch.zeros(num_classes), persistent=False)
    module.register_forward_hook(_shifted)
    return module


def _shifted(module: nn.Module, _inputs: Any, logits: Tensor) -> Tensor:
    return logits + getattr(module, SHIFT) if module.training else logits


def log_shares(labels: Tensor, num_classes: int) -> Tensor:
    """The log of each class's share of labels [n], with one label more of each: float32 [C]."""
    counts = torch.bincount(labels, minlength=num_classes).float() + 1
    return (counts / counts.sum()).log()
