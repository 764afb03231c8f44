"""The stacked last layer against PyTorch's, client by client; on the CPU through Triton's interpreter."""

import os

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU or TRITON_INTERPRET=1", allow_module_level=True)
from interpreting import DEVICE, _exact_reference, loops_of_the_interpreter  # noqa: F401
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from fednoil import kernels
from fednoil.kernels import linear, stacked
from fednoil.models.cnn import CNN
from fednoil.models.layers import Stacked

# The interpreter multiplies bfloat16 as if it were whole numbers.
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16
# clients, batch, channels, height, width, outputs
CASES = [(2, 3, 64, 7, 7, 10), (3, 20, 20, 3, 2, 7), (1, 130, 96, 1, 1, 33), (6, 87, 16, 2, 2, 10)]


def inputs(case: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Channels-last features, weights that are a part of longer rows, and bias."""
    clients, batch, channels, high, wide, outputs = case
    torch.manual_seed(0)
    x = torch.randn(clients, batch, high, wide, channels, device=DEVICE).permute(0, 1, 4, 2, 3)
    count = channels * high * wide
    rows = torch.randn(clients, outputs * count + 48, device=DEVICE) / count**0.5
    w = rows[:, 32:-16].unflatten(1, (outputs, count))
    return x.requires_grad_(), w.requires_grad_(), torch.randn(clients, outputs, device=DEVICE, requires_grad=True)


def reference(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    found = [F.linear(x[k].flatten(1), w[k], None if bias is None else bias[k]) for k in range(len(x))]
    return torch.stack(found)


def close(got: Tensor, wanted: Tensor, tolerance: float) -> None:
    assert got.shape == wanted.shape
    error = (got.detach().double() - wanted.detach().double()).norm() / wanted.detach().double().norm()
    assert error < tolerance, float(error)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("with_bias", [True, False])
def test_values_and_gradients_are_those_of_pytorch(case: tuple[int, ...], with_bias: bool) -> None:
    tensors = inputs(case)[: 3 if with_bias else 2]
    got = torch.vmap(linear.linear_nchw)(*tensors)
    wanted = reference(*tensors[:2], tensors[2] if with_bias else None)
    close(got, wanted, 1e-5)
    up = torch.randn_like(wanted)
    for mine, theirs in zip(
        torch.autograd.grad(got, tensors, up), torch.autograd.grad(wanted, tensors, up), strict=True
    ):
        close(mine, theirs, 1e-5)


def test_half_precision_stays_near_full_precision() -> None:
    exact = inputs(CASES[0])
    x, w, bias = (t.detach().to(d).requires_grad_() for t, d in zip(exact, (HALF, HALF, torch.float32), strict=True))
    got, wanted = torch.vmap(linear.linear_nchw)(x, w, bias), reference(*exact)
    assert got.dtype == torch.float32
    close(got, wanted, 2e-2)
    up = torch.randn_like(wanted)
    for mine, theirs, t in zip(
        torch.autograd.grad(got, (x, w, bias), up), torch.autograd.grad(wanted, exact, up), (x, w, bias), strict=True
    ):
        assert mine.dtype == t.dtype
        close(mine, theirs, 2e-2)


def test_features_and_their_gradient_are_never_copied() -> None:
    x, w, bias = (t.detach()[0] for t in inputs(CASES[0]))
    nhwc = linear.to_nhwc(x)
    assert linear.contiguous_clients(nhwc) is nhwc
    y = linear.linear_nchw(x.requires_grad_(), w, bias)
    assert torch.autograd.grad(y.sum(), x)[0].is_contiguous(memory_format=torch.channels_last)


def test_stacked_networks_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "usable", lambda x, kernel: True)
    calls: list[object] = []
    monkeypatch.setattr(linear, "summed", lambda *parts: calls.append(parts) or stacked.summed(*parts))
    network = CNN((1, 8, 8), 10, width=4).to(DEVICE)
    rows = {name: torch.randn(2, *p.shape, device=DEVICE) / 4 for name, p in network.named_parameters()}
    images = torch.randn(2, 3, 1, 8, 8, device=DEVICE)
    with Stacked():
        got = torch.vmap(lambda tensors, x: functional_call(network, tensors, (x,)))(rows, images)
    assert calls
    monkeypatch.undo()
    for k in range(2):
        close(got[k], functional_call(network, {name: t[k] for name, t in rows.items()}, (images[k],)), 1e-4)
