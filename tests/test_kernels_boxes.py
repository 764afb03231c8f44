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

from fednoil.kernels import conv, conv_boxes, conv_tiles
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
        original = getattr(conv_boxes, name)

        def launch(*args: Any) -> None:
            names.append(name)
            original(*args)

        return launch

    for name in ("forward", "input_gradient", "weight_gradient"):
        monkeypatch.setattr(conv_boxes, name, noted(name))
    return names


@pytest.mark.parametrize("case", CASES)
def test_result_and_gradients_are_those_of_pytorch(case, used):
    s, pixels = shape_of(case), case[-1]
    x, w, bias, dy = inputs(s)
    tile = Config(pixels, 64, 32, 4, 2, boxes=True)
    weights = Config(64, 64, pixels, 4, 2, splits=2, boxes=True, taps=3 if s.KW == 3 else 1)
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
@pytest.mark.parametrize("taps", [1, 3])
def test_taps_that_share_a_tile_get_the_same_gradient(taps, splits, used):
    s = shape_of(CASES[1])
    x, _, _, dy = inputs(s)
    tile = Config(64, 64, 64, 4, 2, splits, boxes=True, taps=taps)
    got = conv._weight_gradient(x, dy, HALF, s, tile)
    assert used == ["weight_gradient"]
    assert got.dtype == (HALF if splits == 1 else torch.float32)
    close(got, conv._weight_gradient(x, dy, HALF, s, gathered(tile)), 1e-3)


def test_tensors_that_the_engine_cannot_read_are_gathered(used):
    """Shared images, weights that begin between two multiples of 16 bytes, and full precision."""
    s = shape_of(CASES[2])
    x, w, _, _ = inputs(s)
    tile = Config(64, 64, 64, 4, 2, boxes=True)
    wanted = conv._forward(x[:1].repeat(2, 1, 1, 1, 1), w, None, s, gathered(tile), False)[0]
    flat = torch.cat([w.flatten(1), w.new_zeros(2, 1)], 1)
    odd = flat[:, :-1].view(w.shape)  # each client one number further
    assert torch.equal(conv._forward(x[:1].expand(2, -1, -1, -1, -1), odd, None, s, tile, False)[0], wanted)
    full = conv._forward(x[:1].float().repeat(2, 1, 1, 1, 1), w.float(), None, s, tile, False)[0]
    close(full, wanted, 4e-3)
    assert used == []


def test_boxes_are_whole_rows_or_whole_images():
    sizes = {32: [1, 4, 32], 16: [1, 8, 16], 8: [2, 8, 8], 4: [8, 4, 4]}
    for size, box in sizes.items():
        assert image_box(Shape(1, 9, size, size, 64, 64, 3, 3, 1, 1, False), 128) == box
    for size in (6, 28, 256):
        assert image_box(Shape(1, 9, size, size, 64, 64, 3, 3, 1, 1, False), 128) is None
    assert image_box(Shape(1, 9, 6, 32, 64, 64, 3, 3, 1, 1, False), 128) is None  # the last would reach further


def chosen(s: Shape, dtype: torch.dtype) -> list[Config]:
    kinds = (conv_tiles.forward_config, conv_tiles.input_gradient_config, conv_tiles.weight_gradient_config)
    return [kind(s, dtype) for kind in kinds]


@pytest.mark.parametrize(("clients", "images"), [(6, 32), (6, 87), (10, 10), (1, 1)])
def test_defaults_take_boxes_where_they_serve(monkeypatch: pytest.MonkeyPatch, clients: int, images: int) -> None:
    monkeypatch.setattr(conv_tiles, "fetches_boxes", lambda: True)
    monkeypatch.setattr(conv_tiles, "_room", lambda: 232448)
    for size, channels in ((32, 64), (16, 128), (8, 256), (4, 512)):
        s = Shape(clients, images, size, size, channels, channels, 3, 3, 1, 1, False)
        x = torch.empty(clients, 1, dtype=HALF, device=DEVICE).expand(-1, 8).contiguous()
        there, back, weights = chosen(s, torch.bfloat16)
        assert conv_boxes.serves(s, there, there.rows, there.depth, there.cols, x)
        assert conv_boxes.serves(s, back, back.rows, back.cols, back.depth, x)
        assert conv_boxes.serves(s, weights, weights.depth, weights.rows, weights.cols, x)
        for tile in (there, back, weights):
            assert tile.stages >= 2
            assert (tile.taps * tile.rows + tile.cols) * tile.depth * 2 * tile.stages <= 232448
        assert not any(tile.boxes for tile in chosen(s, torch.float32))
        assert not any(tile.boxes for tile in chosen(s._replace(stride=2), torch.bfloat16))
        assert not any(tile.boxes for tile in chosen(s._replace(H=28, W=28), torch.bfloat16))
