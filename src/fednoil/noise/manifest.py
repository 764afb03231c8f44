"""Labels and clients from a file: a noise manifest takes the place of the partition as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from fednoil.data.dataset import Dataset
from fednoil.labels import Labels, Truth
from fednoil.manifest import read_manifest
from fednoil.noise.base import NoiseKind, NoisyClient, Parts, UnlevelledConfig


class ManifestConfig(UnlevelledConfig):
    shifts: ClassVar[bool] = True  # it may hold pair noise

    kind: Literal["manifest"] = "manifest"
    file: str = Field(default="", description="path of a parquet file that says who holds what")

    @model_validator(mode="after")
    def _is_given(self) -> ManifestConfig:
        if not self.file:
            raise ValueError('noise.kind = "manifest" needs noise.file, the path of a noise manifest')
        return self


class Manifest(NoiseKind):
    """Who holds which sample, with which given and true label, as a manifest says."""

    Config = ManifestConfig
    uses_levels = False

    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        raise ValueError("a manifest holds the clients too: use `read`")

    @classmethod
    def read(cls, config: Any, dataset: Dataset) -> tuple[Parts, Labels, Truth]:
        return read_manifest(Path(config.file), dataset.train.labels, dataset.num_classes, dataset.hash)
