"""Should a few sites set labels aside? Step 22: `python experiments/default/aside.py [--seeds 0..2] [--sites 4]`.

The digits, icons and manual pages of `experiments/sites`, dealt to two or four sites with 0 to 50 % wrong labels. A
quarter of each site's samples is held out with labels that are wrong as often: agreement with them after the last round
is the measure. Precision and recall are those of the audit's flags. Each run is added to `results.csv`; runs that are
there are not repeated.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import table
import torch
from table import FIELDS, KEY
from torch import Tensor

import fednoil
from fednoil.learners.base import Client
from fednoil.learners.clean_share import calibrated_shares, clean_shares
from fednoil.learners.fednoil_plus import FedNoilPlus
from fednoil.records.environment import commit
from fednoil.tensors import Tensors

HERE = Path(__file__).parent
LEVELS = {4: (0.0, 0.2, 0.4, 0.5), 2: (0.2, 0.5)}  # share of wrong labels at each site
SETS = {"digits": "scikit-learn's digits", "icons": "icons of different sizes", "manuals": "manual pages, hashed words"}
Shares = Callable[[FedNoilPlus, Sequence[Client], Sequence[Tensors]], list[float]]


def shares(*, plain: bool, both: bool) -> Shares:
    """The share of correct labels by those set aside, or the smaller one of that and the one by the others."""

    def found(learner: FedNoilPlus, clients: Sequence[Client], states: Sequence[Tensors]) -> list[float]:
        return [share(learner, client, state) for client, state in zip(clients, states, strict=True)]

    def share(learner: FedNoilPlus, client: Client, state: Tensors) -> float:
        aside = learner.set_aside(len(client), client.labels.device)
        rows = np.isin(np.arange(len(client)), aside.numpy())
        parts = [rows, ~rows] if both else [rows]
        if plain:
            return min(clean_shares([state["confidence"][part]], learner.task.num_classes)[0] for part in parts)
        return min(calibrated_shares([state["probabilities"][part]], [client.labels[part]])[0] for part in parts)

    return found


def nothing(learner: FedNoilPlus, count: int, device: torch.device) -> Tensor:
    """No labels are set aside."""
    return torch.arange(0, device=device)


VARIANTS: dict[str, Shares | None] = {
    "aside-none": None,
    "aside": shares(plain=False, both=False),
    "aside-both": shares(plain=False, both=True),
    "aside-plain": shares(plain=True, both=False),
    "aside-plain-both": shares(plain=True, both=True),
}


def study_of_sites() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sites_study", HERE.parent / "sites/study.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def play(name: str, count: int, seed: int, variant: str) -> dict[str, Any]:
    study, levels = study_of_sites(), LEVELS[count]
    samples = study.SOURCES[SETS[name]]()
    with mock.patch.multiple(study, SITES=study.SITES[:count], LEVELS=levels):
        sites = study.deal(samples, seed)
    classes, rng, truth = np.unique(samples.labels), np.random.default_rng(seed + 1000), samples.labels.copy()
    for (_, site), level in zip(sites.items(), levels, strict=True):  # held-out labels are wrong, too
        true = np.searchsorted(classes, samples.labels[site.test])
        shift = rng.integers(1, len(classes), len(true)) * (rng.random(len(true)) < level)
        samples.labels[site.test] = classes[(true + shift) % len(classes)]
    own = VARIANTS[variant]
    changed: dict[str, Any] = {"set_aside": nothing} if own is None else {"clean_shares": own}
    with tempfile.TemporaryDirectory() as place, mock.patch.multiple(FedNoilPlus, **changed):
        data = {site: study.write(samples, part, Path(place) / site) for site, part in sites.items()}
        run = fednoil.run("demo", data=data, seed=seed, set={"run.device": "cpu", **samples.keys}, progress=False)
        flags = run.audit(folds=0).table
    wrong = {site: part.given != truth[part.train] for site, part in sites.items()}
    columns = zip(*(flags[key] for key in ("client", "sample", "flagged")), strict=True)
    hits = [wrong[site][sites[site].row(str(item), samples.kind)] for site, item, flagged in columns if flagged]
    found = {
        **dict(zip(KEY, (name, f"sites{count}", "mixed", variant, str(seed)), strict=True)),
        "rounds": len(run.history),
        "planned": len(run.history),
        "val_accuracy": f"{run.accuracy:.2f}",
        "label_precision": f"{100 * float(np.mean(hits)) if hits else 0.0:.2f}",
        "label_recall": f"{100 * float(np.sum(hits)) / sum(int(w.sum()) for w in wrong.values()):.2f}",
        "device": "cpu",
        "commit": table.short(commit() or ""),
    }
    return {field: str(found.get(field, "")) for field in FIELDS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0..2")
    parser.add_argument("--sites", type=int, nargs="*", default=[4, 2])
    given = parser.parse_args()
    first, last = map(int, given.seeds.split(".."))
    for count in given.sites:
        for seed in range(first, last + 1):
            for name in SETS:
                for variant in VARIANTS:
                    key = (name, f"sites{count}", "mixed", variant, str(seed))
                    if key not in {tuple(row[field] for field in KEY) for row in table.read()}:
                        row = play(name, count, seed, variant)
                        print({field: row[field] for field in (*KEY, *table.LATE[:3])}, flush=True)
                        table.write([*table.read(), row])


if __name__ == "__main__":
    main()
