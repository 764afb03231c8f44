"""Importing it registers the presets of the ranking: `bench/<split>-<noise>/<method>`."""

from fednoil.bench.settings import PRESETS
from fednoil.config.presets import register

register("bench", lambda: PRESETS)
