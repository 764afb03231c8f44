"""Audits for tests: one made by hand, with its summary and pictures, and that of a site's folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from conftest import fednoil

from fednoil.audit.page import write_page

CLASSES = ["cat", "dög", "</script><script>alert(1)</script>", '=cmd|"x"']
ITEMS = ["train/a.png", "train/<img src=x onerror=alert(1)>.png", 'train/"q", ‘ü’ 猫.png', "=HYPERLINK(1)", "'-a\nb"]


def made_audit(
    samples: int, classes: list[str], clients: list[str | None], items: Callable[[int], str] = str, side: int = 28
) -> tuple[pa.Table, dict[str, Any], Callable[[int], np.ndarray]]:
    """Sample i is client i mod K's, given class i mod C, suggested the next; the shade of its picture encodes i."""
    index = np.arange(samples)
    owner, count = index % len(clients), len(classes)
    wrong = np.round(1 - index / samples, 4)
    columns: dict[str, Any] = {
        "client": [clients[k] for k in owner],
        "item": [items(i) for i in index.tolist()],
        "index": index,
        "given": [classes[i % count] for i in index],
        "suggested": [classes[(i + 1 + i // count % (count - 1)) % count] for i in index],
        "p_wrong": wrong,
        "flagged": wrong >= 0.5,
        "rank": index // len(clients) + 1,
    }
    table = pa.table(columns).take(pa.array(np.lexsort((index, owner))))
    confused = [[classes[0], classes[1], 12], [classes[1], classes[0], 3]]
    about = [
        {
            "client": name,
            "samples": int((owner == k).sum()),
            "noise_ratio": 0.25 + 0.1 * k,
            "interval": [0.2 + 0.1 * k, 0.31 + 0.1 * k],
            "flagged": int((wrong[owner == k] >= 0.5).sum()),
            "matrix": (np.eye(count) * 0.7 + 0.3 / count).round(3).tolist(),
            "confused": confused,
            "skipped": [["train/broken.png", "can't be read"]] if k == 0 else [],
        }
        for k, name in enumerate(clients)
    ]
    overall = {"samples": samples, "noise_ratio": 0.32, "interval": [0.3, 0.34], "flagged": int((wrong >= 0.5).sum())}
    summary = {"format": 1, "classes": classes, "data": "folder:photos", "clients": about, "overall": overall}
    return table, summary, lambda i: np.full((side, side, 3), (40 + i % 200, i // 200 % 256, 128), np.uint8)


def hostile_page(folder: Path) -> Path:
    """The page of 200 samples of three clients, with names that would break a careless one."""
    return write_page(folder, *made_audit(200, CLASSES, ["0", "2", "10"], lambda i: f"{ITEMS[i % 5]}{i}"))


def at_site(trained: Path, site: Path, tmp_path: Path, *options: str) -> tuple[dict[str, Any], str]:
    """The summary of an audit of the pictures in `site` with the `trained` run's model, and what was printed."""
    out = tmp_path / "audit"
    model = trained / "run" / "model.safetensors"
    status, output, err = fednoil("audit", "--data", f"folder:{site}", "--model", model, "--out", out, *options)
    assert status == 0, err
    return json.loads((out / "summary.json").read_text()), output
