"""BatchNorm + residual + ReLU of many clients at once, with as little memory traffic as possible.

Activations are stacked as [K, M, C]: K clients, M = batch × height × width rows, channels contiguous (NHWC). Each
client has its own weights and statistics [K, C]. One call of `batch_norm_act` reads x twice and writes y once in the
forward pass; its backward pass reads dy and x twice and writes dx once. The ReLU's mask costs no memory traffic: it is
computed again from x. Only with a residual is it read from y, once: the first backward pass writes the masked gradient,
which is the residual's, and the second pass starts from that.

Gain end to end, a turn of FedNoiL with six clients on an H200 (`python benchmarks/kernels.py --kernel norm`): 1.31 ×
for the ResNet18 of an earlier version, whose clients can't share a graph without it.
"""

# Triton types a launched kernel as the bare function, without its options; it is missing where there is no GPU.
# pyright: reportCallIssue=false, reportArgumentType=false, reportMissingImports=false
# pyright: reportIncompatibleMethodOverride=false

from typing import NamedTuple

import torch
import triton
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fednoil.kernels import norm_kernels as kernels
from fednoil.kernels import processors
from fednoil.kernels.ahead import current, empty, in_its_trial, launch
from fednoil.kernels.stacked import applied

BLOCK_C = 64  # 64 bf16 channels are one 128-byte line of memory
# Elements of a tile: as many as leave registers for about eight programs of four warps per multiprocessor.
STATISTICS_TILE, GRADIENT_TILE, APPLY_TILE = 2048, 1024, 2048
WARPS, STAGES = 4, 3
REDUCE_PROGRAMS = 8  # of a multiprocessor: one wave, all resident together
APPLY_PROGRAMS = 16  # no partial results to combine, so more programs can even out the tail
MAX_PARTS = 256  # partial sums of a client and channel: few enough for one small program to combine


class Plan(NamedTuple):
    """How a kernel walks over [K, M, C]: its grid, the rows of a part, the number of parts, and its constants."""

    grid: tuple[int, int]
    rows: int
    parts: int
    constants: dict[str, int]


