"""The stacked BatchNorm kernels against PyTorch on tiny shapes: on a GPU, or else in Triton's interpreter."""

import copy
import os

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU or TRITON_INTERPRET=1", allow_module_level=True)
from interpreting import DEVICE, loops_of_the_interpreter  # noqa: F401
from torch import nn
from torch.func import functional_call, stack_module_state
from torch.utils._python_dispatch import TorchDispatchMode

from fednoil.kernels import norm

EPS, MOMENTUM = 1e-5, 0.1
SHAPES = [(1, 2, 16, 3, 3), (3, 5, 64, 4, 5), (2, 3, 24, 2, 3), (2, 5, 72, 6, 7)]  # K, B, C, H, W


@pytest.fixture(autouse=True)
def device(monkeypatch):
    """Make all tensors on the device that runs the kernels, and its convolutions exact."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    with torch.device(DEVICE):
        yield


@pytest.fixture(autouse=True)
def small_grids(monkeypatch):
    """Few programs with small tiles, so that tiny shapes have several parts, several tiles a part and ragged ends."""
    for name in ("STATISTICS_TILE", "GRADIENT_TILE", "APPLY_TILE"):
        monkeypatch.setattr(norm, name, 512)
    monkeypatch.setattr(norm, "processors", lambda: 1)
    monkeypatch.setattr(norm, "REDUCE_PROGRAMS", 12)
    monkeypatch.setattr(norm, "APPLY_PROGRAMS", 20)


def make_norms(clients: int, channels: int) -> list[nn.BatchNorm2d]:
    """Layers with weights and statistics that differ from client to client."""
    norms = [nn.BatchNorm2d(channels, eps=EPS, momentum=MOMENTUM) for _ in range(clients)]
    for bn in norms:
        nn.init.normal_(bn.weight, 1.0, 0.5)
        nn.init.normal_(bn.bias, 0.0, 0.5)
        bn.running_mean.normal_()
        bn.running_var.uniform_(0.5, 2.0)
    return norms


def reference(x, residual, norms, relu):
    """[K, B, C, H, W] through PyTorch, client by client."""
    out = torch.stack([bn(client) for bn, client in zip(norms, x, strict=True)])
    out = out if residual is None else out + residual
    return out.relu() if relu else out


def rows(x):
    """[K, B, C, H, W] as [K, M, C]."""
    return x.permute(0, 1, 3, 4, 2).flatten(1, 3)


def close(actual, expected, rel=1e-4):
    """Whether the largest error is below `rel` of the largest value."""
    actual, expected = actual.detach().float(), expected.detach().float()
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= rel * expected.abs().max().clamp_min(1e-3)


def vectors(norms, name):
    return torch.stack([getattr(bn, name).detach() for bn in norms])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_values_gradients_and_statistics_match_pytorch(shape, with_residual, relu, training):
    torch.manual_seed(sum(shape))
    norms = [bn.train(training) for bn in make_norms(shape[0], shape[2])]
    x = (3 * torch.randn(shape) + 5).requires_grad_()
    residual = torch.randn(shape, requires_grad=True) if with_residual else None
    weight, bias = (vectors(norms, name).requires_grad_() for name in ("weight", "bias"))
    mean, var = vectors(norms, "running_mean"), vectors(norms, "running_var")
    leaves = [x, residual] if with_residual else [x]
    y = norm.batch_norm_act(
        rows(x), weight, bias, mean, var, MOMENTUM, EPS, rows(residual) if with_residual else None, relu, training
    )
    dy = torch.randn_like(y)
    grads = torch.autograd.grad(y, [*leaves, weight, bias], dy)
    expected = rows(reference(x, residual, norms, relu))
    affine = [getattr(bn, name) for name in ("weight", "bias") for bn in norms]
    wanted = torch.autograd.grad(expected, [*leaves, *affine], dy)
    close(y, expected)
    for actual, want in zip(grads, wanted[: len(leaves)], strict=False):
        close(actual, want)
    close(torch.cat([grads[-2], grads[-1]]), torch.stack(wanted[len(leaves) :]))
    close(mean, vectors(norms, "running_mean"))
    close(var, vectors(norms, "running_var"))


@pytest.mark.parametrize("with_residual", [False, True])
def test_bf16_stays_near_fp32(with_residual):
    torch.manual_seed(1)
    shape = (2, 4, 32, 4, 4)
    norms = make_norms(2, 32)
    x = torch.randn(shape).bfloat16().requires_grad_()
    residual = torch.randn(shape).bfloat16().requires_grad_() if with_residual else None
    leaves = [x, residual] if with_residual else [x]
    weight, bias = (vectors(norms, name).requires_grad_() for name in ("weight", "bias"))
    y = norm.batch_norm_act(rows(x), weight, bias, None, None, residual=rows(residual) if with_residual else None)
    dy = torch.randn(y.shape).bfloat16()
    grads = torch.autograd.grad(y, leaves, dy)
    assert y.dtype == torch.bfloat16
    assert all(grad.dtype == torch.bfloat16 for grad in grads)
    exact = [leaf.detach().float().requires_grad_() for leaf in leaves]
    expected = rows(reference(exact[0], exact[1] if with_residual else None, norms, True))
    close(y, expected, 2e-2)
    for actual, want in zip(grads, torch.autograd.grad(expected, exact, dy.float()), strict=True):
        close(actual, want, 2e-2)


def test_variance_of_values_far_from_zero():
    x = torch.randn(1, 300, 16, dtype=torch.float64) * 0.01 + 100
    mean, var = torch.zeros(1, 16), torch.zeros(1, 16)
    norm.batch_norm_act(x.float(), torch.ones(1, 16), torch.zeros(1, 16), mean, var, momentum=1.0)
    close(mean, x.mean(1), 1e-6)
    close(var, x.float().double().var(1), 1e-4)


def test_weights_and_statistics_may_be_slices_of_flat_rows():
    torch.manual_seed(2)
    flat = torch.rand(3, 4 * 16 + 5)
    whole = [part.clone() for part in flat[:, 3:67].split(16, 1)]
    before = flat.clone()
    x = torch.randn(3, 40, 16)
    y = norm.batch_norm_act(x, *flat[:, 3:67].split(16, 1))
    assert torch.equal(y, norm.batch_norm_act(x, *whole))
    assert torch.equal(flat[:, 35:67], torch.cat(whole[2:], 1))
    assert torch.equal(flat[:, :35], before[:, :35])
    assert torch.equal(flat[:, 67:], before[:, 67:])


def test_a_backward_pass_fills_nothing_with_zeros():
    """Statistics have no gradient, and none is made up for them: that would be two launches for each layer."""

    class Zeros(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += func.overloadpacket.__name__ in ("zeros", "zeros_like", "fill_", "zero_")
            return func(*args, **(kwargs or {}))

    x, weight = torch.randn(2, 6, 16).requires_grad_(), torch.ones(2, 16).requires_grad_()
    y = norm.batch_norm_act(x, weight, torch.zeros(2, 16), None, None)
    with Zeros() as zeros:
        torch.autograd.grad(y, (x, weight), torch.ones_like(y))
    assert zeros.count == 0


def test_one_value_per_channel_is_refused_in_training():
    with pytest.raises(ValueError, match="more than one value"):
        norm.batch_norm_act(torch.ones(2, 1, 16), torch.ones(2, 16), torch.ones(2, 16), None, None)


def test_nan_is_not_hidden_by_relu():
    x = torch.randn(1, 8, 16)
    x[0, 3, 2] = torch.nan
    y = norm.batch_norm_act(x, torch.ones(1, 16), torch.zeros(1, 16), None, None)
    assert y[0, :, 2].isnan().all()
    assert not y[0, :, 3:].isnan().any()


@pytest.mark.parametrize("training", [True, False])
def test_nchw_layer_is_a_batch_norm(training):
    torch.manual_seed(3)
    (bn,) = make_norms(1, 16)
    other = copy.deepcopy(bn.train(training))
    x = torch.randn(4, 16, 3, 5).to(memory_format=torch.channels_last)
    y = norm.batch_norm_act_nchw(x, bn, residual=x)
    close(y, (other(x) + x).relu())
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert bn.num_batches_tracked == other.num_batches_tracked == int(training)
    close(bn.running_mean, other.running_mean)
    close(bn.running_var, other.running_var)


class Block(nn.Module):
    """Two normalisations around a 1×1 convolution, with a residual connection."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.bn1, self.conv, self.bn2 = nn.BatchNorm2d(16), nn.Conv2d(16, 16, 1), nn.BatchNorm2d(16)

    def forward(self, x):
        if self.fused:
            return norm.batch_norm_act_nchw(self.conv(norm.batch_norm_act_nchw(x, self.bn1)), self.bn2, x)
        return (self.bn2(self.conv(self.bn1(x).relu())) + x).relu()


