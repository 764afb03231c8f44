"""The paper's claims, each with a rule by which runs support it, contradict it, leave it open, or don't test it.

A rule compares rows of one setting with each other, never across settings or scales. Comparisons of accuracy use what
the tables show (mean over seeds; the best round where a seed did not converge). The rules were written down before
the runs they judge. Which runs are judged at all is the same for every claim (`SCOPE`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fednoil.errors import few_of
from fednoil.report.chance import CHANCE, FEW_SEEDS
from fednoil.report.results import Results, Row
from fednoil.report.runs import FALL
from fednoil.study.grounds import Grounds
from fednoil.study.schedule_support import decay_beats_constant, largest_r_min, logarithm_cheapest
from fednoil.study.support import (
    FEDNOIL,
    MARGIN,
    Judge,
    Support,
    beats_all,
    converge,
    more_stable,
    no_better_server,
    pairs,
)
from fednoil.study.tables import TABLE_OF

SUPPORTED, REFUTED, OPEN, UNTESTED = "supported", "not supported", "not distinguishable", "not tested here"
SCOPE = (
    "Only finished runs of the paper's settings with no key changed, at its scale or the small one, are judged, and "
    f"methods are compared in the same setting and precision. A lead counts if it is more than chance (p < {CHANCE:g}, "
    f"not corrected for the number of tests): by Student's paired test on shared seeds, which takes {FEW_SEEDS}, or "
    f"where fewer than two are shared, by Welch's, which takes {FEW_SEEDS} seeds of one method and gives a single seed "
    "its spread. Otherwise the two are not distinguishable, as are means that are equal to two decimals. All claims "
    "but the last, which is about clean labels, are judged on noisy labels only. Pair noise with one shared map is "
    "left out: most labels of a class are then the same wrong one, which no method that treats classes alike can "
    "distinguish from the truth."
)


@dataclass(frozen=True)
class Claim:
    """`said`: the paper's claim in our words; `rule`: when it counts as supported."""

    said: str
    where: str  # in the paper
    rule: str
    judge: Judge
    share: float = 1.0  # of the comparisons that must hold; more than half: 0.5
    clean: bool = False  # judged on clean labels instead of noisy ones


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds, and the comparisons behind it."""

    claim: Claim
    status: str
    support: list[Support] = field(default_factory=list)

    @property
    def held(self) -> int:
        return sum(e.holds is True for e in self.support)

    @property
    def summary(self) -> str:
        if not self.support:
            return "no runs that would show it"
        left = sum(e.holds is None for e in self.support)
        asides = [f"{left} not distinguishable"] if left else []
        if fallen := sum(e.fallen for e in self.support):
            asides.append(f"in {fallen} a method settles {FALL:g} points or more below its best round")
        aside = f" ({', '.join(asides)})" if asides else ""
        counts, settings = [e.seeds for e in self.support], len({e.where.where for e in self.support})
        seeds = " to ".join(dict.fromkeys(str(count) for count in (min(counts), max(counts))))
        each = f"{seeds} seed{'s' * (max(counts) != 1)} each"
        places = f"in {settings} setting{'s' * (settings != 1)}"
        return f"holds in {self.held} of {len(self.support)} comparisons{aside} {places}, {each}{self._failing}"

    @property
    def _failing(self) -> str:
        """Where it is contradicted, if not everywhere."""
        failing = list(dict.fromkeys(e.where.title for e in self.support if e.holds is False))
        if not failing or len(failing) == len({e.where.title for e in self.support}):
            return ""
        return f"; contradicted in {few_of(failing, 3, '; ')}"


def judge(results: Results) -> list[Verdict]:
    """All claims, in the paper's order."""
    grounds = {clean: Grounds(results.some(lambda row, clean=clean: _judged(row, clean))) for clean in (False, True)}
    verdicts = []
    for claim in CLAIMS:
        support = list(claim.judge(grounds[claim.clean]))
        if not support:
            verdicts.append(Verdict(claim, UNTESTED))
            continue
        verdicts.append(Verdict(claim, _status(claim, support), support))
    return verdicts


def _status(claim: Claim, support: list[Support]) -> str:
    """Supported if enough comparisons hold, open if enough would hold with the undecided ones counted in its favour."""

    def enough(count: int) -> bool:
        share = count / len(support)
        return share == 1.0 if claim.share == 1.0 else share > claim.share

    if enough(sum(e.holds is True for e in support)):
        return SUPPORTED
    return OPEN if enough(sum(e.holds is not False for e in support)) else REFUTED


