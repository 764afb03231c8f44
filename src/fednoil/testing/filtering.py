"""FedDiv whose visits end after the first round, so that a few rounds show what its filter does."""

from __future__ import annotations

from fednoil.servers.feddiv import FedDiv


class Filtering(FedDiv):
    def visiting(self, round_idx: int) -> bool:
        return round_idx <= 1
