"""Configurations as earlier versions recorded them, in today's keys: to be shown, never to go on with a run."""

from __future__ import annotations

from typing import Any

from fednoil.config.axes import AXES, own_code, owners, section_model

Values = dict[str, Any]  # section -> key -> value

# Keys that are gone, with the value at which they did nothing that is not done today. A key that had another value
# stays, so that a report shows it.
_GONE: dict[str, Values] = {"schedule": {"warmup_rounds": 0, "warmup_epochs": 1}}
_RATIOS = {  # what `noise.mode` meant
    ("symmetric", "high"): [0.5, 0.6, 0.7, 0.8],
    ("symmetric", "low"): [0.3, 0.4, 0.5, 0.6],
    ("pair", "high"): [0.3, 0.5, 0.6, 0.8],
    ("pair", "low"): [0.3, 0.4, 0.5, 0.6],
}
_SAMPLING = {  # of the server once
    "sampling": "name",
    "client_fraction": "fraction",
    "temperature": "temperature",
    "score_epsilon": "epsilon",
}


def in_todays_keys(recorded: Values) -> Values:
    """The same configuration without keys that are gone; what has all of today's keys comes back as it is."""
    values = {section: dict(keys) for section, keys in recorded.items()}
    for section, keys in _GONE.items():
        for key, rest in keys.items():
            if values.get(section, {}).get(key, rest) == rest:
                values.get(section, {}).pop(key, None)
    _apart(values)
    noise = values.get("noise", {})
    mode = noise.pop("mode", "high")
    if (noise.get("kind"), mode) in _RATIOS and not noise.get("ratios"):
        noise["ratios"] = _RATIOS[noise["kind"], mode]
    for section in AXES.keys() & values.keys():
        _drop_keys_of_others(section, values[section])
    return values


def _drop_keys_of_others(section: str, keys: Values) -> None:
    """Leave out what today only another choice has, and what had no meaning beside this one."""
    if own_code({section: keys}):  # the user's own class, which is not imported to show a run
        return
    known = section_model(section, keys).model_fields
    for key in [key for key in keys if key not in known and owners(section, key)]:
        del keys[key]


def _apart(values: Values) -> None:
    """Give the keys that say whom to train, which were the server's, a section of their own."""
    server = values.get("server", {})
    found = {new: server.pop(old) for old, new in _SAMPLING.items() if old in server}
    if not found or "sampling" in values:
        return
    if server.get("name") == "centralized":  # which chooses none
        found.pop("fraction", None)
    values["sampling"] = found
