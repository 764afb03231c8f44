"""FedNoiL: federated learning on noisy labels.

    import fednoil
    run = fednoil.run("demo", seed=0)
    run.accuracy, run.history, run.model
    run.audit().table

A run is five independent choices: a server (how updates are combined), a sampling (which clients train), a learner
(how one client learns from its data), a schedule (how many local epochs in a round) and a setting (data × partition ×
noise × model).

Later versions keep the names in `__all__`; everything else may move.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from fednoil.api import Audit, Comparison, Interrupted, Run, Table, compare, load, presets, run
    from fednoil.config.schema import Config
    from fednoil.errors import UserError

__all__ = [
    "Audit",
    "Comparison",
    "Config",
    "Interrupted",
    "Run",
    "Table",
    "UserError",
    "__version__",
    "compare",
    "load",
    "presets",
    "run",
]

_ELSEWHERE = {"Config": "fednoil.config.schema", "UserError": "fednoil.errors"}


def __getattr__(name: str) -> Any:
    """Import names when they are used: `fednoil --version` needs no torch."""
    if name not in __all__:
        raise AttributeError(f"module 'fednoil' has no attribute '{name}'")
    from importlib import import_module

    found = getattr(import_module(_ELSEWHERE.get(name, "fednoil.api")), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
