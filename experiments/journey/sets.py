"""The three sets of this study, with wrong labels at three sites, from packages that anybody can get.

digits: scikit-learn's, 8×8 pixels. stamps: drawings and photos of nine uneven classes and hundreds of sizes, Debian's
`tuxpaint-stamps-default`. emoji: the same signs drawn by three vendors, a site each, Debian's `ruby-gemojione`,
`ruby-tanuki-emoji` and `libjs-emojify`. Pictures stay as they are; `SITES` says how many labels of a site are wrong.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

SITES = {"nord": 0.05, "süd": 0.16, "west": 0.32}
STAMPS = ("animals", "clothes", "food", "household", "plants", "seasonal", "symbols", "town", "vehicles")
EMOJI = ("activity", "food", "nature", "objects", "people", "symbols", "travel")
EACH = 45  # emoji of a class and vendor
_GEMS = "rubygems-integration/all/gems"

Picture = tuple[str, str, bytes]  # its name, its true class, its file


def write(name: str, seed: int, share: Path, out: Path) -> dict[str, dict[str, str]]:
    """A folder for each site with pictures in folders by given label; returns their true classes by site and item.

    `share` is /usr/share, where Debian's packages put their pictures.
    """
    rng = np.random.default_rng([seed, len(name)])
    sites = dict(zip(SITES, _SOURCES[name](share, rng), strict=True))
    classes = sorted({true for pictures in sites.values() for _, true, _ in pictures})
    truth: dict[str, dict[str, str]] = {site: {} for site in sites}
    for site, pictures in sites.items():
        wrong = set(rng.permutation(len(pictures))[: round(SITES[site] * len(pictures))].tolist())
        for number, (file, true, content) in enumerate(pictures):
            others = [label for label in classes if label != true]
            label = others[int(rng.integers(len(others)))] if number in wrong else true
            path = out / site / label / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            truth[site][f"{label}/{file}"] = true
    return truth


def _digits(share: Path, rng: np.random.Generator) -> Iterator[list[Picture]]:
    from sklearn.datasets import load_digits

    digits = load_digits()

    def png(pixels: np.ndarray) -> bytes:
        file = io.BytesIO()
        Image.fromarray((pixels * 15).astype(np.uint8)).save(file, "PNG")
        return file.getvalue()

    pictures = [
        (f"{n:04d}.png", str(true), png(pixels))
        for n, (pixels, true) in enumerate(zip(digits.images, digits.target, strict=True))
    ]
    yield from _dealt(pictures, rng)


def _stamps(share: Path, rng: np.random.Generator) -> Iterator[list[Picture]]:
    """Without letters, of which there would be more than of everything else."""
    root, pictures = share / "tuxpaint/stamps", []
    for path in sorted(root.rglob("*.png")):
        place = path.relative_to(root)
        if place.parts[0] in STAMPS and "alphabets" not in place.parts and not path.stem.endswith("_mirror"):
            pictures.append(("-".join(place.parts[1:]), place.parts[0], path.read_bytes()))
    yield from _dealt(pictures, rng)


def _emoji(share: Path, rng: np.random.Generator) -> Iterator[list[Picture]]:
    index = json.loads((share / _GEMS / "gemojione-3.3.0/config/index.json").read_text(encoding="utf-8"))
    vendors = [
        lambda name, sign: share / "javascript/emojify.js/images/emoji" / f"{name}.png",
        lambda name, sign: share / _GEMS / "gemojione-3.3.0/assets/png" / f"{sign}.png",
        lambda name, sign: (
            share
            / _GEMS
            / "tanuki_emoji-0.6.0/app/assets/images/tanuki_emoji"
            / f"emoji_u{sign.lower().replace('-', '_')}.png"
        ),
    ]
    for place in vendors:
        pictures = []
        for label in EMOJI:
            files = {
                name: place(name, about["unicode"])
                for name, about in index.items()
                if about["category"] == label and "_tone" not in name
            }
            files = {name: path for name, path in files.items() if path.is_file()}
            drawn = sorted(rng.permutation(sorted(files))[:EACH].tolist())
            pictures += [(f"{name}.png", label, files[name].read_bytes()) for name in drawn]
        yield pictures


def _dealt(pictures: list[Picture], rng: np.random.Generator) -> list[list[Picture]]:
    """The pictures dealt to the sites at random."""
    order = rng.permutation(len(pictures))
    return [[pictures[n] for n in np.sort(order[k :: len(SITES)])] for k in range(len(SITES))]


_SOURCES = {"digits": _digits, "stamps": _stamps, "emoji": _emoji}
