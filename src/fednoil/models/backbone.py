"""Pretrained networks of the timm library, `timm:NAME`: trained as a whole, or only the last layers, the head, or
LoRA's additions.

Weights come from the file that `model.start` names; nothing is downloaded. What is not trained is frozen, with the
statistics of its normalisations: neither sent nor kept by clients. Images are normalised as the network was trained.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

import torch
from pydantic import AfterValidator, Field, StringConstraints
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase

from fednoil.errors import UserError, nearest
from fednoil.models.base import ModelConfig, check_pictures
from fednoil.plugins import About
from fednoil.tensors import Tensors

WORD = "timm"
_RANK, _ALPHA = 8, 16  # of LoRA
_PREFIX = "net."


def _known_part(value: str) -> str:
    if not re.fullmatch(r"all|head|lora|last:[1-9]\d*", value):
        raise ValueError("must be all, head, lora or last:N, as last:2")
    return value


class BackboneConfig(ModelConfig):
    name: Annotated[str, StringConstraints(pattern=rf"^{WORD}:\S+$")] = f"{WORD}:NAME"
    train: Annotated[str, AfterValidator(_known_part)] = Field(
        default="all",
        description="which part is trained: all, head, last:N (the head and N blocks before it) or lora (the head and "
        "additions of rank 8 to linear layers)",
    )


def _timm(name: str) -> Any:
    try:
        import timm  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(f"model.name = '{WORD}:{name}' needs timm; install it: pip install 'fednoil[timm]'") from None
    except RuntimeError as error:  # of a torchvision whose operators can't be loaded
        raise UserError(
            f"model.name = '{WORD}:{name}' needs timm, which can't be imported ({error}); install the torchvision "
            f"that is made for PyTorch {torch.__version__}"
        ) from None
    if not timm.is_model(name):
        raise UserError(f"model.name = '{WORD}:{name}' is unknown to timm{nearest(name, timm.list_models())}")
    return timm


def own_size(name: str) -> int:
    """The side of the images that a network was trained on."""
    return int(_timm(name).get_pretrained_cfg(name, allow_unregistered=False).input_size[-1])


class Backbone(nn.Module):
    """A network of timm for images of any number of channels that it takes, with a head for our classes."""

    Config = BackboneConfig
    about = About(title="A pretrained network of the timm library")

    def __init__(self, name: str, image_shape: tuple[int, ...], num_classes: int, train: str = "all") -> None:
        super().__init__()
        timm = _timm(name)
        check_pictures(f"{WORD}:{name}", image_shape)
        known = timm.get_pretrained_cfg(name)
        sized = {"img_size": tuple(image_shape[1:])} if known.fixed_input_size else {}
        _check_patch(timm, name, image_shape, sized)
        self.net: Any = timm.create_model(name, pretrained=False, num_classes=num_classes, **sized)
        grey = image_shape[0] == 1
        self.normalisation = tuple(
            (math.fsum(values) / len(values),) if grey else tuple(values) for values in (known.mean, known.std)
        )
        self._frozen: list[str] = []
        if train == "lora":
            _add_lora(self.net, f"{WORD}:{name}")
        if train != "all":
            self._freeze(train)

    def _freeze(self, train: str) -> None:
        from timm.models._manipulate import group_parameters  # pyright: ignore[reportMissingImports]

        groups = group_parameters(self.net, self.net.group_matcher(coarse=False))
        layers = [names for _, names in sorted(groups.items())]
        blocks = int(train.partition(":")[2] or 0)
        trained = {name for names in layers[-1 - blocks :] for name in names}
        for name, parameter in self.net.named_parameters():
            parameter.requires_grad_(name in trained or ".lora_" in name)
        for name, module in self.net.named_modules():
            if isinstance(module, _NormBase) and not any(p.requires_grad for p in module.parameters()):
                self._frozen.append(name)

    def train(self, mode: bool = True) -> Backbone:
        super().train(mode)
        for name in self._frozen:
            self.net.get_submodule(name).eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.net(_coloured(x))

    def features(self, x: Tensor) -> Tensor:
        """What the head is given: [N, D]."""
        return self.net.forward_head(self.net.forward_features(_coloured(x)), pre_logits=True)

    def optional(self, name: str) -> bool:
        """Whether a tensor may be missing in a file of weights: the head for our classes, and LoRA's additions."""
        head = {f"{_PREFIX}{own}" for own, _ in self._head()}
        return name in head or ".lora_" in name

    def _head(self) -> list[tuple[str, nn.Parameter]]:
        names = {id(p): n for n, p in self.net.named_parameters()}
        return [(names[id(p)], p) for p in self.net.get_classifier().parameters()]

    def fitted(self, given: Tensors) -> Tensors:
        """A file's tensors by our names: positions are resampled for another size of images, and a head for other
        classes is left out."""
        own = self.state_dict()
        if not given.keys() & own.keys():
            given = {f"{_PREFIX}{name}": tensor for name, tensor in given.items()}
        given = {n: t for n, t in given.items() if not (self.optional(n) and n in own and own[n].shape != t.shape)}
        place = f"{_PREFIX}pos_embed"
        if place in given and place in own and given[place].shape != own[place].shape:
            from timm.layers import resample_abs_pos_embed  # pyright: ignore[reportMissingImports]

            embed, tokens = self.net.patch_embed, int(getattr(self.net, "num_prefix_tokens", 1))
            given[place] = resample_abs_pos_embed(given[place].float(), embed.grid_size, num_prefix_tokens=tokens)
        return given


def _coloured(x: Tensor) -> Tensor:
    """Grey images as the three channels that these networks take."""
    return x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x


def _check_patch(timm: Any, name: str, image_shape: tuple[int, ...], sized: dict[str, Any]) -> None:
    """Refuse a size that patches don't fill; networks without patches take any size."""
    with torch.device("meta"):
        patch = getattr(getattr(timm.create_model(name, **sized), "patch_embed", None), "patch_size", None)
    if patch is None:
        return
    height, width = patch if isinstance(patch, tuple) else (patch, patch)
    if image_shape[1] % height or image_shape[2] % width:
        near = max(1, round(image_shape[1] / height)) * height
        raise UserError(
            f"model.name = '{WORD}:{name}' has patches of {height}×{width} pixels, which don't fill images of "
            f"{image_shape[2]}×{image_shape[1]}; set data.size to a multiple, such as {near}"
        )


class LoraLinear(nn.Linear):
    """A linear layer with a trained addition of low rank (Hu et al., ICLR 2022), zero at first."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features, layer.bias is not None)
        self.load_state_dict(layer.state_dict())
        self.lora_a = nn.Parameter(torch.empty(_RANK, layer.in_features))
        self.lora_b = nn.Parameter(torch.zeros(layer.out_features, _RANK))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + F.linear(F.linear(x, self.lora_a), self.lora_b) * (_ALPHA / _RANK)


def _add_lora(net: Any, name: str) -> None:
    """Replace the linear layers before the head."""
    head = set(net.get_classifier().modules())
    found = [(path, m) for path, m in net.named_modules() if type(m) is nn.Linear and m not in head]
    if not found:
        raise UserError(
            f"model.train = 'lora': '{name}' has no linear layers before its head; use 'head' or 'last:N', or a "
            "network such as timm:vit_tiny_patch16_224"
        )
    for path, layer in found:
        parent, _, leaf = path.rpartition(".")
        setattr(net.get_submodule(parent), leaf, LoraLinear(layer))
