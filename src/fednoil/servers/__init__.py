"""Servers by name: each is one file and one line in the table below."""

from __future__ import annotations

from fednoil.plugins import Axis
from fednoil.servers.apfl import Apfl
from fednoil.servers.base import Server
from fednoil.servers.centralized import Centralized
from fednoil.servers.cfl import Cfl
from fednoil.servers.coordinate import Median, TrimmedMean
from fednoil.servers.fedavg import FedAvg
from fednoil.servers.fedcorr import FedCorr
from fednoil.servers.feddiv import FedDiv
from fednoil.servers.fedgr import FedGr
from fednoil.servers.fednoro import FedNoRo
from fednoil.servers.fedprox import FedProx
from fednoil.servers.krum import Krum, MultiKrum
from fednoil.servers.rfa import Rfa

SERVERS: dict[str, type[Server]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "apfl": Apfl,
    "cfl": Cfl,
    "krum": Krum,
    "multikrum": MultiKrum,
    "median": Median,
    "trimmed_mean": TrimmedMean,
    "rfa": Rfa,
    "fednoro": FedNoRo,
    "fedcorr": FedCorr,
    "feddiv": FedDiv,
    "fedgr": FedGr,
    "centralized": Centralized,
}


AXIS = Axis("server", Server, SERVERS, default="fedavg")


def server_class(name: str) -> type[Server]:
    """The server called `name`, or the user's own at `package.module:Class`."""
    return AXIS.find(name)
