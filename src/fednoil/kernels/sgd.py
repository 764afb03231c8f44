"""A step of SGD for all clients in one pass over memory: parameters, momentum, and the copies in half precision.

PyTorch's own operations pass over the 11 million parameters of each client's ResNet18 about twelve times in a step,
which takes nearly as long as its convolutions if the batches are small. Here each number is read and written once. A
frozen client is left out, so that nothing of it has to be saved and put back.

Gain end to end, a turn of FedNoiL with six clients on an H200 (`python benchmarks/kernels.py --kernel sgd`): 1.07 ×
for the CNN, 1.04 × with 30 clients, 1.23 × for the ResNet18.
"""

# Triton types a launched kernel as the bare function, without its options; it is missing where there is no GPU.
# pyright: reportCallIssue=false, reportArgumentType=false, reportMissingImports=false

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor, uint8

from fednoil.kernels.ahead import launch

BLOCK = 1024  # parameters of a program


# Rates and who is active are rows of a longer plan, of which only the first is sure to be aligned: a kernel for the
# others would be loaded while a graph is captured.
@triton.jit(do_not_specialize_on_alignment=["rates", "active"])
def sgd_kernel(
    values, buffer, grads, half, rates, rate_shares, decay_shares, active,
    values_stride, buffer_stride, grads_stride, half_stride, rates_stride, active_stride, size, copied,
    lr, momentum, decay,
    HALF: tl.constexpr, RATES: tl.constexpr, RATE_SHARES: tl.constexpr, DECAY_SHARES: tl.constexpr,
    ACTIVE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One block of parameters of one client; grid (blocks, clients). The first `copied` of them have a copy in half.

    What a constant switches off is never read. (Triton uses the name "params" itself.)
    """
    client = tl.program_id(1).to(tl.int64)
    moves = True
    if ACTIVE:
        moves = tl.load(active + client * active_stride) != 0
    if moves:
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        ok = at < size
        p = tl.load(values + client * values_stride + at, mask=ok)
        m = tl.load(buffer + client * buffer_stride + at, mask=ok)
        g = tl.load(grads + client * grads_stride + at, mask=ok).to(tl.float32)
        if RATES:
            lr = tl.load(rates + client * rates_stride)
        rate = lr
        if RATE_SHARES:
            rate = lr * tl.load(rate_shares + at, mask=ok)
        pull = decay * p
        if DECAY_SHARES:
            pull = pull * tl.load(decay_shares + at, mask=ok)
        m = momentum * m + (g + pull)
        p = p - rate * m
        tl.store(buffer + client * buffer_stride + at, m, mask=ok)
        tl.store(values + client * values_stride + at, p, mask=ok)
        if HALF:
            tl.store(half + client * half_stride + at, p.to(half.dtype.element_ty), mask=at < copied)


def step(
    params: Tensor,
    grads: Sequence[Tensor],
    buffer: Tensor,
    half: Tensor | None,
    lr: float,
    momentum: float,
    weight_decay: float,
    rates: Tensor | None = None,
    rate_shares: Tensor | None = None,
    decay_shares: Tensor | None = None,
    active: Tensor | None = None,
) -> None:
    """One step on params and buffer [K, P], in place, as `torch.optim.SGD`; half [K, H] follows the first H parameters.

    The gradient comes in parts [K, …] that make up P. `rates` [K] replace lr, the shares [P] multiply rate and decay,
    and clients that are not `active` [K] don't move.
    """
    begin = 0
    for part in grads:
        grad = part if part.stride(1) == 1 else part.contiguous()
        size = grad.shape[1]
        here = slice(begin, begin + size)
        p, m = params[:, here], buffer[:, here]
        h = p if half is None else half[:, here]
        copied = 0 if half is None else h.shape[1]
        shares = [p if s is None else s[here] for s in (rate_shares, decay_shares)]
        moving = p if active is None else active.view(uint8)
        rate = p if rates is None else rates
        strides = [t.stride(0) for t in (p, m, grad, h, rate, moving)]
        launch(
            sgd_kernel, (triton.cdiv(size, BLOCK), len(p)),
            p, m, grad, h, rate, *shares, moving, *strides, size, copied, lr, momentum, weight_decay,
            HALF=copied > 0, RATES=rates is not None, RATE_SHARES=rate_shares is not None,
            DECAY_SHARES=decay_shares is not None, ACTIVE=active is not None, BLOCK=BLOCK,
        )  # fmt: skip
        begin += size
