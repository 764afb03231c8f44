"""What hides one client's part in a model: short updates, noise on them, and how much privacy that has cost.

What each of it guarantees, and what not, is in docs/privacy.md.
"""

from fednoil.privacy.accountant import DELTA, Spent, epsilon_of
from fednoil.privacy.keys import PrivacyConfig
from fednoil.privacy.mechanism import clipped, majority, noise_like, noised, shared_std, system_noise

__all__ = [
    "DELTA",
    "PrivacyConfig",
    "Spent",
    "clipped",
    "epsilon_of",
    "majority",
    "noise_like",
    "noised",
    "shared_std",
    "system_noise",
]
