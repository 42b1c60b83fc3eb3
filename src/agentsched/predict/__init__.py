"""What the past says: bounded, forgetting histories of lengths, speeds, caches and errors. State, no decisions."""

from agentsched.predict.calibration import Calibration
from agentsched.predict.lengths import MeanLengths
from agentsched.predict.past import Past
from agentsched.predict.prefixes import Prefixes
from agentsched.predict.prompts import PromptLengths
from agentsched.predict.speed import Speed

__all__ = ["Calibration", "MeanLengths", "Past", "Prefixes", "PromptLengths", "Speed"]
