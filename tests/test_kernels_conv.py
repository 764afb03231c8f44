"""The stacked convolution against PyTorch's, client by client; on the CPU through Triton's interpreter."""

import os

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU or TRITON_INTERPRET=1", allow_module_level=True)
from interpreting import DEVICE, _exact_reference, check, close, loops_of_the_interpreter  # noqa: F401
from torch import Tensor
from torch.nn import functional as F

from fednoil.kernels import conv, conv_backward, conv_tiles, stacked
from fednoil.kernels.conv_tiles import Config, Configs, Shape

# The interpreter multiplies bfloat16 as if it were whole numbers.
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16

# K, B, H, W, C, O, kernel, stride, padding
PLAIN = [
    (2, 3, 6, 5, 1, 8, 5, 1, 2),
    (2, 2, 7, 7, 3, 20, 3, 1, 1),
    (3, 2, 5, 6, 16, 16, 3, 1, 1),
    (2, 3, 7, 6, 16, 24, 3, 2, 1),
    (2, 2, 8, 8, 32, 16, 3, 2, 1),
    (2, 3, 5, 5, 16, 32, 1, 2, 0),
    (1, 2, 5, 5, 20, 17, 2, 3, 1),
    (2, 3, 4, 4, 64, 128, 1, 1, 0),
    (1, 1, 7, 7, 18, 18, 5, 2, 0),
]
POOLED = [
    (2, 3, 8, 8, 1, 16, 5, 1, 2),
    (2, 2, 7, 9, 3, 20, 3, 1, 1),
    (2, 3, 6, 7, 32, 64, 5, 1, 2),
    (1, 3, 7, 7, 20, 18, 3, 1, 0),
]


def reference(x: Tensor, w: Tensor, bias: Tensor | None, stride: int, padding: int, pool: bool) -> Tensor:
    """PyTorch's result [K, B, Ho, Wo, O], one client at a time."""
    results = []
    for k in range(len(x)):
        y = F.conv2d(
            x[k].permute(0, 3, 1, 2), w[k].permute(3, 2, 0, 1), None if bias is None else bias[k], stride, padding
        )
        results.append((F.relu(F.max_pool2d(y, 2)) if pool else y).permute(0, 2, 3, 1))
    return torch.stack(results)