def plan(shape: torch.Size | tuple[int, int, int], tile: int, programs: int, max_parts: int | None = None) -> Plan:
    """Cut the rows of each client into parts of whole tiles, for about `programs` programs per multiprocessor."""
    clients, rows, channels = shape
    block_c = min(BLOCK_C, triton.next_power_of_2(channels))
    block_m = tile // block_c
    blocks = triton.cdiv(channels, block_c)
    parts = min(programs * processors() // (clients * blocks), triton.cdiv(rows, block_m), max_parts or rows)
    size = triton.cdiv(triton.cdiv(rows, max(1, parts)), block_m) * block_m
    parts = triton.cdiv(rows, size)
    constants = {"BM": block_m, "BC": block_c, "STAGES": STAGES, "num_warps": WARPS}
    return Plan((parts * blocks, clients), size, parts, constants)


def _stride(vectors: Tensor) -> int:
    """Elements from one client's row to the next of a [K, C] tensor, which may be a slice of wider rows."""
    if vectors.stride(1) != 1 and vectors.shape[1] > 1:
        raise ValueError(f"the channels of weights and statistics must be contiguous; strides {vectors.stride()}")
    return vectors.stride(0)


class Parts(NamedTuple):
    """Mean and sum of squared deviations [K, 2, T, C] of x's rows in T parts of `rows` rows."""

    values: Tensor
    rows: int


def _statistics(x: Tensor) -> Parts:
    clients, rows, channels = x.shape
    grid, size, count, constants = plan(x.shape, STATISTICS_TILE, REDUCE_PROGRAMS, MAX_PARTS)
    parts = empty(x, (clients, 2, count, channels), dtype=torch.float32)
    launch(kernels.statistics, grid, x, parts, rows, channels, size, count, **constants)
    return Parts(parts, size)


def _moments(
    x: Tensor,
    parts: Parts,
    running: tuple[Tensor, Tensor] | None,
    batches: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Mean and 1/std [K, C] of the batch, after moving the running statistics and counting the batch, in place."""
    clients, rows, channels = x.shape
    count = parts.values.shape[2]
    mean, rstd = empty(x, (2, clients, channels), dtype=torch.float32).unbind()
    mean_and_var = running or (mean, rstd)  # placeholders, untouched by the kernel without TRACK
    counts = mean if batches is None else batches
    launch(
        kernels.combine, (triton.cdiv(channels, 16), clients), parts.values, mean, rstd, *mean_and_var,
        *map(_stride, mean_and_var), counts, counts.stride(0), rows, channels, parts.rows, count, momentum, eps,
        TRACK=running is not None, COUNT=batches is not None, BT=min(256, triton.next_power_of_2(count)), BC=16,
        num_warps=WARPS,
    )  # fmt: skip
    return mean, rstd


def _total(parts: Tensor) -> Tensor:
    """The sum over the parts [2, K, T, C]: [2, K, C]."""
    *both, count, channels = parts.shape
    sums = empty(parts, (*both, channels))
    grid = (triton.cdiv(channels, 16), both[0] * both[1])
    block = min(64, triton.next_power_of_2(count))
    launch(kernels.total, grid, parts, sums, channels, count, BT=block, BC=16, num_warps=WARPS)
    return sums


class BatchNormAct(torch.autograd.Function):
    """relu(batch_norm(x) + residual); also returns the mean and 1/std it used, which have no gradient.

    The running statistics change inside a kernel, unseen by autograd. That is safe: no gradient flows through them and
    the backward pass keeps copies only. It also reaches the storage below a vmapped tensor.
    """

    @staticmethod
    def forward(
        x, weight, bias, running_mean, running_var, batches, residual, parts, rows, momentum, eps, relu, training
    ):
        x = x.contiguous()
        if training:
            found = _statistics(x) if parts is None else Parts(parts, rows)
            running = None if running_mean is None else (running_mean, running_var)
            mean, rstd = _moments(x, found, running, batches, momentum, eps)
        else:
            mean = running_mean.clone(memory_format=torch.contiguous_format)
            rstd = torch.rsqrt(running_var + eps).contiguous()
        y = empty(x, x.shape)
        affine = (mean, rstd, weight, bias, _stride(weight), _stride(bias), *x.shape[1:])
        grid, size, _, constants = plan(x.shape, APPLY_TILE, APPLY_PROGRAMS)
        other = x if residual is None else residual.contiguous()
        launch(kernels.apply, grid, x, other, y, *affine, size, RESIDUAL=residual is not None, RELU=relu, **constants)
        return y, mean, rstd

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, bias, _, _, _, residual, _, _, _, _, ctx.relu, ctx.training = inputs
        y, mean, rstd = output
        ctx.trial, ctx.residual = current(), residual is not None
        ctx.mark_non_differentiable(mean, rstd)
        ctx.set_materialize_grads(False)  # or each backward pass would start by filling these with zeros
        ctx.save_for_backward(x, weight, bias, mean, rstd, y if ctx.relu and ctx.residual else None)

    @staticmethod
    @once_differentiable
    @in_its_trial
    def backward(ctx, dy, *_):
        if dy is None:
            return (None,) * 13
        x, weight, bias, mean, rstd, y = ctx.saved_tensors
        x, g = x.contiguous(), dy.contiguous()
        mask = "none" if not ctx.relu else "y" if ctx.residual else "x"
        masked = empty(g, g.shape) if mask == "y" else g
        affine = (mean, rstd, weight, bias, _stride(weight), _stride(bias), *x.shape[1:])
        grid, size, count, constants = plan(x.shape, GRADIENT_TILE, REDUCE_PROGRAMS, MAX_PARTS)
        parts = empty(x, (2, x.shape[0], count, x.shape[2]), dtype=torch.float32)
        output = g if y is None else y
        launch(kernels.gradient_sums, grid, g, x, output, masked, parts, *affine, size, count, MASK=mask, **constants)
        sums = _total(parts)
        mask = "x" if mask == "x" else "none"  # `masked` is already masked, unless the mask comes from x
        dx = empty(x, x.shape)
        grid, size, _, constants = plan(x.shape, APPLY_TILE, APPLY_PROGRAMS)
        constants |= {"MASK": mask, "TRAINING": ctx.training}
        launch(kernels.gradient_apply, grid, masked, x, dx, sums, *affine, size, **constants)
        dbias, dweight = sums.unbind()
        residual = masked if ctx.residual else None
        return dx, dweight.to(weight.dtype), dbias.to(bias.dtype), None, None, None, residual, *[None] * 6

    @staticmethod
    def vmap(info, in_dims, *inputs):
        """Fold the vmapped dimension into the clients, so that one launch serves all of them."""
        tensors, options = inputs[:8], inputs[8:]
        training = options[-1]
        own = [in_dims[i] for i in (3, 4, 5) if tensors[i] is not None]
        if training and None in own:
            raise ValueError("each vmapped client needs its own running statistics, stacked like its weights")
        folded = (
            # A silent copy of the running statistics would lose their update: they must be a view.
            _fold(tensor, in_dims[i], info.batch_size, view=training and i in (3, 4, 5))
            for i, tensor in enumerate(tensors)
        )
        outputs = BatchNormAct.apply(*folded, *options)
        return tuple(output.unflatten(0, (info.batch_size, -1)) for output in outputs), (0, 0, 0)


def _fold(tensor: Tensor | None, dim: int | None, size: int, view: bool) -> Tensor | None:
    """Tensor [V, K, …] as [V × K, …], from one with the vmapped dimension at `dim`, or without it."""
    if tensor is None:
        return None
    tensor = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return tensor.view(-1, tensor.shape[-1]) if view else tensor.flatten(0, 1)


def batch_norm_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float = 0.1,
    eps: float = 1e-5,
    residual: Tensor | None = None,
    relu: bool = True,
    training: bool = True,
    parts: Parts | None = None,
    batches: Tensor | None = None,
) -> Tensor:
    """relu(batch_norm(x) + residual) of x and residual [K, M, C], in x's dtype, with each client's own [K, C] vectors.

    Training normalises with the biased variance of the M rows and moves the running statistics (fp32, in place) towards
    the batch's mean and unbiased variance; otherwise the running statistics normalise. If x's statistics are already
    known (`parts`), it is read once less. `batches` [K, 1] are counts of batches, which go up by one.
    """
    if training and x.shape[1] < 2:
        raise ValueError(f"batch statistics need more than one value per channel: x has shape {tuple(x.shape)}")
    known = (None, 0) if parts is None else parts
    vectors = (weight, bias, running_mean, running_var)
    return applied(BatchNormAct, x, *vectors, batches, residual, *known, momentum, eps, relu, training)[0]


def _to_rows(x: Tensor) -> Tensor:
    """x [B, C, H, W] as [1, B × H × W, C]: a view if x is in channels_last memory."""
    return x.permute(0, 2, 3, 1).flatten(0, 2).unsqueeze(0)


def norm_nchw(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    training: bool,
    momentum: float,
    eps: float,
    residual: Tensor | None = None,
    relu: bool = False,
    parts: Parts | None = None,
    batches: Tensor | None = None,
) -> Tensor:
    """relu(batch_norm(x) + residual) of one client's x [B, C, H, W]; it and the result are in channels_last memory."""
    batch, channels, height, width = x.shape
    mean, var = (None if t is None else t.unsqueeze(0) for t in (running_mean, running_var))
    other = None if residual is None else _to_rows(residual)
    vectors = (weight.unsqueeze(0), bias.unsqueeze(0), mean, var)
    batches = None if batches is None else batches.view(1, 1)
    y = batch_norm_act(_to_rows(x), *vectors, momentum, eps, other, relu, training or mean is None, parts, batches)
    return y.reshape(batch, height, width, channels).permute(0, 3, 1, 2)


def batch_norm_act_nchw(
    x: Tensor, bn: nn.BatchNorm2d, residual: Tensor | None = None, relu: bool = True, parts: Parts | None = None
) -> Tensor:
    """relu(bn(x) + residual) of one client's x and residual [B, C, H, W] in channels_last memory."""
    if bn.weight is None or bn.bias is None or bn.momentum is None:
        raise ValueError("batch_norm_act_nchw needs a BatchNorm2d with affine=True and a momentum")
    batches = bn.num_batches_tracked if bn.training else None
    vectors = (bn.running_mean, bn.running_var, bn.weight, bn.bias)
    return norm_nchw(x, *vectors, bn.training, bn.momentum, bn.eps, residual, relu, parts, batches)
