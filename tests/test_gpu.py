"""The CUDA executor means the same as the reference: same seed, same weights. Runs only where there is a GPU."""

from __future__ import annotations

import gc
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import fednoil
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from fednoil import rounds
from fednoil.audit.site import of_data
from fednoil.config import load_config
from fednoil.executors import capture, cuda, local, portions
from fednoil.executors.capture import Streams
from fednoil.executors.cuda import CudaGraphs
from fednoil.executors.sequential import Sequential
from fednoil.experiment import make_executor, make_experiment
from fednoil.history import RoundRecord
from fednoil.kernels.aside import Aside
from fednoil.learners.base import Nets
from fednoil.learners.erm import Erm
from fednoil.runner import Silent, run
from fednoil.tensors import Tensors, cpu
from fednoil.testing import cases, check_on

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU; PyTorch sees none here"),
]

# What the tables of servers and learners don't have: other settings, models and optimisers.
CASES: dict[str, dict[str, Any]] = {
    "erm-plain": {"train": {"pad": 0, "flip": False}},
    "falling-rates": {"train": {"lr_rounds": "cosine"}},
    "falling-rates-non-iid": {
        "partition": {"kind": "dirichlet", "clients": 4, "min_size": 8},
        "train": {"lr_rounds": "linear"},
        "server": {"name": "fedprox"},
    },
    "falling-rates-of-two": {"learner": {"name": "dividemix", "warmup": 1}, "train": {"lr_rounds": "linear"}},
    "adamw": {"train": {"optimizer": "adamw", "lr": 0.002}},
    "groups": {"model": {"name": "made_models:grouped"}},
    "frozen": {"model": {"name": "made_models:part"}},
    "frozen-norm": {"model": {"name": "made_models:probe"}, "train": {"optimizer": "adamw"}},
    "group-norm": {"model": {"name": "test_gpu:gn_model"}, "learner": {"name": "fednoil", "frac": 0.4}},
    "average": {
        "model": {"name": "test_rounds:bn_model"},
        "server": {"average": 0.5},
        "data": {"validation": 0.25},
    },
    "fednoil": {"learner": {"name": "fednoil", "frac": 0.4, "xi": 0.3}, "sampling": {"name": "score"}},
    "fednoil-auto": {"learner": {"name": "fednoil", "xi": 0.3}},
    "fednoil-plus-auto": {"learner": {"name": "fednoil-plus", "x_augment": "strong"}},
    "recipe": {"learner": {"name": "fednoil.study.recipe:Recipe", "frac": 0.4, "xi": 0.3, "ssl_start": 1}},
    "erm-non-iid": {"partition": {"kind": "dirichlet", "clients": 4, "min_size": 8}},
    "josrc-non-iid": {"partition": {"kind": "dirichlet", "clients": 4, "min_size": 8}, "learner": {"name": "josrc"}},
    "batch-norm-non-iid": {
        "partition": {"kind": "dirichlet", "clients": 4, "min_size": 8},
        "model": {"name": "test_rounds:bn_model"},
    },
    "non-iid": {"partition": {"kind": "dirichlet", "clients": 4, "min_size": 8}, "learner": {"name": "fednoil"}},
    "josrc": {"learner": {"name": "josrc", "warmup": 1}},
    "dividemix": {"learner": {"name": "dividemix", "warmup": 1}},
    "dividemix-non-iid": {
        "partition": {"kind": "dirichlet", "clients": 4, "min_size": 8},
        "learner": {"name": "dividemix", "warmup": 0},
    },
    "dividemix-batch-norm": {
        "model": {"name": "test_rounds:bn_model"},
        "learner": {"name": "dividemix", "warmup": 0},
    },
    "batch-norm": {"model": {"name": "test_rounds:bn_model"}, "learner": {"name": "fednoil", "frac": 0.4}},
}


