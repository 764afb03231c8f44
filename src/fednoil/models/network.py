"""A module whose tensors are views of a few flat vectors.

An optimiser step, a proximal term, a moving average or a copy is then a handful of operations on one vector, for any
number of layers, and the vector's fixed address suits a captured CUDA graph. The vectors of several clients can lie
side by side (`fednoil.models.stack`), so that one operation serves all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd

from fednoil.errors import UserError
from fednoil.models.balance import SHIFT, log_shares
from fednoil.tensors import Tensors, joined

_CAST = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _submodule(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path), leaf


def channels_last(images: Tensor) -> Tensor:
    """The images [B, C, H, W] with their channels side by side in memory."""
    images = images.contiguous(memory_format=torch.channels_last)
    _, channels, height, width = images.shape
    # With one channel both layouts are the same in memory, and a convolution picks one by the strides alone.
    return images.as_strided(images.shape, (channels * height * width, 1, channels * width, channels))


def mixes(module: nn.Module) -> bool:
    """Whether it has layers that mix the samples of a batch, or draw random numbers for them."""
    return any(isinstance(m, (_BatchNorm, _DropoutNd)) for m in module.modules())


def fixed_names(module: nn.Module) -> set[str]:
    """The part of a module's state that training never changes: frozen parameters (`requires_grad = False`), and the
    statistics of normalisations that stay in eval mode when the module trains."""
    names = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
    was_training = module.training
    module.train()
    for name, layer in module.named_modules():
        if isinstance(layer, _NormBase) and not layer.training:
            names |= {f"{name}.{buffer}".removeprefix(".") for buffer, _ in layer.named_buffers(recurse=False)}
    module.train(was_training)
    return names & module.state_dict().keys()


def brought(tensor: Tensor, home: torch.device) -> Tensor:
    """What a network says, where the samples are: on another device only if networks have one of their own."""
    return tensor.to(home)


class Network:
    """One network of one client: flat `params` and `grads`, the optimiser's memory, and its other tensors.

    Calling it takes images with pixels 0..255 (uint8 or float), normalises them and returns float32 logits, so
    learners work in pixels throughout and mixing or erasing images needs no knowledge of the normalisation. Without a
    mean and std it takes its inputs as they are: vectors, which are scaled once.
    What training never changes is `fixed`: clients don't receive, send or keep it.
    With `dtype` bfloat16 convolutions and matrix products run in it (autocast); parameters stay float32.
    Samples, logits and models that come and go are on the device `home`, by default the network's own.
    """

    def __init__(
        self,
        module: nn.Module,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        home: torch.device | None = None,
    ) -> None:
        self.module = module.to(device)
        self.device, self.dtype, self.home = device, dtype, home or device
        # Whether a sample's logits in training depend on the rest of its batch, or its size (shared random numbers).
        self.mixes = bool(getattr(module, "mixes_samples", False)) or mixes(module)
        # Convolutions like this layout: the CNN's steps take 0.6 to 0.8 of the time on a CPU, forward passes half. On a
        # CPU a module has to ask for it; on a GPU it is enough that it can read it (one that calls `view` can't).
        wish = "reads_channels_last" if device.type == "cuda" else "channels_last"
        self._channels_last = bool(getattr(module, wish, False))
        self._normalises = bool(std)
        scale = torch.tensor(std, device=device).view(1, -1, 1, 1) * 255.0
        self._gain = scale.reciprocal()
        self._bias = -torch.tensor(mean, device=device).view(1, -1, 1, 1) * 255.0 / scale
        trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
        # What autocast would cast comes first, in one piece that can change its dtype at once.
        layers = {name for name, m in module.named_modules() if isinstance(m, _CAST)}  # '': the module itself
        cast = {f"{name}.weight".removeprefix(".") for name in layers} & trained.keys()
        self.trained = {n: p.shape for n, p in sorted(trained.items(), key=lambda item: item[0] not in cast)}
        self.cast = sum(trained[name].numel() for name in cast)  # how long that piece is
        fixed, state = fixed_names(module), module.state_dict()
        self.fixed: Tensors = {name: state[name] for name in state if name in fixed}
        # Everything else the module holds.
        self.others: Tensors = {n: b for n, b in module.named_buffers() if n not in fixed}
        persistent = set(module.state_dict().keys())
        # Buffers that are not part of the state start as constructed, so that one client's don't leak to the next.
        self._scratch = {n: b.clone() for n, b in module.named_buffers() if n not in persistent}
        count = sum(shape.numel() for shape in self.trained.values())
        self.params = torch.cat([self._stored(trained[name].data).flatten() for name in self.trained])
        self.grads = torch.zeros(count, device=device)
        self.memory: Tensors = {}  # the optimiser's
        self._point()

    def _stored(self, tensor: Tensor) -> Tensor:
        """A parameter as it is laid out in memory: on a GPU a convolution's [O, C, h, w] is stored as [h, w, C, O]."""
        return tensor.permute(2, 3, 1, 0) if tensor.dim() == 4 and self.device.type == "cuda" else tensor

    def _shaped(self, flat: Tensor, shape: torch.Size) -> Tensor:
        """A stored parameter viewed in its own shape."""
        if len(shape) == 4 and self.device.type == "cuda":
            return flat.view(*shape[2:], shape[1], shape[0]).permute(3, 2, 0, 1)
        return flat.view(shape)

    def named(self, *parts: Tensor) -> Tensors:
        """The trained parameters by name, as views of a flat vector, which may come in pieces (see `parts`)."""
        sizes, pieces = [shape.numel() for shape in self.trained.values()], []
        for part in parts:
            mine, count = [], len(part)
            while count > sum(mine):
                mine.append(sizes[len(pieces) + len(mine)])
            pieces += [part] if len(mine) == 1 else part.split(mine)  # the gradient of a split is a copy
        return {name: self._shaped(p, shape) for (name, shape), p in zip(self.trained.items(), pieces, strict=True)}

    def parts(self, flat: Tensor) -> tuple[Tensor, ...]:
        """A flat vector as the network computes with it: what autocast would cast, in its dtype, then the rest."""
        if self.dtype == flat.dtype:
            return (flat,)
        return flat[: self.cast].to(self.dtype), flat[self.cast :]

    def _point(self) -> None:
        """Make the module's parameters, with their gradients, views of the flat vectors."""
        grads, params = self.named(self.grads), self.named(self.params)
        for name, tensor in params.items():
            parameter = self.module.get_parameter(name)
            parameter.data, parameter.grad = tensor, grads[name]
        # All tensors that training changes, by name.
        self._model = params | {name: tensor for name, tensor in self.others.items() if name not in self._scratch}

    def move(self, params: Tensor, grads: Tensor, memory: Tensors, others: Tensors) -> None:
        """Use these tensors, which hold the same values, as its own."""
        self.params, self.grads, self.memory, self.others = params, grads, memory, others
        self._point()
        for name, tensor in others.items():
            owner, leaf = _submodule(self.module, name)
            owner._buffers[leaf] = tensor

    def share(self, fixed: Tensors) -> None:
        """Use another network's tensors for what training never changes."""
        self.fixed = fixed
        for name, tensor in fixed.items():
            owner, leaf = _submodule(self.module, name)
            if leaf in owner._buffers:
                owner._buffers[leaf] = tensor
            else:
                self.module.get_parameter(name).data = tensor

    def inputs(self, images: Tensor) -> Tensor:
        """Normalised images."""
        if not self._normalises:
            return images.to(torch.float32)
        # Whole numbers need no copy, except on a device whose operations may not take two dtypes at once (Apple's).
        copied = images.is_floating_point() or self.device.type not in ("cpu", "cuda")
        pixels = images.to(torch.float32) if copied else images
        return torch.addcmul(self._bias, pixels, self._gain)

    def arithmetic(self) -> contextlib.AbstractContextManager[object]:
        """The context in which the module computes."""
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.dtype, cache_enabled=False)

    def __call__(self, images: Tensor) -> Tensor:
        x = self.inputs(images.to(self.device))
        if self._channels_last:
            x = channels_last(x)
        with self.arithmetic():
            logits = self.module(x).float()
        return brought(logits, self.home)

    def each(self, *batches: Tensor) -> tuple[Tensor, ...]:
        """The logits of several batches, each as if alone; in one pass if that makes no difference."""
        return each_of(self, self, batches)

    def embedded(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The features that the last linear layer of the network gets, float32 [B, d], and the logits."""
        features, logits = embedded_by(self.module, lambda: self(images))
        return brought(features, self.home), logits

    def train(self) -> None:
        if not self.module.training:
            self.module.train()

    def eval(self) -> None:
        if self.module.training:
            self.module.eval()

    def reset_optimiser(self) -> None:
        for tensor in self.memory.values():
            tensor.zero_()

    def balance(self, labels: Tensor) -> None:
        """Adjust to how often a client has each given class, if the network is one that does (`balanced`)."""
        if SHIFT in self.others:
            self.others[SHIFT].copy_(log_shares(labels, len(self.others[SHIFT])))

    def load(self, tensors: Tensors, prefix: str) -> None:
        """Copy `<prefix>/<name>` into this network."""
        for name, view in self._model.items():
            view.copy_(tensors[f"{prefix}/{name}"])
        for name, start in self._scratch.items():
            self.others[name].copy_(start)

    def dump(self, prefix: str) -> Tensors:
        """A copy of all tensors that training changes as `<prefix>/<name>`."""
        return {
            f"{prefix}/{name}": brought(view.detach().clone(memory_format=torch.contiguous_format), self.home)
            for name, view in self._model.items()
        }

    def fix(self, tensors: Tensors, prefix: str) -> None:
        """Copy what training never changes from `<prefix>/<name>`."""
        for name, tensor in self.fixed.items():
            tensor.copy_(tensors[f"{prefix}/{name}"])

    def dump_fixed(self, prefix: str) -> Tensors:
        """A copy of what training never changes as `<prefix>/<name>`."""
        return {f"{prefix}/{name}": brought(tensor.clone(), self.home) for name, tensor in self.fixed.items()}


def embedded_by(module: nn.Module, call: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """What a call gives to the module's last linear layer, and its result."""
    heads = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    if not heads:
        raise UserError(f"model.name: {type(module).__name__} has no linear layer, whose input this method compares")
    found: list[Tensor] = []
    handle = heads[-1].register_forward_pre_hook(lambda layer, given: found.append(given[0]))
    try:
        logits = call()
    finally:
        handle.remove()
    return found[-1].flatten(1).float(), logits


def each_of(net: Callable[[Tensor], Tensor], network: Network, batches: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The logits of several batches, in one pass where samples don't affect each other."""
    if network.mixes and network.module.training:
        return tuple(net(images) for images in batches)
    return net(joined(batches)).split([len(images) for images in batches])
