"""The convolution's kernels that fetch boxes, against those that gather and against PyTorch's."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton.tools.tensor_descriptor")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU or TRITON_INTERPRET=1", allow_module_level=True)
from interpreting import DEVICE, _exact_reference, loops_of_the_interpreter  # noqa: F401
from torch import Tensor
from torch.nn import functional as F

from fednoil import kernels
from fednoil.kernels import boxes, conv, conv_tiles
from fednoil.kernels.conv_tiles import Config, Configs, Shape, image_box

if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] != 9:
    pytest.skip("needs a Hopper GPU", allow_module_level=True)
# The interpreter multiplies bfloat16 as if it were whole numbers.
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16
# K, B, size, C, O, kernel and pixels of a box: parts of an image, one image, several of which some are missing
CASES = [
    (2, 2, 16, 64, 64, 3, 64),
    (2, 3, 8, 64, 128, 3, 64),
    (2, 3, 4, 128, 64, 3, 64),
    (1, 5, 4, 64, 64, 1, 32),
    (1, 2, 8, 64, 64, 5, 32),
]


def shape_of(case: tuple[int, ...]) -> Shape:
    K, B, size, C, outputs, kernel, _ = case
    return Shape(K, B, size, size, C, outputs, kernel, kernel, 1, kernel // 2, False)


def inputs(s: Shape) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images, weights, bias and the gradient of the result."""
    torch.manual_seed(0)
    x = torch.randn(s.K, s.B, s.H, s.W, s.C, device=DEVICE)
    w = torch.randn(s.K, s.KH, s.KW, s.C, s.outputs, device=DEVICE) / (s.C * s.KH * s.KW) ** 0.5
    bias = torch.randn(s.K, s.outputs, device=DEVICE)
    dy = torch.randn(s.K, s.B, *s.result, s.outputs, device=DEVICE)
    return x.to(HALF), w.to(HALF), bias.to(HALF), dy.to(HALF)


def close(got: Tensor, wanted: Tensor, tolerance: float) -> None:
    assert got.shape == wanted.shape
    got, wanted = got.detach().double(), wanted.detach().double()
    assert (got - wanted).norm() <= tolerance * wanted.norm().clamp_min(1e-12)


