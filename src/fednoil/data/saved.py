"""Image datasets as Hugging Face's `datasets` saves them (`save_to_disk`): Arrow files in a folder, or one a split.

The files are mapped into memory, and nothing else of that library is needed: `state.json` lists them, and their schema
names the classes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fednoil.data.base import PathSource, PictureSource
from fednoil.data.copy import Copy
from fednoil.data.decoded import Files, name_classes
from fednoil.data.raw import Listing, Raw
from fednoil.data.shards import labels_of_shards, listing_of, paths_in, raw_of, site_column, wanted_columns
from fednoil.errors import UserError
from fednoil.files import naming

_TESTS = ("test", "validation")
_STATE, _SPLITS = "state.json", "dataset_dict.json"


class SavedCopy(Copy):
    """A folder of `save_to_disk`: the label column of the training files changes, everything else stays as it is."""

    def __init__(self, root: Path) -> None:
        self._root, self.places = root, (root,)
        splits = splits_of(root)
        self.alone = bool(_test_of(splits))
        self.shards, names = labels_of_shards({path: read_table(path) for path in splits["train"]})
        self.labels = np.concatenate([shard.labels for shard in self.shards]).astype(np.int64)
        self.classes = name_classes(f"hf:{root}", self.labels, names)
        self.named = names is not None

    def write(self, out: Path, labels: np.ndarray) -> None:
        with naming(out):
            shutil.copytree(self._root, out)
        start = 0
        for shard in self.shards:
            own, target = labels[start : start + len(shard.labels)], out / shard.path.relative_to(self._root)
            table = shard.relabelled(_mapped(shard.path), own)
            with naming(target):
                target.unlink()
                with pa.OSFile(str(target), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
                    writer.write_table(table)
            start += len(shard.labels)


class Saved(PictureSource, PathSource):
    how = "a folder that `save_to_disk` of Hugging Face's datasets wrote, with images and labels"
    description = "your own dataset as Hugging Face's datasets saves it"
    rewrites = SavedCopy

    def find(self, path: Path) -> Files:
        splits = splits_of(path)
        files = (*splits["train"], *_test_of(splits))
        pictures = [own for file in files for own in paths_in(file, read_table(file).column(0))]
        return Files(path, (*files, *pictures), self.decode)

    def listing(self) -> Listing:
        splits = splits_of(self.path)
        train, test = ({file: read_table(file) for file in files} for files in (splits["train"], _test_of(splits)))
        listing = listing_of(f"hf:{self.path}", train, test)
        if unused := sorted(set(splits) - {"train", _tested(splits)}):
            listing.train.notices.append(f"the split '{unused[0]}' is not used")
        return listing

    def labelled(self) -> Raw:
        return raw_of(f"hf:{self.path}", {file: read_table(file) for file in splits_of(self.path)["train"]})

    def clients(self) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for file in splits_of(self.path)["train"]:
            table = _mapped(file)
            if column := site_column(table.column_names):
                found |= dict.fromkeys(str(site) for site in table[column].to_pylist())
        return tuple(found)


def splits_of(root: Path) -> dict[str, tuple[Path, ...]]:
    """The Arrow files of each split; a dataset that was saved without splits is for training."""
    if (root / _STATE).is_file():
        return {"train": _files(root)}
    if not (root / _SPLITS).is_file():
        raise UserError(f"hf:{root} has neither {_STATE} nor {_SPLITS}; give the folder that save_to_disk wrote")
    names = _json(root / _SPLITS).get("splits")
    if not isinstance(names, list) or "train" not in names:
        raise UserError(f"{root / _SPLITS} lists no split 'train'; save the dataset with one")
    return {str(name): _files(root / Path(str(name)).name) for name in names}


def _tested(splits: dict[str, Any]) -> str | None:
    return next((name for name in _TESTS if name in splits), None)


def _test_of(splits: dict[str, tuple[Path, ...]]) -> Sequence[Path]:
    """The test set, or the validation set in its place."""
    return splits.get(_tested(splits) or "", ())


def _files(folder: Path) -> tuple[Path, ...]:
    state = _json(folder / _STATE)
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise UserError(f"{folder} keeps a choice of rows apart; save it again after dataset.flatten_indices()")
    try:
        names = [Path(str(own["filename"])).name for own in state["_data_files"]]
    except (KeyError, TypeError):
        names = []
    if not names:
        raise UserError(f"{folder / _STATE} names no Arrow file; save the dataset again with save_to_disk")
    if missing := next((name for name in names if not (folder / name).is_file()), None):
        raise UserError(f"{folder} has no file {missing}, which its {_STATE} names; get the folder again")
    return tuple(folder / name for name in names)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} can't be read ({error}); save the dataset again with save_to_disk") from None
    return found if isinstance(found, dict) else {}


def read_table(path: Path) -> pa.Table:
    """The image column, the label column and, if there is one, the column of sites, in this order."""
    table = _mapped(path)
    return table.select(wanted_columns(path, table.schema))


def _mapped(path: Path) -> pa.Table:
    """A file's table, whose values stay in the file until they are looked at."""
    try:
        file = pa.memory_map(str(path))
        try:
            return pa.ipc.open_stream(file).read_all()
        except pa.ArrowInvalid:
            return pa.ipc.open_file(file).read_all()
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} can't be read as an Arrow file ({error}); get the file again") from None
