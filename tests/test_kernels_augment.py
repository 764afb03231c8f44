"""Views made by one kernel against the PyTorch ones on the CPU, bit by bit; without a GPU in Triton's interpreter."""

import os
from itertools import product

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU or TRITON_INTERPRET=1", allow_module_level=True)

from fednoil.augment import LEVELS, OPS, plans, strong_plan, tables, views, weak_plan, weakened  # noqa: E402
from fednoil.kernels import augment  # noqa: E402

# The interpreter takes about 30 ms for an image, so it sees fewer of them.
VIEWS = 2000 if DEVICE == "cuda" else 12
SHAPES = [(1, 28, 28), (3, 32, 32), (1, 9, 7), (3, 21, 13), (1, 17, 40), (3, 2, 5), (1, 1, 1)]
IDENTITY = (0, 1, 1, 0)


def pool(channels: int, height: int, width: int) -> Tensor:
    """Noise, three flat images, dark noise, a few tones, gradients both ways, and bright with one dark pixel."""
    generator = torch.Generator().manual_seed(height)
    shape = (channels, height, width)
    y, x = torch.arange(height).view(-1, 1), torch.arange(width)
    bright = torch.full(shape, 250)
    bright[:, 0, 0] = 3
    images = [
        torch.randint(0, 256, shape, generator=generator),
        *(torch.full(shape, tone) for tone in (0, 90, 255)),
        torch.randint(0, 6, shape, generator=generator),
        torch.randint(0, 4, shape, generator=generator) * 77 + 10,
        ((x * 5 + y) % 256).expand(shape),
        (200 - y * 3 - x).expand(shape).clamp(min=0),
        bright,
    ]
    return torch.stack(images).to(torch.uint8)


def made(images: Tensor, index: Tensor, params: Tensor, make: str = "strong") -> Tensor:
    """The kernel's views, on the CPU."""
    pixels = images.to(DEVICE)
    lookup = [tables.op_tables(*images.shape[2:], pixels.device)] if make == "strong" else []
    return getattr(augment, make)(pixels, index.to(DEVICE), params.to(DEVICE), *lookup).cpu()


def check(images: Tensor, index: Tensor, params: Tensor, make: str = "strong") -> None:
    """The kernel's pixels are those of PyTorch on the CPU, image by image."""
    wanted = getattr(views, make)(images, index, params)
    got = made(images, index, params, make)
    wrong = [params[i].tolist() for i in torch.nonzero((got != wanted).flatten(1).any(1)).flatten().tolist()]
    assert not wrong, wrong[:5]
    assert got.shape == wanted.shape


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("op", range(len(OPS)), ids=OPS)
def test_every_operation_level_and_sign(op: int, shape: tuple[int, int, int]) -> None:
    images = pool(*shape)
    rows = list(product(range(len(images)), range(1, LEVELS + 1), (1, -1)))
    if DEVICE == "cpu":  # 5 is no divisor of 9 · 9 · 2, so this walks through images, levels and signs alike
        rows = rows[op % 5 :: 5 if shape == SHAPES[0] else 23]
    # Cutout in a corner hides as little as it can
    params = torch.tensor([(0, 0, 0, op, level, sign, 1, 0, 0) for _, level, sign in rows], dtype=torch.int32)
    check(images, torch.tensor([image for image, _, _ in rows]), params)


@pytest.mark.parametrize("ops", [0, 1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES[:5], ids=str)
def test_random_plans(shape: tuple[int, int, int], ops: int) -> None:
    images = pool(*shape)
    index = torch.randint(0, len(images), (VIEWS,), generator=torch.Generator().manual_seed(ops))
    check(images, index, strong_plan(torch.tensor(ops), VIEWS, shape[1:], 2 + 2 * (ops % 2), ops, 0.8))


@pytest.mark.parametrize("pad", [0, 2, 4, 40])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weak_views(shape: tuple[int, int, int], pad: int) -> None:
    images = pool(*shape)
    index = torch.arange(VIEWS) % len(images)
    check(images, index, weak_plan(torch.tensor(pad), VIEWS, pad), "weak")


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 9, 7)], ids=str)
def test_cutout_everywhere(shape: tuple[int, int, int]) -> None:
    height, width = shape[1:]
    rows = [(0, 0, 0, y, x) for y in range(height) for x in range(width)]
    if DEVICE == "cpu":
        rows = [row for row in rows if {row[3], height - 1 - row[3]} & {0, 6} and {row[4], width - 1 - row[4]} & {0, 5}]
    images = pool(*shape)
    check(images, torch.zeros(len(rows), dtype=torch.int64), torch.tensor(rows))


