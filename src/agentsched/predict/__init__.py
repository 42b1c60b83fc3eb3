"""What the past says: bounded, forgetting histories of lengths and speeds. State, no decisions."""

from agentsched.predict.lengths import MeanLengths
from agentsched.predict.speed import Speed

__all__ = ["MeanLengths", "Speed"]
