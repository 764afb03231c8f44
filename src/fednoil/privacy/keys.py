"""The keys of a run's privacy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from fednoil.section import Section


class PrivacyConfig(Section):
    """What the server may learn about a client, and what a model may reveal."""

    sees: Literal["updates", "sum", "noise"] = Field(
        default="updates",
        description="what the server sees of a round: each client's update, their sum alone (SecAgg+), or each update "
        "with noise",
    )
    clip: float | None = Field(
        default=None, gt=0, description="largest length of an update, the change that one client makes to the model"
    )
    noise: float | None = Field(
        default=None,
        gt=0,
        description="std of the Gaussian noise on the sum of a round's updates, or on each with sees = 'noise', as a "
        "multiple of the clip; each round records ε",
    )
    scores: float | None = Field(
        default=None, gt=0, description="ε of all scores that one client gives in a run; none: no noise"
    )

    @model_validator(mode="after")
    def _noise_needs_a_clip(self) -> PrivacyConfig:
        if self.noise is not None and self.clip is None:
            raise ValueError(
                f"privacy.noise = {self.noise:g} is a multiple of privacy.clip, the largest length of an update; set "
                "it too, such as 1"
            )
        if self.sees == "noise" and self.noise is None:
            raise ValueError("privacy.sees = 'noise' needs privacy.noise, the std of it, such as 1")
        return self
