"""The table of known datasets, where each is searched, and the prefixes for the user's own data."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fednoil.data import arrays, cifar, folder, idx, parquet
from fednoil.data.decoded import Files
from fednoil.data.given import ARRAYS
from fednoil.errors import UserError, nearest

MINI = "fashion-mnist-mini"
SITES = "sites"
DEBIAN_FASHION = Path("/usr/share/datasets/fashion-mnist")

Normalisation = tuple[tuple[float, ...], tuple[float, ...]]
FASHION_NORMALISATION: Normalisation = ((0.2860,), (0.3530,))


@dataclass(frozen=True)
class Known:
    """A dataset with a name: how it is found in a folder, how to get it, its usual mean and std."""

    find: Callable[[Path], Files | None]
    normalisation: Normalisation
    description: str
    how: str
    elsewhere: tuple[Path, ...] = ()


KNOWN: dict[str, Known] = {
    "fashion-mnist": Known(
        find=idx.find,
        normalisation=FASHION_NORMALISATION,
        description="Fashion-MNIST, 60,000 + 10,000 grey images 28×28, 10 classes",
        how="install Debian's dataset-fashion-mnist or put the four *-ubyte.gz files into the data folder",
        elsewhere=(DEBIAN_FASHION,),
    ),
    "cifar10": Known(
        find=lambda place: cifar.find(cifar.CIFAR10, place),
        normalisation=((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)),
        description="CIFAR-10, 50,000 + 10,000 colour images 32×32, 10 classes",
        how="put the official cifar-10-python.tar.gz (or train-*, test-*.parquet) into the data folder",
    ),
    "cifar100": Known(
        find=lambda place: cifar.find(cifar.CIFAR100, place),
        normalisation=((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
        description="CIFAR-100, 50,000 + 10,000 colour images 32×32, 100 classes",
        how="put the official cifar-100-python.tar.gz (or train-*, test-*.parquet) into the data folder",
    ),
}

OWN: dict[str, Callable[[Path], Files]] = {
    "folder": folder.find,
    "npz": arrays.find,
    "parquet": parquet.find,
}
OWN_FORMS: dict[str, str] = {
    "folder:PATH": "pictures in train/<class>/ and test/<class>/",
    "npz:FILE": "arrays x_train, y_train, x_test, y_test",
    "parquet:PATH": "train*.parquet and test*.parquet with images and labels",
}


def is_own(name: str) -> bool:
    """Whether `data.name` points at the user's own data (folder:, npz:, parquet:, that of a federation's sites, or
    given by a program)."""
    prefix, colon, _ = name.partition(":")
    return (bool(colon) and prefix in OWN) or name in (SITES, ARRAYS)


def places(name: str, data_dir: Path | None) -> list[Path]:
    """The folders in which a known dataset is searched, in order."""
    roots = [data_dir] if data_dir is not None else []
    if variable := os.environ.get("FEDNOIL_DATA"):
        roots.append(Path(variable))
    return [place for root in roots for place in (root, root / name)] + list(KNOWN[name].elsewhere)


def search(name: str, data_dir: Path | None) -> Files | None:
    """The first place that holds the dataset; one that holds part of it is reported, unless another is complete."""
    partial: UserError | None = None
    for place in places(name, data_dir):
        try:
            if found := KNOWN[name].find(place):
                return found
        except UserError as error:
            partial = partial or error
        except OSError as error:
            partial = partial or UserError(f"data.name = '{name}': {place} can't be read ({error.strerror})")
    if partial is not None:
        raise partial
    return None


def locate(name: str, data_dir: Path | None) -> Files:
    """The files behind any `data.name` but the embedded one."""
    if is_own(name):
        prefix, _, path = name.partition(":")
        if not path.strip():
            raise UserError(f"data.name = '{name}' has no path; write {prefix}:PATH")
        try:
            return OWN[prefix](Path(path).expanduser())
        except (OSError, RuntimeError) as error:  # no permission, too long a name, no such ~user
            raise UserError(f"data.name = '{name}' can't be read ({error})") from error
    if name not in KNOWN:
        known = [MINI, *KNOWN]
        raise UserError(
            f"data.name = '{name}' is unknown; choose {', '.join(known)} or your own {', '.join(OWN_FORMS)}"
            + nearest(name, [*known, *OWN_FORMS])
        )
    if data_dir is not None and not data_dir.is_dir():
        raise UserError(f"the data folder {data_dir} (--data-dir) does not exist")
    found = search(name, data_dir)
    if found is None:
        looked = ", ".join(str(place) for place in places(name, data_dir)) or "no folder was given"
        raise UserError(
            f"data.name = '{name}' was not found (looked in: {looked}); {KNOWN[name].how}"
            " (--data-dir or $FEDNOIL_DATA)",
        )
    return found
