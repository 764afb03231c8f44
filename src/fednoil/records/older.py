"""Configurations as earlier versions recorded them, in today's keys: to show a run, never to resume it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fednoil.config.axes import AXES, own_code, owners, section_model
from fednoil.config.loading import read_toml
from fednoil.errors import UserError

Values = dict[str, Any]  # section -> key -> value

# Keys that are gone, with the value that is today's behaviour, by section and choice.
_TWO_SETS: Values = {
    "temperature": 0.5,
    "views": 2,
    "teacher": "global",
    "epoch": "proportional",
    "redraw": "epoch",
    "mu": None,
    "ramp": 0,
    "pseudo_temperature": 1.0,
    "views_as": "mean",
    "soft": False,
    "warmup": 0,
    "estimate": "plain",
    "balance": True,
}
# Learners of the study; the second is `fednoil` with `local_sampling = "uniform"`.
_RECIPE, _UNIFORM_LOCAL = "fednoil.study.recipe:Recipe", "fednoil.study.ablation:UniformLocal"
_GONE: dict[tuple[str, str], Values] = {
    ("sampling", "score"): {"temperature": 0.5},
    ("sampling", "score_mean"): {"temperature": 0.5},
    ("server", ""): {"step": 1.0, "statistics": "average"},
    ("server", "apfl"): {"adaptive": True, "alpha": 0.5},
    ("server", "cfl"): {"linkage": "single", "gamma": None, "least": 3, "eps1": 0.4, "eps2": 1.6, "first_split": 20},
    ("server", "fedcorr"): {"relabel": 0.5, "confidence": 0.5},
    ("server", "krum"): {"f": None},
    ("server", "multikrum"): {"f": None, "keep": None},
    ("server", "rfa"): {"iterations": 4, "nu": 1e-5, "tolerance": 1e-6},
    ("schedule", ""): {"warmup_rounds": 0, "warmup_epochs": 1},
    # A schedule that is gone with all its keys; `_known_today` has what is shown instead.
    ("schedule", "agreement"): {"name": "constant", "t_min": None, "epochs": None, "t_max": None, "scale": 100.0},
    ("train", ""): {
        "lr_turn": "constant",
        "lr_turn_end": 0.0,
        "keep_momentum": False,
        "nesterov": False,
        "clip": None,
        "lr_rounds_end": 0.01,
        "decay": "all",
    },
    ("federation", ""): {"update_delta": 1e-5, "update_clip": None, "update_epsilon": None},
    ("partition", "dirichlet"): {"cap": False},
    ("noise", "symmetric"): {"exact": False, "true_class": False},
    ("noise", "pair"): {"exact": False},
    ("noise", "matrix"): {"exact": False},
    ("noise", "beta"): {"shape": 0.1},
    ("learner", _RECIPE): {"local_sampling": "confidence"},
    ("learner", "coteaching"): {"augment": "weak"},
    ("learner", "dividemix"): {"threshold": 0.5, "sharpen": 0.5, "entropy_penalty": False},
    ("learner", "josrc"): {"smoothing": None, "threshold": 0.75, "threshold_max": 0.95, "ema": 0.99, "alpha": 0.5},
    ("learner", "gce"): {"q": 0.7},
    ("learner", "sce"): {"alpha": 0.1, "beta": 1.0},
    ("learner", "elr"): {"beta": 0.7},
    ("learner", "fedelc"): {"alpha": 0.5, "beta": 0.2},
    ("learner", "jocor"): {"agreement": 0.1, "augment": "weak"},
    ("learner", "fednoil"): {
        **_TWO_SETS,
        "explore": 0.2,
        "aside": 0.0,
        "draw": "client",
        "ssl_start": 1,
        "ra_prob": 0.5,
        "ra_ops": 2,
    },
    ("learner", "fednoil-plus"): {
        **_TWO_SETS,
        "explore": 0.0,
        "aside": 0.0,
        "draw": "client",
        "ssl_start": 1,
        "xi": 0.95,
        "lambda_u": 0.0,
        "targets": "given",
        "posterior": False,
        "balanced": False,
        "align": False,
        "ssl": True,
        "local_sampling": "confidence",
        "ra_prob": 0.5,
        "ra_ops": 2,
    },
}
# Keys that have another name now, by section and choice.
_RENAMED: dict[tuple[str, str], dict[str, str]] = {
    ("noise", "pair"): {"pair_map": "map"},
    ("noise", "matrix"): {"matrix_map": "map"},
    ("noise", "two-level"): {"tau": "low"},
    ("noise", "manifest"): {"manifest": "file"},
    ("learner", "feddiv"): {"prior": "weight"},
    ("learner", "fednoil"): {"lambda_u": "weight"},
    ("learner", _RECIPE): {"lambda_u": "weight"},
    ("learner", "dividemix"): {"lambda_u": "weight"},
    ("partition", "shards"): {"shards": "classes"},
    ("partition", "bernoulli"): {"presence": "classes"},
    ("server", "trimmed_mean"): {"trim": "bad"},
    ("server", "fedcorr"): {"finetune": "warmup"},
    ("server", "fedgr"): {"sieve": "version"},
    ("schedule", "cosine"): {"t_max": "epochs"},
    ("schedule", "logarithm"): {"t_max": "epochs"},
}
_RANGES = ("two-level", "linear", "uniform", "fixed")  # levels between two ratios
# Keys whose meaning another key has today (`_one_key_for_two`, `_RATIOS`).
_MERGED: dict[tuple[str, str], dict[str, str]] = {
    ("learner", "erm"): {"augment": "train.pad, train.flip"},
    ("learner", "fednoil"): {"ssl": "learner.weight", "local_sampling": "learner.name"},
    ("learner", "coteaching"): {"forget": "learner.frac"},
    ("learner", "jocor"): {"forget": "learner.frac"},
    ("noise", ""): {"mode": "noise.ratios"},
    **{("noise", name): {"low": "noise.ratios", "high": "noise.ratios"} for name in _RANGES},
    ("run", ""): {"executor": "run.parallel"},
    ("data", ""): {"mean": "data.normalisation", "std": "data.normalisation", "fold": "data.validation"},
    ("partition", "annotator"): {"file": "partition.kind"},
    ("schedule", "constant"): {"extra_rounds": "schedule.r_min"},
    ("model", "resnet18"): {"norm": "model.name"},
    ("model", "resnet34"): {"norm": "model.name"},
    ("sampling", ""): {"epsilon": "privacy.scores"},
}
_OF_ANY = {
    "noise": ("exact", "pair_map"),
    "partition": ("cap",),
    "sampling": ("temperature",),
}  # once recorded beside every kind
_RATIOS = {  # what `noise.mode` meant
    ("symmetric", "high"): [0.5, 0.6, 0.7, 0.8],
    ("symmetric", "low"): [0.3, 0.4, 0.5, 0.6],
    ("pair", "high"): [0.3, 0.5, 0.6, 0.8],
    ("pair", "low"): [0.3, 0.4, 0.5, 0.6],
}
_SAMPLING = {  # once the server's
    "sampling": "name",
    "client_fraction": "fraction",
    "temperature": "temperature",  # which is gone
    "score_epsilon": "epsilon",  # which is `privacy.scores` today
}


def in_todays_keys(recorded: Values) -> Values:
    """The same configuration without keys that are gone; one with all of today's keys comes back as it is."""
    values = _known_today(_apart(recorded))
    for section, keys in _gone(values).items():
        for key in keys:
            values[section].pop(key, None)
    for section, keys in _in_force(values, _RENAMED).items():
        for old, new in keys.items():
            if old in values[section]:
                values[section][new] = values[section].pop(old)
    _one_key_for_two(values)
    noise = values.get("noise", {})
    mode = noise.pop("mode", "high")
    if (noise.get("kind"), mode) in _RATIOS and not noise.get("ratios"):
        noise["ratios"] = _RATIOS[noise["kind"], mode]
    for section in AXES.keys() & values.keys():
        _drop_keys_of_others(section, values[section])
    return values


