"""The nouns: plain values that every floor above may hold. No decisions, no I/O."""

from agentsched.model.backend import Backend
from agentsched.model.failure import Failure, FailureKind
from agentsched.model.job import BackendLoad, Job
from agentsched.model.limits import Limits
from agentsched.model.outcome import Outcome, Reason
from agentsched.model.query import Query
from agentsched.model.request import Request, Usage
from agentsched.model.signals import Signals

__all__ = [
    "Backend",
    "BackendLoad",
    "Failure",
    "FailureKind",
    "Job",
    "Limits",
    "Outcome",
    "Query",
    "Reason",
    "Request",
    "Signals",
    "Usage",
]
