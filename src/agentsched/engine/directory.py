"""Which backend serves which model, as configured, as listed by the server, as taught by a 404."""

from collections.abc import Collection, Iterator, Sequence
from math import inf

from agentsched.engine.queue import Choice
from agentsched.model import Backend

RELIST_S = 5.0
"""A list of models this old is asked for again when a model is missing."""

REFUSED_S = 30.0
"""How long a 404 is believed, unless a new list comes."""

SETTLE_S = 0.5
"""How long the first calls wait for all backends to say what they serve, rather than go to the first that does."""

MAX_REFUSALS = 1_000
"""Most 404s remembered per backend; the oldest go first."""

MAX_CHOICES = 1_000
"""Most models whose backends are kept ready; beyond it the table starts anew."""


class _Entry:
    __slots__ = ("answered", "asked_at", "backend", "configured", "late", "listed", "pending", "refused")

    def __init__(self, backend: Backend, *, late: bool = False) -> None:
        self.backend = backend.name
        self.configured = backend.models
        self.late = late
        self.listed: dict[str, None] | None = None
        self.asked_at: float | None = None
        self.answered = False
        self.pending = False
        self.refused: dict[str, float] = {}

    @property
    def known(self) -> bool:
        return self.configured is not None or self.answered

    def names(self) -> Collection[str] | None:
        """Return the names it serves, as the app calls them; None if any name may be tried."""
        return self.configured if self.configured is not None else self.listed

    def serves(self, model: str | None, now: float) -> bool:
        if model is None:
            return True
        if not self.known or self.refused.get(model, now) > now:
            return False
        names = self.names()
        return names is None or model in names


class Directory:
    """What is known of the models of all backends that take calls. Its length is their number.

    Attributes:
        asks: whether there are backends to be asked what they serve.
    """

    def __init__(self, backends: Sequence[Backend]) -> None:
        self._entries = {backend.name: _Entry(backend) for backend in backends}
        self.asks = False
        self._to_list: list[_Entry] = []
        self._choices: dict[str | None, Choice] = {}
        self._refused_until = -inf
        self.settles_at = -inf
        self._changed()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def join(self, backend: Backend) -> None:
        """Take one in that joins a running fleet; calls that others serve do not wait for what it says."""
        self._entries[backend.name] = _Entry(backend, late=True)
        self._changed()

    def leave(self, backend: str) -> None:
        """Forget one that takes no more calls; whatever is heard of it later says nothing."""
        if self._entries.pop(backend, None) is not None:
            self._changed()

    def _changed(self) -> None:
        self._to_list = [entry for entry in self._entries.values() if entry.configured is None]
        self.asks = bool(self._to_list)
        self._choices.clear()

    @property
    def pending(self) -> bool:
        """Whether some backend has been asked and has not answered."""
        return any(entry.pending for entry in self._entries.values())

    @property
    def asked(self) -> list[str]:
        """The backends that have been asked and have not answered."""
        return [entry.backend for entry in self._to_list if entry.pending]

    def settling(self, now: float) -> bool:
        """Whether some backend that was never asked before may still answer in time for the first calls."""
        return now < self.settles_at and any(entry.pending and not entry.answered for entry in self._to_list)

    def served(self) -> list[str]:
        """Return every model name that the app may use, sorted."""
        return sorted({name for entry in self._entries.values() for name in entry.names() or ()})

    def names(self, backend: str) -> Collection[str] | None:
        """Return what a backend serves, as the app calls it; None if any name may be tried there.

        One that takes no more calls serves nothing.
        """
        entry = self._entries.get(backend)
        return () if entry is None else entry.names()

    def choice(self, model: str | None, tried: Sequence[str], now: float) -> Choice:
        """Return the backends that serve the model and are not in `tried`."""
        if tried or now < self._refused_until:
            return self._choose(model, tried, now)
        found = self._choices.get(model)
        if found is None:
            if len(self._choices) >= MAX_CHOICES:
                self._choices.clear()
            found = self._choices[model] = self._choose(model, tried, now)
        return found

    def _choose(self, model: str | None, tried: Sequence[str], now: float) -> Choice:
        return tuple(
            name for name, entry in self._entries.items() if name not in tried and entry.serves(model, now)
        )

    def to_ask(self, now: float, *, missing: bool) -> list[str]:
        """Return the backends to ask what they serve, and note that they were.

        Args:
            missing: whether a model was not found, so that lists of some age are worth another look. Backends
                that could not say are asked again anyway.
        """
        due = [
            entry
            for entry in self._to_list
            if not entry.pending
            and (
                entry.asked_at is None
                or ((missing or entry.listed is None) and entry.asked_at + RELIST_S <= now)
            )
        ]
        for entry in due:
            if entry.asked_at is None and not entry.late:
                self.settles_at = now + SETTLE_S
            entry.asked_at, entry.pending = now, True
        return [entry.backend for entry in due]

    def unasked(self, backend: str) -> None:
        """Take back a question that was cut short."""
        entry = self._entries.get(backend)
        if entry is not None:
            entry.pending = False
            entry.asked_at = None

    def listed(self, backend: str, models: tuple[str, ...] | None, now: float) -> None:
        """Take a backend's answer; None if it gave none, which leaves an earlier list as it is."""
        entry = self._entries.get(backend)
        if entry is None:
            return
        entry.asked_at = now
        if models is not None:
            entry.listed = dict.fromkeys(models)
            entry.refused.clear()
        entry.answered, entry.pending = True, False
        self._choices.clear()

    def refuse(self, backend: str, model: str, now: float) -> None:
        """Take a 404 for a model."""
        entry = self._entries.get(backend)
        if entry is None:
            return
        refused = entry.refused
        refused.pop(model, None)
        refused[model] = self._refused_until = now + REFUSED_S
        if len(refused) > MAX_REFUSALS:
            del refused[next(iter(refused))]
