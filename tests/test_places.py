"""The place of a run; two methods never share a title, or one of them would vanish from a table."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import made_run, results_of

from fednoil.api.comparison import side_by_side
from fednoil.config import load_config, merge
from fednoil.report.places import Place, own_place
from fednoil.report.sheets import sheets
from fednoil.study import preset, preset_names
from fednoil.study.places import command_of, place_of, schedule_methods, values_of


def somewhere(values: dict) -> Place:
    return place_of(values) or own_place(values)


@pytest.mark.parametrize("data", ["folder:photos", "fashion-mnist"])
@pytest.mark.parametrize(
    ("section", "one", "other"),
    [
        ("server", {"name": "trimmed_mean", "bad": 0.1}, {"name": "trimmed_mean", "bad": 0.3}),
        ("learner", {"name": "fednoil", "frac": 0.35}, {"name": "fednoil", "frac": "auto"}),
        ("learner", {"name": "coteaching", "frac": 0.8}, {"name": "coteaching"}),
    ],
)
def test_methods_that_differ_in_a_key_have_titles_of_their_own(
    tmp_path: Path, data: str, section: str, one: dict[str, object], other: dict[str, object]
) -> None:
    for name, keys in (("one", one), ("other", other)):
        made_run(tmp_path / name, "fedavg", changes={"data": {"name": data}, section: keys})
    titles = [row.title for row in results_of(tmp_path).rows]
    assert len(set(titles)) == 2
    if ":" in data:  # what they share is no part of a name
        assert all(title.count("=") == 1 for title in titles)


def test_the_optimiser_belongs_to_the_method(tmp_path: Path) -> None:
    """On own data `demo` decays weights more than `demo/fedavg`: they share a setting all the same. Rounds don't."""
    own: dict[str, dict[str, object]] = {"data": {"name": "folder:photos"}, "train": {"weight_decay": 0.002}}
    made_run(tmp_path / "plus", "fedavg", [70.0] * 8, changes={**own, "learner": {"name": "fednoil-plus"}})
    for name, more in {"a": {}, "b": {"lr": 0.3}, "c": {"rounds": 9}}.items():
        train = {"weight_decay": 0.0001, **more}
        made_run(tmp_path / name, "fedavg", [60.0] * 8, changes={**own, "train": train})
    results = results_of(tmp_path)
    assert sorted(len(rows) for rows in results.settings()) == [1, 3]
    (alike,) = (rows for rows in results.settings() if len(rows) == 3)
    assert {len(row.runs) for row in alike} == {1}
    assert len({row.title for row in alike}) == 3
    assert any("train.lr=0.3" in row.title for row in alike)
    assert sum("train.weight_decay=0.002" in row.title for row in alike) == 1
    assert not any("rounds" in row.title for row in results.rows)


def test_the_optimiser_belongs_to_a_method_of_the_study(tmp_path: Path) -> None:
    """Another rate doesn't take FedProx into a table of its own; beside the paper's number there is no difference."""
    made_run(tmp_path / "a", "fedavg")
    made_run(tmp_path / "b", "fedprox", changes={"train": {"lr": 0.01, "momentum": 0.9}})
    (sheet,) = sheets(results_of(tmp_path))
    assert sheet.methods == ["Vanilla FedAvg", "Vanilla FedProx, train.lr=0.01, train.momentum=0.9"]
    assert [entry is not None and entry.difference is None for (entry,) in sheet.entries] == [False, True]


def test_methods_that_differ_in_many_keys_are_called_by_their_folders(tmp_path: Path) -> None:
    own = {"data": {"name": "folder:photos"}}
    keys = {"name": "fednoil", "frac": 0.2, "xi": 0.9}
    for seed in range(2):
        changes = {**own, "learner": {"name": "fednoil"}, "sampling": {"fraction": 0.3}}
        made_run(tmp_path / f"plain/seed-{seed}", "fedavg", seed=seed, changes=changes)
        changes = {**own, "learner": keys, "sampling": {"fraction": 0.5}}
        made_run(tmp_path / f"careful-seed{seed}", "fedavg", seed=seed, changes=changes)
    rows = results_of(tmp_path).rows
    assert sorted(row.title for row in rows) == ["fedavg+fednoil, careful", "fedavg+fednoil, plain"]
    assert {len(row.runs) for row in rows} == {2}


def test_a_manifests_run_is_called_by_its_clients(tmp_path: Path) -> None:
    """Partition and noise of the configuration say nothing of it."""
    run = made_run(
        tmp_path / "a",
        "fedavg",
        changes={"data": {"name": "folder:photos"}, "noise": {"kind": "manifest", "file": "data/sites.parquet"}},
        clients=True,
    )
    (row,) = results_of(run).rows
    assert row.place.title.startswith("folder:photos clients of sites.parquet (3 clients, 150 rounds, #")
    (compared,) = side_by_side(run).rows
    assert compared["setting"] == "folder:photos clients of sites.parquet"


def test_a_mix_of_classes_is_a_non_iid_setting_with_a_change() -> None:
    """`--set partition.kind=mixture` on a cell of the paper is shown beside it, and its command makes it again."""
    name = "paper/fashion-mnist/non-iid/pair-low/fednoil-cosine"
    values = merge(preset(name), {"partition": {"kind": "mixture"}})
    full = load_config(values).model_dump(mode="json")
    found = somewhere(full)
    assert "/".join((found.family, found.dataset, found.setting, found.noise, found.method)) == name
    changes = ["--set", "partition.kind=mixture", "--set", "partition.beta=0.5"]  # its own default
    assert command_of(full) == ["run", name, *changes, "--seed", "0"]