def test_an_operation_that_is_not_applied_changes_nothing() -> None:
    images = pool(3, 8, 8)
    rows = [(1, 2, -1, op, 9, -1, 0, *IDENTITY, 4, 4) for op in range(len(OPS))]
    index = torch.zeros(len(rows), dtype=torch.int64)
    params = torch.tensor(rows)
    check(images, index, params)
    got = made(images, index, params)
    assert torch.equal(got, got[:1].expand_as(got))


def test_a_mean_halfway_between_two_tones_rounds_up() -> None:
    """A product with 1/784 instead of a division would often fall short of the half."""
    steps = torch.arange(0, 255, 1 if DEVICE == "cuda" else 25).view(-1, 1, 1, 1)
    images = (steps + torch.arange(784).view(1, 1, 28, 28) % 2).to(torch.uint8)
    row = torch.tensor([0, 0, 0, OPS.index("Contrast"), 2, 1, 1, 0, 0], dtype=torch.int32)
    check(images, torch.arange(len(images)), row.repeat(len(images), 1))


def test_kinds_of_whole_numbers_leading_dimensions_and_slices() -> None:
    images = pool(1, 10, 10)
    index = torch.arange(12).view(2, 6)[:, 1:4] % len(images)
    params = strong_plan(torch.tensor([3, 4]), 6, (10, 10), prob=1.0)[:, 2:5]
    for kind in (torch.int32, torch.int64):
        got = made(images, index.to(kind), params.to(kind))
        assert torch.equal(got, views.strong(images, index, params))
        got = made(images, index.to(kind), params[..., :3].to(kind), "weak")
        assert torch.equal(got, views.weak(images, index, params[..., :3]))


def test_numbers_that_are_written_twice_agree() -> None:
    kinds = (augment._MOVE, augment._CURVE, augment._BLEND)
    assert tuple(kind.value for kind in kinds) == (tables.MOVE, tables.CURVE, tables.BLEND)
    assert (augment._SIGNED_LEVELS.value, augment._FILL.value) == (2 * LEVELS, tables.CUTOUT_FILL)
    columns = (augment._WEAK_COLUMNS, augment._OP_COLUMNS, augment._CENTRE_COLUMNS)
    assert tuple(count.value for count in columns) == (plans.WEAK_COLUMNS, plans.OP_COLUMNS, plans.CENTRE_COLUMNS)
    lookup = tables.op_tables(8, 8, torch.device("cpu"))
    assert len(lookup.kinds) - len(lookup.source) == tables.FIRST_MOVE


def test_an_empty_batch() -> None:
    images, index = pool(3, 5, 6), torch.zeros(0, dtype=torch.int64)
    for make, columns in (("weak", 3), ("strong", 13)):
        assert made(images, index, index.new_zeros(0, columns), make).shape == (0, 3, 5, 6)


def test_images_that_do_not_fit_are_refused() -> None:
    index, params = torch.zeros(1, dtype=torch.int64), torch.zeros(1, 3, dtype=torch.int32)
    images = torch.zeros(1, 1, 64, 65, dtype=torch.uint8, device=DEVICE)
    assert not augment.fits(images)
    assert augment.fits(images[..., :64])
    for wrong in (images, images[..., :64]):
        with pytest.raises(ValueError, match="images must be contiguous"):
            augment.weak(wrong, index, params)


def test_a_weakened_plan() -> None:
    images = pool(3, 21, 13)
    index = torch.arange(VIEWS) % len(images)
    check(images, index, weakened(strong_plan(torch.tensor(5), VIEWS, (21, 13))))
