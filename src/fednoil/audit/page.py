"""The audit as one self-contained page: pictures with given and suggested labels, to decide on and export.

Pictures are stored in the file as sheets of a hundred, the most suspicious first, and the page decodes a sheet when one
of its pictures is shown, so a file with 50,000 pictures of 32×32 pixels opens at once.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from fednoil import __version__, pages
from fednoil.audit.copies import can_copy
from fednoil.audit.enlarged import enlarged
from fednoil.audit.files import PAGE, notices
from fednoil.data.choice import chosen
from fednoil.data.folder import folder_name
from fednoil.files import write_bytes

LIMIT = 50_000
"""The most pictures that the page shows by default."""

_PIXELS = LIMIT * 32 * 32  # of all pictures together: keeps the file below about 60 MB
_LARGEST, _SMALLEST = 96, 32  # longest side of a picture on a sheet
_ACROSS = 10  # pictures in a row and in a column of a sheet
_BLOCK = 16  # the encoder's blocks: none spans two pictures
_LISTED = 200  # most skipped files and groups of identical images that the page lists
_SQUARE = 20  # classes up to which a matrix is shown in full

Images = Callable[[int], np.ndarray]


def write_page(
    folder: Path,
    table: pa.Table,
    summary: dict[str, Any],
    images: Images,
    *,
    limit: int = LIMIT,
    originals: Images | None = None,
) -> Path:
    """Write `audit.html` from the audit's labels and summary; `images` returns the uint8 [H, W, C] of a row's `index`,
    and `originals` the same in the size that people should see.

    The `limit` most suspicious samples are shown, flagged ones first. `images` is called from several threads.
    """
    if limit < 1:
        raise ValueError(f"limit is {limit}; it must be at least 1")
    rows = _shown(table, limit)
    chosen = table.take(pa.array(rows))
    indices = chosen.column("index").to_pylist()
    side = int(min(_LARGEST, max(_SMALLEST, (_PIXELS / max(1, len(rows))) ** 0.5)))
    size, sheets = _sheets([int(i) for i in indices], images, side)
    data = {**page_data(table, chosen, rows, summary), "picture": size}
    least = max(size["width"], size["height"])
    large, kept, trusted = enlarged(table, chosen, data["classes"], originals or images, least)
    data |= {"large": kept, "trusted": trusted}
    text = pages.render(
        _asset("audit.html.j2"),
        version=__version__,
        css=pages.style() + _asset("audit.css"),
        scripts=[pages.script(), *(_asset(f"{name}.js") for name in ("decisions", "gallery", "viewer", "audit"))],
        large=large,
        command=_command(summary, data["id"]),
        data=pages.embedded(data),
        sheets=sheets,
        summary=summary,
        clients=summary.get("clients", []),
        notices=notices(summary.get("clients", [])),
        skipped=[(c["client"], *pair) for c in summary.get("clients", []) for pair in c.get("skipped") or []],
        duplicates=_same(table, summary.get("clients", [])),
        most=_LISTED,
        named=any(c["client"] is not None for c in summary.get("clients", [])),
        total=table.num_rows,
        shown=len(rows),
        percent=_percent,
    )
    path = folder / PAGE
    write_bytes(path, text.encode())
    return path


def page_data(table: pa.Table, chosen: pa.Table, rows: np.ndarray, summary: dict[str, Any]) -> dict[str, Any]:
    """The data of the page's script: the shown rows as columns of numbers, and the names behind them."""
    classes = list(summary["classes"])
    for column in ("given", "suggested"):  # a label that the model doesn't know is shown as it is
        classes += [name for name in chosen.column(column).unique().to_pylist() if name not in classes]
    number = {name: i for i, name in enumerate(classes)}
    clients = sorted(set(chosen.column("client").to_pylist()) - {None}, key=_natural)
    place = {name: i for i, name in enumerate(clients)}
    items, indices = chosen.column("item").to_pylist(), chosen.column("index").to_pylist()
    named = any(item != str(index) for item, index in zip(items, indices, strict=True))
    return {
        "id": audit_id(table, classes),
        "data": str(summary.get("data", "")),
        "total": table.num_rows,
        "classes": classes,
        "clients": clients,
        "row": rows.tolist(),
        "client": [place.get(name, -1) for name in chosen.column("client").to_pylist()],
        "item": items if named else None,
        "index": indices,
        "given": [number[name] for name in chosen.column("given").to_pylist()],
        "suggested": [number[name] for name in chosen.column("suggested").to_pylist()],
        "wrong": [round(1000 * p) for p in chosen.column("p_wrong").to_pylist()],  # in tenths of a percent
        "flagged": [int(flag) for flag in chosen.column("flagged").to_pylist()],
        "summary": [_found(client, len(summary["classes"])) for client in summary.get("clients", [])],
    }


def audit_id(table: pa.Table, classes: Sequence[str]) -> str:
    """The id under which the browser stores decisions: equal samples, labels and suggestions have equal ids."""
    digest = hashlib.sha256(json.dumps(list(classes)).encode())
    for name in ("client", "item", "index", "given", "suggested"):
        digest.update(json.dumps(table.column(name).to_pylist()).encode())
    return digest.hexdigest()[:16]


