"""Which backend serves which model, as configured, as listed by the server, as taught by a 404."""

from collections.abc import Mapping, Sequence

from agentsched.engine.queue import Choice
from agentsched.model import Backend

RELIST_S = 30.0
"""A list of models this old is asked for again when a model is missing; a 404 is believed for as long."""

MAX_REFUSALS = 1_000
"""Most 404s remembered per backend; the oldest go first."""


class _Entry:
    __slots__ = ("answered", "asked_at", "backend", "configured", "listed", "pending", "refused")

    def __init__(self, backend: Backend) -> None:
        self.backend = backend.name
        self.configured = backend.models
        self.listed: tuple[str, ...] | None = None
        self.asked_at: float | None = None
        self.answered = False
        self.pending = False
        self.refused: dict[str, float] = {}

    @property
    def known(self) -> bool:
        return self.configured is not None or self.answered

    def names(self) -> Sequence[str] | None:
        """Return the names it serves, as the app calls them; None if any name may be tried."""
        return tuple(self.configured) if self.configured is not None else self.listed

    def serves(self, model: str | None, now: float) -> bool:
        if model is None:
            return True
        if not self.known or self.refused.get(model, now) > now:
            return False
        names: Mapping[str, str] | Sequence[str] | None = self.configured or self.listed
        return names is None or model in names


class Directory:
    """What is known of all backends' models."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self._entries = {backend.name: _Entry(backend) for backend in backends}

    @property
    def pending(self) -> bool:
        """Whether some backend has been asked and has not answered."""
        return any(entry.pending for entry in self._entries.values())

    def served(self) -> list[str]:
        """Return every model name that the app may use, sorted."""
        return sorted({name for entry in self._entries.values() for name in entry.names() or ()})

    def choice(self, model: str | None, tried: Sequence[str], now: float) -> Choice:
        """Return the backends that serve the model and are not in `tried`."""
        return tuple(
            name for name, entry in self._entries.items() if name not in tried and entry.serves(model, now)
        )

    def to_ask(self, now: float, *, missing: bool) -> list[str]:
        """Return the backends to ask what they serve, and note that they were.

        Args:
            missing: whether a model was not found, so that lists of some age are worth another look.
        """
        due = [
            entry
            for entry in self._entries.values()
            if entry.configured is None
            and not entry.pending
            and (entry.asked_at is None or (missing and entry.asked_at + RELIST_S <= now))
        ]
        for entry in due:
            entry.asked_at, entry.pending = now, True
        return [entry.backend for entry in due]

    def listed(self, backend: str, models: tuple[str, ...] | None, now: float) -> None:
        """Take a backend's answer; None if it gave none."""
        entry = self._entries[backend]
        entry.asked_at = now
        entry.listed = models
        entry.answered, entry.pending = True, False
        entry.refused.clear()

    def refuse(self, backend: str, model: str, now: float) -> None:
        """Take a 404 for a model."""
        refused = self._entries[backend].refused
        refused.pop(model, None)
        refused[model] = now + RELIST_S
        if len(refused) > MAX_REFUSALS:
            del refused[next(iter(refused))]
