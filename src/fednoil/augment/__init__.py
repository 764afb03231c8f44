"""Batched augmentation of uint8 images that stay in memory, on the CPU or a GPU (FixMatch's weak and strong views).

A plan holds every sample's parameters, drawn ahead for whole epochs from counter-based keys; a view reads the plan and
gathers its pixels straight from the pool. On a GPU nothing here waits for the host or has a shape that depends on a
value, so a view can be captured in a CUDA graph. The small lookup tables of an image size are built at the first call,
which must come before the capture.
"""

from fednoil.augment.ops import apply_op
from fednoil.augment.plans import strong_plan, weak_plan, weakened
from fednoil.augment.tables import OP_LEVELS, OPS
from fednoil.augment.views import plain, strong, weak

__all__ = ["OPS", "OP_LEVELS", "apply_op", "plain", "strong", "strong_plan", "weak", "weak_plan", "weakened"]