def _known_today(values: Values) -> Values:
    """The same with the nearest choice in place of one that is gone."""
    schedule = values.get("schedule", {})
    if schedule.get("name") != "agreement":
        return values
    return {**values, "schedule": {"name": "constant", "epochs": schedule.get("t_min", 30)}}


def _one_key_for_two(values: Values) -> None:
    """Merge what two keys used to say into today's one."""
    learner, run = values.get("learner", {}), values.get("run", {})
    if learner.get("name") == "fednoil" and not learner.pop("ssl", True):
        learner["weight"] = 0.0
    if learner.get("name") == "fednoil" and learner.pop("local_sampling", "") == "uniform":
        complete = section_model("learner", learner).model_validate(learner).model_dump(mode="json")
        values["learner"] = {**complete, "name": _UNIFORM_LOCAL}
    if "forget" in learner:
        learner["frac"] = 1 - learner.pop("forget")
    if learner.get("name") == "erm" and learner.pop("augment", "weak") == "none":
        values["train"] = {**values.get("train", {}), "pad": 0, "flip": False}
    if run.pop("executor", "auto") == "sequential":
        run["parallel"] = 0
    _of_the_setting(values)
    schedule = values.get("schedule", {})
    if schedule.get("name", "constant") == "constant" and (extra := schedule.pop("extra_rounds", 0)):
        schedule |= {"epochs": schedule.get("epochs", 14) + 1, "r_min": extra + 1}
    sampling = values.get("sampling", {})
    if (epsilon := sampling.pop("epsilon", None)) is not None and sampling.get("name") != "uniform":
        values["privacy"] = {**values.get("privacy", {}), "scores": epsilon}


