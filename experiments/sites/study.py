"""Run, audit, relabel, run again on data that nobody here made: `python experiments/sites/study.py`.

Four sites hold digits, icons, a table of patients or manual pages, with labels flipped at three of them. The default
method, fednoil-plus, is trained and audits the labels; every flagged label is replaced by the suggested one in a copy
of the site's data, without a person's look, except where a site would lose its last label of a class; FedAvg and
fednoil-plus are trained before and after. cleanlab gets out-of-fold probabilities of a network that is trained on all
sites' data together. Each data set and seed is a row of results.csv; rows that are there are not repeated. `--table`
only writes the page's table.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import re
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import fednoil
from fednoil import __version__
from fednoil.audit.decisions import DECISION_COLUMNS
from fednoil.audit.relabel import relabel
from fednoil.pages.marked import fill
from fednoil.records.environment import commit

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results.csv", HERE / "README.md"
LEVELS = (0.0, 0.2, 0.4, 0.5)  # share of wrong labels at each site
SITES = ("nord", "ost", "süd", "west")
TESTED = 0.25
VERSION = " ".join(filter(None, (__version__, commit())))
ICONS, MANUALS = Path("/usr/share/icons/Adwaita"), Path("/usr/share/man")

Row = dict[str, Any]


@dataclass(frozen=True)
class Samples:
    """Arrays or pictures, their true classes by name, and which belong together and must not be split."""

    values: list[Any]
    labels: np.ndarray
    groups: np.ndarray
    kind: str  # of files: folder, table or features
    keys: dict[str, Any] = field(default_factory=dict)


def digits() -> Samples:
    from sklearn.datasets import load_digits

    found = load_digits()
    pictures = [Image.fromarray((image * 15).astype(np.uint8)) for image in found.images]
    labels = found.target.astype(str)
    return Samples(pictures, labels, np.arange(len(labels)), "folder", {"train.pad": 1, "train.flip": False})


def icons() -> Samples:
    """Icons of 16 to 96 pixels of Debian's adwaita-icon-theme, by the first word of their names."""
    words = ("network", "battery", "view", "media", "face", "audio", "folder", "mail", "format", "weather")
    paths = sorted(path for path in ICONS.rglob("*.png") if path.stem.split("-")[0] in words)
    keys = {"data.size": 32, "train.pad": 2, "train.flip": False}
    labels = np.array([path.stem.split("-")[0] for path in paths])
    return Samples(
        [Image.open(path) for path in paths], labels, np.array([path.stem for path in paths]), "folder", keys
    )


def patients() -> Samples:
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    labels = found.target_names[found.target]
    return Samples(list(found.data), labels, np.arange(len(labels)), "table", {"model.name": "mlp"})


