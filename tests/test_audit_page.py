"""The audit's page as a file: pictures with their rows, and names that are text only."""

from __future__ import annotations

import base64
import html
import io
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from made_audit import hostile_page, made_audit
from PIL import Image

from fednoil import load, runner
from fednoil import run as fednoil_run
from fednoil.audit import enlarged as large
from fednoil.audit import run_audit
from fednoil.audit.cases import MEMORY, of_run, source_of
from fednoil.audit.page import audit_id, write_page
from fednoil.config import load_config
from fednoil.experiment import make_experiment


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_page(tmp_path_factory.mktemp("audit"))


def embedded(path: Path) -> tuple[dict[str, Any], list[Image.Image]]:
    text = path.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found
    sheets = re.findall(r'<script type="text/plain" id="sheet-\d+">(.*?)</script>', text)
    return json.loads(found[1]), [Image.open(io.BytesIO(base64.b64decode(sheet))) for sheet in sheets]


def test_the_file_holds_each_picture_with_its_row(tmp_path: Path) -> None:
    table, summary, images = made_audit(230, ["a", "b", "c"], ["x"], side=28)
    data, sheets = embedded(write_page(tmp_path, table, summary, images))
    size = data["picture"]
    assert (size["width"], size["height"], size["cell"], len(sheets)) == (28, 28, 32, 3)
    assert data["item"] is None  # row numbers say it all
    for place in (0, 9, 10, 99, 100, 229):
        y, x = (32 * at for at in divmod(place % 100, 10))
        tile = np.asarray(sheets[place // 100].convert("RGB"))[y : y + 28, x : x + 28].reshape(-1, 3)
        wanted = images(data["index"][place])[0, 0].astype(int)
        assert np.abs(tile.mean(0) - wanted).max() < 6, place
    rows = table.to_pylist()
    for place, row in enumerate(data["row"]):
        assert rows[row]["index"] == data["index"][place]
        assert rows[row]["given"] == data["classes"][data["given"][place]]
        assert rows[row]["suggested"] == data["classes"][data["suggested"][place]]


def test_the_limit_keeps_flagged_and_then_the_most_suspicious(tmp_path: Path) -> None:
    table, summary, images = made_audit(20, ["a", "b"], ["x"])
    flags = [row["index"] in (0, 19) for row in table.to_pylist()]
    table = table.set_column(table.column_names.index("flagged"), "flagged", pa.array(flags))
    data, _ = embedded(write_page(tmp_path, table, summary, images, limit=4))
    assert data["index"] == [0, 1, 2, 19]
    assert data["total"] == 20
    assert "the 4 most suspicious of 20 samples" in (tmp_path / "audit.html").read_text()
    with pytest.raises(ValueError, match="limit"):
        write_page(tmp_path, table, summary, images, limit=0)


@pytest.mark.parametrize(("samples", "side", "wanted"), [(3, 300, 96), (3, 20, 20)])
def test_large_pictures_are_made_small_and_small_ones_stay(
    tmp_path: Path, samples: int, side: int, wanted: int
) -> None:
    data, _ = embedded(write_page(tmp_path, *made_audit(samples, ["a", "b"], [None], side=side)))
    assert (data["picture"]["width"], data["clients"], set(data["client"])) == (wanted, [], {-1})


def test_grey_and_wide_pictures(tmp_path: Path) -> None:
    table, summary, _ = made_audit(3, ["a", "b"], [None])
    data, sheets = embedded(write_page(tmp_path, table, summary, lambda i: np.full((10, 400, 1), 90, np.uint8)))
    assert (data["picture"]["width"], data["picture"]["height"]) == (96, 2)
    assert abs(np.asarray(sheets[0].convert("L"))[0, 0] - 90) < 3


def test_an_audit_is_known_by_its_samples_labels_and_suggestions() -> None:
    table, _, _ = made_audit(20, ["a", "b", "c"], ["x"])
    other = table.set_column(4, "suggested", pa.array(["a"] * 20))
    score = table.set_column(5, "p_wrong", pa.array([0.5] * 20))
    ids = [audit_id(t, ["a", "b", "c"]) for t in (table, score, other, table.slice(1))]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


def test_names_are_text_only(page_file: Path) -> None:
    text = page_file.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "default-src 'none'" in text
    assert not re.search(r"(src|href)=[\"']?https?:", text)


def test_clients_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    data, _ = embedded(write_page(tmp_path, *made_audit(8, ["a", "b"], ["nord", "10", "9", "2"])))
    assert data["clients"] == ["2", "9", "10", "nord"]


def test_large_pictures_are_those_of_flagged_labels_and_of_the_most_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six samples 1 and 4 are flagged, and there is room for three large pictures, two of them trusted ones: of
    class a the sample 3, which is less in doubt than 2; not 0, for which b is suggested."""
    columns = {"given": list("aaaabb"), "suggested": list("bbaaab"), "index": range(6), "item": list("012345")}
    columns |= {"p_wrong": [0.01, 0.9, 0.3, 0.1, 0.8, 0.2], "flagged": [i in (1, 4) for i in range(6)]}
    table = pa.table({name: list(values) for name, values in columns.items()})

    def originals(row: int) -> np.ndarray:
        return np.full((40, 40, 3), 40 * row, np.uint8)

    def shade(picture: str) -> int:
        return round(np.asarray(Image.open(io.BytesIO(base64.b64decode(picture)))).mean() / 40)

    monkeypatch.setattr(large, "_EXAMPLES", 1)
    pictures, kept, trusted = large.enlarged(table, table, ["a", "b"], originals, 10)
    assert [[(shade(pictures[n]), item) for n, item in rows] for rows in trusted] == [[(3, "3")], [(5, "5")]]
    assert {row: shade(pictures[n]) for row, n in kept.items()} == {row: row for row in range(6)}
    monkeypatch.setattr(large, "_BYTES", sum(map(len, pictures[:3])))
    pictures, kept, _ = large.enlarged(table, table, ["a", "b"], originals, 10)
    assert (len(pictures), list(kept)) == (3, [1])


def test_what_was_left_out_is_on_the_page(tmp_path: Path) -> None:
    """Notices, skipped files with their reasons, and images that are there twice, those with two labels first."""
    table, summary, images = made_audit(40, ["cat", "dog"], ["0", "1"], lambda i: f"<i>{i}.png")
    zero, one = summary["clients"]
    zero |= {"notices": ["the model is weak", "2 images were scaled"], "duplicates": [["<i>0.png", "<i>4.png"]]}
    one |= {"notices": ["the model is weak"], "duplicates": [["<i>1.png", "<i>3.png", "<i>5.png"]]}
    zero["duplicates"].append(["<i>0.png", "<i>38.png"])
    table = table.set_column(
        table.column_names.index("given"),
        "given",
        pa.array(["dog" if row["index"] == 38 else row["given"] for row in table.to_pylist()]),
    )
    text = write_page(tmp_path, table, summary, images).read_text()
    listed = re.findall("<li>(.*?)</li>", text)
    assert listed == ["The model is weak.", "2 images were scaled (client 0)."]
    assert "Skipped: 1" in text
    assert '<td class="name">train/broken.png</td><td class="name">can&#39;t be read</td>' in text
    assert "There more than once: 3" in text
    groups = re.findall(r'<td>(≠?)</td><td class="name">(.*?)</td>', text)
    assert groups == [
        ("≠", "&lt;i&gt;0.png (cat), &lt;i&gt;38.png (dog)"),
        ("", "&lt;i&gt;0.png (cat), &lt;i&gt;4.png (cat)"),
        ("", "&lt;i&gt;1.png (dog), &lt;i&gt;3.png (dog), &lt;i&gt;5.png (dog)"),
    ]
    summary["clients"][0]["skipped"] = [[f"{n}.png", "is empty"] for n in range(500)]
    long = write_page(tmp_path, table, summary, images).read_text()
    assert long.count("is empty</td>") == 200
    assert "the first 200" in long


def test_a_runs_pictures_are_kept_as_they_lie(tmp_path: Path) -> None:
    """The network sees 8 × 8 pixels, people up to 512; the command is for the data that were audited."""
    rng = np.random.default_rng(0)
    for number in range(12):
        file = tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        size = (30 + 60 * number, 40)
        Image.fromarray(rng.integers(0, 255, (*size, 3), dtype=np.uint8)).save(file)
    values = {"data": {"name": f"folder:{tmp_path}/photos", "size": 8}, "partition": {"clients": 2}}
    values |= {"model": {"width": 2}, "schedule": {"epochs": 1}, "train": {"rounds": 1}, "run": {"device": "cpu"}}
    runner.run(load_config(values), tmp_path / "run", runner.Silent())
    cases = of_run(tmp_path / "run", None, None, torch.device("cpu"))
    assert cases.originals is not None
    sizes = {}
    for case in cases.clients:
        for item, row in zip(case.items, case.index, strict=True):
            sizes[Path(item).stem] = cases.originals(int(row)).shape
            assert cases.images(int(row)).shape == (96, 96, 3)
    assert all(shape[0] == min(512, 30 + 60 * int(name)) for name, shape in sizes.items())
    assert cases.source == f"folder:{tmp_path}/photos"
    summary = run_audit(cases, tmp_path / "audit")
    assert summary["source"] == cases.source
    page = (tmp_path / "audit/audit.html").read_text()
    assert f"fednoil relabel --data folder:{tmp_path}/photos" in page
    assert page.count('id="large-') >= len(sizes)


def test_sites_with_the_same_file_names(tmp_path: Path) -> None:
    """Each row is its own site's picture, and each site has a command."""
    for site, shade in (("nord", 10), ("my süd", 200)):
        for number in range(12):
            file = tmp_path / site / "photos" / ("cat", "dog")[number % 2] / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((40, 30 + number, 3), shade, np.uint8)).save(file)
    sites = {site: f"folder:{tmp_path / site}/photos" for site in ("nord", "my süd")}
    values: dict[str, Any] = {
        "data": {"name": "sites", "sites": sites, "size": 8},
        "partition": {"kind": "given", "clients": 2},
    }
    values |= {"model": {"width": 2}, "schedule": {"epochs": 1}, "train": {"rounds": 1}, "run": {"device": "cpu"}}
    runner.run(load_config(values), tmp_path / "run", runner.Silent())
    cases = of_run(tmp_path / "run", None, None, torch.device("cpu"))
    assert cases.originals is not None
    for case, shade in zip(cases.clients, (10, 200), strict=True):
        for item, row in zip(case.items, case.index, strict=True):
            picture = cases.originals(int(row))
            assert (picture.shape[1], picture[0, 0, 0]) == (30 + int(Path(item).stem), shade)
    run_audit(cases, tmp_path / "audit")
    page = html.unescape((tmp_path / "audit/audit.html").read_text())
    assert f"fednoil relabel --data folder:{tmp_path}/nord/photos --site nord --decisions decisions-" in page
    assert f"fednoil relabel --data 'folder:{tmp_path}/my süd/photos' --site 'my süd' --decisions decisions-" in page
    assert "--out nord-relabelled\n" in page
    assert "--out 'my süd-relabelled'</pre>" in page
    run_audit(of_run(tmp_path / "run", "nord", None, torch.device("cpu")), tmp_path / "one")
    assert (tmp_path / "one/audit.html").read_text().count("fednoil relabel --data") == 1
    values["noise"] = {"kind": "symmetric"}
    spoilt = make_experiment(load_config(values))
    assert source_of(spoilt, tmp_path / "run") == f"manifest:{tmp_path}/run/noise.parquet"


def test_the_command_of_an_audit_in_python(trained: Path, tmp_path: Path) -> None:
    """This run has spoilt some labels, which are in its folder and not in the user's; in memory they are nowhere."""
    run = load(trained / "run")
    page = run.audit().save(tmp_path / "kept").read_text()
    assert f"fednoil relabel --data manifest:{trained}/run/noise.parquet --decisions" in page
    sections = tomllib.loads((trained / "run/config.toml").read_text())
    sections["train"]["rounds"] = 1
    page = fednoil_run(sections).audit().save(tmp_path / "memory").read_text()
    assert "fednoil relabel" not in page


@pytest.mark.parametrize("source", ["arrays:0", "own.module:Images", "sites", "fashion-mnist-mini", "folder:", MEMORY])
def test_no_command_for_data_that_cannot_be_copied(tmp_path: Path, source: str) -> None:
    table, summary, images = made_audit(8, ["a", "b"], ["x"], lambda i: f"{i}.png")
    page = write_page(tmp_path, table, {**summary, "source": source}, images).read_text()
    assert "fednoil relabel" not in page
    assert '<button id="apply-open" hidden' in page
