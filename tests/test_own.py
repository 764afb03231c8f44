"""The page "Write your own method" works as written."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import fednoil
from PIL import Image
from test_cli import sets
from test_stack import close, stacked, trained

from fednoil.batch.cell import Cell
from fednoil.bench.plan import finished
from fednoil.config import load_config, read_toml
from fednoil.experiment import make_executor, make_experiment
from fednoil.report.results import load_results

PAGE = (Path(__file__).parents[1] / "docs" / "own.md").read_text(encoding="utf-8")
SMALL = ("train.rounds=2", "schedule.name=constant", "schedule.epochs=1", "run.device=cpu")


def test_the_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Image.new("L", (28, 28), 90).save("shoe.png")
    sources = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, flags=re.DOTALL)
    assert [name for name, _ in sources] == [
        *("my_model.py", "my_learner.py", "my_server.py", "my_noise.py", "my_partition.py"),
        *("my_sampling.py", "my_schedule.py", "test_my_methods.py"),
    ]
    for name, text in sources:
        Path(name).write_text(text)
    tests = dict(sources)["test_my_methods.py"]
    assert "pytest test_my_methods.py" in PAGE
    names: dict[str, Any] = {}
    exec(compile(tests, "test_my_methods.py", "exec"), names)
    checks = [value for name, value in names.items() if name.startswith("test_")]
    assert len(checks) == 4
    for check in checks:
        check()
    commands = re.findall(r"^fednoil .*$", PAGE, flags=re.MULTILINE)
    assert len(commands) == 6
    for line in commands:
        args = line.split()[1:]
        if args[0] == "run":
            width = [] if "model.name" in line else ["--set", "model.width=2"]
            small = SMALL if "schedule.name" not in line else ("train.rounds=2", "schedule.start=1", "run.device=cpu")
            args += [part for change in small for part in ("--set", change)] + width + ["--force"]
        status, _, err = fednoil(*args)
        assert (status, err) == (0, ""), line
    learner = read_toml(Path("runs/demo-fedavg/config.toml"))["learner"]
    assert learner["name"] == "my_learner:SymmetricCrossEntropy"
    assert learner["reverse"] == 0.5
    assert fednoil("run", "--resume", "--out", "runs/demo-fedavg", "-q")[0] == 0


def test_the_pages_learner_runs_on_the_gpus_executor_too(
    values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stacked and without a word of warning; here on a CPU, where its steps run one by one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_learner", raising=False)
    (source,) = re.findall(r"```python\n# my_learner\.py\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(source.splitlines()) <= 30
    Path("my_learner.py").write_text(source)
    values["learner"] = {"name": "my_learner:SymmetricCrossEntropy", "reverse": 0.5}
    experiment = make_experiment(load_config(values))
    wanted = trained(experiment, make_executor(experiment, torch.device("cpu")), [0, 1, 2], 2)
    executor = stacked(experiment, 3)
    got = trained(experiment, executor, [0, 1, 2], 2)
    assert (executor.alone, executor.reason) == (None, None)
    for client, result in wanted.items():
        close(got[client].tensors, result.tensors)


WRONG = """
import torch
from fednoil.learners.base import Learner
from fednoil.learners.erm import Erm
from fednoil.data import Source
from fednoil.partition.iid import Iid
from fednoil.sampling.uniform import Uniform
from fednoil.servers.base import Server, ServerState
import numpy as np


class Empty(Learner):
    pass


class Short(Erm):
    def step(self, nets, batch):
        return nets["model"](batch["images"]).mean()


class Silent(Erm):
    def step(self, nets, pool, batch, state, kind):
        nets["model"](batch["images"])


class Logits(Erm):
    def step(self, nets, pool, batch, state, kind):
        return nets["model"](batch["images"])


class Detached(Erm):
    def step(self, nets, pool, batch, state, kind):
        return torch.tensor(1.0)


class Sum(Server):
    def aggregate(self, updates):
        return updates[0]


class Forgetful(Server):
    def aggregate(self, state, round_idx, updates):
        state.tensors.update(updates[0].tensors)


class Bare(Server):
    def aggregate(self, state, round_idx, updates):
        return self.combine(updates)


class Twice(Uniform):
    def draw(self, p, count, seed):
        return [0, 0]


class Beyond(Uniform):
    def draw(self, p, count, seed):
        return [len(p)]


class Nobody(Uniform):
    def draw(self, p, count, seed):
        return []


class Unlikely(Uniform):
    def shares(self, scores):
        return [float("nan")] * len(scores)


class Negative(Uniform):
    def shares(self, scores):
        return [-1.0, 1.0, 0.5, 0.5]


class Partial(Server):
    def aggregate(self, state, round_idx, updates):
        return ServerState(dict(list(state.tensors.items())[1:]))