def _of_the_setting(values: Values) -> None:
    data, partition, noise, model = (values.get(name, {}) for name in ("data", "partition", "noise", "model"))
    scale = [data.pop(key, None) for key in ("mean", "std")]
    if None not in scale:
        data["normalisation"] = scale
    if fold := data.pop("fold", None):
        data["validation"] = f"{share}+{fold}" if (share := data.get("validation")) else fold
    if partition.get("kind") == "annotator" and (file := partition.pop("file", "")):
        partition["kind"] = f"annotator:{file}"
    if noise.get("levels") in _RANGES and not {"low", "high"}.isdisjoint(noise):
        ends = section_model("noise", {"levels": noise["levels"]}).model_fields["ratios"].default
        noise["ratios"] = [noise.pop("low", ends[0]), noise.pop("high", ends[1])]
    if model.get("name") in ("resnet18", "resnet34") and model.pop("norm", "batch") == "group":
        model["name"] += "-gn"


def lost_settings(recorded: Values) -> Values:
    """The keys that are gone and changed something in this run: a report shows them, but no run can have them again."""
    values = _apart(recorded)
    found = {
        section: {key: values[section][key] for key, rest in keys.items() if values[section].get(key, rest) != rest}
        for section, keys in _gone(values).items()
    }
    partition = recorded.get("partition", {})
    if partition.get("kind") == "dirichlet" and "cap" not in partition and _has_sampling_of_server(recorded):
        found["partition"] = {"cap": True}  # the cap came before its key
    scale = {key: value for key in ("mean", "std") if (value := recorded.get("data", {}).get(key)) is not None}
    if len(scale) == 1:  # together they are `data.normalisation`
        found["data"] = scale
    return {section: keys for section, keys in found.items() if keys}


def read_current(path: Path) -> Values:
    """The configuration in a run's file, to resume the run; one of an earlier version is refused."""
    values = read_toml(path)
    if is_older(values):
        raise UserError(
            f"{path.parent} is a run of an earlier version: `fednoil report` and `fednoil compare` show it, but this "
            "version reads its settings differently and can't resume it; start over with --force or another --out"
        )
    return values


def is_older(recorded: Values) -> bool:
    """Whether an earlier version has recorded this configuration."""
    found = (_in_force(recorded, table) for table in (_GONE, _RENAMED, _MERGED))
    old = any(not set(keys).isdisjoint(recorded[section]) for part in found for section, keys in part.items())
    return old or _has_sampling_of_server(recorded)


def _has_sampling_of_server(recorded: Values) -> bool:
    return not _SAMPLING.keys().isdisjoint(recorded.get("server", {}))


def _gone(recorded: Values) -> dict[str, Values]:
    """The keys of each section that are gone, and the value that is today's behaviour."""
    return _in_force(recorded, _GONE)


def _in_force(recorded: Values, table: Mapping[tuple[str, str], Mapping[str, Any]]) -> dict[str, Values]:
    """The rows of a table for a configuration's choices, by section."""
    found: dict[str, Values] = {}
    for (section, name), keys in table.items():
        names = {"", *(recorded.get(section, {}).get(key) for key in ("name", "kind", "levels"))}
        if section in recorded and name in names:
            found[section] = {**found.get(section, {}), **keys}
    return found


def _drop_keys_of_others(section: str, keys: Values) -> None:
    """Leave out keys that only another choice has today, and those that had no meaning with this one."""
    if own_code({section: keys}):  # the user's own class, which is not imported to show a run
        return
    known, once = section_model(section, keys).model_fields, _OF_ANY.get(section, ())
    for key in [key for key in keys if key not in known and (key in once or owners(section, key))]:
        del keys[key]


def _apart(recorded: Values) -> Values:
    """A copy in which the keys that say which clients train are not in the server's section but in `sampling`."""
    values = {section: dict(keys) for section, keys in recorded.items()}
    server = values.get("server", {})
    found = {new: server.pop(old) for old, new in _SAMPLING.items() if old in server}
    if not found or "sampling" in values:
        return values
    if server.get("name") == "centralized":  # which chooses none
        found.pop("fraction", None)
    return {**values, "sampling": found}
