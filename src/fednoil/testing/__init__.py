"""Checks that a learner or server of your own keeps the contract, for your own tests: any runner, or none.

    from fednoil.testing import check_learner
    check_learner("my_module:MyLearner")

Each check plays three rounds on tiny data and raises `NotConforming`, an AssertionError, whose text says what is wrong:
the method doesn't repeat itself, loses something at a checkpoint, depends on the order of clients, sees true labels,
sends what it hasn't declared, or does something in a step that a GPU can't record. All methods of the package pass the
same checks in every combination.
"""

from fednoil.testing.checks import check_learner, check_method, check_server
from fednoil.testing.federation import NotConforming

__all__ = ["NotConforming", "check_learner", "check_method", "check_server"]
