"""Layers that have their own kernel on a GPU, and the same in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fednoil import kernels


def conv_pool_relu(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """relu(maxpool2(conv(x))) for a convolution of stride 1; one kernel that never writes the unpooled image."""
    if kernels.usable(x, "conv"):
        from fednoil.kernels.conv import conv_pool_relu_nchw

        return conv_pool_relu_nchw(kernels.computed(x), conv.weight, conv.bias, int(conv.padding[0]))
    # ReLU and max-pooling commute; pooling first leaves a quarter of the pixels for ReLU.
    return F.relu(F.max_pool2d(conv(x), 2))


Norm = nn.BatchNorm2d | nn.GroupNorm


def norm_relu(x: Tensor, norm: Norm, residual: Tensor | None = None, relu: bool = True) -> Tensor:
    """relu(norm(x) + residual); BatchNorm is one kernel for the statistics and one for the rest."""
    if isinstance(norm, nn.BatchNorm2d) and kernels.usable(x, "norm"):
        from fednoil.kernels.norm import batch_norm_act_nchw

        return batch_norm_act_nchw(x, norm, residual, relu)
    y = norm(x) if residual is None else norm(x) + residual
    return F.relu(y) if relu else y


def _joined(norm: Norm, x: Tensor) -> TypeGuard[nn.BatchNorm2d]:
    """Whether a convolution and the norm after it can share kernels."""
    training = _stacked.get() and isinstance(norm, nn.BatchNorm2d) and norm.training
    return training and kernels.usable(x, "conv") and kernels.usable(x, "norm")


def conv_norm_relu(x: Tensor, conv: nn.Conv2d, norm: Norm, residual: Tensor | None = None, relu: bool = True) -> Tensor:
    """relu(norm(conv(x)) + residual); stacked clients' BatchNorm takes its statistics from the convolution."""
    if _joined(norm, x):
        from fednoil.kernels.conv import conv_norm_relu_nchw

        return conv_norm_relu_nchw(kernels.computed(x), conv, norm, residual, relu)[0]
    return norm_relu(conv(x), norm, residual, relu)


def branch(x: Tensor, conv: nn.Conv2d, norm: Norm) -> tuple[Tensor, Tensor]:
    """relu(norm(conv(x))), and x for the shortcut; stacked clients add both gradients of x in one kernel."""
    if _joined(norm, x):
        from fednoil.kernels.conv import conv_norm_relu_nchw

        return conv_norm_relu_nchw(kernels.computed(x), conv, norm, passes=True)
    return norm_relu(conv(x), norm), x


def flat_linear(x: Tensor, linear: nn.Linear) -> Tensor:
    """linear(x.flatten(1)); stacked clients' images in channels-last memory are read as they lie.

    Hooks, and layers of another kind, get the flattened images.
    """
    plain = type(linear) is nn.Linear and not (linear._forward_pre_hooks or linear._forward_hooks)
    if plain and _stacked.get() and kernels.usable(x, "head") and x.dim() == 4:
        y = _head(x, linear.weight, linear.bias)
        if y is not None:
            return y
    return linear(x.flatten(1))


_stacked: ContextVar[bool] = ContextVar("stacked", default=False)


class Stacked(TorchFunctionMode):
    """While active, convolutions, batch norms and heads under `torch.vmap` are one launch for all clients.

    PyTorch would turn them into grouped convolutions and many small operations, which are slow. That is the fallback
    for what the kernels don't support. So is cross-entropy, which where bits must be the same graphs couldn't capture.
    """

    def __enter__(self) -> Stacked:
        self._token = _stacked.set(True)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        _stacked.reset(self._token)
        super().__exit__(*error)

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        kernel, known = _KNOWN.get(function, ("", None))
        if known and args and kernels.usable(args[0], kernel):
            result = known(*args, **kwargs)
            if result is not None:
                return result
        if function is F.cross_entropy:
            result = _cross_entropy(*args, **kwargs)
            if result is not None:
                return result
        return function(*args, **kwargs)


def _conv2d(x: Tensor, weight: Tensor, bias: Tensor | None = None, *rest: Any, **named: Any) -> Tensor | None:
    known = _stride_and_padding(*rest, **named)
    if known is None:
        return None
    from fednoil.kernels.conv import conv2d_nchw

    return conv2d_nchw(kernels.computed(x), weight, bias, *known)


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    if x.dim() != 4 or weight is None or bias is None or momentum is None:
        return None
    from fednoil.kernels.norm import norm_nchw

    return norm_nchw(x, running_mean, running_var, weight, bias, training, momentum, eps)


def _cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor | None:
    """In one launch where there is a kernel for it; otherwise, where bits must be the same, by comparison: the gradient
    of PyTorch's own, mapped, is a scatter, for which the host sends numbers to the GPU in deterministic runs. No graph
    can hold that. A label that isn't a class makes its loss NaN, because nothing can raise here.
    """
    plain = weight is None and size_average is None and reduce is None and not label_smoothing
    if not plain or reduction not in ("mean", "none") or (input.dim(), target.dim()) != (2, 1):
        return None
    if kernels.usable(input, "head") and _only_mapped():
        from fednoil.kernels import cross_entropy

        if cross_entropy.serves(input, target):
            return cross_entropy.cross_entropy(input, target, reduction == "mean", ignore_index)
    if not torch.are_deterministic_algorithms_enabled():
        return None
    counts = (target != ignore_index)[:, None]
    own = target[:, None] == torch.arange(input.shape[1], device=input.device)
    picked = torch.where(own & counts, F.log_softmax(input, 1), 0.0).sum(1)
    losses = torch.where(own.any(1) | ~counts[:, 0], -picked, torch.nan)
    return losses.sum() / counts.sum() if reduction == "mean" else losses


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    return _head(input, weight, bias) if input.dim() == 2 and _only_mapped() else None


def _only_mapped() -> bool:
    """Whether no transformation but `vmap` is at work: the kernels have first derivatives alone, and by autograd."""
    functorch = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    return all(level.key() == functorch.TransformType.Vmap for level in functorch.get_interpreter_stack() or [])


def _head(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """A linear layer of one client's features [B, D], or of images that PyTorch would flatten; None if the kernel
    doesn't serve it. The kernel itself casts weights to the features' dtype, which autocast alone may do."""
    if input.dtype not in (torch.float32, torch.bfloat16, torch.float16) or not input.numel():
        return None
    from fednoil.kernels.head import linear, serves
    from fednoil.kernels.stacked import to_nhwc

    x = kernels.computed(input)
    cast = x.dtype == weight.dtype or torch.is_autocast_enabled("cuda")
    if not cast or weight.dim() != 2 or not serves(len(weight)) or x.numel() >= 2**31:
        return None
    one = (weight.unsqueeze(0), None if bias is None else bias.unsqueeze(0))
    return linear(to_nhwc(x) if x.dim() == 4 else x.unsqueeze(0), *one).squeeze(0)


_KNOWN: dict[Callable[..., Any], tuple[str, Callable[..., Tensor | None]]] = {
    F.conv2d: ("conv", _conv2d),
    F.batch_norm: ("norm", _batch_norm),
    F.linear: ("head", _linear),
}


def _stride_and_padding(
    stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> tuple[int, int] | None:
    """Stride and padding of a convolution that the kernel supports, otherwise None."""
    single = [v if isinstance(v, int) else v[0] if len(set(v)) == 1 else None for v in (stride, padding, dilation)]
    if groups != 1 or single[2] != 1 or not isinstance(single[0], int) or not isinstance(single[1], int):
        return None
    return single[0], single[1]
