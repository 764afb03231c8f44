import copy
import math
from types import SimpleNamespace

import pytest
import torch
from conftest import sgd_step
from pydantic import Field
from torch import nn

from fednoil import kernels
from fednoil.config import load_config
from fednoil.errors import UserError
from fednoil.models import MODELS, ModelConfig, build
from fednoil.models.network import Network
from fednoil.seeds import Seed

CPU = torch.device("cpu")


def chosen(**keys: object) -> ModelConfig:
    return load_config({"model": keys}).model


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("config", "shape", "classes", "expected"),
    [
        (chosen(name="cnn", width=32), (1, 28, 28), 10, 83_466),
        (chosen(name="cnn"), (1, 28, 28), 10, 83_466),
        (chosen(name="resnet18"), (3, 32, 32), 10, 11_173_962),
        (chosen(name="resnet18"), (3, 32, 32), 100, 11_220_132),
        (chosen(name="resnet34"), (3, 32, 32), 10, 21_282_122),
    ],
)
def test_parameter_counts(config: ModelConfig, shape: tuple[int, int, int], classes: int, expected: int) -> None:
    assert parameters(build(config, shape, classes, Seed(0))) == expected


def test_initial_weights_follow_the_seed_and_leave_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    a, b, c = (build(chosen(width=4), (1, 8, 8), 3, Seed(s)) for s in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(a.conv1.weight, b.conv1.weight)
    assert not torch.equal(a.conv1.weight, c.conv1.weight)


def test_lazy_layers_follow_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def lazy(image_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))

    monkeypatch.setitem(MODELS, "lazy", lazy)
    a, b = (build(chosen(name="lazy"), (1, 4, 4), 3, Seed(0)) for _ in range(2))
    assert torch.equal(a[1].weight, b[1].weight)


def test_flat_network_trains_exactly_like_torch_sgd() -> None:
    module = build(chosen(name="resnet18", width=4), (3, 8, 8), 5, Seed(0))
    net = Network(copy.deepcopy(module), (0.0,) * 3, (1 / 255,) * 3, CPU)
    sgd = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.5, weight_decay=1e-4)
    torch.manual_seed(0)
    for _ in range(4):
        x, y = torch.rand(6, 3, 8, 8), torch.randint(5, (6,))
        sgd.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        sgd.step()
        net.grads.zero_()
        nn.functional.cross_entropy(net(x), y).backward()
        sgd_step(net, 0.05, 0.5, 1e-4)
    ours = net.dump("m")
    for name, tensor in module.state_dict().items():
        assert torch.allclose(ours[f"m/{name}"], tensor, atol=1e-6), name


def test_dump_is_a_copy_and_load_restores_it() -> None:
    net = Network(build(chosen(name="resnet18", width=2), (1, 8, 8), 3, Seed(0)), (0.5,), (0.2,), CPU)
    saved = net.dump("m")
    images = torch.randint(256, (4, 1, 8, 8), dtype=torch.uint8)
    net(images).sum().backward()
    sgd_step(net, 0.1, 0.5, 0.0)
    changed = net.dump("m")
    assert not torch.equal(saved["m/head.weight"], changed["m/head.weight"])
    assert int(changed["m/stem.1.num_batches_tracked"]) == 1
    net.load(saved, "m")
    assert all(torch.equal(a, b) for a, b in zip(net.dump("m").values(), saved.values(), strict=True))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_module_gets_the_layout_it_is_ready_for(channels: int) -> None:
    """Channels-last if the module says so, with any number of channels; otherwise not, for modules that use `view`."""

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(channels, 4, 3)
            self.strides: list[tuple[int, ...]] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.strides.append(x.stride())
            return self.conv(x).mean((2, 3))

    class Ready(Plain):
        channels_last = True

    images = torch.randint(256, (2, channels, 6, 5), dtype=torch.uint8)
    networks = [Network(cls(), (0.5,) * channels, (0.2,) * channels, CPU) for cls in (Plain, Ready)]
    networks[1].load(networks[0].dump("m"), "m")
    logits = [net(images) for net in networks]
    assert networks[0].module.strides == [(30 * channels, 30, 5, 1)]
    assert networks[1].module.strides == [(30 * channels, 1, 5 * channels, channels)]
    torch.testing.assert_close(logits[0], logits[1])


