"""FedAvg (McMahan et al., AISTATS 2017): the sampled clients' models, averaged by their number of samples."""

from __future__ import annotations

from typing import Literal

from fednoil.plugins import About
from fednoil.servers.base import Server, ServerConfig


class FedAvgConfig(ServerConfig):
    name: Literal["fedavg"] = "fedavg"


class FedAvg(Server):
    Config = FedAvgConfig
    about = About(
        title="Federated averaging",
        paper="McMahan et al., AISTATS 2017",
        keeps="nothing",
        sends="model",
        cost="1",
    )
