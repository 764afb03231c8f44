"""Two ways of somebody with pictures at three sites: run, audit, relabel, run again, against a central baseline."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import done
from PIL import Image, ImageDraw

import fednoil as package
from fednoil import metrics
from fednoil.data.images import as_mode, fitted

CLASSES = ("circle", "cross", "square", "triangle")
WRONG = {"nord": 0.05, "süd": 0.16, "west": 0.32}
SIDE = 16


@dataclass(frozen=True)
class Pictures:
    """What the sites have: how many of each class, and the manner in which each site draws."""

    counts: tuple[int, ...]
    manners: Mapping[str, str]


WAYS = {
    "alike": Pictures((30, 30, 30, 30), dict.fromkeys(WRONG, "filled")),
    "each in its own manner": Pictures((45, 36, 27, 18), {"nord": "filled", "süd": "outlined", "west": "night"}),
}


def outline(kind: str, x: float, y: float, r: float) -> list[tuple[float, float]]:
    """The corners of a shape around (x, y)."""
    if kind == "square":
        return [(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)]
    if kind == "triangle":
        return [(x, y - r), (x + r, y + r), (x - r, y + r)]
    if kind == "cross":
        t = r / 3
        steps = [
            (-t, -r),
            (t, -r),
            (t, -t),
            (r, -t),
            (r, t),
            (t, t),
            (t, r),
            (-t, r),
            (-t, t),
            (-r, t),
            (-r, -t),
            (-t, -t),
        ]
        return [(x + a, y + b) for a, b in steps]
    return [(x + r * math.cos(a / 12 * math.pi), y + r * math.sin(a / 12 * math.pi)) for a in range(24)]


def drawn(kind: str, manner: str, rng: np.random.Generator) -> Image.Image:
    """A shape of some colour, place and size in a picture of some size, some with a transparent ground; filled,
    outlined, or bright before a dark ground."""
    width, height = (int(n) for n in rng.integers(30, 120, 2))
    clear = manner == "filled" and rng.random() < 0.2
    light, dark = (tuple(int(n) for n in rng.integers(*span, 3)) for span in ((170, 256), (0, 110)))
    ground, ink = (dark, light) if manner == "night" else (light, dark)
    image = Image.new("RGBA", (width, height), (0, 0, 0, 0) if clear else (*ground, 255))
    r = min(width, height) * rng.uniform(0.3, 0.42)
    x, y = width / 2 + r * rng.uniform(-0.3, 0.3), height / 2 + r * rng.uniform(-0.3, 0.3)
    turn = rng.uniform(-0.6, 0.6)
    corners = [(a - x, b - y) for a, b in outline(kind, x, y, r)]
    turned = [
        (x + a * math.cos(turn) - b * math.sin(turn), y + a * math.sin(turn) + b * math.cos(turn)) for a, b in corners
    ]
    pen, thick = ImageDraw.Draw(image), max(1, min(width, height) // 20)
    if manner == "outlined":
        pen.polygon(turned, outline=ink, width=2 * thick)
    else:
        pen.polygon(turned, fill=ink)
    for _ in range(3):  # scratches
        ends = rng.uniform(0, 1, 4) * (width, height, width, height)
        pen.line([float(n) for n in ends], fill=ink, width=thick)
    return image if clear or rng.random() < 0.5 else image.convert("RGB")


def make_sites(root: Path, way: Pictures, seed: int = 0) -> dict[str, str]:
    """The sites' folders, each with its share of wrong labels; returns what each picture really shows."""
    rng = np.random.default_rng(seed)
    truth: dict[str, str] = {}
    for site, share in WRONG.items():
        shown = [kind for kind, count in zip(CLASSES, way.counts, strict=True) for _ in range(count)]
        wrong = set(rng.permutation(len(shown))[: round(share * len(shown))].tolist())
        for number, kind in enumerate(shown):
            others = [name for name in CLASSES if name != kind]
            item = f"{others[int(rng.integers(3))] if number in wrong else kind}/{site}-{number:03}.png"
            (root / site / item).parent.mkdir(parents=True, exist_ok=True)
            drawn(kind, way.manners[site], rng).save(root / site / item)
            truth[item] = kind
    return truth


