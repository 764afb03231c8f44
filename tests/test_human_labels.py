"""Labels that people gave: files of CIFAR-N, annotators as clients, and every way such a file can be wrong."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from made_labels import dataset_of, true_labels
from test_data_parquet import encoded

from fednoil.config import load_config
from fednoil.errors import UserError
from fednoil.noise import apply
from fednoil.noise.human import read_labels
from fednoil.partition import partition
from fednoil.seeds import Seed
from fednoil.setting import make_setting

CLEAN = np.array([6, 9, 9, 4, 1, 1, 2, 7, 8, 3])  # CIFAR-10's first ten, and what people gave them at worst
WORST = np.array([4, 9, 0, 5, 1, 9, 2, 4, 8, 8])
AGGREGATE = np.array([6, 9, 9, 4, 1, 1, 2, 7, 8, 0])


def saved(path: Path, **arrays: Any) -> str:
    torch.save(arrays, path)
    return str(path)


def ten(path: Path, **more: Any) -> str:
    return saved(path, **{"clean_label": CLEAN, "worse_label": WORST, "aggre_label": AGGREGATE, **more})


def given(file: str, labels: np.ndarray = CLEAN, **keys: Any) -> tuple[np.ndarray, ...]:
    parts = (np.array([0, 2, 4, 6, 8]), np.array([1, 3, 5, 7, 9]))
    config = load_config({"noise": {"kind": "cifar-n", "file": file, **keys}}).noise
    found, truth = apply(dataset_of(labels, 10), parts, config, Seed(0))
    assert [true.tolist() for true in true_labels(truth)] == [labels[part].tolist() for part in parts]
    return found.given


def test_each_client_has_the_labels_that_people_gave_its_images(tmp_path: Path) -> None:
    file = ten(tmp_path / "CIFAR-10_human.pt")
    assert [labels.tolist() for labels in given(file)] == [WORST[::2].tolist(), WORST[1::2].tolist()]
    assert given(file, people="aggregate")[1].tolist() == AGGREGATE[1::2].tolist()


def test_a_hundred_classes_have_one_persons_labels(tmp_path: Path) -> None:
    file = saved(tmp_path / "c100.pt", clean_label=CLEAN, noisy_label=WORST, noisy_coarse_label=WORST)
    assert read_labels(file, "worst", 100)[1].tolist() == WORST.tolist()


def test_another_order_and_other_data_are_refused(tmp_path: Path) -> None:
    file = ten(tmp_path / "file.pt")
    with pytest.raises(
        UserError, match=r"its clean label of training image \d is \d, the dataset's is .*another order"
    ):
        given(file, CLEAN[::-1].copy())
    config = load_config({"noise": {"kind": "cifar-n", "file": file}}).noise
    with pytest.raises(UserError, match="has labels of 10 images, but the data have 12"):
        apply(dataset_of(np.tile(CLEAN, 2)[:12], 10), (np.arange(12),), config, Seed(0))
    with pytest.raises(UserError, match="'clean_label' has labels 1 to 9; the data have 4 classes"):
        read_labels(file, "worst", 4)
    with pytest.raises(UserError, match="has no labels 'random_label1'; it has aggre_label, clean_label"):
        read_labels(file, "random1", 10)
    for labels, said in ((CLEAN / 1.0, r"float64 \[10\]"), (CLEAN[:, None], r"int64 \[10, 1\]")):
        with pytest.raises(UserError, match=rf"'worse_label' is {said}; labels are whole numbers in a row"):
            read_labels(ten(tmp_path / "shape.pt", worse_label=labels), "worst", 10)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("it runs",)


def test_a_pickle_with_anything_but_arrays_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, more in (("code", Evil()), ("tensor", torch.zeros(3))):
        file = ten(tmp_path / f"{name}.pt", random_label1=more)
        with pytest.raises(UserError, match=r"noise.file = '.*' is refused: not a plain pickled dict of arrays"):
            read_labels(file, "worst", 10)
    assert "it runs" not in capsys.readouterr().out


def test_files_that_are_no_archive(tmp_path: Path) -> None:
    (tmp_path / "text.pt").write_text("hello")
    with zipfile.ZipFile(tmp_path / "empty.pt", "w") as archive:
        archive.writestr("other", "x")
    for name, words in (("text.pt", "can't be read"), ("empty.pt", "holds no data.pkl"), ("none.pt", "can't be read")):
        with pytest.raises(UserError, match=words):
            read_labels(str(tmp_path / name), "worst", 10)
    with pytest.raises(UserError, match=r"needs noise\.file"):
        read_labels("", "worst", 10)


# --- annotators as clients -------------------------------------------------------------------------------------------

LABELS = np.arange(25) % 5


def dealt(file: Path, clients: int, **keys: Any) -> list[list[int]]:
    config = load_config({"partition": {"kind": f"annotator:{file}", "clients": clients, **keys}}).partition
    return [part.tolist() for part in partition(LABELS, 5, config, Seed(0))]


def test_workers_of_blocks_of_images(tmp_path: Path) -> None:
    path = tmp_path / "side.csv"
    path.write_text(
        "Image-batch,Worker-id,Work-time-in-seconds\n0--4,514,113\n5--9,239,41\n10--14,514,59\n15--19,7,3\n"
    )
    first = [*range(5), *range(10, 15)]
    assert dealt(path, 1) == [first]
    assert dealt(path, 3) == [first, list(range(5, 10)), list(range(15, 20))]
    with pytest.raises(UserError, match=r"partition.clients = 4 is more than the 3 annotators with images"):
        dealt(path, 4)


def test_an_annotator_for_each_image(tmp_path: Path) -> None:
    path = tmp_path / "who.csv"
    path.write_text("annotator,seconds\n" + "".join(f"{'ab'[place % 2]},1\n" for place in range(25)))
    assert dealt(path, 2) == [list(range(0, 25, 2)), list(range(1, 25, 2))]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x,y\n1,2\n", "it needs Image-batch and Worker-id, or annotator"),
        ("Image-batch,Worker-id\n0-4,7\n9--5,8\n", "row 3 has the annotator 8 with no images"),
        ("Image-batch,Worker-id\nall,7\n", "row 2 has the Image-batch 'all'"),
        ("Image-batch,Worker-id\n0--4,\n", "row 2 names no annotator"),
        ("Image-batch,Worker-id\n0--4,1\n3--6,2\n", "at most once"),
        ("Image-batch,Worker-id\n20--30,1\n", "lists 11 images, up to 30; it must list each of 0 to 24 at most once"),
        ("Image-batch,Worker-id\n0--4,1\n5--999999999,2\n", "row 3 lists 999999995 images; there are 25"),
        ("Image-batch,Worker-id\n0--99999999999999999999,1\n", "row 2 has the Image-batch '0--9"),
        ("annotator\n", "lists 0 images, none"),
    ],
)
def test_tables_of_annotators_that_are_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "side.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=words):
        dealt(path, 1)


def test_keys_that_annotators_have_not(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"write annotator:FILE"):
        partition(LABELS, 5, load_config({"partition": {"kind": "annotator", "clients": 1}}).partition, Seed(0))
    with pytest.raises(UserError, match=r"partition.samples_per_client: with kind = 'annotator'"):
        dealt(tmp_path / "side.csv", 1, samples_per_client=5)


def test_a_column_of_annotators_stands_for_sites(tmp_path: Path) -> None:
    images = [{"bytes": encoded(level, (8, 8))} for level in range(0, 240, 10)]
    columns = {"image": images, "label": [n % 2 for n in range(24)], "annotator": [f"p{n % 3}" for n in range(24)]}
    pq.write_table(pa.table(columns), tmp_path / "own.parquet")
    config = load_config({"data": {"name": f"parquet:{tmp_path / 'own.parquet'}"}})
    assert (config.partition.kind, config.partition.clients) == ("given", 3)
    assert make_setting(config, None, Seed(0)).names == ("p0", "p1", "p2")


# --- through the command ---------------------------------------------------------------------------------------------
