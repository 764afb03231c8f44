"""The stacked cross-entropy against PyTorch: on a GPU, or else in Triton's interpreter."""

import os

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU or TRITON_INTERPRET=1", allow_module_level=True)
from interpreting import DEVICE, loops_of_the_interpreter  # noqa: F401
from torch.nn import functional as F

from fednoil.kernels import loss


@pytest.fixture(autouse=True)
def device():
    with torch.device(DEVICE):
        yield


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize(("n", "classes"), [(1, 2), (5, 10), (33, 10), (300, 100), (7, 1000)])
def test_matches_pytorch(n, classes, reduction):
    torch.manual_seed(n)
    logits = (5 * torch.randn(n, classes)).requires_grad_()
    labels = torch.randint(classes, (n,))
    if n > 3:
        labels[1] = -100
    wanted = F.cross_entropy(logits, labels, reduction=reduction)
    got = loss.cross_entropy(logits, labels, mean=reduction == "mean")
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    upstream = torch.randn(wanted.shape)
    (expected,) = torch.autograd.grad(wanted, logits, upstream)
    (gradient,) = torch.autograd.grad(got, logits, upstream)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("clients", [1, 3])
def test_vmapped_over_parts_of_wider_logits(clients):
    """As a learner calls it: slices of one network's logits, labels of each client's own, a sum of both losses."""
    torch.manual_seed(0)
    logits = torch.randn(clients, 12, 10).requires_grad_()
    labels = torch.randint(10, (clients, 12))
    weight = torch.rand(clients, 7)

    def total(cross_entropy):
        def one(logits, labels, weight):
            first, second = logits.split([5, 7])
            return cross_entropy(first, labels[:5], True) + (cross_entropy(second, labels[5:], False) * weight).mean()

        return torch.vmap(one)(logits, labels, weight)

    got = total(lambda x, y, mean: loss.cross_entropy(x, y, mean=mean))
    wanted = total(lambda x, y, mean: F.cross_entropy(x, y, reduction="mean" if mean else "none"))
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
    (expected,) = torch.autograd.grad(wanted.sum(), logits)
    (gradient,) = torch.autograd.grad(got.sum(), logits)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)


def test_labels_that_all_clients_share():
    torch.manual_seed(1)
    logits, labels = torch.randn(3, 6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    got = torch.vmap(lambda x: loss.cross_entropy(x, labels))(logits)
    wanted = torch.stack([F.cross_entropy(x, labels) for x in logits])
    torch.testing.assert_close(got, wanted)


def test_what_is_not_a_number_stays_so():
    logits = torch.zeros(2, 3)
    logits[1, 2] = float("nan")
    got = loss.cross_entropy(logits, torch.tensor([0, 0]), mean=False)
    assert torch.isfinite(got[0])
    assert torch.isnan(got[1])


@pytest.mark.parametrize("label", [-1, 3, 4])
def test_a_label_that_is_no_class_is_told(label):
    """PyTorch raises; a kernel can't, and a loss without the label's logit would look like any other."""
    logits = torch.zeros(3, 3, requires_grad=True)
    labels = torch.tensor([0, label, -100])
    got = loss.cross_entropy(logits, labels, mean=False)
    assert torch.isnan(got).tolist() == [False, True, False]
    assert torch.isnan(loss.cross_entropy(logits, labels))
    (gradient,) = torch.autograd.grad(got.sum(), logits)
    assert torch.isnan(gradient).any(1).tolist() == [False, True, False]


def test_a_label_to_ignore_may_be_any_number():
    logits, labels = torch.randn(4, 3), torch.tensor([0, 7, 2, 1])
    for ignored in (7, 1):
        kept = labels.where(labels != 7, ignored)
        wanted = F.cross_entropy(logits, kept, ignore_index=ignored)
        torch.testing.assert_close(loss.cross_entropy(logits, kept, ignored), wanted)
