"""The convolution with a norm behind it, alone and in a residual block, against PyTorch's layers."""

import copy
import os

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU or TRITON_INTERPRET=1", allow_module_level=True)
from interpreting import DEVICE, _exact_reference, loops_of_the_interpreter  # noqa: F401
from torch import nn
from torch.func import functional_call, stack_module_state

from fednoil import kernels
from fednoil.kernels import conv, conv_backward
from fednoil.models.layers import Stacked
from fednoil.models.resnet import BasicBlock


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("with_residual", [False, True])
def test_a_norm_takes_its_statistics_from_the_convolution(stride, with_residual):
    """Several clients under vmap against nn.Conv2d and nn.BatchNorm2d, running statistics too."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Conv2d(4, 24, 3, stride, 1, bias=False), nn.BatchNorm2d(24)) for _ in range(3)]
    layers = [layer.to(DEVICE) for layer in layers]
    x = torch.randn(3, 5, 4, 9, 7, device=DEVICE)
    residual = torch.randn_like(layers[0][0](x[0])).expand(3, -1, -1, -1, -1) if with_residual else None
    wanted = []
    for k, (layer, norm) in enumerate(layers):
        norm.running_mean.normal_()
        start = copy.deepcopy(norm)
        y = norm(layer(x[k]))
        y = torch.relu(y if residual is None else y + residual[k])
        gradients = torch.autograd.grad(y.square().sum(), [layer.weight, norm.weight, norm.bias])
        wanted.append((y, *gradients, norm.running_mean, norm.running_var))
        layers[k] = nn.Sequential(layer, start)
    params, buffers = stack_module_state(layers)

    def one(params, buffers, x, residual):
        template = copy.deepcopy(layers[0])
        template.forward = lambda x: conv.conv_norm_relu_nchw(x, *template, residual)[0]
        return functional_call(template, (params, buffers), (x,))

    if residual is None:
        y = torch.vmap(lambda p, b, x: one(p, b, x, None))(params, buffers, x)
    else:
        y = torch.vmap(one)(params, buffers, x, residual)
    names = ("0.weight", "1.weight", "1.bias")
    gradients = torch.autograd.grad(y.square().sum(), [params[name] for name in names])
    got = (y, *gradients, buffers["1.running_mean"], buffers["1.running_var"])
    for place, name in enumerate(("y", *names, "mean", "variance")):
        expected = torch.stack([row[place] for row in wanted])
        torch.testing.assert_close(got[place], expected, rtol=1e-3, atol=1e-3, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize(("outputs", "stride"), [(8, 1), (16, 2)])
def test_the_gradients_of_both_ways_through_a_block_meet_in_one_kernel(monkeypatch, outputs, stride):
    """Two clients' blocks under vmap against PyTorch's own, images' gradients too; no addition beside the kernel's."""
    monkeypatch.setattr(kernels, "usable", lambda x, kernel: True)
    torch.manual_seed(0)
    blocks = [BasicBlock(8, outputs, stride, "batch").to(DEVICE) for _ in range(2)]
    x = torch.randn(2, 3, 8, 6, 5, device=DEVICE).requires_grad_()
    params, buffers = stack_module_state(copy.deepcopy(blocks))
    wanted = []
    for block, images in zip(blocks, x, strict=True):  # outside of `Stacked`, but BatchNorm has a kernel there too
        own = images.detach().requires_grad_()
        with monkeypatch.context() as plain:
            plain.setattr(kernels, "usable", lambda x, kernel: False)
            y = block(own)
        wanted.append(torch.autograd.grad(y.square().sum(), [own, *block.parameters()]))

    def one(params, buffers, images):
        return functional_call(blocks[0], (params, buffers), (images,))

    with Stacked():
        y = torch.vmap(one)(params, buffers, x)
    added = []
    launch = conv_backward.input_gradient

    def noted(*args):
        added.append(args[-1] is not None and args[-1].is_contiguous())  # no copy of it either
        return launch(*args)

    monkeypatch.setattr(conv_backward, "input_gradient", noted)
    got = torch.autograd.grad(y.square().sum(), [x, *params.values()])
    assert sorted(added) == [False] * (2 if stride == 2 else 1) + [True]
    for place, found in enumerate(got):
        torch.testing.assert_close(found, torch.stack([row[place] for row in wanted]), rtol=1e-3, atol=1e-3)
