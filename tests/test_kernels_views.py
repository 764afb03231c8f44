"""Augmented views by the kernel against those of PyTorch on the CPU, which are Pillow's: on a GPU, or else in Triton's
interpreter."""

from __future__ import annotations

import os
from itertools import product

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU or TRITON_INTERPRET=1", allow_module_level=True)
from interpreting import DEVICE, loops_of_the_interpreter  # noqa: F401
from torch import Tensor

from fednoil import augment, kernels
from fednoil.augment import tables
from fednoil.kernels import view_kernels, views

SHAPES = [(1, 1, 1), (3, 2, 5), (1, 3, 3), (3, 8, 8), (1, 1, 7), (3, 6, 1), (3, 11, 16), (1, 28, 28), (3, 32, 32)]
SHIFTS = [0, 1, -1, 3, -4, 40, -97, 2**31 - 1, -(2**31)]
needs_a_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")


def pool(shape: tuple[int, ...], count: int = 12) -> Tensor:
    """Noise; then images of one tone, of two, of a narrow range, and nearly all bright, which Equalize leaves alone."""
    generator = torch.Generator().manual_seed(sum(shape))
    images = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)
    images[1], images[2], images[3] = 0, 255, 93
    images[4] = images[4] % 2 * 155 + 17
    images[5] = images[5] % 19 + 101
    images[6] = torch.where(images[6] < 250, 255, images[6])
    images[7] = images[7] // 64
    return images


def strong(images: Tensor, index: Tensor, plan: Tensor) -> Tensor:
    images = images.to(DEVICE)
    of_size = tables.op_tables(images.shape[2], images.shape[3], images.device)
    return views.strong(images, index.to(DEVICE), plan.to(DEVICE), of_size)


def check(images: Tensor, index: Tensor, plan: Tensor) -> None:
    """The same pixels, weak and strong."""
    found = strong(images, index, plan)
    assert found.dtype == torch.uint8
    given = images.cpu(), index.cpu(), plan.cpu()
    assert torch.equal(found.cpu(), augment.strong(*given))
    found = views.weak(images.to(DEVICE), index.to(DEVICE), plan.to(DEVICE)[..., :3])  # parts of longer rows
    assert torch.equal(found.cpu(), augment.weak(*given[:2], given[2][..., :3]))


def plan_of(codes: list[tuple[int, int, int]]) -> Tensor:
    """Strong plans with one operation each, (id, level, sign), and neither flip nor shift nor Cutout."""
    rows = torch.zeros(len(codes), 9, dtype=torch.int32)
    rows[:, 3:6], rows[:, 6], rows[:, 7:] = torch.tensor(codes, dtype=torch.int32), 1, -(1 << 16)
    return rows


def test_constants_are_those_of_the_tables() -> None:
    kinds = (view_kernels.NOTHING, view_kernels.MOVE, view_kernels.CURVE)
    assert [kind.value for kind in kinds] == [tables.NOTHING, tables.MOVE, tables.CURVE]
    assert view_kernels.LEVELS.value == tables.OP_LEVELS
    assert view_kernels.FILL.value == tables.CUTOUT_FILL


@pytest.mark.parametrize("shape", SHAPES)
def test_any_flip_and_shift(shape: tuple[int, ...]) -> None:
    flips = torch.tensor([(i % 2, dy, dx) for i, (dy, dx) in enumerate(product(SHIFTS, SHIFTS))])
    index = torch.arange(len(flips)) % 12
    found = views.weak(pool(shape).to(DEVICE), index.to(DEVICE), flips.to(DEVICE))
    assert torch.equal(found.cpu(), augment.weak(pool(shape), index, flips))


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 2, 5)])
@pytest.mark.parametrize("op", range(len(tables.OPS)), ids=tables.OPS)
def test_each_operation(op: int, shape: tuple[int, ...]) -> None:
    codes = [(op, level, sign) for level in (1, 4, 9) for sign in (1, -1)]
    check(pool(shape), torch.arange(6) % 12, plan_of(codes))
    if op in (1, 2, 5):  # what an image holds matters more than the level
        check(pool(shape), torch.arange(12), plan_of([(op, 3, 1)] * 12))


@pytest.mark.parametrize("shape", SHAPES)
def test_random_plans(shape: tuple[int, ...]) -> None:
    plan = augment.strong_plan(torch.tensor(5), 24, shape[1:], ops=2, prob=0.8)
    check(pool(shape), torch.arange(24) % 12, plan)


@pytest.mark.parametrize("ops", [0, 1, 3])
def test_any_number_of_operations(ops: int) -> None:
    plan = augment.strong_plan(torch.tensor(6), 12, (8, 8), ops=ops, prob=1.0)
    check(pool((3, 8, 8)), torch.arange(12), plan)
    check(pool((3, 8, 8)), torch.arange(12), augment.weakened(plan))


