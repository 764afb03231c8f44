"""The fused step of SGD against torch.optim.SGD, client by client: on a GPU, or else in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU or TRITON_INTERPRET=1", allow_module_level=True)
from interpreting import DEVICE, loops_of_the_interpreter  # noqa: F401
from torch import Tensor

from fednoil.kernels import sgd

CLIENTS, SIZE, HALF = 3, 2500, 2100  # three blocks; the copies end within the last
STEPS, LR, MOMENTUM, DECAY = 3, 0.05, 0.5, 1e-2
HALF_DTYPE = torch.float16  # the interpreter has no bfloat16 arithmetic


def rows(size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """[CLIENTS, size] with gaps between the rows, as executors have them."""
    return torch.randn(CLIENTS, size + 16).to(DEVICE, dtype)[:, :size]


def wanted(start: Tensor, grads: list[Tensor], rates: list[float], rate_shares: Tensor, decay_shares: Tensor) -> Tensor:
    """Every parameter as a group of its own would be: torch.optim.SGD's formula with shares."""
    done = []
    for client in range(CLIENTS):
        p = start[client].double().clone()
        m = torch.zeros_like(p)
        for g in grads:
            m = MOMENTUM * m + g[client].double() + DECAY * decay_shares.double() * p
            p = p - rates[client] * rate_shares.double() * m
        done.append(p)
    return torch.stack(done).float()


@pytest.mark.parametrize("parts", [(SIZE,), (HALF, SIZE - HALF), (1000, 1500)])
@pytest.mark.parametrize("shared", [False, True])
def test_a_step_is_that_of_sgd(parts: tuple[int, ...], shared: bool) -> None:
    torch.manual_seed(0)
    params, buffer, half = rows(SIZE), rows(SIZE).zero_(), rows(HALF, HALF_DTYPE)
    start, grads = params.clone(), [rows(SIZE) for _ in range(STEPS)]
    ones = torch.ones(SIZE, device=DEVICE)
    rate_shares, decay_shares = (torch.rand(SIZE).to(DEVICE) if shared else ones for _ in range(2))
    rates = torch.tensor([0.1, 0.01, 0.3], device=DEVICE) if shared else None
    for g in grads:
        given = (rates, rate_shares, decay_shares) if shared else ()
        sgd.step(params, g.split(list(parts), 1), buffer, half, LR, MOMENTUM, DECAY, *given)
    expected = wanted(start, grads, [LR] * CLIENTS if rates is None else rates.tolist(), rate_shares, decay_shares)
    torch.testing.assert_close(params, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(half, params[:, :HALF].to(HALF_DTYPE))


def test_it_agrees_with_torchs_own_optimiser() -> None:
    torch.manual_seed(0)
    params, buffer = rows(SIZE), rows(SIZE).zero_()
    own = [p.clone().requires_grad_() for p in params]
    optimisers = [torch.optim.SGD([p], LR, MOMENTUM, weight_decay=DECAY) for p in own]
    for _ in range(STEPS):
        g = rows(SIZE)
        sgd.step(params, [g], buffer, None, LR, MOMENTUM, DECAY)
        for p, grad, optimiser in zip(own, g, optimisers, strict=True):
            p.grad = grad
            optimiser.step()
    torch.testing.assert_close(params, torch.stack([p.detach() for p in own]), rtol=1e-6, atol=1e-6)


def test_gradients_in_half_precision_and_columns_first() -> None:
    torch.manual_seed(0)
    params, buffer, g = rows(SIZE), rows(SIZE).zero_(), rows(SIZE, HALF_DTYPE)
    other, other_buffer = params.clone(), buffer.clone()
    sgd.step(params, [g], buffer, None, LR, MOMENTUM, DECAY)
    sgd.step(other, [g.float().t().contiguous().t()], other_buffer, None, LR, MOMENTUM, DECAY)
    assert torch.equal(params, other)
    assert torch.equal(buffer, other_buffer)


def test_a_frozen_client_does_not_move() -> None:
    torch.manual_seed(0)
    params, buffer, half = rows(SIZE), rows(SIZE), rows(HALF, HALF_DTYPE)
    before = [t.clone() for t in (params, buffer, half)]
    active = torch.tensor([[True, False], [False, True], [True, True]], device=DEVICE)[:, 0]  # strided
    sgd.step(params, [rows(SIZE)], buffer, half, LR, MOMENTUM, DECAY, active=active)
    for now, then in zip((params, buffer, half), before, strict=True):
        assert torch.equal(now[1], then[1])
        assert not torch.equal(now[0], then[0])
        assert not torch.equal(now[2], then[2])