@pytest.mark.parametrize("x_dim", [0, None])
def test_vmap_with_autograd_outside(x_dim):
    torch.manual_seed(4)
    blocks = [Block(fused=False) for _ in range(3)]
    params, buffers = stack_module_state(blocks)
    x = torch.randn(3, 2, 16, 3, 3) if x_dim == 0 else torch.randn(2, 16, 3, 3)
    scale = torch.randn(3, 2, 16, 3, 3)

    def loss(params, buffers, x, scale):
        return (functional_call(fused, (params, buffers), (x,)) * scale).sum()

    fused = Block(fused=True)
    losses = torch.vmap(loss, in_dims=(0, 0, x_dim, 0))(params, buffers, x, scale)
    losses.sum().backward()
    for k, block in enumerate(blocks):
        expected = (block(x[k] if x_dim == 0 else x) * scale[k]).sum()
        expected.backward()
        close(losses[k], expected)
        for name, parameter in block.named_parameters():
            if name != "conv.bias":  # its gradient is 0 but for rounding: bn2 takes the mean away
                close(params[name].grad[k], parameter.grad)
        for name, buffer in block.named_buffers():
            close(buffers[name][k], buffer)


def test_vmap_over_a_later_dimension_moves_the_statistics_in_place():
    torch.manual_seed(6)
    x, ones = torch.randn(1, 30, 3, 16), torch.ones(1, 16)
    mean, var = torch.zeros(1, 3, 16), torch.ones(1, 3, 16)
    function = torch.vmap(lambda x, mean, var: norm.batch_norm_act(x, ones, ones, mean, var), in_dims=(2, 1, 1))
    function(x, mean, var)
    close(mean[0], 0.1 * x[0].mean(0))
    close(var[0], 0.9 + 0.1 * x[0].var(0))


