"""The split and the labels of each setting and seed as noise manifests, so that others can use exactly these.

A manifest has what clients train on; the tenth of their samples that they hold out is not in it. Its checksum is the
hash of its rows, which every reader of the file checks: the file itself may be written differently elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fednoil.bench.plan import BenchCell
from fednoil.manifest import write_manifest
from fednoil.records.files import write_text
from fednoil.seeds import Seed
from fednoil.setting import make_setting

FILE = "checksums.txt"


def write_noise(cells: Sequence[BenchCell], out: Path, data_dir: Path | None) -> list[Path]:
    """Write a manifest for each setting and seed of the cells, and a list of their checksums."""
    one_each = {(cell.setting, cell.config.run.seed): cell.config for cell in cells}
    lines, files = [], []
    for (name, seed), config in one_each.items():
        made = make_setting(config, data_dir, Seed(seed))
        path = out / f"{name.replace('/', '-')}-seed{seed}.parquet"
        write_manifest(path, made.parts, made.labels, made.truth, made.dataset.hash, made.dataset.num_classes)
        files.append(path)
        lines.append(f"{made.manifest_hash()}  {path.name}")
    write_text(out / FILE, "\n".join(lines) + "\n")
    return [*files, out / FILE]
