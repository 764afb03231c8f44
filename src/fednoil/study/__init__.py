"""The study of the FedNoiL paper: its numbers, presets, plans, claims and figures. It uses the core, which works
without it.

Importing it registers its presets: `paper/<dataset>/<setting>/<noise>/<method>`, and
`small/<setting>/<noise>/<method>` for the same in minutes on a CPU.
"""

from fednoil.config.presets import preset, preset_names, register
from fednoil.study.presets import PAPER, SMALL

register("paper", lambda: PAPER)
register("small", lambda: SMALL)

__all__ = ["preset", "preset_names"]
