"""The stacked linear layer against PyTorch's, client by client; on the CPU through Triton's interpreter."""

import os

import pytest
import torch

pytest.importorskip("triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU or TRITON_INTERPRET=1", allow_module_level=True)
from interpreting import DEVICE, _exact_reference, check, close, loops_of_the_interpreter  # noqa: F401
from torch import Tensor, nn
from torch.nn import functional as F

from fednoil import kernels
from fednoil.kernels import head
from fednoil.models import layers
from fednoil.models.layers import Stacked
from fednoil.models.network import embedded_by

# The interpreter multiplies bfloat16 as if it were whole numbers.
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16

# K, B, D, O
PLAIN = [
    (2, 5, 33, 10),
    (3, 1, 5, 1),
    (2, 33, 600, 17),
    (1, 5, 130, 100),
    (2, 20, 1100, 10),
]
# K, B, H, W, C, O: channels and pixels fewer than a tile's, as many, more, and neither a multiple of it
IMAGES = [
    (2, 5, 5, 5, 24, 10),
    (2, 33, 2, 3, 16, 17),
    (1, 3, 9, 8, 5, 10),
    (2, 1, 1, 1, 12, 3),
    (1, 5, 3, 3, 20, 100),
    (1, 3, 1, 2, 100, 1),
]


def inputs(case: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    K, B, *features, outputs = case
    torch.manual_seed(0)
    x = torch.randn(K, B, *features, device=DEVICE)
    size = x[0, 0].numel()
    w = torch.randn(K, outputs, size, device=DEVICE) / size**0.5
    bias = torch.randn(K, outputs, device=DEVICE)
    return tuple(t.to(dtype).requires_grad_() for t in (x, w, bias))  # type: ignore[return-value]


def reference(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """PyTorch's result [K, B, O] in float64, one client at a time; images are flattened as PyTorch does it."""
    rows = (x.movedim(-1, 2).flatten(2) if x.ndim == 5 else x).double()
    return torch.stack(
        [F.linear(rows[k], w[k].double(), None if bias is None else bias[k].double()) for k in range(len(x))]
    )


@pytest.mark.parametrize("case", PLAIN + IMAGES, ids=str)
@pytest.mark.parametrize("with_bias", [True, False])
def test_the_layer_and_its_gradients_are_those_of_pytorch(case, with_bias):
    x, w, bias = inputs(case)
    layer = head.flat_linear if x.ndim == 5 else head.linear
    tensors = (x, w, bias) if with_bias else (x, w)
    check(layer(*tensors), reference(x, w, bias if with_bias else None), tensors, tensors, 1e-5)


@pytest.mark.parametrize("case", [PLAIN[0], PLAIN[2], IMAGES[0], IMAGES[4]], ids=str)
def test_half_precision_is_rounded_once(case):
    tensors = inputs(case, HALF)
    got = head.linear(*tensors)
    assert got.dtype == HALF
    check(got, reference(*tensors), tensors, tensors, 5e-3)


def test_full_precision_weights_serve_half_precision_features():
    x, w, bias = inputs(IMAGES[1])
    got = head.flat_linear(x.to(HALF), w, bias)
    assert got.dtype == HALF
    check(got, reference(x, w, bias), (x, w, bias), (x, w, bias), 5e-3)


@pytest.mark.parametrize("case", [PLAIN[0], IMAGES[1]], ids=str)
def test_weights_are_read_where_they_lie(case, monkeypatch):
    """Each client's a part of a longer row, as in a stack of networks; nothing is copied."""
    x, w, bias = inputs(case)
    outputs = w.shape[1]
    flat = torch.cat([torch.randn(len(w), 7, device=DEVICE), w.detach().flatten(1), bias.detach()], 1).requires_grad_()
    own, vector = flat[:, 7:-outputs].view(w.shape), flat[:, -outputs:]
    seen = []
    launch = head.launch
    monkeypatch.setattr(head, "launch", lambda *args, **options: (seen.append(args), launch(*args, **options)))
    check(head.linear(x, own, vector), reference(x, w, bias), (x, own, vector), (x, w, bias), 1e-5)
    assert [args[3].data_ptr() for args in seen] == [own.data_ptr()] * 2
    turned = w.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()  # these do get a copy
    check(head.linear(x, turned, bias), reference(x, w, bias), (x, turned, bias), (x, w, bias), 1e-5)


@pytest.mark.parametrize("case", [PLAIN[0], IMAGES[0]], ids=str)
@pytest.mark.parametrize("wanted", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1), (1, 0, 1)])
def test_only_gradients_that_are_needed_are_computed(case, wanted):
    tensors = inputs(case)
    used = tuple(t if need else t.detach() for t, need in zip(tensors, wanted, strict=True))
    needed = tuple(t for t, need in zip(tensors, wanted, strict=True) if need)
    check(head.linear(*used), reference(*tensors), needed, needed, 1e-5)


