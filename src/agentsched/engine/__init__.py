"""The state machine: events in, commands out. It owns all state and knows no wire, no clock, no dice."""

from agentsched.engine.engine import Engine
from agentsched.engine.journal import Journal
from agentsched.engine.rerun import replay

__all__ = ["Engine", "Journal", "replay"]
