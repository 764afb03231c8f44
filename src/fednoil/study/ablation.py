"""The paper's ablation of the second level: FedNoiL whose labelled set D^x is drawn without looking at confidences."""

from __future__ import annotations

import torch
from torch import Tensor

from fednoil.learners.fednoil import FedNoil, FedNoilConfig
from fednoil.tensors import Tensors


class UniformLocalConfig(FedNoilConfig):
    name: str = "fednoil.study.ablation:UniformLocal"  # pyright: ignore[reportIncompatibleVariableOverride]


class UniformLocal(FedNoil):
    Config = UniformLocalConfig

    def weights(self, state: Tensors) -> Tensor:
        return torch.ones_like(super().weights(state))
