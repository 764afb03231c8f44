"""CFL that splits as soon as it can, so that a few rounds show what it does."""

from __future__ import annotations

import math

from fednoil.servers.cfl import Cfl


class Splitting(Cfl):
    first_split, eps1, eps2 = 0, math.inf, 0.0
