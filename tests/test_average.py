"""`server.average`: what is scored and kept is a moving average of the server's models, and clients don't see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import assert_same, refused
from safetensors.torch import load_file
from stopped_runs import results

from fednoil import metrics, rounds
from fednoil.config import load_config
from fednoil.experiment import Experiment, make_executor, make_experiment
from fednoil.history import RoundRecord
from fednoil.rounds import RunState
from fednoil.rounds.final import final_looks
from fednoil.rounds.state import averaged, evaluation_job
from fednoil.runner import Silent, run
from fednoil.servers.base import ServerState
from fednoil.tensors import Tensors
from fednoil.testing import check_method
from fednoil.testing.checks import SERVER_KEYS

CPU = torch.device("cpu")


def played(
    values: dict[str, Any], count: int, **server: Any
) -> tuple[Experiment, list[RunState], list[dict[str, Any]]]:
    """The states from the start on, and the records."""
    values["server"] |= server
    values["model"] = {"name": "test_rounds:bn_model"}
    experiment = make_experiment(load_config(values))
    executor, states, records = make_executor(experiment, CPU), [rounds.start(experiment)], []
    for _ in range(count):
        state, record = rounds.play(experiment, executor, states[-1])
        states.append(state)
        records.append(record)
    return experiment, states, records


def test_the_average_by_hand() -> None:
    """In round 2 the share of the past is 3/12, from round 80 on 0.9; whole numbers are the last ones, and a model
    that is new begins with itself."""
    past: Tensors = {"w": torch.tensor([4.0]), "count": torch.tensor(3)}
    now: Tensors = {"w": torch.tensor([8.0]), "count": torch.tensor(5), "new": torch.tensor([2.0])}
    for before, expected in ((1, 7.0), (39, 4.72), (79, 4.4), (199, 4.4)):
        found = averaged(0.9, RunState(before, ServerState(past), average=past), now)
        assert found["w"].item() == pytest.approx(expected)
        assert (found["count"].item(), found["new"].item()) == (5, 2.0)


def test_clusters_have_an_average_each(values: dict[str, Any]) -> None:
    """CFL remembers the clients' last updates beside its models, more of them every round."""
    values["sampling"]["fraction"] = 1.0
    split = {"name": "fednoil.testing.splitting:Splitting"}
    _, plain, _ = played(values, 4, **split)
    _, states, _ = played(values, 4, **split, average=0.9)
    assert len(states[-1].server.values["clusters"]) > 1
    for r, state in enumerate(states[1:], start=1):
        assert_same(state.server.tensors, plain[r].server.tensors)
        assert set(state.average) == {n for n in state.server.tensors if n.startswith("cluster ")}
    first = [n for n in states[1].average if n.startswith("cluster 0/") and n.endswith("weight")]
    assert all(not torch.equal(states[-1].average[n], states[-1].server.tensors[n]) for n in first)


def test_clients_train_as_without_it_and_the_average_is_scored(fednoil_values: dict[str, Any]) -> None:
    fednoil_values["data"]["validation"] = 0.25
    _, plain, plainly = played(fednoil_values, 4)
    experiment, states, records = played(fednoil_values, 4, average=0.9)
    average = plain[1].server.tensors
    for r in range(1, 5):
        assert_same(states[r].server.tensors, plain[r].server.tensors)
        if r > 1:
            weight = 1 - (1 + r) / (10 + r)
            now = plain[r].server.tensors
            average = {n: torch.lerp(average[n], t, weight) if t.is_floating_point() else t for n, t in now.items()}
        assert_same(states[r].average, average)
        assert_same(states[r].final("last").tensors, average)
    executor = make_executor(experiment, CPU)
    score = metrics.score_logits(
        executor.test_logits(average), torch.from_numpy(experiment.setting.dataset.test.labels).long()
    )
    assert records[-1].test_loss == pytest.approx(score.loss)
    assert records[-1].test_loss != plainly[-1].test_loss
    assert records[-1].train_loss == plainly[-1].train_loss
    assert records[-1].val_accuracy is not None
    assert [r.last_accuracy for r in records] == [r.test_accuracy for r in plainly]
    assert not any(r.last_accuracy is not None for r in plainly)
    assert plain[-1].average == {}
    assert_same(evaluation_job(experiment, states[-1], 0).received, average)
    looks = [final_looks(experiment, state, CPU)[0] for state in (states[-1], plain[-1])]
    assert not torch.equal(*looks)


def test_the_average_is_kept_and_resumes(values: dict[str, Any], tmp_path: Path) -> None:
    values["server"]["average"] = 0.8
    values["train"]["rounds"] = 4
    config = load_config(values)

    class Stop(Silent):
        def round(self, record: RoundRecord) -> None:
            if record.round == 2:
                raise KeyboardInterrupt

    run(config, tmp_path / "whole", Silent())
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "stopped", Stop())
    assert list((tmp_path / "stopped" / "checkpoint").glob("average-*.safetensors"))
    run(config, tmp_path / "stopped", Silent(), resume=True)
    assert results(tmp_path / "stopped") == results(tmp_path / "whole")
    whole = tmp_path / "whole"
    (average,) = (load_file(path) for path in (whole / "checkpoint").glob("average-*.safetensors"))
    model = load_file(whole / "model.safetensors")
    assert_same({f"model/{n.split('/')[-1]}": t for n, t in model.items()}, average)


def test_a_configuration_without_it_is_the_one_it_was(values: dict[str, Any]) -> None:
    before = load_config(values).hash()
    values["server"]["average"] = 0.0
    assert load_config(values).hash() == before
    values["server"]["average"] = 0.9
    assert load_config(values).hash() != before


@pytest.mark.parametrize("server", ["apfl", "cfl", "krum"])
def test_other_servers_average_too(server: str) -> None:
    check_method({"name": server, "average": 0.9, **SERVER_KEYS.get(server, {})}, {"name": "dividemix", "warmup": 1})


def test_a_share_of_one_is_refused(tmp_path: Path) -> None:
    assert "server.average" in refused("run", "demo", "--set", "server.average=1", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()