def test_network_normalises_pixels() -> None:
    class Echo(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.w

    net = Network(Echo(), (0.25, 0.5), (0.5, 0.25), CPU)
    out = net(torch.full((1, 2, 1, 1), 255, dtype=torch.uint8)).flatten()
    assert torch.allclose(out, torch.tensor([1.5, 2.0]), atol=1e-6)


def test_frozen_parameters_are_apart_and_never_move() -> None:
    module = build(chosen(width=2), (1, 8, 8), 3, Seed(0))
    module.conv1.weight.requires_grad_(False)
    net = Network(module, (0.0,), (1.0,), CPU)
    before, frozen = net.dump("m"), net.dump_fixed("m")
    net(torch.full((2, 1, 8, 8), 9.0)).sum().backward()
    sgd_step(net, 0.1, 0.5, 0.1)
    after = net.dump("m")
    assert set(frozen) == {"m/conv1.weight"}
    assert "m/conv1.weight" not in after
    assert torch.equal(module.conv1.weight, frozen["m/conv1.weight"])
    assert not torch.equal(before["m/head.bias"], after["m/head.bias"])


def test_buffers_that_are_no_part_of_the_model_do_not_leak_to_the_next_client() -> None:
    module = build(chosen(width=2), (1, 8, 8), 3, Seed(0))
    module.register_buffer("calls", torch.zeros(()), persistent=False)
    net = Network(module, (0.0,), (1.0,), CPU)
    saved = net.dump("m")
    assert "m/calls" not in saved
    module.calls.add_(5)
    net.load(saved, "m")
    assert float(module.calls) == 0


def test_resnet_with_group_norm() -> None:
    """As many parameters as with BatchNorm, no buffers, and an image's logits don't depend on its neighbours."""
    config = chosen(name="resnet18-gn")
    module = build(config, (3, 32, 32), 10, Seed(0))
    assert sum(p.numel() for p in module.parameters()) == 11_173_962
    assert list(module.buffers()) == []
    groups = {m.num_channels: m.num_groups for m in module.modules() if isinstance(m, nn.GroupNorm)}
    assert groups == {64: 32, 128: 32, 256: 32, 512: 32}
    narrow = build(chosen(name="resnet18-gn", width=4), (3, 8, 8), 10, Seed(0)).train()
    images = torch.randn(4, 3, 8, 8)
    assert torch.allclose(narrow(images)[:1], narrow(images[:1]), atol=1e-5)


def test_the_deeper_one_has_group_norm_too() -> None:
    module = build(chosen(name="resnet34-gn", width=4), (3, 8, 8), 10, Seed(0))
    assert list(module.buffers()) == []
    assert len([m for m in module.modules() if isinstance(m, nn.GroupNorm)]) == 36


def stacked(
    image_shape: tuple[int, int, int], num_classes: int, depth: int = 1, bias=True, layer=nn.Linear
) -> nn.Module:
    size = math.prod(image_shape)
    hidden = [layer(size, size, bias=bias) for _ in range(depth)]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(size, num_classes))


class Deep(nn.Sequential):
    class Config(ModelConfig):
        layers: int = Field(default=2, ge=1)

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, layers: int) -> None:
        super().__init__(*stacked(image_shape, num_classes, depth=layers))


