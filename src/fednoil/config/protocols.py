"""Protocols of other papers and benchmarks as presets: their clients, rounds, optimiser, network, noise and split.

A preset is `<family>/<setting>`, with the method of the family's own paper, or `<family>/<setting>/<method>` with
another one. All methods of a setting train the same number of clients for the same number of epochs: a method that
visits clients one by one has more rounds, of fewer clients. What a method counts in rounds (warm-up, ramp, stages)
keeps its share of them. FedNoisy's settings are for MNIST; Fashion-MNIST takes its place here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fednoil.errors import UserError, nearest

Values = dict[str, Any]


@dataclass(frozen=True)
class Protocol:
    """How a comparison is made: `turns` is how many times a client trains, over all rounds."""

    sections: Values  # data, partition, noise, model, train
    fraction: float  # of the clients, trained in a round
    turns: int
    epochs: int
    samples: int  # of the training set
    own: str  # its authors' method
    reports: str  # what its authors report
    passes: int = 5  # FedCorr's and FedDiv's over all clients, where the budget has room for ten times as many
    alone: float = 500 / 950  # share of FedCorr's later rounds in which clients with little noise train alone

    @property
    def clients(self) -> int:
        return int(self.sections["partition"]["clients"])

    @property
    def each(self) -> int:
        """Clients that train in a round."""
        return max(1, round(self.fraction * self.clients))

    @property
    def rounds(self) -> int:
        return self.turns // self.each

    @property
    def sample_passes(self) -> int:
        """How many samples are trained on in total, counted again in every epoch."""
        return self.turns * self.epochs * self.samples // self.clients

    def values(self, method: str) -> Values:
        """The sections of a method under this protocol."""
        found = PROTOCOL_METHODS[method](self)
        train = {**self.sections["train"], "rounds": found.pop("rounds", self.rounds)}
        usual = {
            "sampling": {"name": "uniform", "fraction": self.fraction},
            "server": {"name": "fedavg"},
            "schedule": {"name": "constant", "epochs": self.epochs},
        }
        return {**usual, **{name: dict(keys) for name, keys in self.sections.items()}, **found, "train": train}


def _visiting(protocol: Protocol) -> tuple[int, int]:
    """Passes over all clients, one a round, and the resulting total number of rounds."""
    passes = max(1, min(protocol.passes, protocol.turns // (10 * protocol.clients)))
    return passes, passes * protocol.clients + (protocol.turns - passes * protocol.clients) // protocol.each


def _fedcorr(protocol: Protocol) -> Values:
    passes, rounds = _visiting(protocol)
    warmup = int((rounds - passes * protocol.clients) * protocol.alone + 1e-9)
    server = {"name": "fedcorr", "passes": passes, "warmup": warmup}
    return {"server": server, "learner": {"name": "mixup"}, "rounds": rounds}


def _feddiv(protocol: Protocol) -> Values:
    passes, rounds = _visiting(protocol)
    weight = 0.0 if protocol.sections["partition"]["kind"] == "iid" else 1.0
    return {
        "server": {"name": "feddiv", "passes": passes},
        "learner": {"name": "feddiv", "weight": weight},
        "rounds": rounds,
    }


def _after_warmup(learner: str) -> Callable[[Protocol], Values]:
    def values(protocol: Protocol) -> Values:
        warmup = max(1, protocol.rounds // 6)  # 20 of FNBench's 120
        ramp = {"ramp": max(1, protocol.rounds - warmup)} if learner == "fednoro" else {}
        return {"server": {"name": "fednoro", "warmup": warmup}, "learner": {"name": learner, **ramp}}

    return values


def _fedgr(protocol: Protocol) -> Values:
    passes = max(1, protocol.turns // (5 * protocol.clients))  # 10 in its own
    return {"server": {"name": "fedgr", "passes": passes, "version": "pooled"}, "learner": {"name": "fedgr"}}


def _learner(name: str, **more: Values) -> Callable[[Protocol], Values]:
    return lambda protocol: {"learner": {"name": name}, **more}


def _dividemix(protocol: Protocol) -> Values:
    tenth = max(1, protocol.rounds // 10)
    return {"learner": {"name": "dividemix", "warmup": max(1, protocol.rounds // 15), "ramp": tenth}}


def _fednoil(protocol: Protocol) -> Values:
    return {
        "sampling": {"name": "score", "fraction": protocol.fraction},
        "learner": {"name": "fednoil", "frac": "auto"},
    }


def _fednoil_plus(protocol: Protocol) -> Values:
    """The default's choices, except that clients drawn, epochs, optimiser and decay are the protocol's."""
    return {"server": {"name": "fedavg", "average": 0.95}, "learner": {"name": "fednoil-plus"}}


PROTOCOL_METHODS: dict[str, Callable[[Protocol], Values]] = {
    "fedavg": _learner("erm"),
    "fedprox": _learner("erm", server={"name": "fedprox"}),
    "median": _learner("erm", server={"name": "median"}),
    "gce": _learner("gce"),
    "sce": _learner("sce"),
    "elr": _learner("elr"),
    "mixup": _learner("mixup"),
    "coteaching": lambda protocol: {"learner": {"name": "coteaching", "ramp": max(1, protocol.rounds // 15)}},
    "dividemix": _dividemix,
    "fedlsr": _learner("fedlsr"),
    "fednoro": _after_warmup("fednoro"),
    "fedelc": _after_warmup("fedelc"),
    "fedcorr": _fedcorr,
    "feddiv": _feddiv,
    "fedgr": _fedgr,
    "fednoil": _fednoil,
    "fednoil-plus": _fednoil_plus,
}


def _sgd(lr: float, momentum: float, decay: float, batch_size: int) -> Values:
    return {"lr": lr, "momentum": momentum, "weight_decay": decay, "batch_size": batch_size}


def _fedcorr_setting(dataset: str, model: str, clients: int, turns: int, lr: float, **stages: Any) -> Protocol:
    noise = {"kind": "symmetric-all", "levels": "two-level", "rho": 0.6, "ratios": [0.5, 1.0]}
    sections = {
        "data": {"name": dataset},
        "partition": {"kind": "iid", "clients": clients},
        "noise": noise,
        "model": {"name": model},
        "train": _sgd(lr, 0.5, 0.0, 10),
    }
    return Protocol(sections, 0.1, turns, 5, 50_000, "fedcorr", "the best round on test data", **stages)


def _fednoisy() -> dict[str, Protocol]:
    """Four partitions × five kinds of noise."""
    partitions: dict[str, Values] = {
        "iid": {"kind": "iid"},
        "classes": {"kind": "classes", "classes": 3},
        "dirichlet": {"kind": "capped", "beta": 0.1, "min_size": 10},
        "quantity": {"kind": "quantity", "beta": 0.1, "min_size": 10},
    }
    local = {"levels": "uniform", "ratios": [0.3, 0.5], "space": "client"}
    noises: dict[str, Values] = {
        "clean": {"kind": "none"},
        "symmetric": {"kind": "symmetric", "ratios": [0.4]},
        "pair": {"kind": "pair", "map": "shared", "ratios": [0.4]},
        "local-symmetric": {"kind": "symmetric", **local},
        "local-pair": {"kind": "pair", "map": "shared", **local},
    }
    found = {}
    for split, partition in partitions.items():
        for name, noise in noises.items():
            sections = {
                "data": {"name": "fashion-mnist"},
                "partition": {**partition, "clients": 10},
                "noise": noise,
                "model": {"name": "cnn"},
                "train": _sgd(0.01, 0.9, 5e-4, 32),
            }
            found[f"{split}-{name}"] = Protocol(sections, 1.0, 5000, 5, 60_000, "fedavg", "accuracy")
    return found


_FNBENCH = Protocol(
    {
        "data": {"name": "cifar10"},
        "partition": {"kind": "iid", "clients": 100},
        "noise": {"kind": "symmetric", "levels": "linear", "ratios": [0.0, 0.8]},
        "model": {"name": "resnet18"},
        "train": _sgd(0.01, 0.9, 5e-4, 64),
    },
    0.1,
    1200,
    5,
    50_000,
    "fedelc",
    "the mean of the last ten rounds",
)
_FEDGR = Protocol(
    {
        "data": {"name": "cifar10"},
        "partition": {"kind": "capped", "clients": 100, "beta": 0.3, "min_size": 10},
        "noise": {"kind": "symmetric", "levels": "fixed", "rho": 0.6, "ratios": [0.5, 1.0]},
        "model": {"name": "resnet18"},
        "train": _sgd(0.01, 0.5, 5e-4, 32),
    },
    0.1,
    5000,
    10,
    50_000,
    "fedgr",
    "accuracy",
)
PROTOCOLS: dict[str, dict[str, Protocol]] = {
    "fedcorr": {
        "cifar10": _fedcorr_setting("cifar10", "resnet18", 100, 10_000, 0.03),
        "cifar100": _fedcorr_setting("cifar100", "resnet34", 50, 5_000, 0.01, passes=10, alone=450 / 900),
    },
    "fnbench": {"cifar10": _FNBENCH},
    "fedgr": {"cifar10": _FEDGR},
    "fednoisy": _fednoisy(),
}


@dataclass(frozen=True)
class ProtocolFamily:
    """The presets of one family."""

    family: str
    settings: Mapping[str, Protocol]

    def names(self) -> Sequence[str]:
        return [
            f"{self.family}/{s}{m}" for s in self.settings for m in ("", *(f"/{method}" for method in PROTOCOL_METHODS))
        ]

    def values(self, name: str) -> Values:
        _, setting, *method = name.split("/")
        if name not in self.names():
            raise UserError(f"unknown preset '{name}'{nearest(name, list(self.names()))}")
        protocol = self.settings[setting]
        return protocol.values(method[0] if method else protocol.own)

    def about(self) -> Sequence[str]:
        settings, count = self.settings, len(self.names())
        first = next(iter(settings.values()))
        passes = ", ".join(dict.fromkeys(f"{p.sample_passes / 1e6:g} M" for p in settings.values()))
        lines = [
            f"{self.family}/<setting>/<method>, {count} in all, {passes} sample passes each; without a method "
            f"{first.own}; reported is {first.reports}",
            f"  setting:  {', '.join(settings)}",
        ]
        if self.family == next(reversed(PROTOCOLS)):  # all families have the same methods
            lines.append(f"  method of all these:  {', '.join(PROTOCOL_METHODS)}")
        return lines
