"""Pictures as people have them: of any size and mode, some broken, with or without test images, listed in a file."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import done, fednoil, refused
from PIL import Image

from fednoil import run as fednoil_run
from fednoil.augment import plans
from fednoil.config import load_config
from fednoil.data import Dataset, load, table
from fednoil.data.dataset import DatasetInfo
from fednoil.data.decoding import hold_out
from fednoil.data.images import Encoded, decode, measure, pixels
from fednoil.data.sources import clients_of
from fednoil.errors import UserError


def picture(path: Path, value: Any = 7, mode: str = "L", size: tuple[int, int] = (6, 5)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


def own(name: str, site: bool = False, **keys: Any) -> Dataset:
    return load(load_config({"data": {"name": name, **keys}}).data, site=site)


def two_classes(root: Path, each: int = 10, size: tuple[int, int] = (6, 5)) -> Path:
    """Class a has the values 0, 1, 2, …, class b 100, 101, …"""
    for number in range(each):
        picture(root / f"a/{number:03}.png", number, size=size)
        picture(root / f"b/{number:03}.png", 100 + number, size=size)
    return root


# --- sizes


def test_pictures_of_several_sizes_get_one_and_it_is_reported(tmp_path: Path) -> None:
    root = two_classes(tmp_path / "d", size=(40, 30))
    picture(root / "a/wide.png", 50, size=(200, 21))
    data = own(f"folder:{root}")
    assert data.image_shape == (1, 24, 24)  # the median of the shorter sides is 30, and 24 the multiple of 8 below
    assert data.about.notices[0] == (
        "images of 40×30 to 200×21 pixels are scaled and cropped to 24×24 (set data.size for another)"
    )
    assert own(f"folder:{root}", size=10).image_shape == (1, 10, 10)


@pytest.mark.parametrize(
    ("size", "shape"), [((28, 20), (20, 28)), ((256, 256), (256, 256)), ((400, 300), (64, 64)), ((300, 20), (16, 16))]
)
def test_one_size_stays_unless_it_is_large(tmp_path: Path, size: tuple[int, int], shape: tuple[int, int]) -> None:
    assert own(f"folder:{two_classes(tmp_path / 'd', 3, size)}").image_shape[1:] == shape


def test_proportions_stay_and_the_centre_is_kept(tmp_path: Path) -> None:
    """Twice as wide as high, black left and right, white in the middle: the middle fills the square."""
    strip = np.zeros((20, 40), np.uint8)
    strip[:, 8:32] = 255
    Image.fromarray(strip).save(tmp_path / "a.png")
    found = pixels(Encoded("a", tmp_path / "a.png"), (1, 10, 10))
    assert (found == 255).all()
    squeezed = pixels(Encoded("a", tmp_path / "a.png"), (1, 10, 20))
    assert (squeezed[0, :, :3] == 0).all()
    assert (squeezed[0, :, 6:14] == 255).all()


# --- modes


def shown(image: Image.Image, form: str = "PNG", channels: int = 3, **options: Any) -> list[int]:
    """The first pixel of a picture as the package sees it."""
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return pixels(Encoded("it", buffer.getvalue()), (channels, image.height, image.width))[:, 0, 0].tolist()


@pytest.mark.parametrize(
    ("image", "options", "expected"),
    [
        (Image.new("RGBA", (4, 4), (10, 20, 30, 0)), {}, [255, 255, 255]),
        (Image.new("RGBA", (4, 4), (10, 20, 30, 255)), {}, [10, 20, 30]),
        (Image.new("LA", (4, 4), (0, 51)), {}, [204, 204, 204]),  # a fifth black on white
        (Image.new("P", (4, 4), 0), {"transparency": b"\x00"}, [255, 255, 255]),
        (Image.new("RGB", (4, 4), (1, 2, 3)), {"transparency": (1, 2, 3)}, [255, 255, 255]),
        (Image.new("1", (4, 4), 1), {}, [255, 255, 255]),
        (Image.fromarray(np.full((4, 4), 0xABCD, np.uint16)), {}, [0xAB] * 3),
        (Image.new("CMYK", (4, 4), (0, 255, 255, 0)), {"form": "TIFF"}, [255, 0, 0]),
    ],
    ids=["clear", "opaque", "grey and clear", "palette", "one clear colour", "1 bit", "16 bits", "CMYK"],
)
def test_modes(image: Image.Image, options: dict[str, Any], expected: list[int]) -> None:
    assert shown(image, **options) == expected


def test_sixteen_bits_and_clear_grey_stay_grey(tmp_path: Path) -> None:
    root = two_classes(tmp_path / "d", 3)
    Image.fromarray(np.full((5, 6), 65535, np.uint16)).save(root / "a/9.png")
    Image.new("LA", (6, 5), (0, 0)).save(root / "b/9.png")
    assert own(f"folder:{root}").image_shape == (1, 5, 6)


def test_the_camera_s_orientation_is_applied() -> None:
    """6: it must be turned by 90 degrees clockwise, so that its left edge becomes the upper one."""
    image = Image.new("L", (8, 4), 0)
    image.paste(255, (0, 0, 2, 4))
    exif = Image.Exif()
    exif[0x0112] = 6
    for form in ("JPEG", "PNG", "WEBP"):
        buffer = io.BytesIO()
        image.save(buffer, form, exif=exif, **({"lossless": True} if form == "WEBP" else {}))
        picture = Encoded("it", buffer.getvalue())
        (found,) = measure([picture])
        assert getattr(found, "size", found) == (4, 8), form
        upright = pixels(picture, (1, 8, 4))[0] > 127
        assert upright[:2].all(), form
        assert not upright[2:].any(), form


def test_a_large_jpeg_looks_the_same_when_it_is_decoded_small() -> None:
    rng = np.random.default_rng(0)
    smooth = Image.fromarray(rng.integers(0, 256, (6, 6, 3), np.uint8)).resize((900, 900), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    smooth.save(buffer, "JPEG", quality=95)
    found = pixels(Encoded("it", buffer.getvalue()), (3, 32, 32)).astype(int)
    plain = np.asarray(smooth.resize((32, 32), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.abs(found - plain).mean() < 3


# --- broken files


def broken(tmp_path: Path) -> Path:
    root = two_classes(tmp_path / "d")
    (root / "a/x.png").write_bytes(b"")
    (root / "b/notes.txt").write_text("x")
    whole = (root / "b/009.png").read_bytes()
    (root / "b/009.png").write_bytes(whole[: len(whole) - 30])
    picture(root / "loose.png")
    return root


def test_all_broken_files_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"4 pictures can't be used: ") as refused:
        own(f"folder:{broken(tmp_path)}")
    for name in ("a/x.png can't be read", "b/notes.txt is not an image", "b/009.png can't be", "loose.png is not in a"):
        assert name in str(refused.value)
    assert str(refused.value).endswith("or leave them out with data.bad = 'skip'")


def test_broken_files_can_be_left_out(tmp_path: Path) -> None:
    data = own(f"folder:{broken(tmp_path)}", bad="skip")
    assert (len(data.train), len(data.test)) == (15, 4)  # 10 and 9 readable ones, of each a fifth held out
    assert {item for item, _ in data.about.skipped} == {"a/x.png", "b/notes.txt", "b/009.png", "loose.png"}
    assert len(data.about.items) == 15
    assert {"a/x.png", "b/009.png"}.isdisjoint(data.about.items)
    again = own(f"folder:{tmp_path / 'd'}", bad="skip")  # from the cache
    assert (again.about.items, again.about.skipped) == (data.about.items, data.about.skipped)
    assert again.about.notices == data.about.notices


def test_many_broken_files_are_counted(tmp_path: Path) -> None:
    root = two_classes(tmp_path / "d")
    for number in range(8):
        (root / f"a/bad{number}.png").write_bytes(b"x")
    with pytest.raises(
        UserError, match=r"8 pictures can't be used: .* and 3 more \(`fednoil data folder:.*` lists all\)"
    ):
        own(f"folder:{root}")


def test_a_class_of_which_nothing_can_be_read(tmp_path: Path) -> None:
    root = two_classes(tmp_path / "d")
    for name in ("1.png", "2.png"):
        (root / "c").mkdir(exist_ok=True)
        (root / "c" / name).write_bytes(b"x")
    message = r"class 'c' has no readable image; the first of it, c/1.png, can't be read as an image; replace the files"
    with pytest.raises(UserError, match=message):
        own(f"folder:{root}", bad="skip")


def test_nothing_can_be_read_at_all(tmp_path: Path) -> None:
    for name in ("a/1.png", "b/1.png"):
        (tmp_path / "d" / name).parent.mkdir(parents=True)
        (tmp_path / "d" / name).write_bytes(b"x")
    with pytest.raises(UserError, match="2 pictures can't be used"):
        own(f"folder:{tmp_path / 'd'}")
    with pytest.raises(UserError, match="class 'a' has no readable image"):
        own(f"folder:{tmp_path / 'd'}", bad="skip")


def test_no_test_image_can_be_read(tmp_path: Path) -> None:
    two_classes(tmp_path / "d/train")
    (tmp_path / "d/test/a").mkdir(parents=True)
    (tmp_path / "d/test/a/1.png").write_bytes(b"x")
    with pytest.raises(
        UserError, match=r"no test image can be read; the first, test/a/1.png, can't be .* remove them all"
    ):
        own(f"folder:{tmp_path / 'd'}", bad="skip")


# --- test images


def test_without_test_images_a_share_of_each_class_is_held_out(tmp_path: Path) -> None:
    data = own(f"folder:{two_classes(tmp_path / 'd')}")
    assert np.bincount(data.train.labels).tolist() == [8, 8]
    assert np.bincount(data.test.labels).tolist() == [2, 2]
    everything = np.concatenate([data.train.images, data.test.images])[:, 0, 0, 0]
    assert sorted(everything.tolist()) == [*range(10), *range(100, 110)]
    assert data.about.items == tuple(f"{'ab'[v // 100]}/{v % 100:03}.png" for v in data.train.images[:, 0, 0, 0])
    assert data.about.notices == (
        "no test images: 4 images, 20 % of each class, are held out; results on them are agreement "
        "with given labels, not accuracy",
    )


def test_what_is_held_out_follows_the_pixels(tmp_path: Path) -> None:
    """Names and a corrected label don't change which of the other images it is."""
    first = own(f"folder:{two_classes(tmp_path / 'd', 50)}")
    (tmp_path / "d/a/007.png").rename(tmp_path / "d/b/zzz.png")
    second = own(f"folder:{tmp_path / 'd'}")
    held = [set(data.test.images[:, 0, 0, 0].tolist()) for data in (first, second)]
    assert len(held[0]) == 20
    assert len(held[0] & held[1]) >= 18