def test_the_arguments_of_a_function_are_its_keys() -> None:
    """1×2×2 images, 3 classes: 4·4 + 4 a hidden layer, of which the 4 are biases, and 4·3 + 3 for the last."""
    for keys, expected in (({}, 35), ({"depth": 3}, 75), ({"depth": 3, "bias": False}, 63)):
        config = chosen(name=f"{__name__}:stacked", **keys)
        assert parameters(build(config, (1, 2, 2), 3, Seed(0))) == expected
    assert config.model_dump() == {"name": f"{__name__}:stacked", "start": None, "depth": 3, "bias": False}
    with pytest.raises(UserError, match=r"unknown key 'model.layer'"):  # no file can hold a class
        chosen(name=f"{__name__}:stacked", layer="Linear")
    with pytest.raises(UserError, match=r"model.depth = 'x': must be a whole number"):
        chosen(name=f"{__name__}:stacked", depth="x")
    with pytest.raises(UserError, match=r"^model.width has no default; set it$"):
        chosen(name=f"{__name__}:centred")


def test_a_class_with_a_configuration_of_its_own() -> None:
    assert parameters(build(chosen(name=f"{__name__}:Deep"), (1, 2, 2), 3, Seed(0))) == 55
    with pytest.raises(UserError, match=r"model.layers = 0: must be greater than or equal to 1"):
        chosen(name=f"{__name__}:Deep", layers=0)


class Centred(nn.Linear):
    """Batch statistics that are no layer of PyTorch's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        return super().forward(x - x.mean(0) if self.training else x)


def centred(image_shape: tuple[int, int, int], num_classes: int, width: int) -> nn.Module:
    return Centred(image_shape[1] * image_shape[2], num_classes)


def dropping(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, num_classes))


@pytest.mark.parametrize(
    ("model", "training", "passes"),
    [
        ("cnn", True, 1),
        ("resnet18", True, 2),
        ("resnet18", False, 1),
        ("test_models:centred", True, 2),
        ("test_models:centred", False, 1),
    ],
)
def test_several_batches_in_one_pass_where_none_sees_the_other(model: str, training: bool, passes: int) -> None:
    """Logits and BatchNorm's statistics are those of one batch after the other."""
    module = build(chosen(name=model, width=4), (1, 8, 8), 3, Seed(0))
    together, apart = (Network(copy.deepcopy(module), (0.5,), (0.25,), CPU) for _ in range(2))
    calls = []
    together.module.register_forward_hook(lambda *_: calls.append(1))
    for net in (together, apart):
        net.train() if training else net.eval()
    batches = [torch.randint(256, (n, 1, 8, 8), generator=torch.Generator().manual_seed(n)).byte() for n in (6, 3)]
    got, wanted = together.each(*batches), [apart(images) for images in batches]
    assert len(calls) == passes
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)
    for name, tensor in apart.others.items():
        torch.testing.assert_close(together.others[name], tensor)


@pytest.mark.parametrize(
    ("config", "mixes"),
    [
        (chosen(width=4), False),
        (chosen(name="resnet18-gn", width=4), False),
        (chosen(name="resnet18", width=4), True),
        (chosen(name="test_models:centred", width=4), True),
        (chosen(name="test_models:dropping"), True),
    ],
)
def test_whether_samples_see_each_other_is_found_without_a_trace(config: ModelConfig, mixes: bool) -> None:
    generator = torch.get_rng_state()
    module = build(config, (1, 8, 8), 3, Seed(0))
    assert torch.equal(torch.get_rng_state(), generator)
    assert Network(module, (0.5,), (0.25,), CPU).mixes is mixes


def test_kernels_are_left_out_by_name() -> None:
    on_a_gpu = SimpleNamespace(is_cuda=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "available", lambda: True)
        with kernels.without("conv"):
            assert [kernels.usable(on_a_gpu, name) for name in ("conv", "norm")] == [False, True]
        assert all(kernels.usable(on_a_gpu, name) for name in kernels.KERNELS)
        with (
            pytest.raises(ValueError, match=r"unknown kernels \['pooling'\]; choose from conv"),
            kernels.without("pooling"),
        ):
            pass
    assert not kernels.usable(torch.zeros(1), "conv")