def inputs(case: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    K, B, H, W, C, outputs, kernel, _, _ = case
    torch.manual_seed(0)
    x = torch.randn(K, B, H, W, C, device=DEVICE)
    w = torch.randn(K, kernel, kernel, C, outputs, device=DEVICE) / (C * kernel * kernel) ** 0.5
    bias = torch.randn(K, outputs, device=DEVICE) / 4
    return tuple(t.to(dtype).requires_grad_() for t in (x, w, bias))  # type: ignore[return-value]


@pytest.mark.parametrize("case", PLAIN)
@pytest.mark.parametrize("with_bias", [True, False])
def test_conv2d_and_its_gradients_are_those_of_pytorch(case, with_bias):
    x, w, bias = inputs(case)
    got = conv.conv2d(x, w, bias if with_bias else None, *case[7:])
    tensors = (x, w, bias) if with_bias else (x, w)
    check(got, reference(x, w, bias if with_bias else None, *case[7:], False), tensors, tensors, 1e-4)


@pytest.mark.parametrize("case", POOLED)
def test_conv_pool_relu_and_its_gradients_are_those_of_pytorch(case):
    tensors = inputs(case)
    got = conv.conv_pool_relu(*tensors, case[8])
    check(got, reference(*tensors, 1, case[8], True), tensors, tensors, 1e-4)


@pytest.mark.parametrize("case", POOLED)
def test_without_a_gradient_of_the_images_the_pooled_one_is_read_as_it_is(case, monkeypatch):
    tensors = inputs(case)
    images = tensors[0].detach()
    monkeypatch.setattr(conv_backward, "unpool", None)
    got = conv.conv_pool_relu(images, *tensors[1:], case[8])
    check(got, reference(images, *tensors[1:], 1, case[8], True), tensors[1:], tensors[1:], 1e-4)


@pytest.mark.parametrize("pool", [True, False])
@pytest.mark.parametrize("wanted", [1, 2])
def test_weights_or_a_bias_alone_have_the_same_gradient(wanted, pool):
    case = POOLED[2] if pool else PLAIN[3]
    tensors = [t.detach().requires_grad_(place == wanted) for place, t in enumerate(inputs(case))]
    got = conv.conv_pool_relu(*tensors, case[8]) if pool else conv.conv2d(*tensors, *case[7:])
    check(got, reference(*tensors, *case[7:], pool), tensors[wanted : wanted + 1], tensors[wanted : wanted + 1], 1e-4)


@pytest.mark.parametrize(("case", "pool"), [(PLAIN[4], False), (PLAIN[0], False), (POOLED[0], True), (POOLED[2], True)])
def test_half_precision_stays_near_full_precision(case, pool):
    tensors = inputs(case, HALF)
    exact = tuple(t.detach().float().requires_grad_() for t in tensors)
    got = conv.conv_pool_relu(*tensors, case[8]) if pool else conv.conv2d(*tensors, *case[7:])
    check(got, reference(*exact, *case[7:], pool), tensors, exact, 2e-2)


def test_full_precision_weights_serve_half_precision_images():
    x, w, bias = inputs(PLAIN[2])
    got = conv.conv2d(x.to(HALF), w, bias, 1, 1)
    assert got.dtype == HALF
    check(got, reference(x, w, bias, 1, 1, False), (w, bias), (w, bias), 2e-2)


def test_weights_are_read_where_they_lie():
    """Packed weights of the images' type need no copy, whatever the step between clients; others get one."""
    x, w, bias = inputs(PLAIN[2])
    wide = torch.cat([w.detach(), w.detach()], 1)[:, :3].requires_grad_()  # each client a part of a longer row
    tensors, others = (x, wide, bias), (x, w, bias)
    check(conv.conv2d(*tensors, 1, 1), reference(*others, 1, 1, False), tensors, others, 1e-4)
    turned = w.detach().permute(0, 4, 3, 1, 2).contiguous().permute(0, 3, 4, 2, 1).requires_grad_()  # PyTorch's memory
    tensors = (x, turned, bias)
    check(conv.conv2d(*tensors, 1, 1), reference(*others, 1, 1, False), tensors, others, 1e-4)
    used = [
        conv.Conv.apply(x, t, bias, 1, 1, False, False, False, False, Configs())[2].numel() for t in (w, wide, turned)
    ]
    assert used == [0, 0, w.numel()]


def test_the_front_end_takes_weights_in_pytorchs_layout_and_backward_only_views():
    x, w, bias = inputs(POOLED[1])
    y = conv.conv2d_nchw(x[0].permute(0, 3, 1, 2), w[0].permute(3, 2, 0, 1).contiguous(), bias[0], 1, 1)
    close(y.permute(0, 2, 3, 1)[None], reference(x, w, bias, 1, 1, False)[:1], 1e-4)
    names, node = [], y.grad_fn
    while node is not None and "Conv" not in node.name():
        names.append(node.name())
        node = node.next_functions[0][0]
    assert names == ["PermuteBackward0", "SqueezeBackward1"]


@pytest.mark.parametrize("splits", [1, 3, 40])
def test_sums_of_splits_keep_order_and_type(splits):
    part = torch.randn(splits, 3, 7, 11, device=DEVICE)
    (got,) = stacked.summed((part, HALF))
    assert got.dtype == HALF
    close(got, part.sum(0), 4e-3)  # half precision, rounded once


@pytest.mark.parametrize("splits", [1, 40])
def test_two_sums_at_once(splits):
    part, other = torch.randn(3, 2, 700, device=DEVICE), torch.randn(splits, 5, 13, device=DEVICE)
    got, more = stacked.summed((part, HALF), (other, torch.float32))
    close(got, part.sum(0), 4e-3)
    close(more, other.sum(0), 1e-6)
    assert stacked.summed((None, None)) == [None]


def test_unpooling_fills_every_pixel():
    shape = Shape(2, 3, 5, 7, 4, 20, 1, 1, 1, 0, False)
    dy = torch.randn(2, 3, 2, 3, 20, device=DEVICE)
    winner = torch.randint(0, 5, dy.shape, device=DEVICE, dtype=torch.uint8)
    wanted = torch.zeros(2, 3, 5, 7, 20, device=DEVICE)
    for position in range(4):
        row, column = divmod(position, 2)
        wanted[:, :, row:4:2, column:6:2] = torch.where(winner == position, dy, 0.0)
    pixels, parts = conv_backward.unpool(dy, winner, shape)
    assert torch.equal(pixels, wanted)
    close(parts.sum(0), wanted.sum((1, 2, 3)), 1e-5)


def test_the_first_maximum_of_a_tie_gets_the_gradient():
    """Whole numbers make exact ties; a ReLU that is off passes nothing."""
    x = torch.randint(-1, 2, (2, 3, 7, 6, 3), device=DEVICE).float().requires_grad_()
    w = torch.randint(-1, 2, (2, 1, 1, 3, 16), device=DEVICE).float().requires_grad_()
    bias = torch.tensor([[-1.0, 0.0, 1.0, 2.0] * 4] * 2, device=DEVICE, requires_grad=True)
    got, wanted = conv.conv_pool_relu(x, w, bias), reference(x, w, bias, 1, 0, True)
    assert torch.equal(got, wanted)
    up = torch.randint(-3, 4, wanted.shape, device=DEVICE).float()
    for mine, theirs in zip(*(torch.autograd.grad(y, (x, w, bias), up) for y in (got, wanted)), strict=True):
        assert torch.equal(mine, theirs)


def test_nan_is_not_hidden_by_pooling_and_relu():
    x, w, bias = inputs(POOLED[0])
    x.data[0, 0, 3, 3, 0] = float("nan")
    got = conv.conv_pool_relu(x, w, bias, 2)
    assert torch.equal(got.isnan(), reference(x, w, bias, 1, 2, True).isnan())


@pytest.mark.parametrize("pool", [False, True])
def test_vmap_over_clients_is_the_stacked_call(pool):
    case = POOLED[1]
    x, w, bias = inputs(case)
    images = x.detach().permute(0, 1, 4, 2, 3).requires_grad_()  # [K, B, C, H, W], channels_last

    def one(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        w = w.permute(3, 2, 0, 1)  # PyTorch's layout
        y = conv.conv_pool_relu_nchw(x, w, bias, 1) if pool else conv.conv2d_nchw(x, w, bias, 1, 1)
        return y.permute(0, 2, 3, 1)

    got = torch.vmap(one)(images, w, bias)
    wanted = reference(x, w, bias, 1, 1, pool)
    close(got, wanted, 1e-4)
    mine = torch.autograd.grad((got**2).sum((1, 2, 3, 4)).sum(), (images, w, bias))
    theirs = torch.autograd.grad((wanted**2).sum(), (x, w, bias))
    close(mine[0].permute(0, 1, 3, 4, 2), theirs[0], 1e-4)
    close(mine[1], theirs[1], 1e-4)
    close(mine[2], theirs[2], 1e-4)


def test_vmap_shares_images_without_copies_and_adds_their_gradients():
    x, w, bias = inputs((3, 2, 5, 5, 16, 16, 3, 1, 1))
    shared = x.detach()[:1].requires_grad_()
    got = torch.vmap(lambda w, b: conv.conv2d(shared, w[None], b[None], 1, 1)[0])(w, bias)
    wanted = reference(shared.expand(3, -1, -1, -1, -1), w, bias, 1, 1, False)
    check(got, wanted, (shared, w, bias), (shared, w, bias), 1e-4)
    last = torch.vmap(lambda x, w: conv.conv2d(x[None], w[None])[0], in_dims=(4, None))(
        x.detach().permute(1, 2, 3, 4, 0), w.detach()[0]
    )
    close(last, reference(x, w[:1].expand_as(w), None, 1, 0, False), 1e-4)


@pytest.mark.parametrize("kind", ["forward", "input_gradient", "weight_gradient"])
def test_a_tile_of_choice_changes_nothing_but_rounding(kind):
    case = (1, 2, 6, 6, 32, 16, 3, 1, 1)
    tensors = inputs(case)
    config = Configs(**{kind: Config(16, 16, 64, 4, 2, 3)})
    check(conv.conv2d(*tensors, 1, 1, config), reference(*tensors, 1, 1, False), tensors, tensors, 1e-4)


@pytest.mark.parametrize(
    ("size", "stride", "depth"),  # blocks of two rows, of an image, of four images, of rows that no block ends with
    [(8, 1, 16), (8, 2, 16), (4, 1, 16), (4, 1, 64), (4, 2, 16), (6, 1, 16), (12, 1, 16)],
)
@pytest.mark.parametrize("kernel", [1, 3])
def test_blocks_of_whole_rows_find_their_pixels(size, stride, depth, kernel):
    case = (2, 3, size, size, 16, 16, kernel, stride, kernel // 2)
    tensors = inputs(case)
    config = Configs(weight_gradient=Config(16, 16, depth, 4, 2, splits=2))
    got = conv.conv2d(*tensors, *case[7:], config)
    check(got, reference(*tensors, *case[7:], False), tensors, tensors, 1e-4)


@pytest.mark.parametrize(
    "case", [(2, 3, 5, 6, 16, 16, 3, 1, 1), (1, 2, 4, 8, 18, 20, 5, 1, 2), (1, 2, 5, 6, 3, 16, 2, 1, 0)]
)
@pytest.mark.parametrize("pixels", [2, 4])  # a width that they do not divide takes them one by one
def test_pixels_that_share_a_gather_get_the_same_gradient(case, pixels):
    tensors = inputs(case)
    config = Configs(input_gradient=Config(16, 32, 16, 4, 2, pixels=pixels))
    wanted = reference(*tensors, *case[7:], False)
    check(conv.conv2d(*tensors, *case[7:], config), wanted, tensors, tensors, 1e-4)


def test_images_that_need_no_gradient_get_none():
    x, w, bias = inputs(POOLED[0])
    y = conv.conv_pool_relu(x.detach(), w, bias, 2)
    y.sum().backward()
    assert x.grad is None
    assert w.grad is not None
    assert bias.grad is not None


def test_shapes_that_do_not_fit_are_refused():
    x, w, bias = inputs(PLAIN[0])
    with pytest.raises(ValueError, match="do not fit"):
        conv.conv2d(x, w[..., 0])
    with pytest.raises(ValueError, match="bias"):
        conv.conv2d(x, w, bias[:, :2])
    with pytest.raises(ValueError, match="no output"):
        conv.conv2d(x[:, :, :3], w)


@pytest.mark.parametrize(("room", "widest"), [(232448, 256), (101376, 128)])
def test_a_tile_fits_the_shared_memory(monkeypatch: pytest.MonkeyPatch, room: int, widest: int) -> None:
    monkeypatch.setattr(conv_tiles, "room", lambda: room)
    monkeypatch.setattr(conv_tiles, "processors", lambda: 132)
    shape = Shape(6, 87, 4, 4, 512, 512, 3, 3, 1, 1, False)
    for tile in (
        conv_tiles.forward_config(shape, torch.bfloat16),
        conv_tiles.input_gradient_config(shape, torch.bfloat16),
    ):
        assert tile.cols == widest
        assert (tile.rows + tile.cols) * tile.depth * 2 * tile.stages <= room


@pytest.mark.parametrize(
    ("clients", "images", "side", "channels", "width"),
    [
        (6, 87, 4, 512, 256),  # 11 tiles of rows a client: with two of columns 132 in all
        (6, 32, 4, 512, 128),  # 4 a client: 48 tiles of 256 columns, 96 of 128
        (6, 32, 8, 256, 256),  # 96 tiles; of half the width some processors would have two
        (1, 32, 4, 512, 64),
    ],
)
def test_tiles_are_narrower_where_some_processors_would_have_none(
    monkeypatch: pytest.MonkeyPatch, clients: int, images: int, side: int, channels: int, width: int
) -> None:
    monkeypatch.setattr(conv_tiles, "room", lambda: 232448)
    monkeypatch.setattr(conv_tiles, "processors", lambda: 132)
    shape = Shape(clients, images, side, side, channels, channels, 3, 3, 1, 1, False)
    for config in (conv_tiles.forward_config, conv_tiles.input_gradient_config):
        assert config(shape, torch.bfloat16)[:2] == (128, width)


def test_pixels_of_every_parity_have_tiles_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """8×8 pixels with stride 2: four classes of 4×4, so 6 · 4 · 4 tiles of 256 columns."""
    monkeypatch.setattr(conv_tiles, "room", lambda: 232448)
    monkeypatch.setattr(conv_tiles, "processors", lambda: 132)
    shape = Shape(6, 32, 8, 8, 256, 512, 3, 3, 2, 1, False)
    assert conv_tiles.input_gradient_config(shape, torch.bfloat16).cols == 256
    assert conv_tiles.forward_config(shape, torch.bfloat16).cols == 128


LAYERS = [(32, 3, 64, 3, False), (32, 64, 64, 3, False), (16, 64, 128, 1, False), (4, 512, 512, 3, False)]
LAYERS += [(28, 1, 32, 5, True), (32, 3, 32, 5, True), (14, 32, 64, 5, True)]


@pytest.mark.parametrize("room", [101376, 166912, 232448])
def test_all_tiles_fit_every_gpu_that_the_kernels_serve(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """Shared memory of a program with compute capability 8.6, 8.0 and 9.0; a pooled row is four windows."""
    monkeypatch.setattr(conv_tiles, "room", lambda: room)
    for side, channels, outputs, size, pool in LAYERS:
        shape = Shape(10, 50, side, side, channels, outputs, size, size, 1, size // 2, pool)
        for dtype in (torch.float32, torch.bfloat16):
            for windows, config in (
                (4 if pool else 1, conv_tiles.forward_config),
                (1, conv_tiles.input_gradient_config),
                (1, conv_tiles.weight_gradient_config),
            ):
                tile = config(shape.plain if windows == 1 else shape, dtype)
                assert tile.stages >= 2  # the next loads run while a product does
                assert (windows * tile.rows + tile.cols) * tile.depth * dtype.itemsize * tile.stages <= room
