"""The paper's figures, one class each: the cells it needs, its numbers and its picture."""

from fednoil.study.figures.ablation import Ablation
from fednoil.study.figures.base import Figure
from fednoil.study.figures.efficiency import Efficiency
from fednoil.study.figures.schedules import Schedules
from fednoil.study.figures.tradeoff import TradeOff

FIGURES: dict[str, Figure] = {figure.name: figure for figure in (Schedules(), Efficiency(), TradeOff(), Ablation())}