def is_papers(row: Row) -> bool:
    """Whether its setting and method are the paper's, at either scale, with no key changed."""
    place = row.place
    return bool(place.family) and place.setting in TABLE_OF and not (place.setting_changes or place.method_changes)


def _judged(row: Row, clean: bool) -> bool:
    noise = row.place.noise
    return row.finished and is_papers(row) and (noise == "clean") == clean and not noise.endswith("-shared")


_ORIGINAL = ("fednoil-logarithm",)
_AHEAD = "its mean accuracy is higher in every setting where both were run"
_AREAS = "the mean accuracy over all rounds and over training batches (to the smallest common total) are both higher"

CLAIMS: list[Claim] = [
    Claim(
        "FedNoiL is ahead of every federated baseline in every setting",
        "Tables 1 and 2",
        "FedNoiL, with the better of its two schedules, has the higher mean accuracy in every comparison",
        beats_all,
    ),
    Claim("FedNoiL converges in every setting", "Table 1", "no seed is starred", converge(FEDNOIL, True)),
    Claim(
        "Plain FedAvg and FedProx do not converge on noisy labels",
        "Table 1",
        "at least one seed is starred in more than half of the settings",
        converge(("fedavg", "fedprox"), False),
        0.5,
    ),
    Claim(
        "DMix is more accurate than Jo-SRC on clients",
        "Main results",
        "higher mean accuracy on the same server in more than half of the settings",
        lambda grounds: (
            e for s in ("fedavg", "apfl", "krum", "cfl") for e in pairs((f"{s}+dividemix",), (f"{s}+josrc",))(grounds)
        ),
        0.5,
    ),
    Claim(
        "DMix is more stable than Jo-SRC",
        "Main results",
        "fewer starred seeds, or as many and a smaller largest change in the last five rounds, in more than half",
        more_stable,
        0.5,
    ),
    Claim(
        "Other FL methods are no better than FedAvg under the same noisy-label learner",
        "Main results",
        f"APFL, Krum and CFL are ahead of FedAvg by more than {MARGIN:g} point in at most half of the comparisons",
        no_better_server,
        0.4999,
    ),
    Claim("Cosine: r_min = 80 is the most efficient", "Schedules (1)", _AREAS, largest_r_min("cosine")),
    Claim("Logarithm: r_min = 80 is the most efficient", "Schedules (2)", _AREAS, largest_r_min("logarithm")),
    Claim("Decaying epochs are more efficient than constant ones", "Schedules (3)", _AREAS, decay_beats_constant),
    Claim(
        "Logarithm(80) needs the fewest rounds and batches for the same accuracy",
        "Schedules (4)",
        "it reaches half a point below the lower of the two best accuracies in no more rounds and no more batches",
        logarithm_cheapest,
    ),
    Claim(
        "Two-level sampling beats either level alone",
        "Table 3",
        _AHEAD,
        pairs(_ORIGINAL, ("fednoil-uniform-clients", "fednoil-uniform-local")),
    ),
    Claim(
        "Sampling clients by score selects clients with less noise",
        "Table 3",
        "lower mean noise ratio of the selected clients than with uniform sampling, in every setting",
        pairs(_ORIGINAL, ("fednoil-uniform-clients",), "selected_noise", lower=True),
    ),
    Claim(
        "Sampling labels by confidence selects cleaner labels",
        "Table 3",
        "higher precision of the labelled set than with uniform sampling, in every setting",
        pairs(_ORIGINAL, ("fednoil-uniform-local",), "precision"),
    ),
    Claim("SSL helps", "Table 4", _AHEAD, pairs(_ORIGINAL, ("fednoil-no-ssl",))),
    Claim(
        "SSL helps to select clean labels",
        "Table 4",
        "higher precision of the labelled set with SSL, in every setting",
        pairs(_ORIGINAL, ("fednoil-no-ssl",), "precision"),
    ),
    Claim(
        "On clean labels FedNoiL is better than FedAvg",
        "Extended comparison",
        _AHEAD,
        pairs(FEDNOIL, ("fedavg",)),
        clean=True,
    ),
]
