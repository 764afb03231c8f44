"""A learner that fails on request: `$FAULTS/<client>-<round>` holds `raise` or `wait SECONDS`."""

from __future__ import annotations

import os
import time
from pathlib import Path

from fednoil.learners.base import Client, Nets, Turn
from fednoil.learners.erm import Erm
from fednoil.tensors import Tensors


class Faulty(Erm):
    """Plain cross-entropy, otherwise."""

    def init(self, nets: Nets, client: Client, keep: Tensors, turn: Turn) -> Tensors:
        fault = Path(os.environ["FAULTS"]) / f"{client.id}-{turn.round_idx}"
        if fault.exists():
            kind, *seconds = fault.read_text().split()
            fault.rename(fault.with_name(f"{fault.name}.begun"))  # the next try goes well
            if kind == "raise":
                raise RuntimeError("this node has no more memory")
            time.sleep(float(seconds[0]))
        return super().init(nets, client, keep, turn)
