"""What the past says: bounded, forgetting histories of lengths, speeds, caches and errors. State, no decisions."""

from agentsched.predict.calibration import Calibration
from agentsched.predict.learned import Learned
from agentsched.predict.lengths import MeanLengths
from agentsched.predict.past import Past
from agentsched.predict.prefixes import Prefixes
from agentsched.predict.profile import Measured, Profile
from agentsched.predict.prompts import PromptLengths
from agentsched.predict.speed import Speed
from agentsched.predict.steps import Steps

__all__ = [
    "Calibration",
    "Learned",
    "MeanLengths",
    "Measured",
    "Past",
    "Prefixes",
    "Profile",
    "PromptLengths",
    "Speed",
    "Steps",
]
