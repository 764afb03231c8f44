"""Learners by name: each is one file and one line in the table below."""

from __future__ import annotations

from fednoil.learners.base import Learner
from fednoil.learners.capabilities import CAPABILITIES
from fednoil.learners.dividemix import DivideMix
from fednoil.learners.elr import Elr
from fednoil.learners.erm import Erm
from fednoil.learners.feddiv import FedDiv
from fednoil.learners.fedelc import FedElc
from fednoil.learners.fedgr import FedGr
from fednoil.learners.fedlsr import FedLsr
from fednoil.learners.fednoil import FedNoil
from fednoil.learners.fednoil_plus import FedNoilPlus
from fednoil.learners.fednoro import FedNoRo
from fednoil.learners.josrc import Josrc
from fednoil.learners.mixup import Mixup
from fednoil.learners.robust import Gce, Sce
from fednoil.learners.small_loss import Coteaching, Jocor
from fednoil.plugins import Axis

LEARNERS: dict[str, type[Learner]] = {
    "erm": Erm,
    "fednoil": FedNoil,
    "fednoil-plus": FedNoilPlus,
    "dividemix": DivideMix,
    "josrc": Josrc,
    "coteaching": Coteaching,
    "jocor": Jocor,
    "fednoro": FedNoRo,
    "fedelc": FedElc,
    "feddiv": FedDiv,
    "fedgr": FedGr,
    "fedlsr": FedLsr,
    "elr": Elr,
    "gce": Gce,
    "sce": Sce,
    "mixup": Mixup,
}


AXIS = Axis("learner", Learner, LEARNERS, default="erm", optional=CAPABILITIES)


def learner_class(name: str) -> type[Learner]:
    """The learner called `name`, or the user's own at `package.module:Class`."""
    return AXIS.find(name)
