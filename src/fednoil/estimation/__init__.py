"""How many labels are wrong and which, from a model's class probabilities; true labels are never needed."""

from fednoil.estimation.wrong import Estimate, estimate, ratio_of

__all__ = ["Estimate", "estimate", "ratio_of"]
