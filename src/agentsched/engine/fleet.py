"""The fleet: its backends, those that drain included, and who of them serves what. It changes while calls run."""

from collections.abc import Iterable, Sequence

from agentsched.engine.backends import BackendRow, backend_row, fleet_rows
from agentsched.engine.directory import Directory
from agentsched.engine.rows import RequestRow
from agentsched.errors import UsageError
from agentsched.model import Backend, Failure, FailureKind
from agentsched.predict import Learned, Profile

SEEN = "the caller had seen a part of the answer, so that no other backend could begin anew"
UNSEEN = "no other backend could take the call over"


class Fleet:
    """All backends.

    Attributes:
        rows: by name, in the order in which they joined.
        directory: of those that take calls.
        profile: what an earlier run has learned, also of backends that may join.

    Raises:
        UsageError: for no backends or for two with the same name or address.
    """

    def __init__(self, backends: Sequence[Backend], profile: Profile | None = None) -> None:
        self.profile = profile if profile is not None else Profile()
        self.rows = fleet_rows(backends, self.profile)
        self.directory = Directory(backends)
        self._ever = len(backends)

    def join(self, backend: Backend, learned: Learned | None) -> None:
        """Take a backend in, with what an earlier run has learned of it.

        Raises:
            UsageError: if another one has its name or address; nothing has changed then.
        """
        self.check_new(backend)
        self.rows[backend.name] = backend_row(backend, self._ever, learned)
        self._ever += 1
        self.directory.join(backend)

    def leave(self, name: str, successor: Backend | None, *, drain: bool) -> BackendRow:
        """Let a backend take no more calls, and return its row.

        Raises:
            UsageError: if there is no such backend, or its successor cannot join then; nothing has changed.
        """
        row = self.of(name)
        if successor is not None:
            self.check_new(successor, instead_of=None if drain else row)
        row.draining = True
        self.directory.leave(name)
        return row

    def forget(self, row: BackendRow, requests: Iterable[RequestRow]) -> None:
        """Drop a backend where nothing runs any more: one of the same name that joins later is another one."""
        del self.rows[row.name]
        for request in requests:
            if row.name in request.tried:
                request.tried = tuple(name for name in request.tried if name != row.name)

    def of(self, name: str) -> BackendRow:
        """Return a backend's row.

        Raises:
            UsageError: if there is none.
        """
        row = self.rows.get(name)
        if row is None:
            there = f"it has {', '.join(self.rows)}" if self.rows else "it is empty"
            raise UsageError(f"the fleet has no backend {name!r:.80}; {there}")
        return row

    def check_new(self, backend: Backend, *, instead_of: BackendRow | None = None) -> None:
        """Raise a UsageError if a backend has the name or the address of another one, but for one that it replaces."""
        for row in self.rows.values():
            for attribute in ("name", "base_url"):
                value = getattr(backend, attribute)
                if row is not instead_of and getattr(row.spec, attribute) == value:
                    state = ", which still drains" if row.draining else ""
                    raise UsageError(
                        f"the fleet has a backend with the {attribute} {value!r} already ({row.name}{state}): "
                        "remove that one first, or give a backend that replaces it"
                    )


def removal(*, seen: bool) -> Failure:
    """Return the failure of an attempt whose backend was taken from under it."""
    return Failure(kind=FailureKind.REMOVED, delivered=seen, detail=SEEN if seen else UNSEEN)
