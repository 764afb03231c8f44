"""The settings that methods are ranked on: six kinds of noise, with equal and with uneven clients, at two scales.

Every client holds a tenth of its samples out, so that a round can be chosen by given labels, as one would without a
clean test set. All methods of a setting have the same budget (`fednoil.config.protocols`). `paper` has the FedNoiL
paper's clients, network and 150 rounds, but five local epochs, as most of the ranked methods were published with; with
its 30 their clients memorise wrong labels in one turn.
"""

from __future__ import annotations

from typing import Any

from fednoil.config.protocols import PROTOCOL_METHODS, Protocol, ProtocolFamily

Values = dict[str, Any]

BENCH_NOISES: dict[str, Values] = {
    "symmetric-low": {"kind": "symmetric", "ratios": [0.3, 0.4, 0.5, 0.6]},
    "symmetric-high": {"kind": "symmetric", "ratios": [0.5, 0.6, 0.7, 0.8]},
    "pair-high": {"kind": "pair", "ratios": [0.3, 0.5, 0.6, 0.8]},
    "two-level": {"kind": "symmetric-all", "levels": "two-level", "rho": 0.6, "ratios": [0.5, 1.0]},
    "instance": {"kind": "instance", "ratios": [0.3]},
    "clean": {"kind": "none"},
}
SPLITS: dict[str, Values] = {
    "iid": {"kind": "iid"},
    "non-iid": {"kind": "dirichlet", "beta": 0.5, "min_size": 32},
}
DEFAULT_METHODS = tuple(name for name in PROTOCOL_METHODS if name not in ("fedprox", "median", "dividemix"))
_HELD_OUT = 0.1
_SCALES: dict[str, tuple[Values, int, int, int]] = {  # sections, total number of clients trained, epochs, samples
    "small": (
        {
            "data": {"name": "fashion-mnist-mini", "validation": _HELD_OUT},
            "partition": {"clients": 10, "samples_per_client": 180},
            "model": {"name": "cnn", "width": 8},
            "train": {"pad": 2},
        },
        60,
        10,
        1800,
    ),
    "paper": (
        {
            "data": {"name": "fashion-mnist", "validation": _HELD_OUT},
            "partition": {"clients": 20, "samples_per_client": 600},
            "model": {"name": "cnn", "width": 32},
            "train": {"pad": 2},
        },
        900,
        5,
        12_000,
    ),
}
BENCH_SCALES = tuple(_SCALES)


def settings_of(scale: str) -> dict[str, Protocol]:
    """The settings of a scale, by name: `<split>/<noise>`."""
    sections, turns, epochs, samples = _SCALES[scale]
    found = {}
    for split, partition in SPLITS.items():
        for name, noise in BENCH_NOISES.items():
            own = {**sections, "partition": {**sections["partition"], **partition}, "noise": noise}
            found[f"{split}/{name}"] = Protocol(
                own, 0.3, turns, epochs, samples, "fednoil-plus", "the mean of the last ten rounds"
            )
    return found


# One run of the ranking at the scale `paper` by itself: `bench/<split>-<noise>/<method>`.
PRESETS = ProtocolFamily("bench", {name.replace("/", "-"): found for name, found in settings_of("paper").items()})
