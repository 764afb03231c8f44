"""The base of every section of an experiment's configuration.

Each stage (data, partition, noise, …) and each method owns its section beside the code that reads it;
`fednoil.config` puts the sections together and turns what pydantic finds wrong into one clear line.
"""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen group of settings; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
