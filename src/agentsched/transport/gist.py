"""What a streamed answer says: text, usage and end, gathered from its events, and the whole answer.

The whole answer equals what the server would have sent without streaming: the same fields, each text the
concatenation of its pieces.
"""

from collections.abc import Sized
from typing import Any, cast

from agentsched.model import Usage
from agentsched.transport.incoming import CHARS_PER_TOKEN, Kind

MAX_CHARS = 64 * 2**20
"""No language model's answer is longer."""


MAX_FIELDS = 1_000
"""An answer has a dozen."""

MAX_COUNT = 10**9
"""No call has more tokens; a larger count is a mistake of the backend's."""


class AnswerTooLong(ValueError):
    """The peer sent more than `MAX_CHARS` of text or `MAX_FIELDS` names of fields."""


class Gist:
    """The events of one streamed chat or text completion, taken in one by one.

    Where several answers were asked for (`n`), the text is that of the first one seen; the others are counted.

    Attributes:
        pieces, chars: how many pieces of text came, reasoning included, and their characters.
        usage: as reported; None until it is.
    """

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._head: dict[str, Any] = {}
        self._known: set[str] = set()
        self._shape: tuple[str, ...] = ()
        self._choice_shape: tuple[str, ...] = ()
        self._choice_known: set[str] = set()
        self._texts: dict[str, list[str]] = {}
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self._ends: dict[str, Any] = {}
        self.chars = 0
        self.pieces = 0
        self._first: Any = None
        self._over: dict[Any, bool] = {}
        self.usage: dict[str, Any] | None = None

    @property
    def finished(self) -> bool:
        """Whether every answer that began has its finish reason, and there is one."""
        return bool(self._over) and all(self._over.values())

    @property
    def text(self) -> str:
        """The answer so far, without reasoning."""
        return "".join(self._texts.get("content" if self._kind is Kind.CHAT else "text", ()))

    @property
    def tokens(self) -> int:
        """Output tokens so far: as reported, else estimated from pieces and characters."""
        reported = None if self.usage is None else _count(self.usage, "completion_tokens")
        return reported if reported is not None else max(self.pieces, self.chars // CHARS_PER_TOKEN)

    def take(self, event: dict[str, Any]) -> None:
        """Take in the payload of one event.

        Raises:
            AnswerTooLong: if the text, or the number of different fields, exceeds its bound.
        """
        shape = tuple(event)
        if shape == self._shape and self._continued(event):
            return
        self._shape = shape
        if not self._known.issuperset(event):
            self._known.update(event)
            _bound(self._known)
            self._head = {
                name: event[name] for name in event if name not in ("choices", "usage")
            } | self._head
        usage: Any = event.get("usage")
        if isinstance(usage, dict):
            self.usage = usage
        choices: Any = event.get("choices")
        if isinstance(choices, list):
            for choice in cast("list[Any]", choices):
                if isinstance(choice, dict):
                    self._take_choice(cast("dict[str, Any]", choice))

    def _continued(self, event: dict[str, Any]) -> bool:
        """Take in the commonest event, one more piece of the answer's text; return whether it was one."""
        try:
            (choice,) = event["choices"]
            ((name, piece),) = choice["delta"].items()
            alike = choice["finish_reason"] is None and tuple(choice) == self._choice_shape
            alike = alike and choice["index"] == self._first
        except (KeyError, TypeError, ValueError, AttributeError):
            return False
        if not alike or name != "content" or type(piece) is not str or event.get("usage") is not None:
            return False
        self._take_text(name, piece)
        return True

    def _take_choice(self, choice: dict[str, Any]) -> None:
        found: Any = choice.get("index", 0)
        index = found if isinstance(found, int) else 0
        if not self._over:
            self._first = index
        ends = choice.get("finish_reason") is not None
        self._over[index] = ends or self._over.get(index, False)
        _bound(self._over)
        delta: Any = choice.get("delta") if self._kind is Kind.CHAT else {"text": choice.get("text")}
        if isinstance(delta, dict):
            for name, piece in cast("dict[str, Any]", delta).items():
                if isinstance(piece, str) and name != "role":
                    self._take_text(name if index == self._first else None, piece)
                elif index == self._first:
                    self._message[name] = piece
                    _bound(self._message)
        if index == self._first:
            self._take_ends(choice, ends=ends)

    def _take_ends(self, choice: dict[str, Any], *, ends: bool) -> None:
        self._choice_shape = tuple(choice)
        if ends or not self._choice_known.issuperset(choice):
            self._choice_known.update(choice)
            _bound(self._choice_known)
            for name, value in choice.items():
                if name not in ("delta", "text", "index") and (value is not None or name not in self._ends):
                    self._ends[name] = value

    def _take_text(self, name: str | None, piece: str) -> None:
        """Take in a piece of text; one without a name is only counted."""
        if name is not None:
            pieces = self._texts.get(name)
            if pieces is None:
                pieces = self._texts[name] = []
                _bound(self._texts)
            pieces.append(piece)
        self.chars += len(piece)
        self.pieces += bool(piece)
        if self.chars > MAX_CHARS:
            raise AnswerTooLong(f"an answer of more than {MAX_CHARS} characters")

    def counted(self) -> Usage:
        """Return the usage in our terms."""
        details = (self.usage or {}).get("prompt_tokens_details")
        return Usage(
            input_tokens=_count(self.usage, "prompt_tokens"),
            output_tokens=self.tokens or None,
            cached_tokens=_count(details, "cached_tokens") or 0,
        )

    def whole(self) -> dict[str, Any]:
        """Return the answer as one object."""
        texts = {name: "".join(pieces) for name, pieces in self._texts.items()}
        ends = {"finish_reason": None, **self._ends}
        if self._kind is Kind.CHAT:
            message = {**self._message, **texts}
            choice = {"index": 0, "message": message, **ends}
            head = {**self._head, "object": "chat.completion"}
        else:
            choice = {"index": 0, "text": "", **texts, **ends}
            head = {**self._head, "object": "text_completion"}
        return {**head, "choices": [choice], "usage": self.usage}


def _bound(fields: Sized) -> None:
    if len(fields) > MAX_FIELDS:
        raise AnswerTooLong(f"an answer of more than {MAX_FIELDS} fields")


def _count(usage: object, name: str) -> int | None:
    """Return a number of tokens; None where the backend gave none or one that cannot be."""
    count = cast("dict[str, Any]", usage).get(name) if isinstance(usage, dict) else None
    known = isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= MAX_COUNT
    return count if known else None
