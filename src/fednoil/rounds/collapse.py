"""Whether a run has collapsed: reported in the round that shows it, not after the last one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

from fednoil.errors import few_of
from fednoil.history import RoundRecord

_FALL = 10.0  # points of accuracy below the best round
_LESS = 0.15  # share of the agreement with held-out labels, which wrong labels keep low
_DEVIATIONS = 3.0  # standard deviations by which agreements must differ to be more than chance
_KNOWN = 10.0  # percent of a class's images that must once have been classified correctly before it counts as lost
_START = 4  # rounds in which a model should have learnt to tell any two classes apart

Values = Sequence[float | None]


def signs(records: Sequence[RoundRecord], names: Sequence[str], held_out: int = 0) -> list[str]:
    """What the last of these rounds shows for the first time, two rounds in a row: accuracy far below the best round's,
    agreement with `held_out` labels far below, or known classes that no longer have a correct answer; and after a few
    rounds that nothing was learnt."""
    if len(records) < 2:
        return []
    found = []
    accuracy = _fallen([r.test_accuracy for r in records], lambda best, now: best - now >= _FALL)
    if accuracy is not None:
        best, at, now = accuracy
        found.append(f"{records[-1].measure} has fallen to {now:.1f} %, from {best:.1f} % in round {at}")
    agreed = _fallen([r.val_accuracy for r in records], lambda best, now: best - now >= _margin(best, held_out))
    if agreed is not None:
        best, at, now = agreed
        found.append(
            f"agreement with held-out labels has fallen to {now:.1f} %, from {best:.1f} % in round {at}, which is kept "
            "(run.select)"
        )
    if lost := _lost(records):
        which = few_of([f"'{names[c]}'" if c < len(names) else str(c) for c in lost], 5)
        found.append(f"no test sample of {which} is classified correctly any longer")
    only = [c for r in records if (c := _only(r.class_accuracy)) is not None]
    if len(only) == len(records) == _START:
        name = names[only[-1]] if only[-1] < len(names) else only[-1]
        found.append(f"every test sample is taken for '{name}': nothing was learnt so far; a lower train.lr may help")
    return found


def _only(accuracy: Values | None) -> int | None:
    """The class that every image is taken for: all of its images are correct, and none of any other."""
    known = [(value, c) for c, value in enumerate(accuracy or ()) if value is not None]
    right = [c for value, c in known if value == 100]
    return right[0] if len(known) > 1 and len(right) == 1 and all(v == 0 for v, c in known if c != right[0]) else None


def _margin(best: float, count: int) -> float:
    """How far an agreement in percent, of `count` samples, may be below the best one by chance, or harmlessly."""
    share = best / 100
    return max(_LESS * best, 100 * _DEVIATIONS * sqrt(2 * share * (1 - share) / max(1, count)))


def _fallen(values: Values, far: Callable[[float, float], bool]) -> tuple[float, int, float] | None:
    """The best value before, its round and the last value, where the last two values are far below and the one before
    them was not."""
    known = [(value, number) for number, value in enumerate(values, 1) if value is not None]
    if not known or values[-1] is None:
        return None

    def below(place: int) -> bool:
        return place > 0 and far(max(value for value, _ in known[:place]), known[place][0])

    last = len(known) - 1
    if not (below(last) and below(last - 1)) or below(last - 2):
        return None
    best, at = max(known[:last], key=lambda pair: pair[0])
    return best, at, known[last][0]


def _lost(records: Sequence[RoundRecord]) -> list[int]:
    """Classes that were known and have had no correct answer for exactly two rounds."""
    rounds = [r.class_accuracy for r in records]
    if rounds[-1] is None:
        return []
    found = []
    for c in range(len(rounds[-1])):
        curve = [values[c] for values in rounds if values is not None and c < len(values)]
        nothing = [value == 0 for value in curve[-3:]]
        if nothing[-2:] == [True, True] and nothing != [True] * 3 and max(v or 0.0 for v in curve) >= _KNOWN:
            found.append(c)
    return found
