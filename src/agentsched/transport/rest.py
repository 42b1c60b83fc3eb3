"""The events of a backend that goes on with an answer, made to look like those of the one that began it."""

from typing import Any, cast

from agentsched.model import FailureKind
from agentsched.transport.incoming import Kind
from agentsched.transport.partial import Partial, Way
from agentsched.transport.refusal import Broken
from agentsched.transport.usage import first_count

_OF_THE_ANSWER = ("id", "created", "model", "system_fingerprint", "service_tier")
"""Fields that are the same in all events of one answer."""


class Rest:
    """The rest of one answer.

    Args:
        partial: what had come when this backend was asked for the rest.

    Attributes:
        kept: tokens of the answer that this backend need not write.
        usage: as the backend reported it: its own.
    """

    def __init__(self, kind: Kind, partial: Partial, way: Way) -> None:
        self._in_delta = kind is Kind.CHAT
        self.kept = partial.tokens if way is not Way.ANEW else 0
        self.usage: dict[str, Any] | None = None
        self._repeated = partial.text if way is Way.UNASKED else ""
        event = partial.event
        self._same = {name: event[name] for name in _OF_THE_ANSWER if name in event}

    def event(self, payload: dict[str, Any]) -> bool:
        """Change the payload of an event; return whether there is anything to it that was not said before.

        Raises:
            Broken: if the backend was to repeat the text, and says something else.
        """
        for name, value in self._same.items():
            if name in payload:
                payload[name] = value
        usage: Any = payload.get("usage")
        if isinstance(usage, dict):
            self.usage = cast("dict[str, Any]", usage)
            payload["usage"] = self._whole_usage(self.usage)
        choices: Any = payload.get("choices")
        if not isinstance(choices, list) or not choices:
            return True
        said = [self._choice(choice) for choice in cast("list[Any]", choices)]
        return any(said)

    def _choice(self, choice: Any) -> bool:
        if not isinstance(choice, dict):
            return True
        fields = cast("dict[str, Any]", choice)
        ends = fields.get("finish_reason") is not None
        said: Any = fields.get("delta") if self._in_delta else fields
        if not isinstance(said, dict):
            return True
        text = cast("dict[str, Any]", said)
        name = "content" if self._in_delta else "text"
        opens = text.pop("role", None) is not None if self._in_delta else False
        repeats = bool(self._repeated) and self._cut_off(text, name)
        if ends and self._repeated:
            raise Broken(
                FailureKind.UNABLE, "it ends before it has repeated the text that it was to go on with"
            )
        if repeats or opens:
            return ends or any(text.values() if self._in_delta else (text.get(name),))
        return True

    def _cut_off(self, said: dict[str, Any], name: str) -> bool:
        """Take off what is repeated of the text; return whether anything was."""
        piece: Any = said.get(name)
        if not isinstance(piece, str) or not piece:
            return False
        whole = self._repeated
        if not (piece.startswith(whole) or whole.startswith(piece)):
            raise Broken(FailureKind.UNABLE, "it does not go on with a text: it says another one")
        said[name] = piece[len(whole) :]
        self._repeated = whole[len(piece) :]
        return True

    def _whole_usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the usage of the whole answer: what was kept had been written, and was only read here."""
        kept = self.kept
        read, wrote = first_count(usage, "prompt_tokens"), first_count(usage, "completion_tokens")
        if not kept or read is None or wrote is None:
            return usage
        whole = {**usage, "prompt_tokens": max(read - kept, 1), "completion_tokens": wrote + kept}
        if "total_tokens" in usage:
            whole["total_tokens"] = whole["prompt_tokens"] + whole["completion_tokens"]
        details: Any = usage.get("prompt_tokens_details")
        cached = first_count(details, "cached_tokens")
        if cached is not None:
            cached = min(cached, whole["prompt_tokens"])
            whole["prompt_tokens_details"] = {**details, "cached_tokens": cached}
        return whole
