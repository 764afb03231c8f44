"""Each RandAugment operation against Pillow, pixel for pixel, and against hand-worked values."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps

from fednoil.augment import OP_LEVELS, OPS, apply_op
from fednoil.augment.ops import apply_codes
from fednoil.augment.tables import encode
from fednoil.errors import UserError

AFFINE = Image.Transform.AFFINE
SIZES = [(28, 28), (32, 32), (21, 34)]


def pillow(image: Image.Image, name: str, level: int, sign: int) -> Image.Image:
    """The operation by Pillow itself."""
    width, height = image.size
    part = sign * 0.3 * level / 10
    if name in ("Brightness", "Color", "Contrast", "Sharpness"):
        return getattr(ImageEnhance, name)(image).enhance(0.05 + 0.9 * level / 10)
    moves = {
        "ShearX": (1, part, 0, 0, 1, 0),
        "ShearY": (1, 0, 0, part, 1, 0),
        "TranslateX": (1, 0, int(part * width), 0, 1, 0),
        "TranslateY": (1, 0, 0, 0, 1, int(part * height)),
    }
    if name in moves:
        return image.transform(image.size, AFFINE, moves[name])
    if name == "Rotate":
        return image.rotate(sign * int(30 * level / 10))
    if name == "Posterize":
        return ImageOps.posterize(image, 4 + int(4 * level / 10))
    if name == "Solarize":
        return ImageOps.solarize(image, 256 - int(256 * level / 10))
    return {"Identity": Image.Image.copy, "AutoContrast": ImageOps.autocontrast, "Equalize": ImageOps.equalize}[name](
        image
    )


def samples(channels: int, height: int, width: int) -> torch.Tensor:
    """Noise, a textured shape on black, low contrast, one tone, a smooth blob, two tones: uint8 [6, C, H, W]."""
    rng = np.random.default_rng(channels * 1000 + height * width)
    images = rng.integers(0, 256, (6, channels, height, width))
    ys, xs = np.mgrid[:height, :width]
    shape = (abs(xs - width // 2) < width // 4) & (ys > 3)
    images[1] = np.where(shape, 90 + images[1] // 2, 0)
    images[2] = 40 + images[2] // 3
    images[3] = 77
    images[4] = np.clip(250 - ((xs - width / 2) ** 2 + (ys - height / 2) ** 2) * 1.3, 0, 255) * [[[1.0]]]
    images[5] = np.where(images[5] > 250, 203, 17)
    return torch.from_numpy(images.astype(np.uint8))


def by_pillow(images: torch.Tensor, name: str, level: int, sign: int) -> torch.Tensor:
    pixels = images.permute(0, 2, 3, 1).numpy()
    done = [
        np.atleast_3d(np.asarray(pillow(Image.fromarray(p[..., 0] if p.shape[2] == 1 else p), name, level, sign)))
        for p in pixels
    ]
    return torch.from_numpy(np.stack(done)).permute(0, 3, 1, 2)


def one(value: int, count: int) -> torch.Tensor:
    return torch.full((count,), value)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", OPS)
def test_equals_pillow(name: str, size: tuple[int, int], channels: int, static: bool) -> None:
    images = samples(channels, *size)
    for level in range(1, OP_LEVELS + 1):
        for sign in (1, -1):
            ours = apply_op(images, OPS.index(name), one(level, 6), one(sign, 6), static=static)
            assert torch.equal(ours, by_pillow(images, name, level, sign)), (level, sign)


@settings(deadline=None, max_examples=30)
@given(
    data=st.data(),
    op_id=st.integers(0, len(OPS) - 1),
    level=st.integers(1, OP_LEVELS),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
)
def test_equals_pillow_on_tiny_images(data: st.DataObject, op_id: int, level: int, height: int, width: int) -> None:
    pixels = data.draw(st.binary(min_size=height * width * 3, max_size=height * width * 3))
    images = torch.tensor(list(pixels), dtype=torch.uint8).view(1, 3, height, width)
    ours = apply_op(images, op_id, one(level, 1), one(1, 1))
    assert torch.equal(ours, by_pillow(images, OPS[op_id], level, 1))


def ramp_after(name: str, level: int) -> list[int]:
    ramp = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    return apply_op(ramp, OPS.index(name), one(level, 1), one(1, 1)).flatten().tolist()


def test_levels_by_hand() -> None:
    bits = [len(set(ramp_after("Posterize", level))).bit_length() - 1 for level in range(1, 10)]
    assert bits == [4, 4, 5, 5, 6, 6, 6, 7, 7]
    solarized = ramp_after("Solarize", 5)  # threshold 256 - 128
    assert [solarized[tone] for tone in (0, 127, 128, 255)] == [0, 127, 127, 0]
    brighter = ramp_after("Brightness", 5)  # factor .05 + .45
    assert [brighter[tone] for tone in (0, 1, 100, 255)] == [0, 0, 50, 127]
    # mean of the ramp 127.5 rounds to 128: 128 - 64, 128 + 63.5
    contrast = ramp_after("Contrast", 5)
    assert (contrast[0], contrast[255]) == (64, 191)


def test_moves_by_hand() -> None:
    columns = torch.arange(1, 29, dtype=torch.uint8).expand(1, 1, 28, 28)
    for sign, expected in ((1, [*range(5, 29), 0, 0, 0, 0]), (-1, [0, 0, 0, 0, *range(1, 25)])):
        moved = apply_op(columns, OPS.index("TranslateX"), one(5, 1), one(sign, 1))  # int(.15 · 28) = 4
        assert moved[0, 0, 13].tolist() == expected


def test_colour_of_grey_is_identity() -> None:
    images = samples(1, 28, 28)
    assert torch.equal(apply_op(images, OPS.index("Color"), one(3, 6), one(1, 6)), images)


@pytest.mark.parametrize("channels", [1, 3])
def test_mixed_batch_equals_one_by_one(channels: int) -> None:
    images = samples(channels, 28, 28).repeat(14, 1, 1, 1)
    before = images.clone()
    generator = torch.Generator().manual_seed(1)
    ops = torch.arange(14).repeat_interleave(6)
    levels = torch.randint(1, 10, (84,), generator=generator)
    signs = torch.randint(0, 2, (84,), generator=generator) * 2 - 1
    codes = encode(ops, levels, signs)
    alone = torch.cat(
        [apply_op(images[i : i + 1], int(ops[i]), levels[i : i + 1], signs[i : i + 1]) for i in range(84)]
    )
    shuffle = torch.randperm(84, generator=generator)
    for static in (False, True):
        mixed = apply_codes(images[shuffle], codes[shuffle], static=static)
        assert torch.equal(mixed, alone[shuffle])
    assert torch.equal(images, before)


@pytest.mark.parametrize(
    ("op_id", "level", "sign", "words"),
    [(14, 1, 1, "op_id = 14"), (-1, 1, 1, "op_id = -1"), (3, 0, 1, "levels"), (3, 10, 1, "levels"), (3, 1, 0, "signs")],
)
def test_bad_values_are_named(op_id: int, level: int, sign: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        apply_op(samples(1, 8, 8), op_id, one(level, 6), one(sign, 6))


def test_bad_shapes_are_named() -> None:
    images = samples(1, 8, 8)
    with pytest.raises(UserError, match=r"levels must .* not \(5,\)"):
        apply_op(images, 0, one(1, 5), one(1, 6))
    with pytest.raises(UserError, match=r"signs must .* not \(7,\)"):
        apply_op(images, 0, one(1, 6), one(1, 7))
    for bad in (images.float(), images[0], images.expand(6, 2, 8, 8)):
        with pytest.raises(UserError, match="images"):
            apply_op(bad, 0, one(1, 6), one(1, 6))
