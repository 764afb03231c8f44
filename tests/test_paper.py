"""The paper's tables as data, and a preset for each of their rows."""

from __future__ import annotations

import csv
import subprocess
import sys
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import assert_same

from fednoil import paper
from fednoil.config import Config, load_config, merge, preset, preset_names
from fednoil.experiment import make_experiment
from fednoil.paper import Cell, cells, preset_of, schedule_changes
from fednoil.schedules import make

RATIOS = {  # of the four groups of clients, by the paper's text
    ("symmetric", "high"): (0.5, 0.6, 0.7, 0.8),
    ("symmetric", "low"): (0.3, 0.4, 0.5, 0.6),
    ("pair", "high"): (0.3, 0.5, 0.6, 0.8),
    ("pair", "low"): (0.3, 0.4, 0.5, 0.6),
}


def find(**keys: str) -> Cell:
    (cell,) = [c for c in cells() if all(getattr(c, key) == value for key, value in keys.items())]
    return cell


def test_every_cell_of_the_file_is_read_as_it_stands() -> None:
    raw = resources.files(paper).joinpath("tables.csv").read_bytes().decode("utf-8")
    rows = list(csv.reader(raw.splitlines()))[1:]
    assert len(rows) == len(cells()) == 522
    for row, cell in zip(rows, cells(), strict=True):
        assert row[:7] == [cell.table, cell.dataset, cell.setting, cell.noise, cell.mode, cell.method, cell.metric]
        assert row[7:] == [str(cell.mean), "" if cell.std is None else str(cell.std), str(cell.converged)]


def test_cells_against_the_printed_tables() -> None:
    keys = {"table": "1", "dataset": "fashion-mnist", "setting": "iid", "noise": "symmetric", "mode": "high"}
    assert str(find(**keys, method="FedNoiL(Logarithm)")) == "82.46 ± 0.54"
    assert str(find(**keys, method="Vanilla FedAvg")) == "58.30*"
    assert str(find(table="text", method="FedNoiL")) == "86.12"


def test_tables_1_and_2_are_whole() -> None:
    """Table 1: 14 methods × 3 datasets × IID or not × 4 noises; Table 2: 11 methods × 2 settings × 4 noises."""
    for table, methods, settings, count in (("1", 14, 6, 336), ("2", 11, 2, 88)):
        inside = [c for c in cells() if c.table == table]
        assert len({c.method for c in inside}) == methods
        assert len({(c.dataset, c.setting) for c in inside}) == settings
        assert len({preset_of(c) for c in inside}) == len(inside) == count


@pytest.fixture(scope="module")
def configs() -> dict[str, Config]:
    return {name: load_config(preset(name)) for name in sorted({preset_of(cell) for cell in cells()})}


def test_every_row_of_every_table_has_a_preset_that_loads(configs: dict[str, Config]) -> None:
    assert {cell.method for cell in cells()} == set(paper.METHODS)
    assert {cell.dataset for cell in cells()} == set(paper.DATASETS)
    assert set(configs) <= set(preset_names())


def test_presets_say_what_the_paper_says(configs: dict[str, Config]) -> None:
    """Clients, rounds, noise and method of each cell, by the paper's text."""
    for cell in cells():
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
            assert config.learner.name == "fednoil"
            assert config.schedule.name == ("cosine" if "Cosine" in cell.method else "logarithm")
        elif federated:
            assert config.schedule.name == "constant"
            assert config.schedule.epochs == 30


@pytest.mark.parametrize("server", ["fedavg", "centralized"])
@pytest.mark.parametrize(
    ("cell", "lambda_u", "penalty"),
    [
        ("cifar10/iid/symmetric-high", 25, False),
        ("cifar10/non-iid/pair-low", 0, True),
        ("cifar10/iid/clean", 0, False),
        ("cifar100/iid/symmetric-high", 150, False),
        ("cifar100/iid/clean", 25, False),
        ("cifar100/iid/pair-high-shared", 0, True),
        ("fashion-mnist/iid/symmetric-low", 25, False),
    ],
)
def test_dividemix_as_its_authors_tune_it_has_presets_of_its_own(
    server: str, cell: str, lambda_u: float, penalty: bool
) -> None:
    plain, tuned = (load_config(preset(f"paper/{cell}/{server}+dividemix{end}")) for end in ("", "-tuned"))
    assert (tuned.learner.lambda_u, tuned.learner.entropy_penalty) == (lambda_u, penalty)  # pyright: ignore
    assert (plain.learner.lambda_u, plain.learner.entropy_penalty) == (25, False)  # pyright: ignore
    changed = tuned.learner.model_copy(update={"lambda_u": 25.0, "entropy_penalty": False})
    assert tuned.model_copy(update={"learner": changed}) == plain


def test_the_rows_of_one_seed_begin_alike() -> None:
    """The same clients, wrong labels and first weights, but for a second network's; pooled under `centralized`."""
    found = []
    for method in dict.fromkeys(paper.METHODS.values()):
        experiment = make_experiment(load_config(preset(f"small/non-iid/pair-high/{method}")))
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
    base = preset("paper/cifar10/iid/symmetric-high/fednoil-cosine")
    assert len(paper.SCHEDULES) == 16
    for name in paper.SCHEDULES:
        config = load_config(merge(base, schedule_changes(name, 200)))
        r_min = int(name.split("(")[1][:-1])
        decay = make({"name": "cosine" if "Cosine" in name else "logarithm", "r_min": r_min})
        assert make(config.schedule).total(200) == decay.total(200)
        constant = make(config.schedule).epochs(1) - make(config.schedule).epochs(200) <= 1
        assert constant == name.startswith("Constant")
    assert schedule_changes("Constant matching Cosine(80)", 200)["schedule"]["epochs"] == 40


def test_the_baselines_of_the_experiment_are_the_rows_of_table_1() -> None:
    script = Path(__file__).parents[1] / "experiments" / "baselines" / "run.py"
    command = [sys.executable, str(script), "--list", "--rounds", "30"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(lines) == 3 * 14
    names = [line.split()[3] for line in lines]
    assert names[0] == "paper/fashion-mnist/iid/symmetric-high/centralized+dividemix"
    assert set(names) <= set(preset_names())
    assert [name.split("/")[3] for name in names[::14]] == ["symmetric-high", "pair-high", "symmetric-low"]
    for line in lines:
        assert ("train.rounds=30" in line) != ("centralized" in line)
