"""From the paper's names to ours: methods, datasets, noise, and the schedules of its figures."""

from __future__ import annotations

from fednoil.study.paper.tables import Printed

# The paper's dataset -> the second part of a preset's name.
DATASET_NAMES: dict[str, str] = {"fashion-mnist": "fashion-mnist", "cifar-10": "cifar10", "cifar-100": "cifar100"}

# The paper's method -> the last part of a preset's name. Ablations and the rows of Table 4 use the Logarithm schedule;
# for its one run on clean labels the paper names no schedule.
METHOD_NAMES: dict[str, str] = {
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

# The schedules of the paper's figures, FedNoiL on CIFAR-10, IID, symmetric-high: (form, r_min); constant local epochs
# match the total of the schedule named.
FIGURE_SCHEDULES: dict[str, tuple[str, int, str]] = {
    f"{prefix}{form}({r_min})": (form.lower(), r_min, kind)
    for prefix, kind in (("", "decay"), ("Constant matching ", "constant"))
    for form in ("Cosine", "Logarithm")
    for r_min in (10, 20, 40, 80)
}


def noise_name(noise: str, mode: str) -> str:
    """The fourth part of a preset's name."""
    return "clean" if noise == "none" else f"{noise}-{mode}"


def preset_of(number: Printed) -> str:
    """The preset that runs what a printed number reports."""
    noise = noise_name(number.noise, number.mode)
    return f"paper/{DATASET_NAMES[number.dataset]}/{number.setting}/{noise}/{METHOD_NAMES[number.method]}"
