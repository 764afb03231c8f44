"""Pictures of numbers; what is drawn is written beside it as CSV."""

from fednoil.figures.budget import draw_budget
from fednoil.figures.drawing import Line, draw_lines, require_matplotlib

__all__ = ["Line", "draw_budget", "draw_lines", "require_matplotlib"]
