"""Devices that aren't here: Apple's GPU, AMD's, and NVIDIA's before bfloat16; and each precision on this one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fednoil import experiment as package
from fednoil import kernels, rounds
from fednoil.config import load_config
from fednoil.devices import networks_on, pick_device, pick_precision
from fednoil.errors import Slower, UserError
from fednoil.executors import local
from fednoil.executors.sequential import Sequential
from fednoil.experiment import make_executor, make_experiment
from fednoil.learners import LEARNERS
from fednoil.models import network
from fednoil.records.environment import environment

CPU, META = torch.device("cpu"), torch.device("meta")


class _Brought(torch.autograd.Function):
    """From the device without numbers: ones here, and a gradient there."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, home: torch.device) -> Tensor:
        return torch.ones(tensor.shape, dtype=tensor.dtype, device=home)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        return grads[0].to(META), None


class _NoFloat64(TorchDispatchMode):
    """The device without numbers has no float64 either, as Apple's."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, tuple | list) else [found]:
            if isinstance(tensor, Tensor) and tensor.device == META:
                assert tensor.dtype != torch.float64, func
        return found


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Networks on a device of their own, which refuses to be mixed with the samples' as a GPU would."""
    for module in (network, local):
        monkeypatch.setattr(module, "brought", _Brought.apply)
    monkeypatch.setattr(package, "networks_on", lambda config, device: META)
    with _NoFloat64():
        yield


METHODS: list[dict[str, Any]] = [{"learner": {"name": name}} for name in LEARNERS]
METHODS += [{"server": {"name": name}} for name in ("fedprox", "fedcorr", "apfl")]
METHODS += [{"train": {"optimizer": "adamw", "lr_rounds": "cosine"}}, {"model": {"name": "resnet18", "width": 4}}]
METHODS += [{"train": {"balance": True}}]


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    "method", METHODS, ids=lambda method: "-".join(str(v) for s in method.values() for v in s.values())
)
def test_networks_may_be_on_another_device_than_the_samples(values: dict[str, Any], method: dict[str, Any]) -> None:
    """What comes back is ones: every class is as probable, and losses are finite."""
    for section, keys in method.items():
        values[section] = {**values[section], **keys} if section == "train" else keys
    experiment = make_experiment(load_config(values))
    executor, state = make_executor(experiment, CPU), rounds.start(experiment)
    assert isinstance(executor, Sequential)
    assert {net.params.device for net in executor.bench.nets.values()} == {META}
    for _ in range(2):
        state, record = rounds.play(experiment, executor, state)
        assert record.train_batches
    assert {tensor.device for tensor in state.server.tensors.values()} == {CPU}


def test_apples_gpu_has_the_networks_alone(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    values["run"] |= {"device": "mps"}
    config = load_config(values)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"run\.device = 'mps', but PyTorch sees no GPU of Apple's here; use 'cpu'"):
        pick_device("mps")
    assert networks_on(config, CPU) == CPU  # a federation's node
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert pick_device("mps") == CPU
    assert networks_on(config, CPU) == torch.device("mps")
    assert environment(networks_on(config, CPU), "float32")["device"] == "Apple GPU"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == CPU
    values["run"] |= {"device": "cpu"}
    assert networks_on(load_config(values), CPU) == CPU
    assert environment(CPU, "float32")["device"] == "cpu"


@pytest.mark.parametrize(("maker", "networks"), [("Apple", "mps"), ("AMD", "cuda"), (None, "cuda"), (None, "cpu")])
def test_other_gpus_train_client_after_client_and_say_so(
    values: dict[str, Any], maker: str | None, networks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.0" if maker == "AMD" else None)
    assert (package.one_by_one(torch.device(networks)) is None) == (maker is None)
    if maker is None:
        return
    experiment = make_experiment(load_config(values))
    bench = package.make_bench(experiment, CPU)
    monkeypatch.setattr(package, "networks_on", lambda config, device: torch.device(networks))
    monkeypatch.setattr(package, "make_bench", lambda experiment, device: bench)
    with pytest.warns(Slower, match=f"clients run one after another: only NVIDIA's .*, not {maker}'s") as caught:
        executor = make_executor(experiment, CPU)
    assert (type(executor), executor.slower, len(caught)) == (Sequential, str(caught[0].message), 1)
    values["run"] |= {"parallel": 0}  # as asked, so there is nothing to say
    assert make_executor(make_experiment(load_config(values)), CPU).slower is None


@pytest.mark.parametrize(
    ("capability", "hip", "triton", "served"),
    [((7, 5), None, True, False), ((8, 0), None, True, True), ((12, 0), None, True, True),
     ((9, 4), "7.0", True, False), ((9, 0), None, False, False)],
)  # fmt: skip
def test_kernels_are_for_gpus_that_triton_serves(
    capability: tuple[int, int], hip: str | None, triton: bool, served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere PyTorch's own operations do the same."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(kernels, "find_spec", lambda name: triton or None)
    assert kernels.available.__wrapped__() is served


@pytest.mark.parametrize(
    ("device", "recent", "found"),
    [("cpu", False, ["float32", "float32", "float32", "bfloat16"]),
     ("mps", False, ["float32", "float32", "float32", "bfloat16"]),
     ("cuda", True, ["bfloat16", "float32", "tf32", "bfloat16"]),
     ("cuda", False, ["float32", "float32", "float32", None])],
)  # fmt: skip
def test_precision_by_device(
    device: str, recent: bool, found: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compute capability 7.5, as in a T4, has neither bfloat16 nor TF32."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: recent or including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    for asked, wanted in zip(["auto", "float32", "tf32", "bfloat16"], found, strict=True):
        if wanted is None:
            with pytest.raises(UserError, match=f"run.precision = '{asked}', but the Tesla T4 can't .* 'float32' or"):
                pick_precision(asked, torch.device(device))
        else:
            assert pick_precision(asked, torch.device(device)) == wanted


def test_each_precision_on_a_cpu(values: dict[str, Any]) -> None:
    """All are float32 but bfloat16, whose eight bits move a model by less than it learns."""
    models: dict[str, Tensor] = {}
    for precision in ("float32", "auto", "tf32", "bfloat16"):
        values["run"] |= {"precision": precision}
        experiment = make_experiment(load_config(values))
        start = rounds.start(experiment)
        state, _ = rounds.play(experiment, make_executor(experiment, CPU), start)
        models[precision], first = (
            torch.cat([t.flatten().float() for t in s.server.tensors.values()]) for s in (state, start)
        )
    exact = models["float32"]
    assert torch.equal(models["auto"], exact)
    assert torch.equal(models["tf32"], exact)
    assert 0 < (models["bfloat16"] - exact).norm() < 0.2 * (exact - first).norm()
