"""Checks that what you have written keeps the contract, for your own tests: any runner, or none.

    from fednoil.testing import check_learner, check_noise_kind
    check_learner("my_module:MyLearner")
    check_noise_kind("my_module:MyNoise")

A check raises `NotConforming`, an AssertionError, whose text says what is wrong. Learners and servers play three rounds
on tiny data: does a method repeat itself, lose something at a checkpoint, depend on the order of clients, see true
labels, send what it hasn't declared, do something in a step that a GPU can't record, or learn something else where
clients train side by side, as they do there? Noise and partitions follow the seed alone, change nothing they are given,
and do what they say; so do samplings, schedules, models and data sources. All that the package has passes the same
checks.
"""

from fednoil.testing.checks import cases, check_learner, check_method, check_on, check_server
from fednoil.testing.choices import check_model, check_sampling, check_schedule, check_source
from fednoil.testing.federation import NotConforming
from fednoil.testing.setting import check_noise_kind, check_noise_levels, check_partition

__all__ = [
    "NotConforming",
    "cases",
    "check_learner",
    "check_method",
    "check_model",
    "check_noise_kind",
    "check_noise_levels",
    "check_on",
    "check_partition",
    "check_sampling",
    "check_schedule",
    "check_server",
    "check_source",
]
