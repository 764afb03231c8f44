"""Configurations that earlier versions recorded: shown in today's keys, never resumed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import fednoil
from made_runs import made_run, results_of

from fednoil.config import load_config
from fednoil.errors import UserError
from fednoil.history import RoundRecord
from fednoil.records.older import in_todays_keys, lost_settings, read_current
from fednoil.study import preset, preset_names


@pytest.mark.parametrize(
    ("old", "now"),
    [
        (
            {"noise": {"kind": "pair", "ratios": [0.3], "pair_map": "shared"}},
            {"noise": {"kind": "pair", "ratios": [0.3], "map": "shared"}},
        ),
        ({"noise": {"kind": "matrix", "matrix_map": "per_group"}}, {"noise": {"kind": "matrix", "map": "per_group"}}),
        (
            {"noise": {"kind": "symmetric", "levels": "two-level", "tau": 0.2}},
            {"noise": {"kind": "symmetric", "levels": "two-level", "ratios": [0.2, 1.0]}},
        ),
        (
            {"noise": {"kind": "symmetric", "levels": "uniform", "low": 0.3, "high": 0.5}},
            {"noise": {"kind": "symmetric", "levels": "uniform", "ratios": [0.3, 0.5]}},
        ),
        (
            {"data": {"mean": [0.5], "std": [0.25], "validation": 0.1, "fold": "2/5"}},
            {"data": {"normalisation": [[0.5], [0.25]], "validation": "0.1+2/5"}},
        ),
        ({"data": {"validation": 0.0, "fold": "2/5"}}, {"data": {"validation": "2/5"}}),
        (
            {"partition": {"kind": "annotator", "file": "who.csv", "clients": 9}},
            {"partition": {"kind": "annotator:who.csv", "clients": 9}},
        ),
        ({"partition": {"kind": "bernoulli", "presence": 0.3}}, {"partition": {"kind": "bernoulli", "classes": 0.3}}),
        ({"model": {"name": "resnet34", "norm": "group"}}, {"model": {"name": "resnet34-gn"}}),
        ({"model": {"name": "resnet18", "norm": "batch"}}, {"model": {"name": "resnet18"}}),
        ({"server": {"name": "fedcorr", "finetune": 57}}, {"server": {"name": "fedcorr", "warmup": 57}}),
        ({"server": {"name": "fedgr", "sieve": "pooled"}}, {"server": {"name": "fedgr", "version": "pooled"}}),
        ({"learner": {"name": "dividemix", "lambda_u": 5.0}}, {"learner": {"name": "dividemix", "weight": 5.0}}),
        (
            {"learner": {"name": "fednoil.study.recipe:Recipe", "lambda_u": 1.0, "local_sampling": "confidence"}},
            {"learner": {"name": "fednoil.study.recipe:Recipe", "weight": 1.0}},
        ),
        ({"learner": {"name": "jocor", "forget": 0.25}}, {"learner": {"name": "jocor", "frac": 0.75}}),
        (
            {"schedule": {"name": "cosine", "t_max": 30, "t_min": 8}},
            {"schedule": {"name": "cosine", "epochs": 30, "t_min": 8}},
        ),
        (
            {"schedule": {"name": "constant", "epochs": 14, "extra_rounds": 18}},
            {"schedule": {"name": "constant", "epochs": 15, "r_min": 19}},
        ),
        (
            {"schedule": {"name": "constant", "epochs": 5, "extra_rounds": 0}},
            {"schedule": {"name": "constant", "epochs": 5}},
        ),
        ({"partition": {"kind": "shards", "shards": 5}}, {"partition": {"kind": "shards", "classes": 5}}),
        ({"server": {"name": "trimmed_mean", "trim": 0.1}}, {"server": {"name": "trimmed_mean", "bad": 0.1}}),
        (
            {"learner": {"name": "fednoil", "ssl": False, "lambda_u": 1.0}},
            {"learner": {"name": "fednoil", "weight": 0.0}},
        ),
        (
            {"learner": {"name": "fednoil", "ssl": True, "lambda_u": 1.0}},
            {"learner": {"name": "fednoil", "weight": 1.0}},
        ),
        (
            {"learner": {"name": "erm", "augment": "none"}, "train": {"pad": 4}},
            {"learner": {"name": "erm"}, "train": {"pad": 0, "flip": False}},
        ),
        ({"learner": {"name": "erm", "augment": "weak"}}, {"learner": {"name": "erm"}}),
        ({"noise": {"kind": "manifest", "manifest": "a"}}, {"noise": {"kind": "manifest", "file": "a"}}),
        ({"learner": {"name": "feddiv", "prior": 0.0}}, {"learner": {"name": "feddiv", "weight": 0.0}}),
        ({"run": {"executor": "sequential", "parallel": 32}}, {"run": {"parallel": 0}}),
        ({"run": {"executor": "auto", "parallel": 32}}, {"run": {"parallel": 32}}),
        ({"noise": {"kind": "none", "exact": True, "pair_map": "shared"}}, {"noise": {"kind": "none"}}),
    ],
)
def test_keys_with_another_name(old: dict[str, Any], now: dict[str, Any]) -> None:
    assert in_todays_keys(old) == now
    assert load_config(now)
    assert lost_settings(old) == {}


@pytest.mark.parametrize(
    ("section", "name", "at_rest", "lost"),
    [
        ("server", "apfl", {"adaptive": True}, {"adaptive": False}),
        ("server", "apfl", {"alpha": 0.5}, {"alpha": 0.3}),
        ("sampling", "score_mean", {"temperature": 0.5}, {"temperature": 0.7}),
        ("learner", "fednoil-plus", {"temperature": 0.5, "views": 2}, {"views": 3}),
        ("server", "krum", {}, {"f": 2}),
        ("server", "multikrum", {}, {"keep": 2}),
        ("server", "rfa", {"iterations": 4, "nu": 1e-5, "tolerance": 1e-6}, {"iterations": 8}),
        ("server", "cfl", {"least": 3, "eps2": 1.6, "first_split": 20}, {"eps1": 0.2}),
        ("learner", "josrc", {"threshold": 0.75, "threshold_max": 0.95, "ema": 0.99}, {"smoothing": 0.6}),
        ("learner", "dividemix", {"threshold": 0.5, "sharpen": 0.5, "entropy_penalty": False}, {"threshold": 0.6}),
        ("learner", "josrc", {"alpha": 0.5}, {"alpha": 0.1}),
        ("learner", "sce", {"alpha": 0.1}, {"beta": 0.1}),
        ("server", "fedcorr", {"relabel": 0.5}, {"confidence": 0.9}),
        ("learner", "jocor", {"agreement": 0.1}, {"agreement": 0.9}),
        ("learner", "fednoil", {"ra_prob": 0.5, "ra_ops": 2}, {"ra_ops": 3}),
        ("noise", "symmetric", {"exact": False, "true_class": False}, {"true_class": True}),
        ("noise", "pair", {"exact": False}, {"exact": True}),
        ("partition", "dirichlet", {"cap": False}, {"cap": True}),
        ("noise", "beta", {"shape": 0.1}, {"shape": 0.5}),
    ],
)
def test_what_no_run_can_have_again(section: str, name: str, at_rest: dict[str, Any], lost: dict[str, Any]) -> None:
    """A key that is gone is left out; a report still shows it where it did something."""
    named = {"kind" if section in ("noise", "partition") else "name": name}
    if section == "noise":
        named = {"kind": "pair", "levels": "beta"} if name == "beta" else {**named, "ratios": [0.3]}
    assert in_todays_keys({section: {**named, **at_rest, **lost}}) == {section: named}
    assert lost_settings({section: {**named, **at_rest}}) == {}
    assert lost_settings({section: {**named, **at_rest, **lost}}) == {section: lost}


@pytest.mark.parametrize(("sampling", "lost"), [("score", {"sampling": {"temperature": 0.7}}), ("uniform", {})])
def test_a_temperature_that_was_the_servers(sampling: str, lost: dict[str, Any]) -> None:
    old = {"server": {"name": "fedavg", "sampling": sampling, "client_fraction": 0.3, "temperature": 0.7}}
    assert in_todays_keys(old) == {"server": {"name": "fedavg"}, "sampling": {"name": sampling, "fraction": 0.3}}
    assert lost_settings(old) == lost


def test_uniform_local_sampling_is_a_learner_of_the_study() -> None:
    """With all of its keys, since a report imports nobody's own learner to complete them."""
    old = {"learner": {"name": "fednoil", "local_sampling": "uniform", "lambda_u": 1.0, "frac": 0.35}}
    found = in_todays_keys(old)["learner"]
    assert found == load_config({"learner": found}).learner.model_dump(mode="json")
    assert (found["name"], found["frac"]) == ("fednoil.study.ablation:UniformLocal", 0.35)
    assert lost_settings(old) == {}


