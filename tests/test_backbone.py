"""Pretrained networks: weights from a file, what is trained and sent of them, and features computed once."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import fednoil, refused, tiny_arrays, write_folder
from safetensors.torch import save_file

from fednoil.config import load_config
from fednoil.errors import UserError
from fednoil.experiment import make_experiment
from fednoil.models import ModelConfig, build
from fednoil.models.backbone import Backbone, BackboneConfig
from fednoil.models.network import Network
from fednoil.records.model_file import load_model
from fednoil.seeds import Seed

SMALL = "timm:test_vit"  # of timm, for tests: patches of 16 pixels, trained on images of 160


def test_without_timm_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name.split(".")[0] == "timm":
            raise ImportError(name)
        return found(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UserError, match=r"model.name = 'timm:resnet18' needs timm; install it: pip install 'fednoil\["):
        build(BackboneConfig(name="timm:resnet18"), (3, 32, 32), 2, Seed(0))


def test_with_a_torchvision_for_another_torch_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def broken(name: str, *rest: Any) -> Any:
        if name.split(".")[0] == "timm":
            raise RuntimeError("operator torchvision::nms does not exist")
        return found(name, *rest)

    monkeypatch.setattr(builtins, "__import__", broken)
    with pytest.raises(UserError, match=r"can't be imported \(operator .*\); install the torchvision that is made for"):
        build(BackboneConfig(name="timm:resnet18"), (3, 32, 32), 2, Seed(0))


@pytest.fixture
def timm() -> Any:
    try:
        return pytest.importorskip("timm", reason="timm is not installed")
    except RuntimeError as error:
        pytest.skip(f"timm's torchvision doesn't fit the installed PyTorch: {error}")


@pytest.fixture
def weights(timm: Any, tmp_path: Path) -> Path:
    """Those of a network for 1,000 classes, as a file of timm has them."""
    torch.manual_seed(1)
    net = timm.create_model(SMALL.partition(":")[2], num_classes=1000)
    save_file(net.state_dict(), tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


def made(train: str, name: str = SMALL, shape: tuple[int, ...] = (3, 32, 32)) -> Backbone:
    module = build(BackboneConfig(name=name, train=train), shape, 4, Seed(0))
    assert isinstance(module, Backbone)
    return module


@pytest.mark.usefixtures("timm")
def test_what_is_trained() -> None:
    def trained(train: str) -> set[str]:
        module = made(train)
        return {name for name, p in module.named_parameters() if p.requires_grad}

    everything, head = trained("all"), trained("head")
    assert head == {"net.head.weight", "net.head.bias"}
    one, two = trained("last:1"), trained("last:2")
    assert head < one < two < everything
    blocks = {name.split(".")[2] for name in one if ".blocks." in name}
    assert blocks == {max(name.split(".")[2] for name in everything if ".blocks." in name)}
    lora = trained("lora")
    assert head < lora
    assert all(".lora_" in name for name in lora - head)


@pytest.mark.usefixtures("timm")
def test_statistics_of_what_is_frozen_stay() -> None:
    module = made("head", "timm:test_resnet")
    net = Network(module, (0.5,) * 3, (0.2,) * 3, torch.device("cpu"))
    assert set(net.dump("model")) == {"model/net.fc.weight", "model/net.fc.bias"}
    before = {name: tensor.clone() for name, tensor in net.fixed.items()}
    net.train()
    net(torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8))
    assert any("running_mean" in name for name in before)
    assert all(torch.equal(tensor, net.fixed[name]) for name, tensor in before.items())


@pytest.mark.usefixtures("timm")
def test_lora_begins_as_the_network_without() -> None:
    """And grey images are the three channels alike."""
    x = torch.rand(2, 1, 32, 32)
    plain, lora = made("all", shape=(1, 32, 32)).eval(), made("lora", shape=(1, 32, 32)).eval()
    names = plain.state_dict().keys()
    lora.load_state_dict({**lora.state_dict(), **plain.state_dict()})
    assert names < lora.state_dict().keys()
    assert torch.allclose(plain(x), lora(x), atol=1e-6)
    assert torch.allclose(plain(x), plain(x.expand(-1, 3, -1, -1)))


def values(folder: Path, weights: Path, **model: str) -> dict[str, dict[str, Any]]:
    return {
        "data": {"name": f"folder:{folder}", "size": 32},
        "partition": {"kind": "iid", "clients": 2},
        "model": {"name": SMALL, "start": str(weights), **model},
        "schedule": {"name": "constant", "epochs": 1},
        "train": {"rounds": 1, "optimizer": "adamw"},
        "run": {"device": "cpu"},
    }


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "photos", tiny_arrays(24, 12), ("a", "b", "c", "d"))


def test_weights_of_a_file_and_a_head_of_ones_own(timm: Any, photos: Path, weights: Path) -> None:
    """Positions are resampled from 10×10 patches to 2×2; images are normalised as the network's were."""
    experiment = make_experiment(load_config(values(photos, weights, train="head")))
    stored = timm.create_model("test_vit", num_classes=1000)
    torch.manual_seed(1)
    stored = timm.create_model("test_vit", num_classes=1000).state_dict()
    assert set(experiment.first_model()) == {"model/net.head.weight", "model/net.head.bias"}
    fixed = experiment.fixed
    assert torch.equal(fixed["model/net.patch_embed.proj.weight"], stored["patch_embed.proj.weight"])
    assert fixed["model/net.pos_embed"].shape[1] < stored["pos_embed"].shape[1]
    known = timm.get_pretrained_cfg("test_vit")
    assert experiment.normalisation == ((pytest.approx(np.mean(known.mean)),), (pytest.approx(np.mean(known.std)),))