def gathered(config: Config) -> Config:
    return config._replace(boxes=False)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The launches of boxes, by name."""
    names: list[str] = []

    def noted(name: str) -> Callable[..., None]:
        original = getattr(boxes, name)

        def launch(*args: Any) -> None:
            names.append(name)
            original(*args)

        return launch

    for name in ("forward", "input_gradient", "weight_gradient"):
        monkeypatch.setattr(boxes, name, noted(name))
    return names


@pytest.mark.parametrize("case", CASES)
def test_result_and_gradients_are_those_of_pytorch(case, used):
    s, pixels = shape_of(case), case[-1]
    x, w, bias, dy = inputs(s)
    tile = Config(pixels, 64, 32, 4, 2, boxes=True)
    weights = Config(64, 64, pixels, 4, 2, splits=2, boxes=True)
    tensors = [t.requires_grad_() for t in (x, w, bias)]
    y = conv.conv2d(x, w, bias, 1, s.padding, Configs(tile, tile, weights))
    got = torch.autograd.grad(y, tensors, dy)
    assert used == ["forward", "input_gradient", "weight_gradient"]
    exact = [t.detach().float().requires_grad_() for t in tensors]
    results = [
        F.conv2d(a.permute(0, 3, 1, 2), b.permute(3, 2, 0, 1), c, 1, s.padding).permute(0, 2, 3, 1)
        for a, b, c in zip(*exact, strict=True)
    ]
    wanted = torch.stack(results)
    close(y, wanted, 4e-3)
    for mine, theirs in zip(got, torch.autograd.grad(wanted, exact, dy.float()), strict=True):
        close(mine, theirs, 4e-3)


@pytest.mark.parametrize("case", CASES[:3])
def test_statistics_are_those_of_the_gathering_kernel(case, used):
    s = shape_of(case)
    x, w, bias, _ = inputs(s)
    tile = Config(case[-1], 64, 64, 4, 2, boxes=True)
    y, _, parts = conv._forward(x, w, bias, s, tile, True)
    assert used == ["forward"]
    other, _, wanted = conv._forward(x, w, bias, s, gathered(tile), True)
    close(y, other, 1e-3)
    close(parts, wanted, 1e-4)


def test_what_is_known_of_the_gradient_is_added(used):
    s = shape_of(CASES[2])
    x, w, _, dy = inputs(s)
    tile = Config(64, 64, 64, 4, 2, boxes=True)
    got = conv._input_gradient(dy, w, s, tile, x)
    assert used == ["input_gradient"]
    close(got, conv._input_gradient(dy, w, s, gathered(tile), x), 1e-3)


@pytest.mark.parametrize("splits", [1, 3])
def test_the_weights_gradient_is_that_of_the_gathering_kernel(splits, used):
    s = shape_of(CASES[1])
    x, _, _, dy = inputs(s)
    tile = Config(64, 64, 64, 4, 2, splits, boxes=True)
    got = conv._weight_gradient(x, dy, HALF, s, tile)
    assert used == ["weight_gradient"]
    assert got.dtype == (HALF if splits == 1 else torch.float32)
    close(got, conv._weight_gradient(x, dy, HALF, s, gathered(tile)), 1e-3)


def test_tensors_that_the_engine_cannot_read_are_gathered(used):
    """Shared images, weights that begin between two multiples of 16 bytes, and full precision: by its own tiles."""
    s = shape_of(CASES[2])
    x, w, _, dy = inputs(s)
    tile = Config(32, 64, 64, 4, 2, boxes=True)
    there, back, weights = chosen(s, HALF, False)
    odd = torch.cat([w.flatten(1), w.new_zeros(2, 1)], 1)[:, :-1].view(w.shape)  # each client one number further
    shared = x[:1].expand(2, -1, -1, -1, -1)
    wanted = conv._forward(x, w, None, s, there, True)
    for got, other in zip(conv._forward(x, odd, None, s, tile, True), wanted, strict=True):
        assert torch.equal(got, other)
    assert torch.equal(conv._input_gradient(dy, odd, s, tile), conv._input_gradient(dy, w, s, back))
    got, other = (conv._weight_gradient(shared, dy, HALF, s, config) for config in (tile, weights))
    assert torch.equal(got, other)
    close(conv._forward(x.float(), w.float(), None, s, tile, False)[0], wanted[0], 4e-3)
    assert used == []


def test_boxes_are_whole_rows_or_whole_images():
    sizes = {32: [1, 4, 32], 16: [1, 8, 16], 8: [2, 8, 8], 4: [8, 4, 4]}
    for size, box in sizes.items():
        assert image_box(Shape(1, 9, size, size, 64, 64, 3, 3, 1, 1, False), 128) == box
    for size in (6, 28, 256):
        assert image_box(Shape(1, 9, size, size, 64, 64, 3, 3, 1, 1, False), 128) is None
    assert image_box(Shape(1, 9, 6, 32, 64, 64, 3, 3, 1, 1, False), 128) is None  # the last would reach further


def chosen(s: Shape, dtype: torch.dtype, with_boxes: bool = True) -> list[Config]:
    kinds = (conv_tiles.forward_config, conv_tiles.input_gradient_config, conv_tiles.weight_gradient_config)
    return [kind(s, dtype, with_boxes) for kind in kinds]


@pytest.fixture
def _an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the choice of tiles asks the GPU."""
    monkeypatch.setattr(kernels, "_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(conv_tiles, "processors", lambda: 132)


SMALL = Config(64, 64, 64, 4, 4, boxes=True)
NARROW = Config(128, 64, 64, 4, 3, boxes=True)
WIDE = Config(128, 128, 64, 4, 3, boxes=True)
FLAT = Config(64, 128, 64, 4, 4, boxes=True)


@pytest.mark.parametrize(
    ("clients", "images", "size", "channels", "outputs", "tiles"),
    [
        (6, 32, 32, 64, 64, [NARROW, NARROW, SMALL]),
        (6, 32, 16, 64, 128, [WIDE, NARROW, SMALL]),
        (6, 32, 16, 128, 192, [NARROW, WIDE, SMALL]),
        (6, 32, 8, 256, 256, [WIDE, WIDE, WIDE]),
        (10, 10, 4, 512, 512, [FLAT, FLAT, WIDE]),  # 10 clients × 3 × 4 tiles of 132 at once
        (11, 10, 4, 512, 512, [FLAT, FLAT, WIDE]),  # 132
        (11, 10, 4, 128, 640, [WIDE, FLAT, WIDE]),  # 165 and 33
    ],
)
@pytest.mark.usefixtures("_an_h200")
def test_the_default_tiles_of_boxes(
    clients: int, images: int, size: int, channels: int, outputs: int, tiles: list[Config]
) -> None:
    s = Shape(clients, images, size, size, channels, outputs, 3, 3, 1, 1, False)
    assert chosen(s, torch.bfloat16) == tiles
    there, back, weights = tiles
    assert boxes.serves(s, there.rows, there.depth, there.cols)
    assert boxes.serves(s, back.rows, back.cols, back.depth)
    assert boxes.serves(s, weights.depth, weights.rows, weights.cols)
    assert all((tile.rows + tile.cols) * tile.depth * 2 * tile.stages <= 232448 for tile in tiles)


@pytest.mark.usefixtures("_an_h200")
def test_what_boxes_do_not_serve_is_gathered_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    s = Shape(6, 32, 16, 16, 128, 128, 3, 3, 1, 1, False)
    others = [s._replace(stride=2), s._replace(pool=True), s._replace(H=28, W=28), s._replace(W=128)]
    others += [s._replace(C=32), s._replace(outputs=96), s._replace(KH=5, KW=5, padding=2)]
    assert not any(tile.boxes for other in others for tile in chosen(other, torch.bfloat16))
    assert chosen(s, torch.float32) == chosen(s, torch.float32, False)
    gathering = chosen(s, torch.bfloat16, False)
    assert not any(tile.boxes for tile in gathering)
    with kernels.without("boxes"):
        assert chosen(s, torch.bfloat16) == gathering
    for other in ((8, 0), (10, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda other=other: other)
        assert chosen(s, torch.bfloat16) == gathering


@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize("images", [1, 3])
def test_a_tile_is_chosen_for_all_clients_and_a_norm_learns_its_rows(monkeypatch, images, rows):
    """Images of 64 pixels; the last part of 128 has half as many, and so has the only one."""
    asked: list[int] = []

    def config(s: Shape, *_: Any) -> Config:
        asked.append(s.K)
        return Config(rows, 64, 64, 4, 2, boxes=True)

    monkeypatch.setattr(conv, "forward_config", config)
    x, w, _, _ = inputs(shape_of((2, images, 8, 64, 64, 3, 0)))

    def one(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y, parts, _ = conv.conv2d_and_statistics(x[None], w[None], None, 1, 1)
        asked.append(parts.rows)
        return y[0], parts.values[0]

    y, values = torch.vmap(one)(x, w)
    assert asked == [2, min(rows, 64 * images)]
    means = [part.mean(1) for part in y.float().flatten(1, 3).split(rows, 1)]
    close(values[:, 0], torch.stack(means, 1), 2e-3)
