"""What a model says at a client that doesn't hold all classes equally.

A model that is taught to find all classes equally likely (logit adjustment) makes the same mistakes everywhere. A
client knows better: how often its labels name a class says how often it holds it, if wrong labels are any class.
Probabilities times these shares are the client's own. Only labels are counted, not what the model finds: a class that
it doesn't recognise would otherwise be taken for one that isn't there, and be lost for good.
"""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn import functional as F

_LEAST = 0.05  # of the difference between the chances of a correct label and of a certain wrong one
_SURE = 2.0  # frequencies differ this many times as much as by chance before they count
_STRICT = 3.0  # a third of the largest divergence from "any class" is enough to refute it
_TINY = 1e-12


def local_probabilities(probabilities: Tensor, labels: Tensor, share: float) -> Tensor:
    """The model's probabilities [n, C] at a client with these labels [n], a `share` of which is correct: float64.

    Classes that the model then still finds less often than the client holds them gain, others lose.
    """
    fits = any_class(probabilities, labels)
    held = held_classes(labels, probabilities.shape[1], share, fits)
    local = _times(probabilities.double(), held)
    return _times(local, (fits * lacking(local, held)).exp())


def any_class(probabilities: Tensor, labels: Tensor) -> Tensor:
    """How well labels [n] agree with the assumption that a wrong one is any class, by the model's probabilities [n, C]:
    from 0 (refuted) to 1.

    Where the model contradicts a label, it finds another class. For each class that it finds, D is the divergence of
    the labels that it contradicts from the uniform distribution, less what chance adds (Miller, 1955); the result is
    1 − 3 D/log(C − 1), with the mean of D. It is 0 if mistakes have one wrong label for each class, and also if there
    are hardly any mistakes: what the model then contradicts are its own confusions, which go to few classes. Of two
    classes one is left, and nothing can be refuted.
    """
    others = probabilities.shape[1] - 1
    found = probabilities.double().T @ F.one_hot(labels, others + 1).double()
    if others < 2:
        return found.new_ones(())
    found = found.fill_diagonal_(0.0)
    rows = found.sum(1).clamp_min(_TINY)
    shares = found / rows[:, None]
    apart = (shares * (shares * others).clamp_min(_TINY).log()).sum(1) - (others - 1) / (2 * rows)
    mean = (rows * apart.clamp_min(0)).sum() / rows.sum() / math.log(others)
    return (1 - _STRICT * mean).clamp_min(0)


def held_classes(labels: Tensor, num_classes: int, share: float, fits: Tensor | float) -> Tensor:
    """How often a client has each class [C], by its labels [n] and the share of correct ones.

    If wrong labels are any class, class y has a share q_y = c·π_y + (1 − c)(1 − π_y)/(C − 1) of the labels, which gives
    π. It is drawn towards equal shares where frequencies may differ by chance (as James and Stein do), and where that
    assumption doesn't fit.
    """
    count, even = len(labels), 1 / num_classes
    apart = F.one_hot(labels, num_classes).double().mean(0) - even
    chance = ((apart + even) * (1 - even - apart)).sum() / count
    known = (1 - _SURE * chance / apart.square().sum().clamp_min(_TINY)).clamp_min(0)
    apart = apart / max(share - (1 - share) / (num_classes - 1), _LEAST)
    found = (even + known * fits * apart).clamp_min(1 / count)
    return found / found.sum()


def lacking(local: Tensor, held: Tensor) -> Tensor:
    """How much less often probabilities [n, C] find each class than a client has it [C], or (below 0) more often, as a
    logarithm, less what chance may explain: [C]."""
    count = len(local)
    less = (held / (local.mean(0) + 1 / count)).log()
    chance = (1 - held) / (count * held)
    return less * (1 - chance / less.square().clamp_min(_TINY)).clamp_min(0)


def _times(probabilities: Tensor, weights: Tensor) -> Tensor:
    joint = probabilities * weights
    return joint / joint.sum(1, keepdim=True)
