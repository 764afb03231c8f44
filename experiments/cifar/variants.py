"""What is tried, as data: variants with their `--set`s and the reason for each, and the settings they are tried in.

Names joined by `+` are tried together, `lr-cosine+wd-5e-4`; of two that set the same key the last one counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from fednoil.config import Config, load_config, merge, parse_set, preset
from fednoil.errors import UserError, nearest

PUBLISHED = "fednoil-logarithm"
NO_SSL = "fednoil-no-ssl"
# Keys that speak of D^u alone, which is not used without semi-supervision; ra_prob unless D^x has strong views.
UNLABELLED = ("epoch", "mu", "views", "views_as", "xi", "ramp", "pseudo_temperature", "soft", "ra_prob")


@dataclass(frozen=True)
class Variant:
    """A method of a preset with some keys changed."""

    name: str
    why: str
    sets: tuple[str, ...] = ()
    method: str = PUBLISHED


@dataclass(frozen=True)
class Place:
    """A setting: the preset's folder, keys of its noise, and the keys that hold validation samples out."""

    folder: str
    sets: tuple[str, ...] = ()
    held: tuple[str, ...] = ("partition.samples_per_client=1000", "data.validation=0.5")


# `fednoil-plus` as it was when its defaults were chosen. Variants are begun with it, so that they stay what they are.
_BEFORE = ("learner.explore=0.2", "learner.aside=0.0", "server.average=0.0")


def _plus(name: str, why: str, sets: tuple[str, ...] = (), **keys: str) -> Variant:
    """`fednoil-plus` with every ingredient set: evidence and balance on, the others off, but for `keys`."""
    ingredients = {"posterior": "true", "balanced": "true", "mix": "0.0", "align": "false", **keys}
    own = tuple(f"learner.{key}={value}" for key, value in ingredients.items())
    return Variant(name, why, (*_BEFORE, *own, *sets), "fednoil-plus")


