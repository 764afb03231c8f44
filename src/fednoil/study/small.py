"""The paper's experiments made small: fewer clients, samples and rounds, on the embedded images, on a CPU.

Local updates stay long, because that is where wrong labels are learnt. With about 2,200 steps in total, 8 rounds of 80
to 35 epochs separate the ablations; 30 rounds of 20 to 4 epochs, or more clients with less work each, don't.
"""

from __future__ import annotations

from typing import Any

Values = dict[str, Any]

BASE = "fashion-mnist"  # the dataset with the presets that are made small
_CLIENTS = {"100-clients": 40}
_CLIENTS_OTHERWISE = 10  # two or three in each group of noise; three are trained a round
_SAMPLES = {"100-clients": 75}
_SAMPLES_OTHERWISE = 180
_ROUNDS = {150: 8, 300: 60, 200: 40}  # the last two are a centralized method's epochs
_EPOCHS = {1: 1, 20: 35, 30: 45, 100: 80}
_R_MIN = {10: 2, 20: 3, 40: 4, 80: 5}
_LEARNERS: dict[str, Values] = {  # keys that count rounds
    "dividemix": {"warmup": 2, "ramp": 2},
    "josrc": {"warmup": 2},
}


def shrink(values: Values, setting: str) -> Values:
    """The small form of a preset's sections."""
    small = {section: dict(keys) for section, keys in values.items()}
    small["data"] = {"name": "fashion-mnist-mini"}
    small["partition"]["clients"] = _CLIENTS.get(setting, _CLIENTS_OTHERWISE)
    small["partition"]["samples_per_client"] = _SAMPLES.get(setting, _SAMPLES_OTHERWISE)
    small["model"] = {"name": "cnn", "width": 8}
    small["train"]["rounds"] = _ROUNDS[values["train"]["rounds"]]
    small["schedule"] = shrink_schedule(values["schedule"])
    small.get("learner", {}).update(_LEARNERS.get(values.get("learner", {}).get("name", ""), {}))
    return small


def shrink_schedule(schedule: Values) -> Values:
    """The small form of a schedule's section."""
    return {k: v if k == "name" else (_R_MIN if k == "r_min" else _EPOCHS)[v] for k, v in schedule.items()}
