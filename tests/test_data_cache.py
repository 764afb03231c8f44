"""The cache of decoded images: used, rebuilt when wrong, done without when impossible."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fednoil.data import DataConfig, Dataset, cache, load
from fednoil.data.base import PictureConfig


def make(root: Path, value: int = 1) -> str:
    for name in ("train/a", "train/b", "test/a"):
        (root / name).mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), value).save(root / name / "1.png")
    return f"folder:{root}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder that is in use."""
    monkeypatch.setenv("FEDNOIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError("decoded although the cache has it")

    monkeypatch.setattr("fednoil.data.decoding.decode", fail)
    monkeypatch.setattr("hashlib.sha256", _only_small(fail))


def _only_small(fail: object) -> object:
    """hashlib.sha256 stays usable for the key; the dataset's own hash goes through an empty start."""
    import hashlib

    real = hashlib.sha256

    def sha256(data: bytes | None = None) -> object:
        if data is None:
            raise AssertionError("hashed although the cache has the hash")
        return real(data)

    return sha256


def same(one: Dataset, two: Dataset) -> bool:
    return (
        np.array_equal(one.train.images, two.train.images)
        and np.array_equal(one.test.labels, two.test.labels)
        and (one.name, one.class_names, one.mean, one.std, one.hash)
        == (two.name, two.class_names, two.mean, two.std, two.hash)
    )


def test_second_load_decodes_nothing(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = DataConfig(name=make(tmp_path / "d"))
    first = load(config)
    assert len(entries(folder)) == 1
    no_decoding(monkeypatch)
    assert same(load(config), first)


def test_cached_hash_is_the_true_one(tmp_path: Path, folder: Path) -> None:
    config = DataConfig(name=make(tmp_path / "d"))
    load(config)
    cached = load(config)
    fresh = Dataset(cached.name, cached.train, cached.test, cached.class_names, cached.mean, cached.std)
    assert cached.hash == fresh.hash


def test_changed_file_is_decoded_again_and_the_old_entry_goes(tmp_path: Path, folder: Path) -> None:
    config = DataConfig(name=make(tmp_path / "d", 1))
    before, old = load(config), entries(folder)
    make(tmp_path / "d", 2)
    os.utime(tmp_path / "d/train/a/1.png", ns=(1, 1))  # a time that differs whatever the clock's grain
    after = load(config)
    assert (before.train.images[0, 0, 0, 0], after.train.images[0, 0, 0, 0]) == (1, 2)
    assert before.hash != after.hash
    assert len(entries(folder)) == 1
    assert entries(folder) != old


def test_two_datasets_keep_their_entries(tmp_path: Path, folder: Path) -> None:
    load(DataConfig(name=make(tmp_path / "d", 1)))
    load(DataConfig(name=make(tmp_path / "e", 2)))
    assert len(entries(folder)) == 2


@pytest.mark.parametrize("file", ["table.npz", "train"])
@pytest.mark.parametrize("damage", ["empty", "cut", "flip", "text", "other arrays"])
def test_damaged_entry_is_rebuilt(tmp_path: Path, folder: Path, file: str, damage: str) -> None:
    config = DataConfig(name=make(tmp_path / "d", 200))
    first = load(config)
    (place,) = entries(folder)
    path = place / file
    good = path.read_bytes()
    at = good.index(bytes([200] * 16)) if file == "train" else len(good) // 2
    broken = {
        "empty": b"",
        "cut": good[: len(good) // 2],
        "flip": good[:at] + bytes([201]) + good[at + 1 :],
        "text": b"hello",
    }
    if damage == "other arrays":
        with path.open("wb") as opened:
            np.savez(opened, x=np.zeros(3))
    else:
        path.write_bytes(broken[damage])
    assert same(load(config), first)
    assert len(path.read_bytes()) == len(good)
    assert entries(folder) == [place]


def test_many_pixels_are_mapped(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are decoded into the file that is mapped, and whoever writes to them changes neither it nor another run."""
    config = DataConfig(name=make(tmp_path / "d", 200))
    read = load(config)
    (place,) = entries(folder)
    shutil.rmtree(place)
    monkeypatch.setattr(cache, "MAPPED", 1)
    for _ in range(2):
        mapped = load(config)
        assert same(mapped, read)
        assert isinstance(mapped.train.images.base, np.memmap)
        mapped.train.images[:] = 0
    assert set((place / "train").read_bytes()) == {200}
    assert sorted(path.name for path in place.iterdir()) == ["table.npz", "test", "train"]


def test_mapped_pixels_of_which_some_are_left_out(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows move to the front of the file and it is cut, as in memory."""
    make(tmp_path / "d")
    shutil.rmtree(tmp_path / "d/test")
    for number in range(20):
        Image.new("L", (4, 4), 10 * number).save(tmp_path / f"d/train/a/{number:02}.png")
        Image.new("L", (4, 4), 10 * number + 5).save(tmp_path / f"d/train/b/{number:02}.png")
    (tmp_path / "d/train/a/03.png").write_bytes(b"broken")
    config = PictureConfig(name=f"folder:{tmp_path / 'd'}", bad="skip")
    read = load(config)
    (place,) = entries(folder)
    shutil.rmtree(place)
    monkeypatch.setattr(cache, "MAPPED", 1)
    mapped = load(config)
    assert same(mapped, read)
    assert (len(mapped.train), len(mapped.test)) == (33, 8)  # of 20 and 21, without a fifth of each
    assert (place / "train").stat().st_size == 33 * 16
    files = [Image.open(tmp_path / "d" / item).tobytes()[0] for item in mapped.about.items]
    assert mapped.train.images[:, 0, 0, 0].tolist() == files


def test_unwritable_cache_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDNOIL_CACHE", str(tmp_path / "file" / "cache"))
    assert len(load(DataConfig(name=make(tmp_path / "d"))).train) == 2


def test_failed_write_leaves_nothing(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez", full)
    assert len(load(DataConfig(name=make(tmp_path / "d"))).train) == 2
    assert entries(folder) == []


def test_embedded_and_npz_need_no_cache(tmp_path: Path, folder: Path) -> None:
    x, y = np.zeros((2, 3, 3), np.uint8), np.arange(2)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    load(DataConfig(name=f"npz:{tmp_path / 'a.npz'}"))
    load(DataConfig())
    assert not folder.exists()


def test_place_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDNOIL_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    monkeypatch.setenv("HOME", "/c")
    assert cache.cache_dir() == Path("/a")
    monkeypatch.delenv("FEDNOIL_CACHE")
    assert cache.cache_dir() == Path("/b/fednoil")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_dir() == Path("/c/.cache/fednoil")
