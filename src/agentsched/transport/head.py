"""Status and headers of an answer, and how headers are looked up."""

from collections.abc import Iterable, Sequence

from agentsched.model.value import record

Headers = Sequence[tuple[bytes, bytes]]


def header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    """Return the first value under a name that is given in lower case; empty if there is none."""
    for found, value in headers:
        if found.lower() == name:
            return value
    return b""


@record
class Head:
    """What comes before an answer's body."""

    status: int
    headers: Headers

    def get(self, name: bytes) -> bytes:
        """Return the value of a header; empty if there is none."""
        return header(self.headers, name)

    def replaced(self, name: bytes, *values: bytes) -> "Head":
        """Return the head with a header set to these values; without it if there are none."""
        kept = [pair for pair in self.headers if pair[0].lower() != name]
        return Head(self.status, [*kept, *((name, value) for value in values)])
