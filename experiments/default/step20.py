from typing import Literal
from fednoil.learners.fednoil_plus import FedNoilPlus, FedNoilPlusConfig
class C1(FedNoilPlusConfig):
    name: Literal["left:NoOdds"] = "left:NoOdds"
class NoOdds(FedNoilPlus):
    Config = C1
    def believes(self, round_idx, count): return False
class C2(FedNoilPlusConfig):
    name: Literal["left:OneEstimate"] = "left:OneEstimate"
class OneEstimate(FedNoilPlus):
    """By the labels set aside alone."""
    Config = C2
    def clean_shares(self, clients, states):
        import fednoil.learners.fednoil_plus as m
        old = m.MANY; m.MANY = 10**9
        try: return super().clean_shares(clients, states)
        finally: m.MANY = old
