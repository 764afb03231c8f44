"""From the paper's names to ours: methods, datasets, noise, and the schedules of its figures."""

from __future__ import annotations

from typing import Any

from fednoil.paper.tables import Cell
from fednoil.schedules import make

# The paper's dataset -> the second part of a preset's name.
DATASETS: dict[str, str] = {"fashion-mnist": "fashion-mnist", "cifar-10": "cifar10", "cifar-100": "cifar100"}

# The paper's method -> the last part of a preset's name. Ablations and the rows of Table 4 use the Logarithm schedule;
# for its one run on clean labels the paper names no schedule.
METHODS: dict[str, str] = {
    "DMix (centralized)": "centralized+dividemix",
    "JoSRC (centralized)": "centralized+josrc",
    "Vanilla FedAvg": "fedavg",
    "Vanilla FedProx": "fedprox",
    "FedAvg+DMix": "fedavg+dividemix",
    "FedAvg+JoSRC": "fedavg+josrc",
    "APFL+DMix": "apfl+dividemix",
    "APFL+JoSRC": "apfl+josrc",
    "Krum+DMix": "krum+dividemix",
    "Krum+JoSRC": "krum+josrc",
    "CFL+DMix": "cfl+dividemix",
    "CFL+JoSRC": "cfl+josrc",
    "FedNoiL(Cosine)": "fednoil-cosine",
    "FedNoiL(Logarithm)": "fednoil-logarithm",
    "FedNoiL(Original)": "fednoil-logarithm",
    "FedNoiL(Uniform Client Sampling)": "fednoil-uniform-clients",
    "FedNoiL(Uniform Local-Data Sampling)": "fednoil-uniform-local",
    "FedNoiL": "fednoil-logarithm",
    "FedNoiL†": "fednoil-no-ssl",
}

# The schedules of the paper's figures, FedNoiL on CIFAR-10, IID, symmetric-high: (form, r_min), and for constant local
# epochs whose total they match.
SCHEDULES: dict[str, tuple[str, int, str]] = {
    f"{prefix}{form}({r_min})": (form.lower(), r_min, kind)
    for prefix, kind in (("", "decay"), ("Constant matching ", "constant"))
    for form in ("Cosine", "Logarithm")
    for r_min in (10, 20, 40, 80)
}


def noise_name(noise: str, mode: str) -> str:
    """The fourth part of a preset's name."""
    return "clean" if noise == "none" else f"{noise}-{mode}"


def preset_of(cell: Cell) -> str:
    """The preset that runs what a cell reports."""
    return f"paper/{DATASETS[cell.dataset]}/{cell.setting}/{noise_name(cell.noise, cell.mode)}/{METHODS[cell.method]}"


def schedule_changes(name: str, rounds: int) -> dict[str, dict[str, Any]]:
    """Sections to lay over a FedNoiL preset for a schedule of the figures, such as `Cosine(40)`.

    `Constant matching Cosine(40)` has the same total of local epochs over `rounds`: where they don't divide, the first
    rounds have one more.
    """
    form, r_min, kind = SCHEDULES[name]
    decay = make({"name": form, "r_min": r_min})
    if kind == "decay":
        return {"schedule": decay.config.model_dump()}
    epochs, extra = divmod(decay.total(rounds), rounds)
    return {"schedule": {"name": "constant", "epochs": epochs, "extra_rounds": extra}}