def manuals() -> Samples:
    """Manual pages by section, without the line that names it, as counts of hashed words."""
    from sklearn.feature_extraction.text import HashingVectorizer

    texts, labels = [], []
    for section in ("1", "2", "3", "5", "7", "8"):
        paths = sorted(p for p in (MANUALS / f"man{section}").glob("*.gz") if not p.is_symlink())
        paths = paths[:: max(1, len(paths) // 300)][:300]
        for path in paths:
            with gzip.open(path, "rt", errors="replace") as file:
                lines = [line for line in file if not re.match(r'\.(TH|Dt|IX|\\")', line)]
            texts.append("".join(lines)[:20_000])
            labels.append(f"section {section}")
    hashed = HashingVectorizer(n_features=1024, alternate_sign=False).transform(texts).toarray()
    return Samples(list(hashed), np.array(labels), np.arange(len(labels)), "features", {"model.name": "mlp"})


SOURCES: dict[str, Callable[[], Samples]] = {
    "scikit-learn's digits": digits,
    "breast cancer, a table": patients,
    "icons of different sizes": icons,
    "manual pages, hashed words": manuals,
}


@dataclass(frozen=True)
class Site:
    """One site's training and test samples, and the given labels of those that it trains on."""

    train: np.ndarray
    test: np.ndarray
    given: np.ndarray

    def row(self, item: str, kind: str) -> int:
        """The place among its training samples of the one that is called so in its files."""
        return int(Path(item).stem) if kind == "folder" else int(item)


def deal(samples: Samples, seed: int) -> dict[str, Site]:
    """Groups dealt to sites, a quarter for testing; labels flipped to any other class, as often as the site errs."""
    rng = np.random.default_rng(seed)
    groups, classes = np.unique(samples.groups), np.unique(samples.labels)
    place = dict(zip(rng.permutation(groups).tolist(), range(len(groups)), strict=True))
    order = np.array([place[group] for group in samples.groups.tolist()])
    found = {}
    for k, (name, level) in enumerate(zip(SITES, LEVELS, strict=True)):
        own = np.flatnonzero(order % len(SITES) == k)
        tested = (order[own] // len(SITES)) % round(1 / TESTED) == 0
        true = np.searchsorted(classes, samples.labels[own[~tested]])
        shift = rng.integers(1, len(classes), len(true)) * (rng.random(len(true)) < level)
        found[name] = Site(own[~tested], own[tested], classes[(true + shift) % len(classes)])
    return found


def write(samples: Samples, site: Site, path: Path) -> str:
    """The site's files, as `data.name` has them."""
    parts = [("train", row, label) for row, label in zip(site.train, site.given, strict=True)]
    parts += [("test", row, samples.labels[row]) for row in site.test]
    if samples.kind == "folder":
        for number, (split, row, label) in enumerate(parts):
            file = path / split / label / f"{number:05d}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            samples.values[row].save(file)
        return f"folder:{path}"
    if samples.kind == "table":
        with (file := path.with_suffix(".csv")).open("w", newline="") as out:
            names = [f"x{k}" for k in range(len(samples.values[0]))]
            csv.writer(out).writerow([*names, "label", "split"])
            csv.writer(out).writerows([*samples.values[row], label, split] for split, row, label in parts)
        return f"table:{file}"
    arrays = {f"x_{s}": np.stack([samples.values[r] for t, r, _ in parts if t == s]) for s in ("train", "test")}
    arrays |= {f"y_{s}": np.array([label for t, _, label in parts if t == s]) for s in ("train", "test")}
    np.savez(path.with_suffix(".npz"), **arrays)
    return f"features:{path.with_suffix('.npz')}"


def trained(method: str, data: dict[str, str], keys: dict[str, Any], seed: int) -> fednoil.Run:
    epochs = {"schedule.epochs": 5 if method == "demo/fedavg" else 10}
    changes = {**epochs, "train.rounds": 10, "run.device": "cpu", **keys}
    return fednoil.run(method, data=data, seed=seed, set=changes, progress=False)


def centrally(samples: Samples, sites: dict[str, Site]) -> np.ndarray:
    """What cleanlab flags, given a network's out-of-fold probabilities on all sites' samples, site after site."""
    from cleanlab.filter import find_label_issues
    from sklearn.model_selection import cross_val_predict
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def flat(value: Any) -> np.ndarray:
        if not isinstance(value, Image.Image):
            return np.asarray(value)
        side = (32, 32) if "data.size" in samples.keys else value.size
        colours = "RGB" if "data.size" in samples.keys else "L"
        opaque = value.convert("RGBA")
        opaque = Image.alpha_composite(Image.new("RGBA", value.size, "white"), opaque)
        return np.asarray(opaque.convert(colours).resize(side), np.float32).ravel()

    rows, given = (np.concatenate([getattr(s, name) for s in sites.values()]) for name in ("train", "given"))
    classes, labels = np.unique(given, return_inverse=True)
    inputs = np.stack([flat(samples.values[row]) for row in rows])
    network = make_pipeline(StandardScaler(), MLPClassifier((128,), early_stopping=True, max_iter=60, random_state=0))
    chances = cross_val_predict(network, inputs, labels, cv=5, method="predict_proba")
    assert chances.shape[1] == len(classes)
    return find_label_issues(labels, chances)


def quality(flagged: np.ndarray, wrong: np.ndarray) -> tuple[float, float]:
    """Precision and recall of flags, in percent."""
    hits = 100.0 * float((flagged & wrong).sum())
    return hits / max(int(flagged.sum()), 1), hits / int(wrong.sum())


def measure(name: str, seed: int) -> Row:
    """The whole way, on one data set."""
    samples = SOURCES[name]()
    sites = deal(samples, seed)
    wrong = {site: own.given != samples.labels[own.train] for site, own in sites.items()}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        data = {site: write(samples, own, folder / site) for site, own in sites.items()}
        before = {m: trained(m, data, samples.keys, seed) for m in ("demo/fedavg", "demo")}
        table = before["demo"].audit(folds=0).table
        flagged = {site: np.zeros(len(own.train), bool) for site, own in sites.items()}
        columns = ("client", "sample", "given", "suggested", "flagged")
        labels = zip(*(table[name] for name in ("client", "given", "flagged")), strict=True)
        unflagged = {(client, given) for client, given, flag in labels if not flag}
        decided = set()
        with (folder / "decisions.csv").open("w", newline="", encoding="utf-8") as file:
            lines = csv.writer(file)
            lines.writerow(DECISION_COLUMNS)
            for client, item, given, suggested, flag in zip(*(table[c] for c in columns), strict=True):
                if flag:
                    row = sites[client].row(str(item), samples.kind)
                    flagged[client][row] = True
                    if (client, given) in unflagged:
                        lines.writerow([client, item, row, given, "accept", suggested])
                        decided.add(client)
        after = {}
        for site, source in data.items():
            if site not in decided:
                after[site] = source
                continue
            kind, _, path = source.partition(":")
            copy = folder / f"{site}-relabelled{Path(path).suffix}"
            relabel(source, folder / "decisions.csv", copy, site=site)
            after[site] = f"{kind}:{copy}"
        again = {m: trained(m, after, samples.keys, seed) for m in before}
    every, found = np.concatenate(list(wrong.values())), np.concatenate(list(flagged.values()))
    ours, theirs = quality(found, every), quality(centrally(samples, sites), every)
    numbers = {
        "wrong": 100 * float(every.mean()),
        **dict(zip(("precision", "recall"), ours, strict=True)),
        **dict(zip(("cleanlab_precision", "cleanlab_recall"), theirs, strict=True)),
        "fedavg": before["demo/fedavg"].accuracy,
        "fedavg_after": again["demo/fedavg"].accuracy,
        "fednoil": before["demo"].accuracy,
        "fednoil_after": again["demo"].accuracy,
    }
    rounded = {key: f"{value:.2f}" for key, value in numbers.items()}
    return {"data": name, "seed": seed, "samples": len(every), **rounded, "version": VERSION}


def read() -> list[Row]:
    if not RESULTS.is_file():
        return []
    with RESULTS.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def keep(rows: list[Row]) -> None:
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def table(rows: list[Row]) -> str:
    """A line for each data set: means over seeds."""
    lines = [
        "| data | training samples | seeds | wrong, % | audit: precision, recall | cleanlab: precision, recall | "
        "FedAvg before → after | fednoil-plus before → after |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in SOURCES:
        own = [row for row in rows if row["data"] == name]
        if not own:
            continue
        known = [key for key in own[0] if key not in ("data", "seed", "version")]
        mean = {key: f"{statistics.fmean(float(row[key]) for row in own):.1f}" for key in known}
        flags = [f"{mean[f'{who}precision']}, {mean[f'{who}recall']}" for who in ("", "cleanlab_")]
        gains = [f"{mean[m]} → {mean[f'{m}_after']}" for m in ("fedavg", "fednoil")]
        cells = [name, str(own[0]["samples"]), str(len(own)), mean["wrong"], *flags, *gains]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def page(rows: list[Row]) -> str:
    """The page with the table of these rows."""
    return fill(PAGE.read_text(encoding="utf-8"), {"results": table(rows)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--data", nargs="+", choices=list(SOURCES), default=list(SOURCES))
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    rows = read()
    for seed in [] if options.table else options.seeds:
        for name in options.data:
            if not any(row["data"] == name and int(row["seed"]) == seed for row in rows):
                rows.append(measure(name, seed))
                print(rows[-1], flush=True)
                keep(rows)
    PAGE.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
