"""Configuration: what `--set` and files may say, how they are merged, and what a run records of them."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fednoil.config import Config, load_config, merge, parse_set, read_toml, to_toml
from fednoil.errors import UserError
from fednoil.schedules import make
from fednoil.study import preset, preset_names


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("train.rounds=50", 50),
        ("train.lr=5e-2", 0.05),
        ("train.lr = 0.1 ", 0.1),
        ("federation.audit=true", True),
        ("noise.ratios=[0.1, 0.2]", [0.1, 0.2]),
        ("noise.kind=pair", "pair"),
        ('noise.kind="pair"', "pair"),
        ("data.name='npz:/a b.npz'", "npz:/a b.npz"),
        ("data.name=npz:/runs/a=b/c=d.npz", "npz:/runs/a=b/c=d.npz"),
        ("data.name=folder:C:\\new\\train", "folder:C:\\new\\train"),
        ("data.name=npz:/a#b.npz", "npz:/a#b.npz"),
        ("data.name=", ""),
        ("data.name=1\nvalue2 = 2", "1\nvalue2 = 2"),
        ("data.name=" + "[" * 5000, "[" * 5000),
    ],
)
def test_set_takes_toml_and_else_plain_text(text: str, value: object) -> None:
    (keys,) = parse_set([text]).values()
    (found,) = keys.values()
    assert found == value
    assert type(found) is type(value)


def test_the_last_set_of_a_key_wins_and_others_stay() -> None:
    parsed = parse_set(["train.rounds=1", "train.lr=0.5", "train.rounds=2", "run.seed=7"])
    assert parsed == {"train": {"rounds": 2, "lr": 0.5}, "run": {"seed": 7}}


@pytest.mark.parametrize("text", ["train.rounds", "rounds=5", "=5", ".rounds=5", "train.=5", "a.b.c=1", ""])
def test_set_that_names_no_key_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"write section\.key=value"):
        parse_set([text])


def test_another_method_drops_the_keys_of_the_old_one() -> None:
    base = {
        "server": {"name": "fedprox", "mu": 0.1, "average": 0.5},
        "sampling": {"name": "score", "fraction": 0.5},
        "schedule": {"name": "cosine", "epochs": 9, "t_min": 2, "r_min": 4},
        "train": {"rounds": 3},
    }
    before = copy.deepcopy(base)
    merged = merge(
        base, parse_set(["server.name=fedavg", "sampling.name=uniform", "schedule.name=constant", "schedule.epochs=5"])
    )
    assert base == before
    assert merged["server"] == {"name": "fedavg", "average": 0.5}
    assert merged["sampling"] == {"name": "uniform", "fraction": 0.5}
    assert merged["schedule"] == {"name": "constant", "epochs": 5}
    assert merged["train"] == {"rounds": 3}
    assert make(load_config(merged).schedule).epochs(1) == 5


@pytest.mark.parametrize("base", [{"name": "cosine", "epochs": 9}, {"name": "cosine"}])
def test_naming_the_same_method_again_drops_nothing(base: dict[str, Any]) -> None:
    assert merge({"schedule": base}, {"schedule": {"name": "cosine"}})["schedule"] == base


def test_naming_the_method_that_is_the_default_drops_nothing() -> None:
    merged = merge({"schedule": {"epochs": 5}}, {"schedule": {"name": "constant"}})
    assert make(load_config(merged).schedule).epochs(1) == 5


def test_another_model_drops_the_width_of_the_old_one() -> None:
    base = preset("demo/fedavg")
    assert base["model"]["width"]
    assert merge(base, parse_set(["model.name=own:make"]))["model"] == {"name": "own:make"}
    assert merge(base, parse_set(["model.name=cnn"]))["model"] == base["model"]


def test_own_data_drops_the_presets_noise_and_size() -> None:
    base = preset("paper/cifar10/iid/symmetric-high/fedavg")
    own = load_config(merge(base, parse_set(["data.name=npz:mine.npz"])))
    assert own.noise.kind == "unknown"
    assert own.model_dump()["noise"] == {"kind": "unknown"}
    assert own.partition.samples_per_client is None
    assert own.partition.clients == 20
    asked = ["data.name=npz:mine.npz", "noise.kind=pair", "partition.samples_per_client=7"]
    chosen = load_config(merge(base, parse_set(asked)))
    assert (chosen.noise.kind, chosen.partition.samples_per_client) == ("pair", 7)


@pytest.mark.parametrize(
    ("changes", "epochs"),
    [
        ({"data": {"sites": {"a": "npz:a", "b": "npz:b"}, "name": "sites"}}, (9, 2)),  # all train: 30 % of 30 and 8
        ({"data": {"name": "sites"}}, (9, 2)),  # of a federation
        ({"data": {"name": "npz:a"}}, (18, 5)),  # ten of twenty clients train: 0.3 / 0.5
        ({"data": {"name": "npz:a"}, "partition": {"clients": 100}}, (30, 8)),  # 30 %, as in the preset
        ({"data": {"name": "npz:a"}, "sampling": {"fraction": 0.1}}, (30, 8)),  # never more than in the preset
        ({"data": {"name": "npz:a"}, "schedule": {"epochs": 20}}, (20, 8)),  # as they were set
    ],
)
def test_a_client_trains_no_more_than_in_the_preset_where_more_of_them_do(
    changes: dict[str, Any], epochs: tuple[int, int]
) -> None:
    merged = merge(preset("demo/fednoil"), changes)["schedule"]
    assert (merged["epochs"], merged["t_min"]) == epochs
    assert merged["r_min"] == 10


def test_epochs_that_a_preset_leaves_out_fit_the_share_too() -> None:
    merged = merge({"sampling": {"fraction": 0.3}, "schedule": {"name": "network"}}, {"data": {"name": "sites"}})
    assert merged["schedule"] == {"name": "network", "epochs": "30 %"}
    known = merge({"sampling": {"fraction": 0.3}, "schedule": {"name": "network"}}, {"data": {"name": "cifar10"}})
    assert known["schedule"] == {"name": "network"}


def test_own_data_named_again_keeps_its_noise() -> None:
    base = {"data": {"name": "npz:a"}, "noise": {"kind": "symmetric"}}
    assert merge(base, {"data": {"name": "npz:a"}})["noise"] == {"kind": "symmetric"}


def test_known_data_keeps_the_presets_noise() -> None:
    base = preset("paper/cifar10/iid/symmetric-high/fedavg")
    assert merge(base, {"data": {"name": "cifar100"}})["noise"] == base["noise"]


def test_noise_auto_is_settled_by_the_data() -> None:
    assert load_config({"data": {"name": "cifar10"}}).noise.kind == "none"
    assert load_config({"data": {"name": "folder:x"}}).noise.kind == "unknown"


def test_loading_changes_nothing_it_was_given() -> None:
    values: dict[str, Any] = {"server": {}, "learner": {}, "schedule": {"epochs": 2}}
    load_config(values)
    assert values == {"server": {}, "learner": {}, "schedule": {"epochs": 2}}


def test_every_preset_loads_and_survives_its_own_record() -> None:
    assert len(preset_names()) == len(set(preset_names()))
    for name in preset_names():
        config = load_config(preset(name))
        assert load_config(tomllib.loads(to_toml(config))) == config, name


def test_presets_are_the_papers() -> None:
    config = load_config(preset("paper/fashion-mnist/non-iid/pair-low/fedprox"))
    assert (config.train.rounds, config.partition.clients, config.partition.samples_per_client) == (150, 20, 600)
    assert (config.partition.kind, config.noise.kind) == ("dirichlet", "pair")
    assert config.noise.ratios == (0.3, 0.4, 0.5, 0.6)
    assert (config.train.lr, config.train.momentum, config.train.weight_decay) == (0.05, 0.5, 1e-4)
    assert (config.train.batch_size, config.sampling.fraction) == (32, 0.3)
    assert make(config.schedule).epochs(150) == 30
    assert config.server.name == "fedprox"


@pytest.mark.parametrize("dataset", ["fashion-mnist", "cifar10", "cifar100"])
def test_no_preset_asks_for_more_samples_than_its_dataset_has(dataset: str) -> None:
    available = 60_000 if dataset == "fashion-mnist" else 50_000
    for name in preset_names():
        if name.startswith(f"paper/{dataset}/"):
            part = load_config(preset(name)).partition
            assert part.samples_per_client is not None
            assert part.clients * part.samples_per_client <= available, name


# What can stand in a path or a name: anything but what no UTF-8 file can hold.
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
fractions = st.floats(0, 1, exclude_min=True, exclude_max=True)


def decays(name: str) -> st.SearchStrategy[dict[str, Any]]:
    ends = st.tuples(st.integers(1, 1000), st.integers(1, 1000)).map(sorted)
    return st.builds(
        lambda t, r: {"name": name, "t_min": t[0], "epochs": t[1], "r_min": r}, ends, st.integers(2, 10**6)
    )


sizes: dict[str, st.SearchStrategy[Any]] = {
    "clients": st.integers(1, 10**9),
    "samples_per_client": st.none() | st.integers(1, 10**9),
}
configs = st.fixed_dictionaries(
    {
        "data": st.fixed_dictionaries(
            {"name": texts.map(lambda path: f"folder:{path}") | st.sampled_from(["cifar10", "sites"])},
            optional={
                "normalisation": st.tuples(
                    st.lists(st.floats(-10, 10), min_size=1, max_size=3),
                    st.lists(st.floats(0.01, 10), min_size=1, max_size=3),
                ),
                "validation": fractions | st.sampled_from(["1/2", "0.1+2/5"]),
            },
        ),
        "partition": st.fixed_dictionaries({}, optional=sizes)
        | st.fixed_dictionaries(
            {"kind": st.sampled_from(["dirichlet", "quantity", "mixture"])},
            optional={**sizes, "beta": st.floats(1e-300, 1e6)},
        ),
        "noise": st.fixed_dictionaries({"kind": st.sampled_from(["none", "unknown", "symmetric", "pair"])})
        | st.builds(
            lambda r, sharing: {"kind": "pair", "ratios": r, "map": sharing},
            st.lists(fractions, min_size=1, max_size=5),
            st.sampled_from(["per_client", "per_group", "shared"]),
        )
        | texts.map(lambda path: {"kind": "manifest", "file": path}),
        "model": st.fixed_dictionaries(
            {"name": st.sampled_from(["cnn", "resnet18"])}, optional={"width": st.integers(1, 999)}
        ),
        "server": st.fixed_dictionaries({"name": st.just("fedprox"), "mu": st.floats(0, 1e300)}),
        "sampling": st.fixed_dictionaries({"name": st.sampled_from(["score", "uniform"]), "fraction": fractions}),
        "schedule": decays("cosine") | decays("logarithm") | st.builds(lambda n: {"epochs": n}, st.integers(1, 99)),
        "train": st.fixed_dictionaries({}, optional={"lr": st.floats(5e-324, 1e300), "rounds": st.integers(1, 10**6)}),
        "run": st.fixed_dictionaries(
            {}, optional={"seed": st.integers(0, 2**70), "device": st.sampled_from(["auto", "cpu", "cuda"])}
        ),
    }
)


@given(configs)
@settings(deadline=None, max_examples=60)
def test_a_recorded_configuration_is_read_back_as_it_was(values: dict[str, Any]) -> None:
    config = load_config(values)
    again = load_config(tomllib.loads(to_toml(config)))
    assert again == config
    assert again.hash() == config.hash()


def test_text_that_toml_forbids_is_escaped_and_what_no_file_can_hold_is_refused() -> None:
    config = load_config({"data": {"name": 'npz:a\x7f\x00\n"\\b'}})
    assert tomllib.loads(to_toml(config))["data"]["name"] == 'npz:a\x7f\x00\n"\\b'
    with pytest.raises(UserError, match=r"data\.name = 'npz:a\\udcff' is not UTF-8 text"):
        to_toml(load_config({"data": {"name": "npz:a\udcff"}}))


def changed(config: Config, section: str, key: str, value: object) -> Config:
    values = config.model_dump(mode="json")
    assert values[section][key] != value
    values[section][key] = value
    return load_config(values)


@pytest.mark.parametrize(("key", "value"), [("device", "cuda"), ("checkpoint_every", 3)])
def test_the_hash_ignores_how_a_run_is_carried_out(config: Config, key: str, value: object) -> None:
    assert changed(config, "run", key, value).hash() == config.hash()


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("run", "seed", 1),
        ("data", "name", "npz:other"),
        ("data", "normalisation", [[0.5], [0.5]]),
        ("partition", "clients", 5),
        ("partition", "samples_per_client", 9),
        ("noise", "ratios", [0.2]),
        ("model", "width", 3),
        ("sampling", "fraction", 0.25),
        ("schedule", "epochs", 3),
        ("train", "rounds", 5),
        ("train", "lr", 0.05000000000000001),
        ("train", "momentum", 0.25),
    ],
)
def test_the_hash_follows_whatever_changes_results(config: Config, section: str, key: str, value: object) -> None:
    assert changed(config, section, key, value).hash() != config.hash()


@given(st.floats(1e-300, 1e300))
@settings(deadline=None, max_examples=30)
def test_no_digit_of_a_number_is_lost(lr: float) -> None:
    values = parse_set([f"train.lr={lr!r}"])
    assert load_config(tomllib.loads(to_toml(load_config(values)))).train.lr == lr


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"train = 5", "'train' stands outside a section"),
        (b"[train\n", "is not valid TOML"),
        (b"[train]\nlr = 1\nlr = 2\n", "is not valid TOML"),
        (b"\xff\xfe", "is not valid TOML"),
        (b"[train]\nlr = " + b"[" * 5000, "is not valid TOML"),
    ],
)
def test_a_bad_file_is_reported_with_its_name(tmp_path: Path, content: bytes, line: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[train]\nrounds = 2\n", encoding="utf-8-sig")
    assert read_toml(path) == {"train": {"rounds": 2}}
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_toml(path)
    assert str(path) in str(caught.value)
    assert line in str(caught.value)


@pytest.mark.parametrize("text", ["train.rounds=true", "train.lr=false", "learner.frac=true", "model.width=true"])
def test_a_truth_value_is_no_number(text: str) -> None:
    values = parse_set([text])
    values.setdefault("learner", {}).setdefault("name", "fednoil")
    with pytest.raises(UserError, match=r"true and false are not values"):
        load_config(values)