def clean_test(way: Pictures, count: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """New pictures with correct labels, as the package would see them: uint8 [N, SIDE, SIDE, 3]."""
    rng = np.random.default_rng(1)
    kinds = [(kind, manner) for kind in CLASSES for manner in way.manners.values() for _ in range(count)]
    images = [np.asarray(fitted(as_mode(drawn(*kind, rng), "RGB"), (SIDE, SIDE))) for kind in kinds]
    return np.stack(images), np.repeat(np.arange(4), 3 * count)


def rows_of(audit: str) -> list[dict[str, object]]:
    return pq.read_table(f"{audit}/labels.parquet").to_pylist()


def auroc(rows: list[dict[str, object]], truth: Mapping[str, str]) -> float:
    """How often a wrong label is more suspicious than a correct one, over all sites."""
    chances = np.array([row["p_wrong"] for row in rows])
    wrong = np.array([truth[str(row["item"])] != row["given"] for row in rows])
    return metrics.detection(chances, chances > 0.5, wrong)["auroc"]


def run(preset: str, sites: Mapping[str, str], out: str, *more: str) -> str:
    keys = ("--set", f"data.size={SIDE}", "--set", "model.width=12", "--set", "train.pad=1", "--device", "cpu")
    words = [word for name, data in sites.items() for word in ("--site", f"{name}={data}")]
    said = done("run", preset, *keys, *words, *more, "--out", out)
    return said


def relabelled(rows: list[dict[str, object]], truth: Mapping[str, str]) -> dict[str, str]:
    """The sites' data after somebody has looked at what is flagged and said what it shows."""
    with Path("decisions.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["client", "item", "index", "given", "decision", "label"])
        for row in rows:
            kind = truth[str(row["item"])]
            word = "reject" if kind == row["given"] else "change"
            if row["flagged"]:
                writer.writerow([row["client"], row["item"], row["index"], row["given"], word, kind])
    sites = {site: f"folder:{site}" for site in WRONG}
    for site in {str(row["client"]) for row in rows if row["flagged"]}:
        words = ("--data", sites[site], "--decisions", "decisions.csv", "--site", site, "--out", f"{site}-2")
        done("relabel", *words)
        sites[site] = f"folder:{site}-2"
    return sites


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_from_folders_to_relabelled_folders(
    way: Pictures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """The preset `demo` as it is. Central: the same network on pooled data, which nobody may pool, out of folds."""
    monkeypatch.setenv("FEDNOIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    truth = make_sites(tmp_path, way)
    sites = {site: f"folder:{site}" for site in WRONG}
    said = run("demo", sites, "before")
    assert "3 clients (nord, süd, west)" in said
    assert f"scaled and cropped to {SIDE}×{SIDE}" in said
    run("demo/fedavg", sites, "central", "--set", "server.name=centralized")
    for arguments in (("before",), ("central", "--folds", 4)):
        done("audit", *arguments, "--json")
    rows = rows_of("before/audit")
    found, central = auroc(rows, truth), auroc(rows_of("central/audit-folds-4"), truth)
    sites = relabelled(rows, truth)
    assert sites["west"] == "folder:west-2"
    run("demo", sites, "after")
    images, labels = clean_test(way)
    names = ("central", "before", "after")
    accuracy = {
        name: 100 * float((package.load(name).probabilities(images).argmax(1) == labels).mean()) for name in names
    }
    record_property("figures", f"AUROC {found:.4f}, central {central:.4f}; accuracy {accuracy}")
    assert found > max(0.95, central - 0.01)
    assert accuracy["after"] > max(accuracy["before"], accuracy["central"])
