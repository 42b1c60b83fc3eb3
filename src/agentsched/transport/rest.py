"""The events of a backend that goes on with an answer, made to look like those of the one that began it."""

from typing import Any, cast

from agentsched.transport.incoming import Kind
from agentsched.transport.partial import Partial, Way
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
        self._from_completion = way is Way.IDS and kind is Kind.CHAT
        self.kept = partial.tokens if way is not Way.ANEW else 0
        self.usage: dict[str, Any] | None = None
        event = partial.event
        self._same = {name: event[name] for name in _OF_THE_ANSWER if name in event}

    def event(self, payload: dict[str, Any]) -> bool:
        """Change the payload of an event; return whether there is anything to it that was not said before."""
        for name, value in self._same.items():
            if name in payload:
                payload[name] = value
        if self._from_completion:
            payload["object"] = "chat.completion.chunk"
        usage: Any = payload.get("usage")
        if isinstance(usage, dict):
            self.usage = cast("dict[str, Any]", usage)
            payload["usage"] = self._whole_usage(self.usage)
        choices: Any = payload.get("choices")
        if not isinstance(choices, list) or not choices:
            return True
        if self._from_completion:
            payload["choices"] = choices = [_chat_choice(choice) for choice in cast("list[Any]", choices)]
        said = [self._choice(choice) for choice in cast("list[Any]", choices)]
        return any(said)

    def _choice(self, choice: Any) -> bool:
        """Take away the role, which was named before; return whether anything is left."""
        fields = cast("dict[str, Any]", choice) if isinstance(choice, dict) else {}
        delta: Any = fields.get("delta") if self._in_delta else None
        said = cast("dict[str, Any]", delta) if isinstance(delta, dict) else {}
        if said.pop("role", None) is None:
            return True
        return any(said.values()) or fields.get("finish_reason") is not None

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


def _chat_choice(choice: Any) -> Any:
    """Return a completion's choice as vLLM has it in a chat."""
    if not isinstance(choice, dict):
        return choice
    fields = cast("dict[str, Any]", choice)
    chat: dict[str, Any] = {}
    for name, value in fields.items():
        if name == "text":
            chat["delta"] = {"content": value}
        elif name != "prompt_token_ids" and (
            name != "stop_reason" or fields.get("finish_reason") is not None
        ):
            chat[name] = value
    return chat