def test_too_few_to_hold_out() -> None:
    images = np.arange(4, dtype=np.uint8).reshape(4, 1, 1, 1)
    train, test, about = hold_out((images, np.array([0, 0, 1, 1])), None, DatasetInfo())
    assert (len(train[1]), len(test[1])) == (4, 0)
    assert about.notices == ("no test images, and too few to hold some out: no class has three",)
    train, test, about = hold_out((images, np.array([0, 0, 0, 1])), None, DatasetInfo())
    assert (len(train[1]), len(test[1])) == (3, 1)
    assert about.notices[0].startswith("no test images: 1 image, 20 % of each class, is held out;")


def test_a_folder_called_otherwise_is_not_overlooked(tmp_path: Path) -> None:
    two_classes(tmp_path / "d/train")
    two_classes(tmp_path / "d/tset")
    assert "the folder 'tset' beside 'train' is not used" in own(f"folder:{tmp_path / 'd'}").about.notices


@pytest.mark.parametrize("form", ["npz", "parquet"])
def test_arrays_and_shards_without_test_images(tmp_path: Path, form: str) -> None:
    labels = np.repeat(["dog", "ant"], 10)
    if form == "npz":
        images = np.arange(20, dtype=np.uint8)[:, None, None].repeat(4, 1).repeat(4, 2)
        np.savez(tmp_path / "own.npz", x_train=images, y_train=labels)
        data = own(f"npz:{tmp_path / 'own.npz'}")
    else:
        column = [{"bytes": encoded(value)} for value in range(20)]
        pq.write_table(pa.table({"image": column, "label": labels.tolist()}), tmp_path / "own.parquet")
        data = own(f"parquet:{tmp_path / 'own.parquet'}")
    assert data.class_names == ("ant", "dog")
    assert np.bincount(data.train.labels).tolist() == [8, 8]
    assert all((data.train.images[:, 0, 0, 0] < 10) == (data.train.labels == 1))


