"""What happened to a request, in order: for people, errors and tests."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import cast

from agentsched.model.value import record


@record
class Entry:
    """One line of a story.

    Attributes:
        at: engine seconds.
        what: one of "submitted", "queued", "started", "connected", "first token", "attempt failed",
            or the outcome.
        facts: numbers and names behind it; never a body or a secret.
    """

    at: float
    what: str
    facts: Mapping[str, object]

    def __str__(self) -> str:
        return self.since(0.0)

    def since(self, start: float) -> str:
        """Tell it with the time counted from `start`."""
        facts = ", ".join(f"{name}={_short(fact)}" for name, fact in self.facts.items() if fact is not None)
        return f"{self.at - start:.3f} {self.what}" + (f" ({facts})" if facts else "")


class Stories:
    """Stories of all live requests and of the `keep` that ended last."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._live: dict[str, list[Entry]] = {}
        self._ended: OrderedDict[str, list[Entry]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._live) + len(self._ended)

    def begin(self, request_id: str, entry: Entry) -> None:
        self._live[request_id] = [entry]

    def note(self, request_id: str, entry: Entry) -> None:
        self._live[request_id].append(entry)

    def end(self, request_id: str, entry: Entry) -> None:
        story = self._live.pop(request_id)
        story.append(entry)
        self._ended[request_id] = story
        if len(self._ended) > self._keep:
            self._ended.popitem(last=False)

    def of(self, request_id: str) -> tuple[Entry, ...]:
        """Return the story; empty if the request is unknown or forgotten."""
        return tuple(self._live.get(request_id) or self._ended.get(request_id) or ())


def _short(fact: object) -> str:
    if isinstance(fact, Mapping):
        pairs = cast("Mapping[str, object]", fact).items()
        return "{" + ", ".join(f"{name}: {_short(value)}" for name, value in pairs) + "}"
    return f"{fact:.3g}" if isinstance(fact, float) else str(fact)
