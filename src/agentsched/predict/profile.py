"""A profile: what one run has learned of backends, prompts and steps, for a later run to begin with."""

from collections.abc import Callable, Hashable, Iterable
from typing import Literal, TypeVar

from agentsched.model import Backend
from agentsched.model.value import value
from agentsched.predict.learned import Learned
from agentsched.predict.prompts import PromptRatio
from agentsched.predict.steps import StepRow

T = TypeVar("T")

Source = Literal["calibration", "journal", "run"]


@value
class Measured:
    """What is known of one backend, and from where.

    Attributes:
        base_url: its address; None where only its name was written down, as in a journal.
        at: when that was, in the words of ISO 8601; None if it is not known.
        calls: that were answered and learned from.
        seconds: over which they were made.
        ladder: what was asked for: tokens of prompts, and how many calls at a time.
    """

    base_url: str | None
    name: str
    learned: Learned
    source: Source
    at: str | None = None
    calls: int = 0
    seconds: float = 0.0
    ladder: tuple[tuple[int, int], ...] = ()

    def is_of(self, base_url: str | None, name: str) -> bool:
        """Whether that is the same backend: by address where both are known, else by name."""
        if self.base_url is not None and base_url is not None:
            return self.base_url == base_url
        return self.name == name


@value
class Profile:
    """What was learned: of backends, of the prompts of each model, of the calls of each step."""

    backends: tuple[Measured, ...] = ()
    prompts: tuple[PromptRatio, ...] = ()
    steps: tuple[StepRow, ...] = ()

    def of(self, backend: Backend) -> Learned | None:
        """Return what was learned of a backend; None if it is not in here.

        One of its address goes before one of which only the name is known.
        """
        found = [one for one in self.backends if one.is_of(backend.base_url, backend.name)]
        best = next((one for one in found if one.base_url is not None), found[0] if found else None)
        return None if best is None else best.learned

    def updated(self, newer: "Profile") -> "Profile":
        """Return all of both; where they are about the same, what is newer."""
        kept = [
            old
            for old in self.backends
            if not any(new.is_of(old.base_url, old.name) for new in newer.backends)
        ]
        return Profile(
            backends=(*kept, *newer.backends),
            prompts=_updated(self.prompts, newer.prompts, lambda one: one.model),
            steps=_updated(self.steps, newer.steps, lambda one: one.key),
        )


def _updated(older: Iterable[T], newer: Iterable[T], key: Callable[[T], Hashable]) -> tuple[T, ...]:
    return tuple({key(one): one for one in (*older, *newer)}.values())
