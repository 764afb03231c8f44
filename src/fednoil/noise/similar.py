"""Mistakes between classes that look alike, known by the names of the classes.

`semantic` is Patrini et al.'s (CVPR 2017) for CIFAR-10 and MNIST: some classes have a partner, the others stay.
`superclass` goes round the five classes of each of CIFAR-100's twenty superclasses.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fednoil.errors import UserError
from fednoil.noise.base import KindConfig, NoiseKind, NoisyClient, Population, picked
from fednoil.seeds import Seed

_SEMANTIC: tuple[dict[str, str], ...] = (
    {"truck": "automobile", "bird": "airplane", "deer": "horse", "cat": "dog", "dog": "cat"},
    {"2": "7", "3": "8", "5": "6", "6": "5", "7": "1"},
)
_SUPERCLASSES = """
    beaver dolphin otter seal whale; aquarium_fish flatfish ray shark trout; orchid poppy rose sunflower tulip;
    bottle bowl can cup plate; apple mushroom orange pear sweet_pepper; clock keyboard lamp telephone television;
    bed chair couch table wardrobe; bee beetle butterfly caterpillar cockroach; bear leopard lion tiger wolf;
    bridge castle house road skyscraper; cloud forest mountain plain sea; camel cattle chimpanzee elephant kangaroo;
    fox porcupine possum raccoon skunk; crab lobster snail spider worm; baby boy girl man woman;
    crocodile dinosaur lizard snake turtle; hamster mouse rabbit shrew squirrel;
    maple_tree oak_tree palm_tree pine_tree willow_tree; bicycle bus motorcycle pickup_truck train;
    lawn_mower rocket streetcar tank tractor
"""


class SemanticConfig(KindConfig):
    kind: Literal["semantic"] = "semantic"


class SuperclassConfig(KindConfig):
    kind: Literal["superclass"] = "superclass"


class Semantic(NoiseKind):
    """With level ρ a class that has a partner becomes it with chance ρ; the others stay."""

    Config = SemanticConfig
    needs = "CIFAR-10 or MNIST"

    def __init__(self, config: KindConfig, population: Population, seed: Seed) -> None:
        super().__init__(config, population, seed)
        names = list(population.class_names)
        found = [pairs for pairs in self.known() if pairs.keys() | set(pairs.values()) <= set(names)]
        if not found:
            raise UserError(
                f"noise.kind = '{config.kind}' knows the classes of {self.needs}, not {', '.join(names[:3])} …; "
                "choose another, such as 'pair'"
            )
        self.partners = np.array([names.index(found[0].get(name, name)) for name in names])

    def known(self) -> tuple[dict[str, str], ...]:
        """Partners of classes, by name, of the datasets that it knows."""
        return _SEMANTIC

    def labels(self, client: NoisyClient, rng: np.random.Generator) -> np.ndarray:
        wrong = picked(len(client.labels), client.level, rng)
        return np.where(wrong, self.partners[client.labels], client.labels)

    def matrix(self, client: NoisyClient) -> np.ndarray:
        identity = np.eye(client.num_classes)
        return (1 - client.level) * identity + client.level * identity[self.partners]


class Superclass(Semantic):
    """With level ρ a class becomes the next one of its superclass, in a circle, with chance ρ."""

    Config = SuperclassConfig
    needs = "CIFAR-100"

    def known(self) -> tuple[dict[str, str], ...]:
        groups = [group.split() for group in _SUPERCLASSES.split(";")]
        return ({name: group[(place + 1) % len(group)] for group in groups for place, name in enumerate(group)},)
