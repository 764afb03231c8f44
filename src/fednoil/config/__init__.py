"""Configuration: schema, presets, files and `--set`."""

from fednoil.config.loading import load_config, merge, parse_set, read_toml, to_toml
from fednoil.config.presets import is_preset, preset, preset_names
from fednoil.config.schema import Config

__all__ = [
    "Config",
    "is_preset",
    "load_config",
    "merge",
    "parse_set",
    "preset",
    "preset_names",
    "read_toml",
    "to_toml",
]