def test_a_run_sends_the_head_alone_and_its_file_is_whole(
    photos: Path, weights: Path, tmp_path: Path, timm: Any
) -> None:
    config = tmp_path / "c.toml"
    sections = values(photos, weights, train="head")
    lines = [f"[{s}]\n" + "\n".join(f"{k} = {json.dumps(v)}" for k, v in keys.items()) for s, keys in sections.items()]
    config.write_text("\n".join(lines))
    status, _, err = fednoil("run", config, "--quiet", "--out", tmp_path / "run")
    assert (status, err) == (0, "")
    record = json.loads((tmp_path / "run/rounds.jsonl").read_text())
    width = timm.create_model("test_vit", num_classes=4).num_features
    assert record["bytes_up"] == 2 * (4 * (4 * width + 4) + 16)
    model = load_model(tmp_path / "run/model.safetensors")
    picture = next((photos / "test").rglob("*.png"))
    status, out, _ = fednoil("predict", tmp_path / "run/model.safetensors", picture, "--resize", "--json")
    assert status == 0
    assert sum(json.loads(out)[0]["probabilities"].values()) == pytest.approx(1)
    assert "model/net.patch_embed.proj.weight" in model.tensors


@pytest.mark.usefixtures("timm")
def test_sizes_are_the_networks_own_unless_asked(photos: Path, weights: Path) -> None:
    sections = values(photos, weights)
    del sections["data"]["size"]
    assert load_config(sections).data.size == 160  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.usefixtures("timm")
def test_bad_input_is_one_line(photos: Path, weights: Path, tmp_path: Path) -> None:
    def refusal(**changes: Any) -> str:
        sections = values(photos, weights)
        for key, value in changes.items():
            section, _, name = key.partition("_")
            sections[section][name] = value
        with pytest.raises(UserError) as error:
            make_experiment(load_config(sections)).first_model()
        return str(error.value)

    assert (
        "has patches of 16×16 pixels, which don't fill images of 30×30; set data.size to a multiple, such as 32"
        in refusal(data_size=30)
    )
    assert "model.name = 'timm:test_vitt' is unknown to timm; did you mean" in refusal(model_name="timm:test_vitt")
    assert "'lora': 'timm:test_resnet' has no linear layers before its head" in refusal(
        model_name="timm:test_resnet", model_train="lora"
    )
    assert "model.train = 'tail': must be all, head, lora or last:N" in refusal(model_train="tail")
    save_file({"conv1.weight": torch.zeros(3)}, tmp_path / "other.safetensors")
    line = refusal(model_start=str(tmp_path / "other.safetensors"))
    assert " doesn't fit: it has no 'net." in line
    assert "it has no 'net.blocks.0.attn.proj.weight' (64, 64) and 75 more; it must be" in line
    vectors = build(ModelConfig(name="linear"), (4,), 2, Seed(0))
    assert vectors(torch.zeros(2, 4)).shape == (2, 2)
    with pytest.raises(UserError, match="is for pictures, and the samples are vectors of 4 numbers"):
        build(BackboneConfig(name=SMALL), (4,), 2, Seed(0))


def test_features_once_for_all_runs(photos: Path, weights: Path, tmp_path: Path, timm: Any) -> None:
    """Rows are the network's own features of the pictures, and a linear model trains on them."""
    out = tmp_path / "f.parquet"
    base = ["features", f"--data=folder:{photos}", f"--model={SMALL}", f"--weights={weights}", "--size=32"]
    status, said, err = fednoil(*base, f"--out={out}", "--device=cpu")
    assert (status, err) == (0, "")
    width = timm.create_model("test_vit").num_features
    assert f"wrote {out}: 36 rows of {width} features" in said
    keys = ("--set=model.name=linear", "--set=partition.clients=2", "--set=train.rounds=2", "--set=run.device=cpu")
    status, _, err = fednoil(
        "run", "demo", f"--set=data.name=features:{out}", *keys, "--quiet", "--out", tmp_path / "r"
    )
    assert (status, err) == (0, "")
    assert json.loads((tmp_path / "r/measures.json").read_text())["test"]["samples"] == 12
    assert "already exists" in refused(*base, f"--out={out}")
    (photos / "train/a/broken.png").write_bytes(b"")
    assert "leave it out with data.bad = 'skip'" in refused(*base, f"--out={tmp_path / 'y'}")
    assert f"{tmp_path / 'y'}: 36 rows" in fednoil(*base, f"--out={tmp_path / 'y'}", "--skip-bad")[1]
    assert "must be timm:NAME" in refused(*[b.replace("timm:", "") for b in base], f"--out={tmp_path / 'x'}")
