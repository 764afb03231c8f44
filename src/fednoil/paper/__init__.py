"""The paper's own numbers and names as data: every cell of its tables, and which preset runs it.

Wang, Zhou, Long, Han, Jiang: "FedNoiL: A Simple Two-Level Sampling Method for Federated Learning with Noisy Labels",
arXiv 2205.10110. `tables.csv` holds Tables 1 to 4 and the two accuracies on clean labels of the text (`text`), in
percent: mean and standard deviation over five trials where the paper prints them. A cell that the paper marks as not
converged (`converged` is False) is the best round's accuracy and has no deviation.
"""

from fednoil.paper.names import DATASETS, METHODS, SCHEDULES, noise_name, preset_of, schedule_changes
from fednoil.paper.tables import Cell, cells

__all__ = ["DATASETS", "METHODS", "SCHEDULES", "Cell", "cells", "noise_name", "preset_of", "schedule_changes"]