GROUPS: dict[str, tuple[Variant, ...]] = {
    "readings": (
        Variant("published", "the method as the paper states it, our reading of the rest"),
        # Rates fall over the rounds that are asked for: with --rounds 30 over 30, not over the first 30 of 200.
        Variant(
            "lr-cosine",
            "memorising within late rounds is slower at a smaller rate; falls over the run's own rounds",
            ("train.lr_rounds=cosine",),
        ),
        Variant(
            "lr-exponential",
            "the usual 0.99 a round of federated code, 0.13 after 200; here 0.13 in the run's own last round",
            ("train.lr_rounds=exponential", "train.lr_rounds_end=0.13"),
        ),
        Variant(
            "lr-step",
            "as the reference codes of noisy-label learning have it; after 1/2 and 3/4 of the run's own rounds",
            ("train.lr_rounds=step",),
        ),
        Variant("turn-cosine", "the last steps of a turn settle what is averaged", ("train.lr_turn=cosine",)),
        Variant("turn-linear", "the same with more time in between", ("train.lr_turn=linear",)),
        Variant(
            "lr-cosine-turn-cosine",
            "both falls together",
            ("train.lr_rounds=cosine", "train.lr_turn=cosine"),
        ),
        Variant("lr-0.01", "a rate that is small throughout", ("train.lr=0.01",)),
        Variant("wd-5e-4", "FixMatch's and DivideMix's weight decay", ("train.weight_decay=5e-4",)),
        Variant("wd-2e-3", "more of it", ("train.weight_decay=2e-3",)),
        Variant("wd-5e-3", "and still more", ("train.weight_decay=5e-3",)),
        Variant("momentum-0.9", "FixMatch's and DivideMix's momentum", ("train.momentum=0.9",)),
        Variant(
            "nesterov-0.9",
            "FixMatch's form of it, with its rate",
            ("train.momentum=0.9", "train.nesterov=true", "train.lr=0.03"),
        ),
        Variant("keep-momentum", "a client's optimiser that lives on between its turns", ("train.keep_momentum=true",)),
        Variant("clip-1", "noisy labels give the largest gradients", ("train.clip=1.0",)),
        Variant("ra-always", "FixMatch's authors: every operation is applied", ("learner.ra_prob=1.0",)),
        Variant("x-strong", "strong views of D^x are harder to learn by heart", ("learner.x_augment=strong",)),
        Variant("x-none", "and plain ones easier", ("learner.x_augment=none",)),
        Variant("max-cover", "batches of 32 + 32, the smaller set recycled", ("learner.epoch=max_cover",)),
        Variant("whole", "ceil(n/32) steps of 32 + 32 an epoch", ("learner.epoch=whole",)),
        Variant("mu-7", "FixMatch's seven unlabelled samples to a labelled one", ("learner.mu=7",)),
        Variant("views-8", "'multiple weak augmentations' may mean more than two", ("learner.views=8",)),
        Variant(
            "views-turns",
            "a fresh weak view each time, as in FixMatch: what is accepted changes from epoch to epoch",
            ("learner.views=8", "learner.views_as=turns"),
        ),
        Variant("redraw-round", "Algorithm 1 may draw D^x once, before the epochs", ("learner.redraw=round",)),
        Variant("by-class", "no class is lost that a young model never names", ("learner.draw=class",)),
        Variant("floor", "nor filled with classes that a client doesn't hold", ("learner.draw=floor",)),
        Variant("frac-0.25", "fewer labels, surer ones", ("learner.frac=0.25",)),
        Variant("frac-0.5", "more labels, less sure", ("learner.frac=0.5",)),
        Variant("xi-0.8", "a young model is rarely 0.95 sure", ("learner.xi=0.8",)),
        Variant("xi-0.6", "and still less", ("learner.xi=0.6",)),
        Variant("xi-0.99", "the model is surer than it is right", ("learner.xi=0.99",)),
        Variant("lambda-0.3", "pseudo-labels that count less", ("learner.lambda_u=0.3",)),
        Variant("ssl-40", "no pseudo-labels before the model is worth it", ("learner.ssl_start=41",)),
        Variant("ssl-80", "and still later", ("learner.ssl_start=81",)),
        Variant("ssl-160", "when nine of ten pseudo-labels would be right", ("learner.ssl_start=161",)),
        Variant("ramp-40", "pseudo-labels count once the model is worth it", ("learner.ramp=40",)),
        Variant("pseudo-0.5", "τ = 0.5 may be meant for pseudo-labels too", ("learner.pseudo_temperature=0.5",)),
        Variant(
            "pseudo-0.5-soft",
            "sharpened probabilities instead of hard labels, as in MixMatch",
            ("learner.pseudo_temperature=0.5", "learner.soft=true"),
        ),
        Variant("bn-measured", "the averaged model's own BatchNorm statistics", ("server.statistics=measure",)),
        Variant("group-norm", "no statistics that averaging could spoil", ("model.norm=group",)),
        Variant(
            "short-start",
            "five short rounds before 100 epochs on labels drawn by a random model",
            ("schedule.warmup_rounds=5", "schedule.warmup_epochs=5"),
        ),
        Variant(
            "short-start-all",
            "the same on all labels, as FedAvg",
            ("schedule.warmup_rounds=5", "schedule.warmup_epochs=5", "learner.warmup=5"),
        ),
        Variant("tf32", "bfloat16 rounds a ResNet18's gradients by a third of their length", ("run.precision=tf32",)),
        Variant("float32", "and without any of that", ("run.precision=float32",)),
        Variant("step-0.5", "an averaged global model scores, teaches and begins", ("server.step=0.5",)),
        Variant("average", "one that is kept apart: clients begin with the last", ("server.average=0.95",)),
    ),
    "references": (
        Variant("no-ssl", "the paper's FedNoiL† has 63.44 here", method=NO_SSL),
        Variant("fedavg", "what the method is compared with", method="fedavg"),
        Variant("fedavg-clean", "plain training without noise", ("noise.kind=none",), method="fedavg"),
    ),
    "robust": (
        Variant("auto", "each client estimates its share of clean labels", ("learner.frac=auto",)),
        Variant(
            "aside",
            "by a fifth of its labels that is never trained on: what is learnt by heart looks clean",
            ("learner.frac=auto", "learner.aside=0.2"),
        ),
        Variant("aside-0.1", "by a tenth", ("learner.frac=auto", "learner.aside=0.1")),
        Variant(
            "explore-0",
            "no room for labels thought wrong: with 65 % of them, a fifth of these are a quarter of D^x",
            ("learner.frac=auto", "learner.explore=0"),
        ),
        Variant(
            "auto-strong",
            "by strong views, of which labels that are learnt by heart look as wrong as others",
            ("learner.frac=auto", "learner.estimate=strong"),
        ),
        Variant("plus-now", "our own defaults: plus+aside-0.1+explore-0+average", method="fednoil-plus"),
        Variant("plus", "what they were chosen from: auto with mixup", _BEFORE, "fednoil-plus"),
        Variant("mixup", "mixup on D^x of the published size", (*_BEFORE, "learner.frac=0.35"), "fednoil-plus"),
        Variant("plus-mean", "drawn by mean confidence", (*_BEFORE, "server.sampling=score_mean"), "fednoil-plus"),
        # What the defaults were chosen from, each with all its keys so that it stays what it is.
        _plus("plus-start", "given labels as evidence, balanced draws"),
        _plus("plus-no-posterior", "without the given label's say", posterior="false"),
        _plus("plus-no-balance", "D^x drawn by confidence alone", balanced="false"),
        _plus("plus-mix", "with mixup on D^x", mix="1.0"),
        _plus("plus-align", "with distribution alignment", align="true"),
        _plus("plus-step", "with an averaged global model", ("server.step=0.5",)),
    ),
}
VARIANTS = {variant.name: variant for group in GROUPS.values() for variant in group}

