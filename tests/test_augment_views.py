"""Views: weak against torch's own reflection, strong step by step, static shapes, bad input."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fednoil.augment import apply_op, plain, strong, strong_plan, weak, weak_plan, weakened
from fednoil.augment.ops import apply_codes
from fednoil.errors import UserError
from fednoil.seeds import Seed


def pool(channels: int = 1, height: int = 28, width: int = 28, count: int = 40) -> Tensor:
    generator = torch.Generator().manual_seed(height + channels)
    return torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8, generator=generator)


def strip(values: list[int], flip: int, dx: int) -> list[int]:
    image = torch.tensor(values, dtype=torch.uint8).view(1, 1, 1, -1)
    return weak(image, torch.tensor([0]), torch.tensor([[flip, 0, dx]])).flatten().tolist()


def test_weak_by_hand() -> None:
    values = [0, 1, 2, 3]
    assert strip(values, 0, 0) == values
    assert strip(values, 0, 1) == [1, 2, 3, 2]
    assert strip(values, 0, -2) == [2, 1, 0, 1]
    assert strip(values, 1, 0) == [3, 2, 1, 0]
    assert strip(values, 1, 1) == [2, 1, 0, 1]
    assert strip(values, 0, 5) == [1, 0, 1, 2]  # reflected twice: 6 steps bring it round
    assert strip([7], 1, 3) == [7]


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 99),
    channels=st.sampled_from([1, 3]),
    height=st.integers(5, 12),
    width=st.integers(5, 12),
    pad=st.integers(0, 4),
)
def test_weak_equals_flip_pad_crop(seed: int, channels: int, height: int, width: int, pad: int) -> None:
    images = pool(channels, height, width)
    index = torch.tensor([seed % 40, 0, 39, 7, 7])
    params = weak_plan(torch.tensor(seed), 5, pad)
    expected = []
    for i, (flip, dy, dx) in zip(index.tolist(), params.tolist(), strict=True):
        image = images[i].flip(-1) if flip else images[i]
        padded = F.pad(image[None].float(), (pad,) * 4, mode="reflect")[0].to(torch.uint8)
        expected.append(padded[:, pad + dy : pad + dy + height, pad + dx : pad + dx + width])
    assert torch.equal(weak(images, index, params), torch.stack(expected))


def test_plain_is_the_pool() -> None:
    images, index = pool(3), torch.tensor([3, 3, 0])
    assert torch.equal(plain(images, index), images[index])


def step_by_step(images: Tensor, index: Tensor, params: Tensor) -> Tensor:
    """Strong views one sample and one operation at a time, Cutout by slicing."""
    done = []
    side = min(images.shape[2:]) // 2
    for i, row in zip(index.tolist(), params, strict=True):
        view = weak(images, torch.tensor([i]), row[None, :3])
        for op, level, sign, applied in row[3:-2].view(-1, 4).tolist():
            if applied:
                view = apply_op(view, op, torch.tensor([level]), torch.tensor([sign]))
        top, left = (int(c) - side // 2 for c in row[-2:])
        view[:, :, max(top, 0) : max(top + side, 0), max(left, 0) : max(left + side, 0)] = 127
        done.append(view)
    return torch.cat(done)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 11, 16)])
@pytest.mark.parametrize("ops", [0, 1, 2])
def test_strong_equals_step_by_step(shape: tuple[int, int, int], ops: int) -> None:
    images = pool(*shape)
    index = torch.arange(60) % 40
    params = strong_plan(torch.tensor(3), 60, shape[1:], ops=ops)
    before = images.clone()
    views = strong(images, index, params)
    assert views.dtype == torch.uint8
    assert views.shape == (60, *shape)
    assert torch.equal(views, step_by_step(images, index, params))
    assert torch.equal(images, before)


@pytest.mark.parametrize(("size", "side"), [(28, 14), (32, 16)])
def test_cutout_covers_half_the_side(size: int, side: int) -> None:
    images = torch.zeros(1, 1, size, size, dtype=torch.uint8)
    centres = torch.tensor([[size // 2, size // 2], [0, 0], [size - 1, size // 2]])
    params = torch.cat([torch.zeros(3, 3, dtype=torch.int64), centres], 1)
    grey = strong(images, torch.zeros(3, dtype=torch.int64), params) == 127
    half = side // 2
    assert grey.sum((1, 2, 3)).tolist() == [side**2, half**2, (half + 1) * side]
    first = grey[0, 0].nonzero()
    assert first.amin(0).tolist() == [size // 2 - half] * 2
    assert first.amax(0).tolist() == [size // 2 + half - 1] * 2


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10**6), channels=st.sampled_from([1, 3]))
def test_a_view_depends_on_its_own_row_only(seed: int, channels: int) -> None:
    images = pool(channels, 12, 12)
    keys = Seed(seed).keys(["weak", "strong", "order"])
    index = torch.arange(20)
    order = torch.argsort((index + 1) * 7919 * (seed + 1) % 10007)
    for view, params in ((weak, weak_plan(keys[0], 20)), (strong, strong_plan(keys[1], 20, (12, 12)))):
        views = view(images, index, params)
        assert torch.equal(views, view(images, index, params))
        assert torch.equal(views[order], view(images, index[order], params[order]))
        assert torch.equal(views[3:5], view(images, index[3:5], params[3:5]))


@pytest.mark.parametrize("kind", [torch.int16, torch.int32, torch.int64])
def test_any_whole_number_type(kind: torch.dtype) -> None:
    images, index = pool(), torch.arange(8)
    params = strong_plan(torch.tensor(1), 8, (28, 28))
    assert torch.equal(strong(images, index.int(), params.to(kind)), strong(images, index, params))
    assert torch.equal(weak(images, index.int(), params[:, :3].to(kind)), weak(images, index, params[:, :3]))


def test_a_weakened_plan_makes_weak_views() -> None:
    images = torch.randint(0, 256, (40, 3, 9, 7), dtype=torch.uint8)
    plan = strong_plan(Seed(3).keys(range(2), images.device), 20, (9, 7), 2)
    index, before = torch.arange(40).view(2, 20), plan.clone()
    assert torch.equal(strong(images, index, weakened(plan)), weak(images, index, plan[..., :3]))
    assert torch.equal(plan, before)


def test_empty_batch() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    assert strong(pool(), nothing, torch.zeros(0, 13, dtype=torch.int32)).shape == (0, 1, 28, 28)
    assert weak(pool(), nothing, torch.zeros(0, 3, dtype=torch.int32)).shape == (0, 1, 28, 28)


def test_no_value_is_looked_at_off_the_cpu() -> None:
    """Tensors of the meta device have shapes and no values, so looking at one, as a sync does, is an error."""
    images, index = pool(3).to("meta"), torch.arange(6, device="meta")
    params = strong_plan(torch.tensor(1), 6, (28, 28)).to("meta")
    assert weak(images, index, params[:, :3]).shape == (6, 3, 28, 28)
    assert strong(images, index, params).shape == (6, 3, 28, 28)
    with pytest.raises((NotImplementedError, RuntimeError)):
        apply_codes(images[:6], index, static=False)


GOOD = {"images": pool(), "index": torch.arange(4), "params": torch.zeros(4, 13, dtype=torch.int32)}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("images", pool().float(), "images must be .* not torch.float32"),
        ("images", pool()[0], r"images must be .* not torch.uint8 \(1, 28, 28\)"),
        ("images", pool().expand(40, 2, 28, 28), "C 1 or 3"),
        ("images", pool().transpose(2, 3), "contiguous"),
        ("index", torch.zeros(4), "index must be .* not torch.float32"),
        ("index", torch.ones(4, dtype=torch.bool), "index must be .* not torch.bool"),
        ("index", torch.tensor(3), r"index must be .* not torch.int64 \(\)"),
        ("params", torch.zeros(4, 12, dtype=torch.int32), r"\[4, 5 \+ 4\*ops\]"),
        ("params", torch.zeros(4, 1, dtype=torch.int32), r"\[4, 5 \+ 4\*ops\]"),
        ("params", torch.zeros(3, 13, dtype=torch.int32), r"params must be .* not torch.int32 \(3, 13\)"),
        ("params", torch.zeros(4, 13), "params must be .* not torch.float32"),
        ("index", torch.arange(4, device="meta"), "index is on meta"),
        ("params", torch.zeros(4, 13, dtype=torch.int32, device="meta"), "params are on meta"),
        ("params", torch.tensor(1), r"params must be .* not torch.int64 \(\)"),
    ],
)
def test_bad_strong_input_is_named(name: str, value: Tensor, words: str) -> None:
    with pytest.raises(UserError, match=words):
        strong(**{**GOOD, name: value})


def test_bad_weak_input_is_named() -> None:
    with pytest.raises(UserError, match=r"params must be .* \[4, 3\].* not torch.int32 \(4, 13\)"):
        weak(**GOOD)
    with pytest.raises(UserError, match="index"):
        plain(pool(), torch.zeros(2))
    with pytest.raises(IndexError):
        weak(pool(), torch.tensor([40]), torch.zeros(1, 3, dtype=torch.int32))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_captured_on_a_gpu_equals_the_cpu() -> None:
    images, index = pool(3, 32, 32), torch.arange(40)
    plans = strong_plan(Seed(1).keys(range(5)), 40, (32, 32))
    on_gpu, gpu_index, params = images.cuda(), index.cuda(), plans[0].cuda()
    assert torch.equal(strong_plan(Seed(1).keys(range(5), "cuda"), 40, (32, 32)).cpu(), plans)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):  # warm-up: builds the tables
        strong(on_gpu, gpu_index, params)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        both = strong(on_gpu, gpu_index, params), weak(on_gpu, gpu_index, params[:, :3])
    for plan in plans:
        params.copy_(plan)
        graph.replay()
        assert torch.equal(both[0].cpu(), strong(images, index, plan))
        assert torch.equal(both[1].cpu(), weak(images, index, plan[:, :3]))