class Wider(Server):
    def aggregate(self, state, round_idx, updates):
        return ServerState({name: tensor[None] for name, tensor in state.tensors.items()})


class Numpy(Server):
    def aggregate(self, state, round_idx, updates):
        return ServerState(state.tensors, {"seen": np.float32(3)})


class Keys(Server):
    class Config:
        share: float = 0.5


class Alone(Erm):
    def __init__(self, config):
        super().__init__(config, None)


class Undealt(Iid):
    def deal(self, labels, num_classes, seed):
        pass


class Nothing(Source):
    def read(self):
        pass
"""


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("learner.name=wrong_methods:Empty", "must define plan and step"),
        (
            "learner.name=wrong_methods:Short",
            "its step(self, nets, batch) must take (self, nets, pool, batch",
        ),
        (
            "learner.name=wrong_methods:Silent",
            "return the loss, one number with a gradient, not None",
        ),
        ("learner.name=wrong_methods:Logits", "not a tensor of shape [8, 4]"),
        ("learner.name=wrong_methods:Detached", "not tensor(1.)"),
        ("server.name=wrong_methods:Sum", "its aggregate(self, updates) must take (self, state, round_idx, updates)"),
        ("server.name=wrong_methods:Forgetful", "its aggregate must return a ServerState, not None"),
        ("server.name=wrong_methods:Bare", "its aggregate must return a ServerState, not a dict"),
        ("sampling.name=wrong_methods:Twice", "its draw must return different places of 4, from 0, not [0, 0]"),
        ("sampling.name=wrong_methods:Beyond", "its draw must return different places of 4, from 0, not [4]"),
        ("sampling.name=wrong_methods:Nobody", "its draw must return different places of 4, from 0, not []"),
        ("sampling.name=wrong_methods:Unlikely", "its shares must return a chance for each of 4 clients"),
        ("sampling.name=wrong_methods:Negative", "not negative, with sum 1, not -1, 1, 0.5, 0.5"),
        ("server.name=wrong_methods:Partial", "as a tensor of shape [2, 1, 5, 5], not a NoneType"),
        ("server.name=wrong_methods:Wider", "as a tensor of shape [2, 1, 5, 5], not shape [1, 2, 1, 5, 5]"),
        (
            "server.name=wrong_methods:Numpy",
            "its aggregate left values['seen'] = np.float32(3.0); JSON has numbers, strings, lists",
        ),
        ("server.name=wrong_methods:Keys", "its Config must be a class derived from fednoil.servers.base.ServerConfig"),
        ("learner.name=wrong_methods:Alone", "its __init__(self, config) must take (self, config, task)"),
        ("partition.kind=wrong_methods:Undealt", "its deal must return a list of indices for each client, not a NoneT"),
        ("data.name=wrong_methods:Nothing", "its read must return a Decoded, not None"),
    ],
)
def test_what_is_no_method_is_reported_in_one_line(
    choice: str, words: str, tiny_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "wrong_methods", raising=False)
    Path("wrong_methods.py").write_text(WRONG)
    status, _, err = fednoil("run", *sets(data__name=f"npz:{tiny_npz}"), "--set", choice, "--out", "run", "-q")
    assert (status, len(err.splitlines())) == (2, 1), err
    assert choice.replace("=", " = '") in err
    assert words in err


def test_a_run_goes_on_with_the_code_it_began_with(
    tiny_npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comments may change. A plan makes a run of other code again, and a mean doesn't mix both."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    code, own = Path("my_edited.py"), "learner.name=my_edited:Mine"
    code.write_text("from fednoil.learners.erm import Erm\n\n\nclass Mine(Erm):\n    pass\n")
    options = (*sets(data__name=f"npz:{tiny_npz}"), "--set", own, "-q", "--out")
    assert fednoil("run", *options, "all/seed-0")[0] == 0
    code.write_text(f"# nothing new\n{code.read_text()}")
    assert fednoil("run", *options, "all/seed-0", "--resume")[0] == 0
    code.write_text(code.read_text().replace("pass", "half = 0.5"))
    status, _, err = fednoil("run", *options, "all/seed-0", "--resume")
    assert (status, len(err.splitlines())) == (2, 1)
    assert "all/seed-0: the file of my_edited:Mine has changed since this run began; put it back" in err
    config = load_config(read_toml(Path("all/seed-0/config.toml")))
    assert not Cell(config, "", "seed-0", "").is_done(Path("all"))
    assert finished(Path("all")) == {}
    assert fednoil("run", *options, "all/seed-1", "--seed", "1")[0] == 0
    said = "the file of my_edited:Mine changed between these runs"
    assert said in fednoil("compare", "all")[2]
    assert said in "".join(load_results([Path("all")]).warnings)
