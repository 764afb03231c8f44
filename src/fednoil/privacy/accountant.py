"""How much a run's noise has revealed of any one client: ε at δ = 1e-5, by Google's dp-accounting.

Two federations are neighbours here if they differ in all that one client has (`REPLACE_ONE`): its update may then be
another one of length at most C, so a sum of updates differs by at most 2C, and noise of std z·C on it is Gaussian noise
with multiplier z/2. Who may see what decides about the sampling:

- Where the server is trusted with each update, others see only models and don't know whose turn a round was. Rounds
  draw m of K clients without replacement, each set being as likely as any other, which dp-accounting bounds by the
  Rényi divergence of Wang, Balle and Kasiviswanathan (2019). Poisson sampling, for which most published numbers are
  computed, is not what happens here. The bound without any sampling is exact, and holds too: the smaller one counts.
- Where it is not, it knows who took part, and chance hides nothing: each client has its own account of the rounds in
  which it was asked to train, and the largest counts. The noise of n rounds is exactly that of one with multiplier
  z/(2√n).
"""

from __future__ import annotations

from math import sqrt

from fednoil.errors import UserError

DELTA = 1e-5
Spent = dict[str, int]  # rounds, by 'm/K' where the server is trusted, otherwise by client


def check_accountant() -> None:
    """Refuse noise whose cost can't be computed."""
    try:
        import dp_accounting  # noqa: F401
    except ImportError:
        raise UserError(
            "privacy.noise needs dp-accounting to compute ε, which is not installed: pip install 'fednoil[privacy]'"
        ) from None


def spend(spent: Spent, sees: str, drawn: int, candidates: int, paying: list[int]) -> Spent:
    """The account after a round in which `drawn` of `candidates` were drawn, and `paying` have revealed something."""
    names = [f"{drawn}/{candidates}"] if sees == "updates" else [str(client) for client in paying]
    return {**spent, **{name: spent.get(name, 0) + 1 for name in names}} if paying else spent


def epsilon_of(spent: Spent, sees: str, noise: float) -> float:
    """The ε of an account, for noise with this multiplier of the clip; 0 if nothing is spent."""
    if not spent:
        return 0.0
    if sees != "updates":
        return _gaussian(noise, max(spent.values()))
    return min(_gaussian(noise, sum(spent.values())), _sampled(spent, noise))


def _gaussian(noise: float, rounds: int) -> float:
    from dp_accounting import get_epsilon_gaussian

    return float(get_epsilon_gaussian(noise / 2 / sqrt(rounds), DELTA))


def _sampled(spent: Spent, noise: float) -> float:
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    for name, rounds in sorted(spent.items()):
        drawn, candidates = (int(part) for part in name.split("/"))
        event = dp.SampledWithoutReplacementDpEvent(candidates, drawn, dp.GaussianDpEvent(noise / 2))
        accountant.compose(event, rounds)
    return float(accountant.get_epsilon(DELTA))
