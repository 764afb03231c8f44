"""`fednoil data`: which datasets there are, and what is in one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednoil.cli.options import DataDir, Json
from fednoil.errors import UserError, counted

if TYPE_CHECKING:
    from fednoil.data import Dataset


def data(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Describe this one, named as in data.name: folder:PATH, …")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List the datasets, or describe one. The description has classes, sites, and all files that can't be read."""
    from dataclasses import asdict

    from fednoil.cli.tables import show
    from fednoil.data import catalogue

    if name is None:
        rows = [asdict(status) for status in catalogue(data_dir)]
        columns = {"name": "data.name", "found": "found", "where": "where", "how": "how to get it"}
        return show(rows, columns, "Datasets", as_json)
    dataset = _loaded(name, data_dir)
    found = describe(dataset)
    if as_json:
        return print(json.dumps(found, indent=2))
    if len(found["shape"]) == 1:
        columns = ", ".join(found["columns"][:12]) + (" …" if found["shape"][0] > 12 else "")
        print(f"{name}: rows of {counted(found['shape'][0], 'column')} ({columns}); {found['test']} test rows")
    else:
        channels, height, width = found["shape"]
        print(f"{name}: {width}×{height} pixels, {'grey' if channels == 1 else 'RGB'}; {found['test']} test images")
    for notice in found["notices"]:
        print(notice)
    show(found["classes"], {key: key for key in found["classes"][0]}, "Training samples", False)
    for item, why in found["skipped"]:
        print(f"{item} {why}")
    if found["skipped"]:
        print("a run stops at what can't be read, unless data.bad = 'skip'")
    if reason := _refused(name, dataset):
        print(f"by itself it can't be trained on: {reason}")


def _refused(name: str, dataset: Dataset) -> str:
    """Why a run on these data alone is refused, or ""."""
    from fednoil.data import check_classes

    try:
        check_classes(name, dataset.train.labels, dataset.class_names)
    except UserError as error:
        return str(error)
    return ""


def _loaded(name: str, data_dir: Path | None) -> Dataset:
    """The dataset; unreadable files are left out."""
    from fednoil.data import AXIS, load

    config = AXIS.config(name)
    keys = {"bad": "skip"} if "bad" in config.model_fields else {}
    return load(config.model_validate({"name": name, **keys}), data_dir, site=True)  # pyright: ignore[reportArgumentType]


def describe(dataset: Dataset) -> dict[str, Any]:
    """What is in a dataset: each class's images, by site where there are sites, what was done to images, and what was
    left out."""
    import numpy as np

    from fednoil.data.sites import doubtful

    owners, count = dataset.about.owners, dataset.num_classes
    what = "rows" if len(dataset.image_shape) == 1 else "images"
    sites = {what: slice(None)} if owners is None else dict(zip(owners.names, owners.parts(), strict=True))
    numbers = {site: np.bincount(dataset.train.labels[rows], minlength=count).tolist() for site, rows in sites.items()}
    classes = [
        {"class": name} | {site: own[k] for site, own in numbers.items()} for k, name in enumerate(dataset.class_names)
    ]
    counts = np.bincount(dataset.train.labels, minlength=count).tolist()
    return {
        "shape": list(dataset.image_shape),
        **({"columns": list(dataset.about.columns)} if dataset.about.columns else {}),
        "test": len(dataset.test),
        "classes": classes,
        "notices": [*dataset.about.notices, *doubtful(dataset.class_names, owners.names if owners else (), counts)],
        "skipped": [list(pair) for pair in dataset.about.skipped],
    }