def test_half_a_normalisation_is_shown_and_not_kept() -> None:
    old = {"data": {"mean": [0.5]}}
    assert (in_todays_keys(old), lost_settings(old)) == ({"data": {}}, {"data": {"mean": [0.5]}})


def test_before_there_was_a_key_for_it_dirichlet_splits_had_a_cap() -> None:
    old = {"partition": {"kind": "dirichlet"}, "server": {"name": "fedavg", "client_fraction": 0.3}}
    assert lost_settings(old) == {"partition": {"cap": True}}
    assert lost_settings({**old, "server": {"name": "fedavg"}}) == {}


@pytest.mark.parametrize("keys", [{"epochs": 60, "t_min": 2}, {"t_max": 60, "t_min": 2, "scale": 50.0}])
def test_a_schedule_that_is_gone_is_shown_as_the_constant_one(keys: dict[str, Any]) -> None:
    old = {"schedule": {"name": "agreement", **keys}}
    assert in_todays_keys(old) == {"schedule": {"name": "constant", "epochs": 2}}
    assert lost_settings(old) == old
    assert lost_settings({"schedule": {**old["schedule"], "scale": 100.0}})["schedule"].get("scale") is None


def test_reports_show_a_run_with_a_schedule_that_is_gone(tmp_path: Path) -> None:
    """Its records have what the clients' updates had in common."""
    changes = {"schedule": {"name": "cosine", "epochs": 60, "t_min": 2}}
    run = made_run(tmp_path / "runs" / "a", "fedavg", changes=changes, common=0.25)
    config, (line, *_) = run / "config.toml", (run / "rounds.jsonl").read_text().splitlines()
    text = re.sub(r"\nr_min = .*", "", config.read_text().replace('name = "cosine"', 'name = "agreement"'))
    assert "r_min" not in text
    config.write_text(text)
    assert RoundRecord.from_json(json.loads(line)).extra == {"common": 0.25}
    (found,) = results_of(tmp_path / "runs").runs
    assert found.values["schedule"] == {"name": "agreement", "epochs": 60, "t_min": 2, "r_min": None}
    assert found.summary["final_accuracy"] == 73
    status, out, err = fednoil("compare", run, "--json")
    assert (status, err) == (0, "")
    assert json.loads(out)[0]["method"] == "fedavg"
    status, _, err = fednoil("report", tmp_path / "runs", "--html", tmp_path / "page.html")
    assert (status, err) == (0, "")
    assert "agreement" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("name", preset_names()[::25])
def test_todays_configurations_stay_as_they_are(name: str) -> None:
    values = load_config(preset(name)).model_dump(mode="json")
    assert in_todays_keys(values) == values
    assert lost_settings(values) == {}


@pytest.mark.parametrize(
    "text",
    [
        '[noise]\nkind = "pair"\npair_map = "shared"',
        '[server]\nname = "rfa"\nnu = 1e-5',
        '[learner]\nname = "fednoil"\nssl = true',
        '[run]\nexecutor = "auto"',
        '[learner]\nname = "erm"\naugment = "weak"',
        '[server]\nname = "fedavg"\nclient_fraction = 0.3',
        '[noise]\nkind = "symmetric"\nlevels = "fixed"\nlow = 0.2',
        '[schedule]\nname = "constant"\nextra_rounds = 0',
        '[schedule]\nname = "agreement"\nepochs = 100\nt_min = 30',
        '[data]\nfold = "2/5"',
    ],
)
def test_a_run_of_an_earlier_version_is_not_resumed(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(UserError, match=r"is a run of an earlier version: .*can't resume it; start over with --force"):
        read_current(tmp_path / "config.toml")