def gn_model(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """One layer: in a ResNet18 a difference of 1e-7 at the start is as large as the weights after two such rounds."""
    conv = nn.Conv2d(image_shape[0], 8, 3, padding=1)
    return nn.Sequential(conv, nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(512, num_classes))


@pytest.fixture(autouse=True)
def _exact_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


def played(values: dict[str, Any], device: str, executor: str, count: int) -> tuple[Tensors, list[dict[str, Any]]]:
    values["run"] |= {"parallel": 0 if executor == "sequential" else 32, "precision": "float32"}
    experiment = make_experiment(load_config(values))
    runner = make_executor(experiment, torch.device(device))
    assert isinstance(runner, CudaGraphs if (device, executor) == ("cuda", "auto") else Sequential)
    state, records = rounds.placed(rounds.start(experiment), torch.device(device)), []
    for _ in range(count):
        state, record = rounds.play(experiment, runner, state)
        records.append(record)
    if isinstance(runner, CudaGraphs):
        assert runner.reason is None
    return cpu(state.server.tensors), records


@pytest.mark.parametrize("case", ["batch-norm-non-iid", "falling-rates-non-iid", "dividemix-non-iid"])
def test_nothing_of_a_frozen_client_changes(values: dict[str, Any], case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All stay to the end, where else there would be graphs of fewer."""
    monkeypatch.setattr(portions, "taking_part", lambda counts, step: len(counts))
    frozen, play = [], capture.Graphs.play

    def noted(graphs: capture.Graphs, portion: capture.Portion) -> None:
        frozen.append(portion.active is not None)
        play(graphs, portion)

    monkeypatch.setattr(capture.Graphs, "play", noted)
    values["sampling"] |= {"fraction": 1.0}
    test_executors_agree(values, case)
    assert any(frozen)


@pytest.mark.parametrize(("server", "learner"), cases(), ids=lambda section: section["name"])
def test_every_method_learns_on_a_gpu_what_it_learns_on_a_cpu(server: dict[str, Any], learner: dict[str, Any]) -> None:
    assert check_on(torch.device("cuda"), server, learner) is None


@pytest.mark.parametrize("case", CASES)
def test_executors_agree(values: dict[str, Any], case: str) -> None:
    for section, keys in CASES[case].items():
        values[section] = {**values.get(section, {}), **keys} if section != "model" else keys
    values["schedule"] = {"name": "constant", "epochs": 3}  # at least six steps a client, FedNoiL's
    reference, log = played(values, "cpu", "auto", 2)
    for executor in ("sequential", "auto"):
        got, records = played(values, "cuda", executor, 2)
        assert [r.selected for r in records] == [r.selected for r in log]
        for name, tensor in reference.items():
            if tensor.is_floating_point():
                error = (got[name] - tensor).norm() / tensor.norm().clamp_min(1e-6)
                assert error < 1e-4, (executor, name, float(error))
        for key in ("train_batches", "local_epochs", "bytes_up", "selected_noise"):
            assert [getattr(r, key) for r in records] == [getattr(r, key) for r in log]


@pytest.mark.parametrize("split", ["iid", "dirichlet"])
def test_groups_of_one_shape_agree(values: dict[str, Any], split: str) -> None:
    """Clients of three kinds; in the second round with graphs of eight steps."""
    from test_stack_groups import in_groups  # which has this module's cases, too

    values["sampling"] |= {"fraction": 1.0}
    reference, _ = played(in_groups(values, split), "cpu", "auto", 3)
    got, _ = played(in_groups(values, split), "cuda", "auto", 3)
    for name, tensor in reference.items():
        assert (got[name] - tensor).norm() < 1e-4 * tensor.norm(), name


@pytest.mark.parametrize("late", ["clients", "plans"])
@pytest.mark.parametrize("case", ["fednoil", "fednoil-auto", "josrc", "dividemix", "batch-norm-non-iid"])
def test_streams_that_come_late_change_nothing(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch, case: str, late: str
) -> None:
    """Epochs are planned one by one; the clients' streams, or the one that plans, lie some 10 ms behind the host.

    Who doesn't wait for the other then reads a plan that isn't there yet, or one whose memory has been given away.
    """
    for section, keys in CASES[case].items():
        values[section] = {**values.get(section, {}), **keys} if section != "model" else keys
    values["schedule"] = {"name": "constant", "epochs": 4}
    monkeypatch.setattr(local, "PLANNED", (1, 1))
    wanted, log = played(values, "cuda", "auto", 2)
    sleeps = []

    def sleep() -> None:
        sleeps.append(late)
        torch.cuda._sleep(20_000_000)  # cycles, on the current stream

    enter, planned = Streams.__enter__, cuda._planned
    if late == "clients":
        monkeypatch.setattr(Streams, "__enter__", lambda streams: (enter(streams), sleep())[0])
    else:
        monkeypatch.setattr(cuda, "_planned", lambda *arguments: (sleep(), planned(*arguments))[1])
    got, records = played(values, "cuda", "auto", 2)
    assert len(sleeps) >= 8
    assert [r.selected for r in records] == [r.selected for r in log]
    for name, tensor in wanted.items():
        if tensor.is_floating_point():
            error = (got[name] - tensor).norm() / tensor.norm().clamp_min(1e-6)
            assert error < 1e-4, (name, float(error))


def test_gradients_of_weights_beside_the_rest_are_the_same_bits(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the second stream lies some 2 ms behind the first one: who doesn't wait reads what isn't there."""
    values["model"] = {"name": "resnet18"}
    values["schedule"] = {"name": "constant", "epochs": 4}
    counts = []

    def with_second(change: Callable[[Aside, Callable[[], Any], object], Any]) -> Tensors:
        monkeypatch.setattr(Aside, "run", change)
        return played(values, "cuda", "auto", 2)[0]

    def late(step: Aside, work: Callable[[], Any], reads: object) -> Any:
        def later() -> Any:
            counts.append(1)
            torch.cuda._sleep(4_000_000)  # cycles, on the second stream
            return work()

        return run_beside(step, later, reads)

    run_beside = Aside.run
    wanted = with_second(lambda step, work, reads: work())
    for change in (run_beside, late):
        got = with_second(change)
        assert all(torch.equal(got[name], tensor) for name, tensor in wanted.items())
    assert len(counts) >= 18


def test_graphs_that_come_and_go_change_nothing(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each seat has its own graphs, and no seat finds one of them again."""
    for section, keys in CASES["batch-norm-non-iid"].items():
        values[section] = keys if section == "model" else {**values.get(section, {}), **keys}
    wanted, _ = played(values, "cuda", "auto", 3)
    monkeypatch.setattr(capture, "_GRAPHS", 1)
    got, _ = played(values, "cuda", "auto", 3)
    for name, tensor in wanted.items():
        assert torch.allclose(got[name], tensor, rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize("frac", [0.4, "auto"])
def test_memory_does_not_grow(values: dict[str, Any], frac: float | str) -> None:
    """Neither with one shape of step nor, as with auto, with many: old graphs are given up.

    What PyTorch has reserved counts too, because a pool that graphs have left is used by nobody and may still be held.
    It comes in segments of 2 MiB, of which two more are no growth.
    """
    values["learner"] = {"name": "fednoil", "frac": frac}
    values["partition"] = {"kind": "dirichlet", "clients": 4, "min_size": 8}
    values["schedule"]["epochs"] = 1
    experiment = make_experiment(load_config(values))
    executor, state = make_executor(experiment, torch.device("cuda")), rounds.start(experiment)
    gc.collect()
    torch.cuda.empty_cache()  # else what earlier tests have left would hide growth
    used, reserved = [], []
    for _ in range(200):
        state, _ = rounds.play(experiment, executor, state)
        used.append(torch.cuda.memory_allocated())
        reserved.append(torch.cuda.memory_reserved())
        assert len(executor.graphs) <= 128
    assert max(used[100:]) <= 1.1 * max(used[:100])
    assert max(reserved[100:]) <= 1.1 * max(reserved[:100]) + (4 << 20)


def waits(values: dict[str, Any], epochs: int) -> int:
    """How often the host waits for the GPU in a turn of two clients that has nothing new to capture."""
    values["schedule"] = {"name": "constant", "epochs": epochs}
    experiment = make_experiment(load_config(values))
    executor, state = make_executor(experiment, torch.device("cuda")), rounds.start(experiment)
    state = rounds.placed(state, torch.device("cuda"))
    jobs = [rounds.make_job(experiment, state, k, epochs) for k in range(2)]
    for _ in range(3):
        executor.train(jobs)
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")  # the switch itself warns, too
        torch.cuda.set_sync_debug_mode("warn")
        try:
            executor.train(jobs)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(warning.message) for warning in caught)


@pytest.mark.parametrize(
    ("learner", "each"),  # how often an epoch may wait
    [({"name": "erm"}, 0), ({"name": "fednoil", "frac": 0.4}, 0), ({"name": "dividemix", "warmup": 0}, 1)],
)
def test_the_host_waits_once_a_turn_or_once_an_epoch(
    values: dict[str, Any], learner: dict[str, Any], each: int
) -> None:
    """At the end of a turn; and DivideMix before each epoch, for the number of its labelled samples."""
    values["learner"] = learner
    few, many = waits(values, 2), waits(values, 6)
    assert 1 <= few <= 2 + 2 * each
    assert many - few <= 4 * each


def test_dropout_runs_eagerly_and_says_so(values: dict[str, Any]) -> None:
    values["model"] = {"name": "test_rounds:dropout_model"}
    experiment = make_experiment(load_config(values))
    with pytest.warns(UserWarning, match="dropout"):
        executor = make_executor(experiment, torch.device("cuda"))
    state, _ = rounds.play(experiment, executor, rounds.start(experiment))
    assert state.round_idx == 1


class Looks(Erm):
    """Asks for a value on the host inside its step, which no graph can do."""

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        loss = super().step(nets, pool, batch, state, kind)
        return loss * 2 if float(loss.detach()) > 1e9 else loss


class Shrinks(Erm):
    """Has a shape that depends on values."""

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        bright = batch["images"].float().mean((1, 2, 3)) > 100
        return F.cross_entropy(nets["model"](batch["images"])[bright], batch["labels"][bright])


class Makes(Erm):
    """Has the host send a number inside its step; clients side by side can, a graph can't."""

    def step(self, nets: Nets, pool: Tensor, batch: Tensors, state: Tensors, kind: str) -> Tensor:
        return super().step(nets, pool, batch, state, kind) * torch.tensor(1.0, device="cuda")


@pytest.mark.parametrize("name", ["Looks", "Shrinks", "Makes"])
def test_a_learner_that_cannot_be_captured_runs_eagerly_and_says_why(values: dict[str, Any], name: str) -> None:
    values["learner"] = {"name": f"test_gpu:{name}"}
    values["run"] |= {"device": "cuda", "precision": "float32"}
    experiment = make_experiment(load_config(values))
    executor = make_executor(experiment, torch.device("cuda"))
    assert isinstance(executor, CudaGraphs)
    with pytest.warns(UserWarning, match="not as CUDA graphs: its step") as caught:
        state, _ = rounds.play(experiment, executor, rounds.start(experiment))
    assert executor.reason is not None
    assert sum("not as CUDA graphs" in str(w.message) for w in caught) == 1
    assert torch.rand(1, device="cuda") < 1  # PyTorch's own generator is out of the capture that failed
    assert "pool" not in executor.reason  # nor does the allocator still take part in it
    values["run"] |= {"parallel": 0}
    again = make_experiment(load_config(values))
    wanted, _ = rounds.play(again, make_executor(again, torch.device("cuda")), rounds.start(again))
    for key, tensor in wanted.server.tensors.items():
        assert torch.allclose(state.server.tensors[key], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("precision", "least", "most"), [("float32", 0, 1e-5), ("tf32", 1e-5, 1e-2)])
def test_precision_says_how_float32_is_multiplied(
    values: dict[str, Any], precision: str, least: float, most: float
) -> None:
    """By PyTorch and by our own kernels alike."""
    from fednoil.kernels.conv import conv2d_nchw

    values["run"] |= {"precision": precision}
    make_executor(make_experiment(load_config(values)), torch.device("cuda"))
    torch.manual_seed(0)
    x, w = torch.randn(8, 64, 16, 16, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
    a, exact = x.view(512, 256), F.conv2d(x.double(), w.double(), padding=1)
    pairs = [(a @ a.T, a.double() @ a.double().T)]
    pairs += [(conv(x, w, padding=1), exact) for conv in (F.conv2d, conv2d_nchw)]
    for got, wanted in pairs:
        assert least <= (got.double() - wanted).norm() / wanted.norm() < most


def test_each_precision_on_a_gpu(values: dict[str, Any]) -> None:
    """`auto` is bfloat16 where the GPU has it; what each rounds moves a model by less than it learns."""
    recent = torch.cuda.is_bf16_supported(including_emulation=False)
    models: dict[str, torch.Tensor] = {}
    for precision in ("float32", "tf32", "auto", *(["bfloat16"] if recent else [])):
        values["run"] |= {"device": "cuda", "precision": precision, "deterministic": True}
        experiment = make_experiment(load_config(values))
        executor, first = make_executor(experiment, torch.device("cuda")), rounds.start(experiment)
        state, _ = rounds.play(experiment, executor, rounds.placed(first, torch.device("cuda")))
        models["start"], models[precision] = (
            torch.cat([t.flatten().float().cpu() for t in s.server.tensors.values()]) for s in (first, state)
        )
    exact = models["float32"]
    assert torch.equal(models["auto"], models["bfloat16" if recent else "float32"])
    for name, moved in ((name, model - exact) for name, model in models.items() if name != "start"):
        assert (moved.norm() > 0) == (recent and name != "float32"), name
        assert moved.norm() < 0.2 * (exact - models["start"]).norm(), name


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("learner", ["fednoil", "dividemix"])
def test_a_resumed_run_goes_on_as_if_never_stopped(
    values: dict[str, Any], learner: str, deterministic: bool, tmp_path: Path
) -> None:
    """Bit for bit with `run.deterministic`, and otherwise within what the order of sums changes."""
    values["learner"] = {"name": learner, "warmup": 1} if learner == "dividemix" else {"name": learner, "frac": 0.4}
    values["run"] |= {"device": "cuda", "deterministic": deterministic, "precision": "float32"}
    config = load_config(values)
    run(config, tmp_path / "whole", Silent())

    class Stop(Silent):
        def round(self, record: RoundRecord) -> None:
            if record.round == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "stopped", Stop())
    run(config, tmp_path / "stopped", Silent(), resume=True)
    whole, other = (load_file(tmp_path / n / "model.safetensors") for n in ("whole", "stopped"))
    for name, tensor in whole.items():
        if deterministic:
            assert torch.equal(tensor, other[name]), name
        else:
            assert torch.allclose(tensor, other[name], rtol=1e-3, atol=1e-5), name


def test_an_audit_of_a_sites_data_looks_as_on_a_cpu(trained: Path) -> None:
    """Class probabilities on the host, within what TF32 rounds."""
    data, model = f"folder:{trained / 'photos'}", trained / "run" / "model.safetensors"
    (there,), (here,) = (of_data(data, model, device=torch.device(name)).clients for name in ("cuda", "cpu"))
    assert there.bundle["probabilities"].device.type == "cpu"
    assert torch.allclose(there.bundle["probabilities"], here.bundle["probabilities"], atol=5e-3)


def test_images_are_classified_as_on_a_cpu(trained: Path) -> None:
    """By the command; within rounding, as TF32 is off in these tests."""
    model, photos = trained / "run" / "model.safetensors", sorted((trained / "photos" / "test").rglob("*.png"))
    there, here = (
        torch.tensor([list(row["probabilities"].values()) for row in json.loads(predicted(model, photos, device))])
        for device in ("cuda", "cpu")
    )
    assert len(there) == len(photos) > 0
    assert torch.allclose(there, here, atol=1e-4)
    assert torch.equal(there.argmax(1), here.argmax(1))


def predicted(model: Path, photos: list[Path], device: str) -> str:
    status, out, err = fednoil("predict", model, *photos, "--json", "--device", device)
    assert (status, err) == (0, "")
    return out
