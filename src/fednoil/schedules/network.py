"""As many local epochs as suit the network and the clients: the same number in every round, and for a large network
more at first.

In many rounds a small network needs a few epochs in each and gains nothing from more; a large one does
(experiments/default). With few samples, or in few rounds, few epochs are too few steps: the audits of a
few small sites want 50 (tests/test_journey_folders.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from fednoil.plugins import About
from fednoil.scale import MANY, few_labels
from fednoil.schedules.base import Schedule, ScheduleConfig, check_round
from fednoil.schedules.constant import Constant, ConstantConfig
from fednoil.schedules.decay import Logarithm, LogarithmConfig

_USUAL, _MORE = 10, 50  # epochs of a small network, and if there are few samples or rounds
_ROUNDS = 100  # that are many
_FIRST, _LAST = 100, 20  # of a large network: in round 1, and after it has fallen
_FALLS = 0.4  # share of the rounds in which it falls, as in the paper: 80 of 200
_SHARE = re.compile(r"([1-9]\d{0,2}) %")


class ByNetworkConfig(ScheduleConfig):
    by_share = frozenset({"epochs"})
    follows_rounds: ClassVar[bool] = True

    name: Literal["network"] = "network"
    epochs: int | str = Field(
        default="auto",
        description=f"local epochs in every round; auto: {_USUAL}, but {_MORE} in fewer than {_ROUNDS} rounds or if "
        f"clients have fewer than {MANY} samples on average, and for a large network {_FIRST} in round 1, falling to "
        f'{_LAST}; "30 %": 30 % of these numbers',
    )

    @field_validator("epochs", mode="before")
    @classmethod
    def _share_or_number(cls, value: object) -> object:
        number = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if not number and value != "auto" and not (isinstance(value, str) and _SHARE.fullmatch(value)):
            raise ValueError("must be a whole number of at least 1, 'auto', or a share of that such as '30 %'")
        return value

    @property
    def share(self) -> float:
        """Of the usual number of epochs, where none is set."""
        found = _SHARE.fullmatch(str(self.epochs))
        return int(found[1]) / 100 if found else 1.0

    def spread(self, share: float) -> dict[str, Any]:
        if isinstance(self.epochs, int):
            return super().spread(share)
        return {"epochs": f"{max(1, round(100 * share * self.share))} %"}


class ByNetwork(Schedule):
    """The same number of epochs in every round; those of a large network fall like `logarithm`'s."""

    Config = ByNetworkConfig
    about = About(title="The same number of local epochs, or for a large network a falling one")
    config: ByNetworkConfig

    def fitted(self, rounds: int, *, large: bool, sizes: Sequence[int]) -> Schedule:
        if large:
            bounds = {"epochs": self._part(_FIRST), "t_min": self._part(_LAST), "r_min": max(2, round(_FALLS * rounds))}
            return Logarithm(LogarithmConfig.model_validate(bounds))
        few = rounds < _ROUNDS or few_labels(sizes)
        return Constant(ConstantConfig(epochs=self._part(_MORE if few else _USUAL)))

    def epochs(self, round_idx: int) -> int:
        """Those of a small network in many rounds at clients with many samples."""
        check_round(round_idx)
        return self._part(_USUAL)

    def _part(self, usual: int) -> int:
        """The number that is set, or else its share of the usual one."""
        own = self.config.epochs
        return own if isinstance(own, int) else max(1, math.floor(self.config.share * usual + 0.5))