def test_vmap_needs_running_statistics_of_each_client():
    ones, x = torch.ones(1, 16), torch.randn(2, 1, 4, 16)
    with pytest.raises(ValueError, match="its own"):
        torch.vmap(lambda x: norm.batch_norm_act(x, ones, ones, ones.clone(), ones.clone()))(x)


@pytest.mark.parametrize("channels", [64, 128, 256, 512])
@pytest.mark.parametrize("clients", [1, 6, 30])
def test_parts_cover_all_rows(monkeypatch, clients, channels):
    monkeypatch.undo()
    total = 92 * 1024 * 64 * 64 // channels**2
    reduce = (norm.REDUCE_PROGRAMS, norm.MAX_PARTS)
    for tile, *limits in ((norm.STATISTICS_TILE, *reduce), (norm.GRADIENT_TILE, *reduce), (2048, norm.APPLY_PROGRAMS)):
        plan = norm.plan((clients, total, channels), tile, *limits)
        block_m, block_c = plan.constants["BM"], plan.constants["BC"]
        assert block_m * block_c == tile
        assert plan.rows % block_m == 0
        assert (plan.parts - 1) * plan.rows < total <= plan.parts * plan.rows
        assert plan.grid == (plan.parts * channels // block_c, clients)
        assert len(limits) == 1 or plan.parts <= norm.MAX_PARTS
