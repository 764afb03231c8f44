"""What a round is: state in, state and record out (`play`).

It knows no device, no file and no terminal. What depends on where the clients are, in this process or on machines of
their own, is the executor's policy (`fednoil.rounds.policy`).
"""

from fednoil.rounds.loop import play
from fednoil.rounds.policy import FederationPolicy, Policy, policy_of
from fednoil.rounds.state import Best, RunState, make_job, placed, start

__all__ = ["Best", "FederationPolicy", "Policy", "RunState", "make_job", "placed", "play", "policy_of", "start"]
