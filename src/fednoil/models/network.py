"""A module whose parameters are views of one flat vector.

An optimiser step, a proximal term, a moving average or a copy is then a handful of operations on one
vector, whatever the number of layers, and a fixed address in memory for a captured CUDA graph.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fednoil.tensors import Tensors


class Network:
    """One network of one client: flat `params`, `grads`, `momentum`, and its other tensors.

    Calling it takes images with pixels 0..255 (uint8 or float), normalises them and returns logits, so
    learners work in pixels throughout and mixing or erasing images needs no knowledge of the normalisation.
    """

    def __init__(
        self, module: nn.Module, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
    ) -> None:
        self.module = module.to(device)
        scale = torch.tensor(std, device=device).view(1, -1, 1, 1) * 255.0
        self._gain = scale.reciprocal()
        self._bias = -torch.tensor(mean, device=device).view(1, -1, 1, 1) * 255.0 / scale
        trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
        count = sum(p.numel() for p in trained.values())
        self.params = torch.empty(count, device=device)
        self.grads = torch.zeros(count, device=device)
        self.momentum = torch.zeros(count, device=device)
        self._views: Tensors = {}
        offset = 0
        for name, p in trained.items():
            span = slice(offset, offset + p.numel())
            view = self.params[span].view(p.shape)
            view.copy_(p.data)
            p.data = view
            p.grad = self.grads[span].view(p.shape)
            self._views[name] = view
            offset += p.numel()
        # Everything else that makes up the model: buffers, and parameters that the user has frozen.
        for name, p in module.named_parameters():
            if not p.requires_grad:
                self._views[name] = p.data
        persistent = set(module.state_dict().keys())
        # Buffers that are no part of the model start as they were made, lest one client's leak to the next.
        self._scratch: list[tuple[Tensor, Tensor]] = []
        for name, b in module.named_buffers():
            if name in persistent:
                self._views[name] = b
            else:
                self._scratch.append((b, b.clone()))

    def __call__(self, images: Tensor) -> Tensor:
        return self.module(torch.addcmul(self._bias, images.to(torch.float32), self._gain))

    def train(self) -> None:
        if not self.module.training:
            self.module.train()

    def eval(self) -> None:
        if self.module.training:
            self.module.eval()

    def reset_optimiser(self) -> None:
        self.momentum.zero_()

    def sgd(self, lr: float, momentum: float, weight_decay: float) -> None:
        """One step of SGD as torch.optim.SGD does it, on the flat vectors."""
        self.grads.add_(self.params, alpha=weight_decay)
        self.momentum.mul_(momentum).add_(self.grads)
        self.params.add_(self.momentum, alpha=-lr)

    def load(self, tensors: Tensors, prefix: str) -> None:
        """Copy `<prefix>/<name>` into this network."""
        for name, view in self._views.items():
            view.copy_(tensors[f"{prefix}/{name}"])
        for buffer, start in self._scratch:
            buffer.copy_(start)

    def dump(self, prefix: str) -> Tensors:
        """A copy of all tensors of the model as `<prefix>/<name>`."""
        return {f"{prefix}/{name}": view.detach().clone() for name, view in self._views.items()}
