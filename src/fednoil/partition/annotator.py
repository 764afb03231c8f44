"""Annotators as clients: each holds the images that one person has labelled, the most diligent ones first.

`partition.kind = "annotator:FILE"` names a CSV file: with columns `Image-batch` (as 0--4, places in the training set)
and `Worker-id`, as CIFAR-100N's side_info_cifar100N.csv, or with a column `annotator` and a row for each training
image. Images of other annotators are not dealt. Of CIFAR-100N's 519 workers, 98 have labelled 100 images or more, with
16 to 99 % wrong.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np

from fednoil.errors import UserError
from fednoil.partition.base import Partition, PartitionConfig
from fednoil.seeds import Seed

WORD = "annotator"
_SPAN = re.compile(r"\s*(\d{1,9})\s*-+\s*(\d{1,9})\s*")


class AnnotatorConfig(PartitionConfig):
    kind: str = f"{WORD}:FILE"

    @property
    def file(self) -> str:
        """The path of a CSV file that says who has labelled which image."""
        return self.kind.partition(":")[2]


class Annotator(Partition):
    Config = AnnotatorConfig

    def deal(self, labels: np.ndarray, num_classes: int, seed: Seed) -> list[np.ndarray]:
        config, said = self.config, f"partition.kind = '{self.config.kind}'"
        if config.samples_per_client is not None or config.imbalance > 1:
            key = "samples_per_client" if config.samples_per_client is not None else "imbalance"
            raise UserError(f"partition.{key}: with kind = 'annotator' clients have all that is theirs")
        if not config.file:
            raise UserError(
                "partition.kind = 'annotator' needs a CSV file that says who has labelled what: write annotator:FILE"
            )
        rows = read_annotators(Path(config.file), said, len(labels))
        largest = sorted(rows, key=lambda name: -len(rows[name]))  # stable: of equals the first in the file
        if config.clients > len(largest):
            raise UserError(
                f"partition.clients = {config.clients} is more than the {len(largest)} annotators with images in "
                f"{config.file}; use at most {len(largest)}"
            )
        return [np.array(rows[name]) for name in largest[: config.clients]]


def read_annotators(path: Path, said: str, count: int) -> dict[str, list[int]]:
    """The places of the images, below `count`, that each annotator has labelled."""
    found: dict[str, list[int]] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            names = reader.fieldnames or []
            batches = "Image-batch" in names and "Worker-id" in names
            if not batches and "annotator" not in names:
                raise UserError(
                    f"{said} has columns {', '.join(names[:5])}; it needs Image-batch and Worker-id, or annotator"
                )
            for number, row in enumerate(reader):
                who = (row["Worker-id" if batches else "annotator"] or "").strip()
                places = _places(row["Image-batch"], said, number) if batches else range(number, number + 1)
                if len(places) > count:
                    raise UserError(f"{said}: row {number + 2} lists {len(places)} images; there are {count}")
                if not who or not len(places):
                    what = "names no annotator" if not who else f"has the annotator {who} with no images"
                    raise UserError(f"{said}: row {number + 2} {what}")
                found.setdefault(who, []).extend(places)
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{said} can't be read ({error})") from None
    every = [place for places in found.values() for place in places]
    if not every or max(every) >= count or len(set(every)) < len(every):
        last = f"up to {max(every)}" if every else "none"
        raise UserError(f"{said} lists {len(every)} images, {last}; it must list each of 0 to {count - 1} at most once")
    return found


def _places(text: str | None, said: str, number: int) -> range:
    match = _SPAN.fullmatch(text or "")
    if not match:
        raise UserError(f"{said}: row {number + 2} has the Image-batch '{text}'; it must look like 0--4")
    return range(int(match[1]), int(match[2]) + 1)
