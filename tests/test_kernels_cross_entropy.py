"""Cross-entropy of stacked clients against PyTorch's, client by client: on a GPU, or else in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU or TRITON_INTERPRET=1", allow_module_level=True)
from interpreting import DEVICE, loops_of_the_interpreter  # noqa: F401
from torch import Tensor
from torch.nn import functional as F

from fednoil.kernels.cross_entropy import CrossEntropy, cross_entropy

SIZES = [(3, 5, 10), (2, 33, 3), (1, 1, 1), (2, 300, 17), (2, 7, 100)]  # clients, samples, classes


def drawn(clients: int, rows: int, classes: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    logits = (5 * torch.randn(clients, rows, classes)).to(DEVICE).requires_grad_()
    return logits, torch.randint(classes, (clients, rows)).to(DEVICE)


def plain(logits: Tensor, labels: Tensor, mean: bool) -> Tensor:
    """PyTorch's, in float64."""
    ways = [
        F.cross_entropy(z, y, reduction="mean" if mean else "none")
        for z, y in zip(logits.double(), labels, strict=True)
    ]
    return torch.stack(ways)


def check(found: Tensor, wanted: Tensor, logits: Tensor) -> None:
    """The same losses, and the same gradient for any upper one."""
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)
    up = torch.rand_like(wanted)
    (mine,) = torch.autograd.grad(found, logits, up.float())
    (theirs,) = torch.autograd.grad(wanted, logits, up)
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("sizes", SIZES)
def test_it_is_pytorchs(sizes: tuple[int, int, int], mean: bool) -> None:
    logits, labels = drawn(*sizes)
    check(CrossEntropy.apply(logits, labels, mean, -100)[0], plain(logits, labels, mean), logits)


@pytest.mark.parametrize("mean", [True, False])
def test_mapped_over_clients_with_other_strides(mean: bool) -> None:
    logits, labels = drawn(3, 12, 10)
    wide, steps = logits.transpose(0, 1).contiguous().transpose(0, 1), torch.stack([labels, labels + 1], 1)
    found = torch.vmap(lambda z, y: cross_entropy(z[4:], y[4:], mean))(wide, steps[:, 0])
    check(found, plain(logits[:, 4:], labels[:, 4:], mean), logits)
    shared = torch.vmap(lambda z: cross_entropy(z, labels[0], mean))(logits)
    check(shared, plain(logits, labels[:1].expand(3, -1), mean), logits)


@pytest.mark.parametrize("mean", [True, False])
def test_ignored_labels_count_for_nothing(mean: bool) -> None:
    logits, labels = drawn(2, 9, 4)
    labels[0, ::2] = -100
    check(CrossEntropy.apply(logits, labels, mean, -100)[0], plain(logits, labels, mean), logits)


@pytest.mark.parametrize("label", [-1, 4])
def test_a_label_that_is_no_class_makes_its_loss_nan(label: int) -> None:
    logits, labels = drawn(2, 3, 4)
    labels[1, 2] = label
    losses = CrossEntropy.apply(logits, labels, False, -100)[0]
    assert losses.isnan().nonzero().tolist() == [[1, 2]]
    assert CrossEntropy.apply(logits, labels, True, -100)[0].isnan().tolist() == [False, True]


def test_large_and_broken_logits() -> None:
    logits = torch.tensor([[[1e30, -1e30], [torch.nan, 0.0], [80.0, -80.0]]], device=DEVICE)
    losses = CrossEntropy.apply(logits, torch.tensor([[0, 0, 1]], device=DEVICE), False, -100)[0]
    assert losses[0, 1].isnan()
    assert losses[0, ::2].tolist() == [0, 160]


def test_shapes_and_types_that_do_not_fit_are_refused() -> None:
    logits, labels = drawn(1, 3, 4)
    for z, y in ((logits[0], labels[0, :2]), (logits, labels[0]), (logits[0].half(), labels[0])):
        with pytest.raises(ValueError, match="and labels"):
            cross_entropy(z, y)
