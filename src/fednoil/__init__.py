"""FedNoiL: federated learning on noisy labels.

A run is four orthogonal choices: a server (whom to sample, how to combine), a learner (how one client learns
from its data), a schedule (how many local epochs in a round) and a setting (data × partition × noise × model).
"""

__version__ = "0.1.0"