_CIFAR = "paper/cifar10/iid/symmetric-high"
_SMALL = "small/iid/symmetric-high"
_SMALL_HELD = ("partition.samples_per_client=240", "data.validation=0.25")
_FASHION = "paper/fashion-mnist/iid/symmetric-high"
_FASHION_HELD = ("partition.samples_per_client=1200", "data.validation=0.5")
_LEVELS = {f"noise-{level}": (f"noise.ratios=[{level / 100}]",) for level in (20, 40, 60, 80)}
_LEVELS = {"noise-0": ("noise.kind=none",), **_LEVELS}
PLACES: dict[str, Place] = {
    "symmetric-high": Place(_CIFAR),
    "symmetric-low": Place("paper/cifar10/iid/symmetric-low"),
    "pair-high": Place("paper/cifar10/iid/pair-high"),
    "pair-low": Place("paper/cifar10/iid/pair-low"),
    "non-iid": Place("paper/cifar10/non-iid/symmetric-high"),
    "cifar100": Place(
        "paper/cifar100/iid/symmetric-high", held=("partition.samples_per_client=2000", "data.validation=0.5")
    ),
    **{level: Place(_CIFAR, sets) for level, sets in _LEVELS.items()},
    "fashion": Place(_FASHION, held=_FASHION_HELD),
    **{f"fashion-{level}": Place(_FASHION, sets, _FASHION_HELD) for level, sets in _LEVELS.items()},
    "small": Place(_SMALL, held=_SMALL_HELD),
    **{f"small-{level}": Place(_SMALL, sets, _SMALL_HELD) for level, sets in _LEVELS.items()},
}


def composed(name: str) -> Variant:
    """The variant called `name`, or several joined by `+`."""
    parts = []
    for one in name.split("+"):
        if one not in VARIANTS:
            raise UserError(f"unknown variant '{one}'; `study.py list` shows them{nearest(one, list(VARIANTS))}")
        parts.append(VARIANTS[one])
    methods = {part.method for part in parts} - {PUBLISHED}
    if len(methods) > 1:
        raise UserError(f"variant '{name}': {' and '.join(sorted(methods))} are two methods; choose one")
    sets = tuple({one.split("=")[0]: one for part in parts for one in part.sets}.values())  # the last one counts
    idle = {f"learner.{key}" for key in UNLABELLED if key != "ra_prob" or "learner.x_augment=strong" not in sets}
    for part in parts if NO_SSL in methods else ():
        if part.sets and {one.split("=")[0] for one in part.sets} <= idle:
            raise UserError(f"variant '{name}': {part.name} changes nothing without semi-supervision; leave it out")
    return Variant(name, "; ".join(part.why for part in parts), sets, methods.pop() if methods else PUBLISHED)


def reference(variant: Variant) -> str:
    """The variant that another one is measured by."""
    return {NO_SSL: "no-ssl", "fedavg": "fedavg"}.get(variant.method, "published")


def sets_of(variant: Variant, place: Place, rounds: int | None, full: bool) -> tuple[str, ...]:
    """All `--set`s of a run: the setting's, those that hold validation samples out, the variant's."""
    held = () if full else place.held
    length = () if rounds is None else (f"train.rounds={rounds}",)
    return (*place.sets, *held, *variant.sets, *length)


def configured(
    variant: Variant, place: Place, seed: int, rounds: int | None, full: bool, more: tuple[str, ...]
) -> Config:
    """The configuration of a run; `more` comes last."""
    sets = (*sets_of(variant, place, rounds, full), *more, f"run.seed={seed}")
    return load_config(merge(preset(f"{place.folder}/{variant.method}"), parse_set(sets)))