def encoded(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (4, 4), value).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("form", ["npz", "csv"])
@pytest.mark.parametrize(("numbers", "shown"), [((1, 2, 3), "1 to 3"), ((0, 1, 3), "0, 1, 3")])
def test_labels_that_are_other_numbers_are_names(
    tmp_path: Path, form: str, numbers: tuple[int, ...], shown: str
) -> None:
    if form == "npz":
        images = np.zeros((15, 4, 4), np.uint8)
        np.savez(tmp_path / "own.npz", x_train=images, y_train=np.repeat(np.array(numbers, np.uint8), 5))
        name = f"npz:{tmp_path / 'own.npz'}"
    else:
        name = listed(tmp_path, [("path", "label"), *((f"{n}.png", str(numbers[n // 5])) for n in range(15))])
    data = own(name)
    assert data.class_names == tuple(map(str, numbers))
    assert set(data.train.labels.tolist()) == {0, 1, 2}
    assert f"labels are {shown}, and so the classes are called" in data.about.notices


# --- CSV


def listed(folder: Path, rows: list[tuple[str, ...]]) -> str:
    """A CSV file, and a picture for each path in it."""
    for number, row in enumerate(rows[1:]):
        picture(folder / row[0], number)
    (folder / "list.csv").write_text("\n".join(",".join(row) for row in rows) + "\n", encoding="utf-8")
    return f"csv:{folder / 'list.csv'}"


def test_a_list_is_read_once_for_all_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it is the same file."""
    two_classes(tmp_path, 2)
    rows = [("path", "label", "site"), *((f"{c}/00{n}.png", c, f"s{n}") for c in "ab" for n in (0, 1))]
    name, read = listed(tmp_path, rows), []
    whole = table.read_listing
    monkeypatch.setattr(table, "read_listing", lambda path: read.append(path) or whole(path))
    for _ in range(3):
        assert clients_of(load_config({"data": {"name": name}}).data) == ("s0", "s1")
    assert len(read) == 1
    listed(tmp_path, [*rows[:-1], ("b/001.png", "b", "third")])
    assert clients_of(load_config({"data": {"name": name}}).data) == ("s0", "s1", "third")


def test_csv(tmp_path: Path) -> None:
    rows = [("File", "Class", "split", "note")]
    rows += [(f"x/{n}.png", "猫" if n % 2 else "dog", "test" if n > 7 else "train", "") for n in range(10)]
    data = own(listed(tmp_path, rows))
    assert data.class_names == ("dog", "猫")
    assert data.train.images[:, 0, 0, 0].tolist() == list(range(8))
    assert data.train.labels.tolist() == [0, 1] * 4
    assert data.test.labels.tolist() == [0, 1]
    assert data.about.items[0] == "x/0.png"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column 'path'; its columns are none; call one of them path or file"),
        ("path;label\n1.png;a", "has its columns separated by ';'; separate them by commas"),
        ("path,label\n", "lists no picture"),
        ("path,label\n1.png\n", "line 2 has 1 columns, the header 2"),
        ("path,file,label\n1.png,1.png,a\n", "has the columns path, file for one path"),
        ("path,label\n1.png,a\n,b\n,b\n", "list.csv: line 3 has no path; every row needs one"),
        ("path,label\n1.png,a\n1.png,b\n", "lists '1.png' twice"),
        ("path,label,split\n1.png,a,val\n", "line 2 has the split 'val'; it must be train or test"),
        ("path,label,site\n1.png,a,\n", "line 2 has no site"),
        (
            "path,label\n1.png,a\n2.png,b\n",
            r"2 pictures can't be used: 1.png can't be read as an image \(.*No such file",
        ),
        ("path,label\n1.dcm,a\n", "1.dcm is not an image file"),
        ("path,label\n\udcff,a\n", "can't be read as UTF-8 CSV"),
    ],
)
def test_bad_csv(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "list.csv").write_text(text, errors="surrogateescape")
    with pytest.raises(UserError, match=message):
        own(f"csv:{tmp_path / 'list.csv'}")


# --- how it goes


def test_progress_counts_all_pictures(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    root = two_classes(tmp_path / "d", 300)
    load(f"folder:{root}", progress=lambda done, total: calls.append((done, total)))
    assert calls == [(256, 600), (512, 600), (600, 600)]
    load(f"folder:{root}", progress=lambda done, total: calls.append((done, total)))
    assert len(calls) == 3  # nothing is decoded a second time


def test_more_batches_than_threads_keep_their_order() -> None:
    pictures = [Encoded(str(n), encoded(n % 256)) for n in range(3000)]
    into = np.empty((3000, 1, 4, 4), np.uint8)
    assert decode(pictures, into) == {}
    assert into[:, 0, 0, 0].tolist() == [n % 256 for n in range(3000)]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"size": 0}, r"data\.size = 0: must be greater than or equal to 1"),
        ({"bad": "ignore"}, r"data\.bad = 'ignore': must be 'refuse' or 'skip'"),
        ({"name": "npz:x", "size": 3}, r"unknown key 'data\.size'.*it is a key of .*folder, csv, parquet"),
    ],
)
def test_bad_keys(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_config({"data": {"name": "folder:x", **keys}})


# --- in a run


SMALL = ("train.rounds=1", "model.width=2", "partition.clients=2", "schedule.name=constant", "schedule.epochs=1")


def test_a_run_reports_what_it_did_to_images_and_lists_what_it_left_out(tmp_path: Path) -> None:
    root = two_classes(tmp_path / "d", 30, (9, 11))
    picture(root / "a/large.png", 5, size=(40, 40))
    (root / "a/x.png").write_bytes(b"")
    sets = [f"--set={key}" for key in (f"data.name=folder:{root}", "data.bad=skip", *SMALL)]
    out = done("run", "demo", *sets, "--out", tmp_path / "run")
    assert "images of 9×11 to 40×40 pixels are scaled and cropped to 8×8 (set data.size for another)" in out
    assert "1 picture is left out, a/x.png for example" in out
    assert "12 images, 20 % of each class, are held out" in out
    text = (tmp_path / "run/skipped.csv").read_text(encoding="utf-8")
    assert text.splitlines() == ["file,reason", "a/x.png,can't be read as an image"]
    assert (tmp_path / "run/config.toml").read_text().count('bad = "skip"') == 1
    (root / "a/x.png").unlink()
    done("run", "demo", *sets, "--out", tmp_path / "run", "--force", "--quiet")
    assert not (tmp_path / "run/skipped.csv").exists()


def test_data_are_described_with_all_that_cannot_be_read(tmp_path: Path) -> None:
    root = two_classes(tmp_path / "d")
    for number in range(8):
        (root / f"a/bad{number}.png").write_bytes(b"x")
    out = done("data", f"folder:{root}")
    assert "6×5 pixels, grey; 4 test images" in out
    assert out.count("can't be read as an image") == 8
    _, out, _ = fednoil("data", f"folder:{root}", "--json")
    found = json.loads(out)
    assert found["classes"] == [{"class": "a", "images": 8}, {"class": "b", "images": 8}]
    assert len(found["skipped"]) == 8
    assert "unless data.bad = 'skip'" in done("data", f"folder:{root}")


def test_data_that_a_run_would_refuse_are_described_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,label\n" + "1,x\n" * 9)
    out = done("data", f"table:{tmp_path / 't.csv'}")
    assert "rows of 1 column (a)" in out
    assert out.splitlines()[-1].startswith("by itself it can't be trained on: table:")
    assert out.splitlines()[-1].endswith("there is only one class; a classifier needs at least two")


def test_a_path_without_its_form_is_pointed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    two_classes(tmp_path / "photos")
    assert "is a folder; for the pictures in it write folder:photos" in refused("data", "photos")
    (tmp_path / "t.csv").write_text("a,label\n")
    assert "'t.csv' is a file; say how to read it: folder:PATH," in refused("data", "t.csv")
    assert "is unknown" in refused("data", "x" * 300)


@pytest.mark.parametrize("learner", ["erm", "fednoil", "dividemix", "josrc"])
def test_no_view_is_mirrored_where_flips_are_off(learner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A letter's mirror image is no letter: every plan of views has its flips drawn from one number, 0."""
    seen: list[int] = []
    draw = plans._draw

    def noted(keys: torch.Tensor, count: int, rows: list[tuple[int, int, int, int]]) -> torch.Tensor:
        seen.append(rows[0][0])
        return draw(keys, count, rows)

    monkeypatch.setattr(plans, "_draw", noted)
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8), np.uint8)
    data = [(images, np.arange(40) % 2)] * 2
    keys = {"learner.name": learner, "train.rounds": 2, "model.width": 2, "schedule.name": "constant"}
    keys |= {"schedule.epochs": 1} | ({"learner.warmup": 1} if learner == "dividemix" else {})
    for flip in (False, True):
        seen.clear()
        fednoil_run("demo", set=keys | {"train.flip": flip}, data=data, progress=False)
        assert set(seen) == {2 if flip else 1}
