"""The base of every section of an experiment's configuration.

Each stage (data, partition, noise, …) and each method owns its section beside the code that reads it;
`fednoil.config` puts the sections together and turns what pydantic finds wrong into one clear line.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Section(BaseModel):
    """A frozen group of settings; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    fitted: ClassVar[frozenset[str]] = frozenset()  # keys that a preset sets to fit its data, clients and noise
    completes: ClassVar[Mapping[str, str]] = {}  # a key -> the key whose value it completes

    @classmethod
    def fits_data(cls) -> frozenset[str]:
        """The keys that are dropped where a user's own data take the place of a preset's."""
        return cls.fitted

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """`rounds = true` is a slip, not one round."""
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and kind not in (bool, Any) and bool not in get_args(kind):
            raise ValueError("true and false are not values of this key")
        return value