@pytest.mark.parametrize("shape", [(1, 8, 6), (3, 3, 5), (1, 1, 4)])
def test_cutout_around_any_centre(shape: tuple[int, ...]) -> None:
    below, right = ([-(1 << 16), -2, -1, *range(side)] for side in shape[1:])
    centres = torch.tensor(list(product(below, right)))
    plan = torch.cat([torch.zeros(len(centres), 3, dtype=torch.int64), centres], 1)
    check(pool(shape), torch.arange(len(plan)) % 12, plan)


def test_autocontrast_stretches_every_range_alike() -> None:
    """Where PyTorch's product and sum in double precision are just below a whole number, one more digit would show."""
    low, high = torch.triu_indices(256, 256)[:, :: 1 if DEVICE == "cuda" else 401]
    between = low + (high - low) * torch.arange(36)[:, None] // 35
    images = between.T.reshape(-1, 1, 6, 6).to(torch.uint8).contiguous()
    check(images, torch.arange(len(images)), plan_of([(1, 1, 1)] * len(images)))


def test_contrast_rounds_a_half_upwards() -> None:
    images = torch.full((8, 1, 28, 28), 100, dtype=torch.uint8)
    images[:, :, :14] += torch.arange(8, dtype=torch.uint8).view(-1, 1, 1, 1)
    check(images, torch.arange(8), plan_of([(5, 9, 1)] * 8))


def test_shapes_types_and_strides() -> None:
    images = pool((1, 3, 4)).to(DEVICE)
    plan = augment.strong_plan(torch.tensor(7), 24, (3, 4)).view(4, 3, 2, -1).to(DEVICE)
    index = (torch.arange(24).view(4, 3, 2) % 12).to(DEVICE)
    check(images, index, plan)
    check(images, index.to(torch.int32), plan.to(torch.int64))
    check(images, index.transpose(0, 2), plan.transpose(0, 2))
    check(images, index[:, 1, 1], plan[:, 1, 1])  # far apart
    check(images, index, plan.movedim(-1, 0).contiguous().movedim(0, -1))  # columns first
    check(images, index[0, 0, 0].expand(5), plan[2, 0, 0].expand(5, -1))
    check(images, index[1:1], plan[1:1])
    check(images[3:], index % 9, plan)  # begins at an odd place
    assert torch.equal(images.cpu(), pool((1, 3, 4)))


def test_large_images_are_left_to_pytorch() -> None:
    assert views.serves(torch.empty(1, 3, 64, 64))
    assert not views.serves(torch.empty(1, 3, 65, 64))
    check(pool((1, 64, 64)), torch.arange(4), augment.strong_plan(torch.tensor(8), 4, (64, 64)))


@needs_a_gpu
def test_the_functions_use_it_also_within_a_graph() -> None:
    images, index = pool((3, 32, 32)).cuda(), torch.arange(12).cuda()
    plan = augment.strong_plan(torch.tensor(9).cuda(), 12, (32, 32))
    for view, params in ((augment.strong, plan), (augment.weak, plan[:, :3])):
        view(images, index, params)  # compiled and loaded before
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        strong, weak = augment.strong(images, index, plan), augment.weak(images, index, plan[:, :3])
    plan.copy_(augment.strong_plan(torch.tensor(10).cuda(), 12, (32, 32)))
    graph.replay()
    assert torch.equal(strong.cpu(), augment.strong(images.cpu(), index.cpu(), plan.cpu()))
    assert torch.equal(weak.cpu(), augment.weak(images.cpu(), index.cpu(), plan[:, :3].cpu()))
    with kernels.without("views"):
        assert torch.equal(weak, augment.weak(images, index, plan[:, :3]))


@needs_a_gpu
def test_many_views_agree_and_are_the_same_each_time() -> None:
    for shape in ((1, 28, 28), (3, 32, 32), (3, 20, 20), (3, 64, 64), (1, 9, 9)):
        plan = augment.strong_plan(torch.tensor(11), 20_000, shape[1:], prob=1.0)
        images, index = pool(shape), torch.arange(20_000) % 12
        found = strong(images, index, plan)
        assert torch.equal(found.cpu(), augment.strong(images, index, plan))
        assert all(torch.equal(found, strong(images, index, plan)) for _ in range(5))


@needs_a_gpu
def test_more_views_than_other_dimensions_of_a_grid_hold_and_a_pool_beyond_32_bits() -> None:
    count = 70_000
    plan = augment.strong_plan(torch.tensor(12), count, (2, 2))
    check(pool((1, 2, 2)), torch.arange(count) % 12, plan)
    images = torch.zeros(2**31 // 3072 + 12, 3, 32, 32, dtype=torch.uint8, device="cuda")
    images[-12:] = pool((3, 32, 32)).cuda()
    plan = augment.strong_plan(torch.tensor(13), 12, (32, 32))
    index = torch.arange(len(images) - 12, len(images), dtype=torch.int32)
    found = strong(images, index, plan)
    assert torch.equal(found.cpu(), augment.strong(images[-12:].cpu(), torch.arange(12), plan))
