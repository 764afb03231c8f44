"""The paper's tables as data, and a preset for each of their rows."""

from __future__ import annotations

import csv
from importlib import resources

import numpy as np
import pytest
import torch
from conftest import assert_same

from fednoil.config import Config, load_config
from fednoil.errors import UserError
from fednoil.experiment import make_experiment
from fednoil.schedules import make
from fednoil.study import paper, preset, preset_names
from fednoil.study.paper import Printed, preset_of, printed
from fednoil.study.places import schedule_methods, values_of

RATIOS = {  # of the four groups of clients, by the paper's text
    ("symmetric", "high"): (0.5, 0.6, 0.7, 0.8),
    ("symmetric", "low"): (0.3, 0.4, 0.5, 0.6),
    ("pair", "high"): (0.3, 0.5, 0.6, 0.8),
    ("pair", "low"): (0.3, 0.4, 0.5, 0.6),
}


def find(**keys: str) -> Printed:
    (cell,) = [c for c in printed() if all(getattr(c, key) == value for key, value in keys.items())]
    return cell


def test_every_cell_of_the_file_is_read_as_it_stands() -> None:
    raw = resources.files(paper).joinpath("tables.csv").read_bytes().decode("utf-8")
    head, *rows = csv.reader(raw.splitlines())
    written = [(row[:5], noise, text) for row in rows for noise, text in zip(head[5:], row[5:], strict=True) if text]
    assert len(written) == len(printed()) == 522
    for (keys, noise, text), cell in zip(written, printed(), strict=True):
        assert keys == [cell.table, cell.dataset, cell.setting, cell.method, cell.metric]
        assert noise == ("none" if cell.noise == "none" else f"{cell.noise}-{cell.mode}")
        assert text == f"{cell.mean}{'' if cell.std is None else f'±{cell.std}'}{'' if cell.converged else '*'}"


def test_cells_against_the_printed_tables() -> None:
    keys = {"table": "1", "dataset": "fashion-mnist", "setting": "iid", "noise": "symmetric", "mode": "high"}
    assert str(find(**keys, method="FedNoiL(Logarithm)")) == "82.46 ± 0.54"
    assert str(find(**keys, method="Vanilla FedAvg")) == "58.30*"
    assert str(find(table="text", method="FedNoiL")) == "86.12"


def test_tables_1_and_2_are_whole() -> None:
    """Table 1: 14 methods × 3 datasets × IID or not × 4 noises; Table 2: 11 methods × 2 settings × 4 noises."""
    for table, methods, settings, count in (("1", 14, 6, 336), ("2", 11, 2, 88)):
        inside = [c for c in printed() if c.table == table]
        assert len({c.method for c in inside}) == methods
        assert len({(c.dataset, c.setting) for c in inside}) == settings
        assert len({preset_of(c) for c in inside}) == len(inside) == count


@pytest.fixture(scope="module")
def configs() -> dict[str, Config]:
    return {name: load_config(preset(name)) for name in sorted({preset_of(cell) for cell in printed()})}


def test_every_row_of_every_table_has_a_preset_that_loads(configs: dict[str, Config]) -> None:
    assert {cell.method for cell in printed()} == set(paper.METHOD_NAMES)
    assert {cell.dataset for cell in printed()} == set(paper.DATASET_NAMES)
    assert set(configs) <= set(preset_names())


def test_presets_say_what_the_paper_says(configs: dict[str, Config]) -> None:
    """Clients, rounds, noise and method of each cell, by the paper's text."""
    for cell in printed():
        config = configs[preset_of(cell)]
        assert config.partition.clients == (100 if cell.setting == "100-clients" else 20)
        assert config.noise.kind == cell.noise
        assert cell.noise == "none" or config.noise.ratios == RATIOS[cell.noise, cell.mode]
        federated = "centralized" not in cell.method
        assert (config.server.name == "centralized") != federated
        if federated:
            assert config.train.rounds == (150 if cell.dataset == "fashion-mnist" else 200)
        if "DMix" in cell.method:
            assert config.learner.name == "dividemix"
        elif "JoSRC" in cell.method:
            assert config.learner.name == "josrc"
        for word in ("fedavg", "fedprox", "apfl", "krum", "cfl"):
            if word in cell.method.lower():
                assert config.server.name == word
        if cell.method.startswith("FedNoiL"):
            ablation = cell.method == "FedNoiL(Uniform Local-Data Sampling)"
            assert config.learner.name == ("fednoil.study.ablation:UniformLocal" if ablation else "fednoil")
            assert config.schedule.name == ("cosine" if "Cosine" in cell.method else "logarithm")
        elif federated:
            assert config.schedule.name == "constant"
            assert config.schedule.epochs == 30


def test_the_rows_of_one_seed_begin_alike() -> None:
    """The same clients, wrong labels and first weights, but for a second network's; pooled under `centralized`."""
    found = []
    for method in dict.fromkeys(paper.METHOD_NAMES.values()):
        experiment = make_experiment(load_config(values_of("small", "", "non-iid", "pair-high", method)))
        setting, model = experiment.setting, experiment.initial_model()
        first = {name.split("/", 1)[1]: t for name, t in model.items() if name.split("/")[0] in ("model", "a")}
        found.append((np.concatenate(setting.parts), np.concatenate(setting.labels.given), first))
        assert setting.num_clients == (1 if "centralized" in method else 10)
        if "dividemix" in method:
            assert not torch.equal(model["a/head.weight"], model["b/head.weight"])
    for parts, given, first in found[1:]:
        assert np.array_equal(parts, found[0][0])
        assert np.array_equal(given, found[0][1])
        assert_same(first, found[0][2])


def test_schedules_of_the_figures() -> None:
    where = ("paper", "cifar10", "iid", "symmetric-high")
    assert len(paper.FIGURE_SCHEDULES) == 16
    for method, name in schedule_methods().items():
        schedule = make(load_config(values_of(*where, method)).schedule)
        r_min = int(name.split("(")[1][:-1])
        decay = make({"name": "cosine" if "Cosine" in name else "logarithm", "r_min": r_min})
        assert schedule.total(200) == decay.total(200)
        assert (schedule.epochs(1) - schedule.epochs(200) <= 1) == name.startswith("Constant")
    assert values_of(*where, "fednoil-constant-as-cosine(80)")["schedule"]["epochs"] == 41


def test_the_other_reading_has_as_many_labels_as_are_clean() -> None:
    """|D^x_k| = (1 − ρ_k)·n_k: the groups of pair-high have 70, 50, 40 and 20 % clean labels."""
    total = load_config(preset("paper/fashion-mnist/iid/pair-high/fednoil-logarithm-total"))
    each = load_config(preset("paper/fashion-mnist/iid/pair-high/fednoil-logarithm"))
    assert total.learner.frac == (0.7, 0.5, 0.4, 0.2)  # pyright: ignore
    assert total.model_copy(update={"learner": each.learner}) == each


def test_presets_are_those_that_a_goal_has() -> None:
    """Every number of the paper has one, a few hundred in all; what no table or question has is refused."""
    names = [name for name in preset_names() if name.split("/")[0] in ("paper", "small")]
    assert {preset_of(number) for number in printed()} <= set(names)
    assert len(names) == len(set(names)) < 850
    with pytest.raises(UserError, match=r"cifar100/iid/clean/… |there is no preset paper/cifar100/iid/clean/"):
        preset("paper/cifar100/iid/clean/fedprox")
    with pytest.raises(UserError, match=r"paper/cifar10/100-clients/pair-low/… has fedavg, fedavg\+dividemix"):
        preset("paper/cifar10/100-clients/pair-low/fedprox")