def test_a_launch_forward_and_one_backward(monkeypatch):
    launched = []
    launch = head.launch
    monkeypatch.setattr(head, "launch", lambda *args, **options: (launched.append(1), launch(*args, **options)))
    torch.vmap(head.linear)(*(t[:, None] for t in inputs(IMAGES[0]))).sum().backward()
    assert len(launched) == 2


def test_results_do_not_depend_on_the_rows_of_a_tile(monkeypatch):
    """More programs than processors get taller tiles."""
    monkeypatch.setattr(head, "processors", lambda: 1)
    tensors = inputs(IMAGES[1])
    head._forward_tile.cache_clear()
    tall = head.linear(*tensors)
    monkeypatch.setattr(head, "processors", lambda: 1000)
    head._forward_tile.cache_clear()
    low = head.linear(*tensors)
    head._forward_tile.cache_clear()
    close(tall, reference(*tensors), 1e-5)
    close(low, tall, 1e-6)


@pytest.mark.parametrize("case", [PLAIN[0], IMAGES[0]], ids=str)
def test_vmap_over_clients_is_the_stacked_call(case):
    tensors = inputs(case)
    got = torch.vmap(lambda x, w, bias: head.linear(x[None], w[None], bias[None])[0])(*tensors)
    check(got, reference(*tensors), tensors, tensors, 1e-5)
    last = torch.vmap(lambda x, w: head.linear(x[None], w[None])[0], in_dims=(-1, 2))(
        tensors[0].movedim(0, -1), tensors[1].movedim(0, 2)
    )
    close(last, reference(*tensors[:2], None), 1e-5)


@pytest.mark.parametrize("case", [PLAIN[0], IMAGES[1]], ids=str)
def test_vmap_shares_what_clients_share_and_adds_their_gradients(case):
    x, w, bias = inputs(case)
    one = x.detach()[:1].requires_grad_()
    got = torch.vmap(lambda w, bias: head.linear(one, w[None], bias[None])[0])(w, bias)
    check(got, reference(one.expand_as(x), w, bias), (one, w, bias), (one, w, bias), 1e-5)
    same = w.detach()[:1].requires_grad_()
    got = torch.vmap(lambda x: head.linear(x[None], same)[0])(x)
    check(got, reference(x, same.expand_as(w), None), (x, same), (x, same), 1e-5)


def test_shapes_that_do_not_fit_are_refused():
    x, w, bias = inputs(PLAIN[0])
    with pytest.raises(ValueError, match="do not fit"):
        head.linear(x, w[..., 1:])
    with pytest.raises(ValueError, match="do not fit"):
        head.linear(x, w[:1])
    with pytest.raises(ValueError, match="bias"):
        head.linear(x, w, bias[:, :2])
    with pytest.raises(ValueError, match="nothing"):
        head.linear(x[:, :0], w)
    with pytest.raises(ValueError, match="129 outputs"):
        head.linear(x, w[:, :1].expand(-1, 129, -1))
    assert head.serves(128)
    assert not head.serves(129)


