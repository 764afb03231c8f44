"""What the tests of kernels share: Triton's interpreter on this machine, and a reference in full precision."""

import pytest
import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def loops_of_the_interpreter(monkeypatch):
    """Loop bounds for NumPy 2.4, which no longer turns an array of one number into an int, as Triton 3.6 asks."""
    if DEVICE == "cuda":
        return
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_index(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch_index)


@pytest.fixture(autouse=True)
def _exact_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def close(got: Tensor, wanted: Tensor, tolerance: float) -> None:
    assert got.shape == wanted.shape
    got, wanted = got.detach().double(), wanted.detach().double()
    error = (got - wanted).norm() / wanted.norm().clamp_min(1e-12)
    assert error < tolerance, float(error)


def check(got: Tensor, wanted: Tensor, tensors: tuple[Tensor, ...], others: tuple[Tensor, ...], tol: float) -> None:
    """The same result and the same gradients for the same upstream gradient."""
    close(got, wanted, tol)
    up = torch.randn_like(wanted)
    gradients = torch.autograd.grad(got, tensors, up.to(got.dtype))
    for mine, theirs, t in zip(gradients, torch.autograd.grad(wanted, others, up), tensors, strict=True):
        assert mine.dtype == t.dtype
        close(mine, theirs, tol)
