"""The features that a frozen, pretrained network gives for images: computed once, so that training takes seconds.

They are written as a parquet file for `data.name = "features:FILE"`, at each site for its own images.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from fednoil import models
from fednoil.data import AXIS, Dataset, load
from fednoil.errors import UserError
from fednoil.experiment import resident
from fednoil.files import naming, write_bytes
from fednoil.learners.base import chunks
from fednoil.models.backbone import WORD, Backbone, BackboneConfig, own_size
from fednoil.models.base import fitting
from fednoil.models.network import Network
from fednoil.seeds import Seed
from fednoil.tensors import read_tensors

Progress = Callable[[int, int], None]


def write_features(
    data: str,
    model: str,
    weights: Path,
    out: Path,
    *,
    size: int | None = None,
    skip: bool = False,
    data_dir: Path | None = None,
    device: torch.device | None = None,
    progress: Progress | None = None,
) -> tuple[int, int]:
    """Write the features of all images of `data` by the network `model`; returns the numbers of rows and columns.

    With `skip`, pictures that can't be read are left out. Test images that were held out of the training images become
    rows like the others: a run holds out its own.
    """
    if not model.startswith(f"{WORD}:"):
        raise UserError(f"--model {model} must be {WORD}:NAME, a network of the timm library")
    if out.exists():
        raise UserError(f"--out {out} already exists; choose another, nothing is overwritten")
    if not out.parent.is_dir():
        raise UserError(f"--out {out} is in {out.parent}, which is not a folder; create it first")
    config = AXIS.config(data)
    wanted: dict[str, object] = {}
    if "size" in config.model_fields:
        wanted = {"size": size or own_size(model.partition(":")[2])}
    if size is not None and not wanted:
        raise UserError(f"--size is for pictures; the images of {data} have their size")
    wanted |= {"bad": "skip"} if skip and "bad" in config.model_fields else {}
    dataset = load(config.model_validate({"name": data, **wanted}), data_dir, site=True)  # pyright: ignore[reportArgumentType]
    place = device or torch.device("cpu")
    network, backbone = _network(model, weights, dataset, place)
    parts = [split.images for split in (dataset.train, dataset.test)]
    total, done = sum(map(len, parts)), 0
    found = []
    for images in parts:
        like = torch.empty(0, *images.shape[1:], device=place)
        for span in chunks(len(images), like):
            found.append(_features(network, backbone, resident(np.ascontiguousarray(images[span]), place)).cpu())
            done += len(found[-1])
            if progress:
                progress(done, total)
    values = torch.cat(found).float().numpy()
    buffer = pa.BufferOutputStream()
    pq.write_table(_table(dataset, values), buffer)
    with naming(out):
        write_bytes(out, memoryview(buffer.getvalue()))
    return values.shape


def _network(model: str, weights: Path, dataset: Dataset, device: torch.device) -> tuple[Network, Backbone]:
    """The network with the file's weights, in eval mode, and what it is made of."""
    classes = max(2, dataset.num_classes)
    module = models.build(BackboneConfig(name=model), dataset.image_shape, classes, Seed(0))
    assert isinstance(module, Backbone)
    given = module.fitted(read_tensors(weights))
    module.load_state_dict(fitting(module.state_dict(), given, f"--weights {weights}", module.optional))
    mean, std = module.normalisation
    network = Network(module, mean, std, device)
    network.eval()
    return network, module


@torch.no_grad()
def _features(network: Network, backbone: Backbone, images: Tensor) -> Tensor:
    return backbone.features(network.inputs(images))


def _table(dataset: Dataset, values: np.ndarray) -> pa.Table:
    about, count = dataset.about, len(dataset.train)
    labels = np.concatenate([dataset.train.labels, dataset.test.labels])
    tests = len(dataset.test) - about.held_out
    table = {
        "features": pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1]),
        "label": [dataset.class_names[label] for label in labels],
        "item": [*(about.items or map(str, range(count))), *[""] * len(dataset.test)],
    }
    if tests:
        table["split"] = [*["train"] * count, *["test"] * tests, *["train"] * about.held_out]
    if about.owners is not None and (about.tested is not None or not len(dataset.test)):
        own = np.concatenate([about.owners.numbers, about.tested.numbers if about.tested is not None else []])
        table["site"] = [about.owners.names[int(number)] for number in own]
    return pa.table(table)
