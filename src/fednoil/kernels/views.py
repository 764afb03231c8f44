"""Augmented views in one launch, where PyTorch takes dozens: each operation of any kind over all views, then a choice.

A program makes one view, so it does only what that view needs: it reads the pixels from where flip and shift take them,
then changes the view in place by its own RandAugment operations and Cutout. The pixels are those of PyTorch and Pillow.

Gain end to end, a turn of FedNoiL with six clients on an H200 (`python benchmarks/kernels.py --kernel views`): 1.19 ×
for the CNN, 1.21 × with 30 clients, 1.13 × for the ResNet18.
"""

# Triton types a launched kernel as the bare function, without its options; it is missing where there is no GPU.
# pyright: reportCallIssue=false, reportArgumentType=false, reportMissingImports=false

from __future__ import annotations

from typing import Protocol

import triton
from torch import Tensor

from fednoil.kernels.ahead import empty, launch
from fednoil.kernels.view_kernels import make_view

MOST = 4096  # pixels of a channel; more than this are too many registers
PIXELS_OF_A_WARP = 128
MOST_WARPS = 8


class Tables(Protocol):
    """What the kernel reads of `fednoil.augment.tables.OpTables`, for images of the size at hand."""

    @property
    def kinds(self) -> Tensor: ...
    @property
    def source(self) -> Tensor: ...
    @property
    def inside(self) -> Tensor: ...
    @property
    def curves(self) -> Tensor: ...
    @property
    def adaptive(self) -> Tensor: ...
    @property
    def blends(self) -> Tensor: ...
    @property
    def stretch(self) -> Tensor: ...
    @property
    def lift(self) -> Tensor: ...


def serves(images: Tensor) -> bool:
    """Whether the images [N, C, H, W] of a pool are small enough."""
    return images.shape[2] * images.shape[3] <= MOST


def weak(images: Tensor, index: Tensor, params: Tensor) -> Tensor:
    """Weak views of the images `index` [..., B] of the pool uint8 [N, C, H, W], by params [..., B, 3]: uint8
    [..., B, C, H, W]."""
    return _views(images, index, params, None)


def strong(images: Tensor, index: Tensor, params: Tensor, tables: Tables) -> Tensor:
    """Strong views of the images `index` [..., B] of the pool uint8 [N, C, H, W], by params [..., B, 5 + 4*ops]: uint8
    [..., B, C, H, W]."""
    return _views(images, index, params, tables)


def _views(images: Tensor, index: Tensor, params: Tensor, tables: Tables | None) -> Tensor:
    channels, height, width = images.shape[1:]
    views = empty(images, (*index.shape, channels, height, width))
    if views.numel() == 0:
        return views
    rows, order = params.reshape(-1, params.shape[-1]), index.reshape(-1)
    found, first_move = _found(views, tables)
    block = max(triton.next_power_of_2(height * width), 256)  # no fewer pixels than threads
    launch(
        make_view, (len(order),),
        images, order, rows, views, order.stride(0), *rows.stride(), *found, first_move,
        C=channels, H=height, W=width, N=block, OPS=(rows.shape[1] - 5) // 4 if tables else 0,
        STRONG=tables is not None, num_warps=min(block // PIXELS_OF_A_WARP, MOST_WARPS), enable_fp_fusion=False,
    )  # fmt: skip
    return views


def _found(views: Tensor, tables: Tables | None) -> tuple[list[Tensor], int]:
    """The tables in the kernel's order, and the code of the first row of `source`; weak views have placeholders."""
    if tables is None:
        return [views] * 8, 0
    found = [tables.kinds, tables.source, tables.inside, tables.curves, tables.adaptive, tables.blends]
    return [*found, tables.stretch, tables.lift], len(tables.kinds) - len(tables.source)