def test_methods_that_differ_in_epochs_or_in_a_users_own_keys_keep_their_rows(tmp_path: Path) -> None:
    """Neither the schedule of a method outside the paper's nor keys of a user's own code are part of its title."""
    small = ("small", "", "iid", "symmetric-high")
    for epochs in (10, 20):
        changes = {"server": {"name": "median"}, "schedule": {"epochs": epochs}}
        made_run(tmp_path / f"median{epochs}", "fedavg", [epochs] * 8, where=small, changes=changes)
        config = made_run(tmp_path / f"own{epochs}", "fedavg", [epochs + 1] * 8, where=small) / "config.toml"
        own = f'name = "my_learner:Mine"\nstrength = {epochs}'
        config.write_text(config.read_text().replace('name = "erm"', own))
    (sheet,) = sheets(results_of(tmp_path))
    shown = {method: entry.ours.mean for method, (entry,) in zip(sheet.methods, sheet.entries, strict=True) if entry}
    assert shown == {
        "median, schedule.epochs=10": 10.0,
        "median, schedule.epochs=20": 20.0,
        "fedavg+my_learner:Mine, learner.strength=10": 11.0,
        "fedavg+my_learner:Mine, learner.strength=20": 21.0,
    }


def place(name: str, changes: dict | None = None) -> Place:
    return somewhere(load_config(merge(preset(name), changes or {})).model_dump(mode="json"))


@pytest.mark.parametrize("name", [n for n in preset_names() if n.split("/")[0] in ("paper", "small")][::11])
def test_a_preset_is_its_own_place(name: str) -> None:
    found = place(name)
    family = ("paper", found.dataset) if found.family == "paper" else ("small",)
    assert "/".join((*family, found.setting, found.noise, found.method)) == name
    assert (found.setting_changes, found.method_changes) == ((), ())


def test_what_a_run_changes_is_reported_as_set_takes_it() -> None:
    found = place("paper/cifar10/non-iid/pair-low/krum+dividemix", {"train": {"rounds": 30}, "server": {"bad": 0}})
    assert found.setting_changes == ("train.rounds=30",)
    assert found.method_changes == ("server.bad=0.0",)
    assert found.title == "cifar10 non-iid pair-low, train.rounds=30"
    assert found.method_title == "Krum+DMix, server.bad=0.0"


def test_schedules_of_the_figures_are_methods() -> None:
    for method in schedule_methods():
        values = values_of("paper", "cifar10", "iid", "symmetric-high", method)
        assert somewhere(load_config(values).model_dump(mode="json")).method == method
    # with fewer rounds a constant schedule matches the total over those
    values = values_of("paper", "cifar10", "iid", "symmetric-high", "fednoil-constant-as-cosine(40)", 50)
    values = merge(values, {"train": {"rounds": 50}})
    assert somewhere(load_config(values).model_dump(mode="json")).method == "fednoil-constant-as-cosine(40)"


def test_own_data_and_own_methods_have_a_place_in_words() -> None:
    demo = place("demo")
    assert (demo.family, demo.dataset, demo.method) == ("", "fashion-mnist-mini", "fedavg+fednoil-plus (network)")
    own = place("demo", {"data": {"name": "npz:mine of 2024.npz"}})
    assert own.dataset == "npz:mine of 2024.npz"
    assert place("paper/cifar10/iid/clean/fedavg", {"server": {"name": "median"}}).method == "median"
    assert command_of(load_config(preset("demo")).model_dump(mode="json")) is None


def test_a_run_of_an_earlier_version_has_the_place_of_its_preset(tmp_path: Path) -> None:
    """Its noise ratios were given as `noise.mode`."""
    config = made_run(tmp_path / "a", where=("paper", "cifar10", "iid", "pair-low")) / "config.toml"
    text = config.read_text()
    assert "ratios = [0.3, 0.4, 0.5, 0.6]\n" in text
    old = text.replace('mode = "high"\n', "").replace("ratios = [0.3, 0.4, 0.5, 0.6]\n", 'mode = "low"\n')
    config.write_text(old)
    (run,) = results_of(tmp_path).runs
    assert run.place.title == "cifar10 iid pair-low"
    assert run.values["noise"]["ratios"] == [0.3, 0.4, 0.5, 0.6]


def origin_place(name: str, changes: dict, origin: dict | None) -> Place | None:
    return place_of(load_config(merge(preset(name), changes)).model_dump(mode="json"), origin)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("paper/cifar10/iid/pair-low/krum+josrc", {}),
        ("small/non-iid/pair-high/fednoil-cosine", {"train": {"rounds": 3}, "learner": {"xi": 0.8}}),
        ("paper/fashion-mnist/iid/symmetric-high/fedavg", {"server": {"name": "median"}}),
        ("paper/cifar10/iid/symmetric-high/fednoil-logarithm", {"schedule": {"name": "cosine", "r_min": 40}}),
    ],
)
def test_a_recorded_preset_gives_the_place_that_the_configuration_gives(name: str, changes: dict) -> None:
    found = origin_place(name, changes, {"preset": name, "set": []})
    assert found is not None
    assert found == origin_place(name, changes, None)


def test_a_recorded_preset_decides_where_configurations_are_alike() -> None:
    """The user's own ratios are not the paper's noise, and the preset still says what they were changed from."""
    name, changes = "paper/cifar10/iid/symmetric-high/fedavg", {"noise": {"ratios": [0.2]}}
    assert origin_place(name, changes, None) is None
    found = origin_place(name, changes, {"preset": name})
    assert found is not None
    assert (found.noise, found.setting_changes) == ("symmetric-high", ("noise.ratios=[0.2]",))
    own = {"data": {"name": "npz:mine.npz"}}
    assert origin_place(name, own, {"preset": name}) is None
    assert origin_place("demo", {}, {"preset": "demo"}) is None
