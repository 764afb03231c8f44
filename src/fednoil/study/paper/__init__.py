"""The paper's numbers and names as data: every number of its tables, and the preset that runs it.

Wang, Zhou, Long, Han, Jiang: "FedNoiL: A Simple Two-Level Sampling Method for Federated Learning with Noisy Labels",
arXiv 2205.10110. `tables.csv` holds Tables 1 to 4 and the two accuracies on clean labels of the text (`text`), in
percent: mean and standard deviation over five trials where the paper prints them. A number that the paper marks as not
converged (with *) is the best round's accuracy and has no deviation.
"""

from fednoil.study.paper.names import DATASET_NAMES, FIGURE_SCHEDULES, METHOD_NAMES, noise_name, preset_of
from fednoil.study.paper.tables import Printed, printed

__all__ = [
    "DATASET_NAMES",
    "FIGURE_SCHEDULES",
    "METHOD_NAMES",
    "Printed",
    "noise_name",
    "preset_of",
    "printed",
]
