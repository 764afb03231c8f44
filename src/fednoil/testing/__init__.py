"""Checks that your own plugins keep the contract, for your own tests, with any test runner or none.

    from fednoil.testing import check_learner, check_noise_kind
    check_learner("my_module:MyLearner")
    check_noise_kind("my_module:MyNoise")

A check raises `NotConforming`, an AssertionError that says what is wrong. Learners and servers play three rounds on
tiny data. Do results differ between two runs, after a checkpoint, with another order of clients, with other true labels
or with clients side by side, as on a GPU? Does a method send what it hasn't declared, or do something in a step that a
GPU can't record? Noise and partitions must depend on the seed alone, leave their inputs alone, and do what they say; so
must samplings, schedules, models and data sources. Everything in the package passes the same checks.
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
