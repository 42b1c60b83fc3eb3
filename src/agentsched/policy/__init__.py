"""What to prefer: small callables with plain values in and out, gathered in one frozen `Policy`."""

from agentsched.policy.place import finish_time
from agentsched.policy.policy import Cost, Policy, Rank
from agentsched.policy.rank import arrival

__all__ = ["Cost", "Policy", "Rank", "arrival", "finish_time"]