@pytest.mark.parametrize("room", [101376, 166912, 232448])
def test_a_tile_fits_every_gpu_that_the_kernels_serve(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """Shared memory of a program with compute capability 8.6, 8.0 and 9.0."""
    monkeypatch.setattr(head, "room", lambda: room)
    for clients in (6, 30):
        for area, channels in ((49, 64), (1, 512), (1, 5000), (4, 3), (256, 512)):
            for outputs in (1, 10, 17, 40, 128):
                for dtype in (torch.float32, torch.bfloat16):
                    shape = head.Shape(clients, 87, area, channels, outputs)
                    tile = head._forward_tile.__wrapped__(shape, dtype, dtype == torch.float32)
                    rows = tile["BM"] * (tile["num_stages"] - 1) + tile["TO"]
                    assert tile["num_stages"] >= 2  # features are on their way while products run
                    assert rows * tile["TC"] * tile["TP"] * dtype.itemsize <= room
                    assert tile["TC"] * tile["TP"] >= 16 * tile["num_warps"]


class Head(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(24 * 6, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return layers.flat_linear(x, self.head)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The grids that the layers launch."""
    found, launch = [], head.launch
    monkeypatch.setattr(kernels, "usable", lambda x, kernel: kernel == "head")
    monkeypatch.setattr(
        head,
        "launch",
        lambda kernel, grid, *args, **options: (found.append(grid), launch(kernel, grid, *args, **options)),
    )
    return found


@pytest.mark.parametrize("outputs", [10, 129])
@pytest.mark.parametrize("clients", [1, 3])
def test_a_networks_head_is_one_launch_for_stacked_clients(launches, clients, outputs):
    torch.manual_seed(0)
    module = Head(outputs).to(DEVICE)
    x = torch.randn(clients, 5, 2, 3, 24, device=DEVICE).requires_grad_()
    w = torch.randn(clients, outputs, 144, device=DEVICE).requires_grad_()
    bias = torch.randn(clients, outputs, device=DEVICE).requires_grad_()

    def one(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        given = {"head.weight": w, "head.bias": bias}
        return torch.func.functional_call(module, given, (x.permute(0, 3, 1, 2),))

    with Stacked():
        got = torch.vmap(one)(x, w, bias) if clients > 1 else one(x[0], w[0], bias[0])[None]
    assert len(launches) == (outputs == 10)
    check(got, reference(x, w, bias), (x, w, bias), (x, w, bias), 1e-5)
    alone = torch.stack([one(*tensors) for tensors in zip(x, w, bias, strict=True)])
    assert len(launches) == 2 * (outputs == 10)  # the backward pass; nothing outside of `Stacked`
    close(alone, got, 1e-5)


def test_features_are_found_in_front_of_a_stacked_head(launches):
    module = Head(10).to(DEVICE)
    images = torch.randn(2, 5, 24, 2, 3, device=DEVICE)
    with Stacked():
        features, logits = torch.vmap(lambda x: embedded_by(module, lambda: module(x)))(images)
    assert len(launches) == 1
    close(features, images.flatten(2), 1e-6)
    close(logits, module.head(images.flatten(2)), 1e-5)


def test_other_linear_layers_of_few_outputs_are_served_if_their_kind_is(launches, monkeypatch):
    """Half precision by autocast as PyTorch has it; more dimensions, more outputs and other numbers are PyTorch's."""
    x, w, bias = inputs(PLAIN[0])
    with Stacked():
        close(torch.vmap(F.linear)(x, w, bias), reference(x, w, bias), 1e-5)
        assert len(launches) == 1
        F.linear(x, w[0], bias[0])
        F.linear(x[0, 0], w[0])
        F.linear(x[0].double(), w[0].double())
        F.linear(x[0, :0], w[0])
        F.linear(x[0], w[0, :1].expand(129, -1))
        with pytest.raises(RuntimeError):
            F.linear(x[0].to(HALF), w[0])
        assert len(launches) == 1
        monkeypatch.setattr(kernels, "computed", lambda x: x.to(HALF))
        monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: True)
        got = torch.vmap(F.linear)(x, w, bias)
    assert got.dtype == HALF
    close(got, reference(x, w, bias), 5e-3)
