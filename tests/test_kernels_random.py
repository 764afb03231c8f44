"""Random numbers of the kernels against those that PyTorch computes: the same to the last bit."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU or TRITON_INTERPRET=1", allow_module_level=True)

from fednoil.augment import strong_plan, weak_plan
from fednoil.augment.plans import _STRONG_STREAM, _WEAK_STREAM, _columns, _weak_rows
from fednoil.kernels import random
from fednoil.seeds import CONSTANTS, bits

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
KEYS = torch.tensor([[3, -5], [2**62, -(2**63) + 7]])


@pytest.mark.parametrize("count", [0, 1, 37, 1500])
def test_bits(count: int) -> None:
    assert torch.equal(random.bits(KEYS.to(DEVICE), count, *CONSTANTS).cpu(), bits(KEYS, count))


@pytest.mark.parametrize("pad", [0, 2, 4])
def test_weak_plans(pad: int) -> None:
    columns = _columns(tuple(_weak_rows(pad)), DEVICE)
    got = random.draws((KEYS ^ _WEAK_STREAM).to(DEVICE), 300, columns, *CONSTANTS)
    assert torch.equal(got.cpu(), weak_plan(KEYS, 300, pad))


@pytest.mark.parametrize("prob", [0.0, 0.5, 1.0])
def test_strong_plans(prob: float) -> None:
    operation = [(14, 1, 0, -1), (9, 1, 1, -1), (2, 2, -1, -1), (1, 1, 0, round(prob * 2**30))]
    rows = [*_weak_rows(2), *operation * 2, (28, 1, 0, -1), (30, 1, 0, -1)]
    got = random.draws((KEYS ^ _STRONG_STREAM).to(DEVICE), 300, _columns(tuple(rows), DEVICE), *CONSTANTS)
    assert torch.equal(got.cpu(), strong_plan(KEYS, 300, (28, 30), 2, prob=prob))
