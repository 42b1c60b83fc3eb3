"""agentsched: schedules the LLM calls of an agent app over unequal OpenAI-compatible servers."""

from agentsched.errors import (
    AgentschedError,
    BackendError,
    BackendOverloaded,
    BackendProtocolError,
    BackendTimeout,
    BackendUnavailable,
    CallLimitReached,
    Expired,
    FleetEmpty,
    InvariantBroken,
    QueueFull,
    Rejected,
    SchedulerClosed,
    UnknownModel,
    UnknownOption,
    UsageError,
)
from agentsched.model import Backend, BackendLoad, Job, Limits
from agentsched.policy import Policy
from agentsched.runtime.explain import Explanation
from agentsched.runtime.fleet import Fleet
from agentsched.runtime.scheduler import Scheduler
from agentsched.runtime.snapshot import Snapshot
from agentsched.runtime.step import step

__all__ = [
    "AgentschedError",
    "Backend",
    "BackendError",
    "BackendLoad",
    "BackendOverloaded",
    "BackendProtocolError",
    "BackendTimeout",
    "BackendUnavailable",
    "CallLimitReached",
    "Expired",
    "Explanation",
    "Fleet",
    "FleetEmpty",
    "InvariantBroken",
    "Job",
    "Limits",
    "Policy",
    "QueueFull",
    "Rejected",
    "Scheduler",
    "SchedulerClosed",
    "Snapshot",
    "UnknownModel",
    "UnknownOption",
    "UsageError",
    "step",
]