def _asset(name: str) -> str:
    return pages.asset("fednoil.audit", "templates", name)


def _shown(table: pa.Table, limit: int) -> np.ndarray:
    """The table rows to show, int64: flagged ones first, by suspicion."""
    flagged = table.column("flagged").to_numpy().astype(bool)
    wrong = table.column("p_wrong").to_numpy()
    first = np.lexsort((-wrong, ~flagged))[:limit]
    return first[np.argsort(-wrong[first], kind="stable")]


def _sheets(indices: list[int], images: Images, side: int) -> tuple[dict[str, int], Iterator[str]]:
    """The layout of the sheets, and the sheets as base64 of WebP, made on demand."""
    shapes = [images(index).shape[:2] for index in indices[:1]] or [(1, 1)]
    scale = min(1.0, side / max(shapes[0]))
    height, width = (max(1, round(length * scale)) for length in shapes[0])
    cell = -(-max(height, width) // _BLOCK) * _BLOCK
    size = {"width": width, "height": height, "cell": cell, "across": _ACROSS}
    groups = [indices[i : i + _ACROSS**2] for i in range(0, len(indices), _ACROSS**2)]

    def encode(group: list[int]) -> str:
        sheet = np.zeros((cell * -(-len(group) // _ACROSS), cell * min(_ACROSS, len(group)), 3), np.uint8)
        for place, index in enumerate(group):
            y, x = (cell * at for at in divmod(place, _ACROSS))
            _fill(sheet[y : y + cell, x : x + cell], _resized(images(index), (height, width)))
        buffer = io.BytesIO()
        Image.fromarray(sheet).save(buffer, "WEBP", quality=80, method=2)
        return base64.b64encode(buffer.getvalue()).decode()

    def encoded() -> Iterator[str]:
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # Pillow encodes outside the interpreter's lock
            yield from pool.map(encode, groups)

    return size, encoded()


def _fill(place: np.ndarray, pixels: np.ndarray) -> None:
    """Put a picture into its place; its last row and column fill the rest, so that blocks at the edge stay clean."""
    height, width = pixels.shape[:2]
    place[:height, :width] = pixels
    place[height:, :width] = place[height - 1, :width]
    place[:, width:] = place[:, width - 1 : width]


def _resized(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """uint8 [H, W] or [H, W, 1 or 3] as [height, width, 1 or 3]."""
    pixels = pixels if pixels.ndim == 3 else pixels[..., np.newaxis]
    if pixels.shape[:2] == size:
        return pixels
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    return np.asarray(image.resize((size[1], size[0]), Image.Resampling.LANCZOS)).reshape(*size, pixels.shape[2])


def _found(client: dict[str, Any], num_classes: int) -> dict[str, Any]:
    """A client's matrix, if there is room for it, and its most frequent confusions."""
    matrix = client.get("matrix") if num_classes <= _SQUARE else None
    return {"matrix": matrix, "confused": list(client.get("confused") or [])[:12]}


def _same(table: pa.Table, clients: Sequence[dict[str, Any]]) -> list[tuple[str | None, list[tuple[str, str]], bool]]:
    """Identical images: client, items with their given labels, and whether these differ.

    Those that differ come first, because one of their labels must be wrong.
    """
    if not any(c.get("duplicates") for c in clients):
        return []
    names = ("client", "item", "given")
    rows = zip(*(table.column(name).to_pylist() for name in names), strict=True)
    given = {(client, item): label for client, item, label in rows}
    found = []
    for entry in clients:
        for group in entry.get("duplicates") or []:
            labels = [(item, given[entry["client"], item]) for item in group]
            found.append((entry["client"], labels, len({label for _, label in labels}) > 1))
    return sorted(found, key=lambda one: not one[2])


def _command(summary: dict[str, Any], audit: str) -> str:
    """The commands that apply the decisions of this audit to a copy of its data, one for each site with data of its
    own; none if `fednoil relabel` can't copy the data."""
    source = summary.get("source") or str(summary.get("data", ""))
    sites = source if isinstance(source, dict) else {"": source}
    audited, lines = {client["client"] for client in summary.get("clients", [])}, []
    for site, data in sites.items():
        if not can_copy(data) or (site and site not in audited):
            continue
        kind, _, path = data.partition(":")
        place = chosen(Path(path or data))[0]
        end = "" if kind == "folder" else place.suffix
        called = folder_name(site) or place.name.removesuffix(end)  # sites' folders may have the same last name
        copy = f"{called}-relabelled{end}"
        of_site = ["--site", site] if site else []
        decisions = ["--decisions", f"decisions-{audit}.csv"]
        lines.append(shlex.join(["fednoil", "relabel", "--data", data, *of_site, *decisions, "--out", copy]))
    return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def _natural(name: str) -> tuple[int, int, str]:
    """Sort key: client 2 before 10, and numbers before names."""
    return (0, int(name), name) if name.isdecimal() else (1, 0, name)
