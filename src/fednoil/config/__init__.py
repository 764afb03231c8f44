"""Configuration: schema, presets, files and `--set`."""

from fednoil.config.loading import load_config, merge, parse_set, read_toml, to_toml
from fednoil.config.presets import preset, preset_names, preset_parts
from fednoil.config.schema import Config

__all__ = [
    "Config",
    "load_config",
    "merge",
    "parse_set",
    "preset",
    "preset_names",
    "preset_parts",
    "read_toml",
    "to_toml",
]
