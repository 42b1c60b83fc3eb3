"""What a streamed answer says: text, usage and end, gathered from its events, and the whole answer.

The whole answer equals what the server would have sent without streaming: the same fields, each put together
from its pieces.
"""

from collections.abc import Sized
from typing import Any, cast

from agentsched.model import Usage
from agentsched.transport.incoming import CHARS_PER_TOKEN, Kind

MAX_BYTES = 256 * 2**20
"""No language model's answer is longer, its events' frames included."""

MAX_FIELDS = 1_000
"""An answer has a dozen."""

MAX_ANSWERS = 2**16
"""Answers to one call: prompts times `n`."""

MAX_COUNT = 10**7
"""No call has more tokens; a larger count is a mistake of the backend's."""

_LABELS = frozenset(("index", "type", "id", "role", "format"))
"""Fields that each piece of a message repeats."""


class AnswerTooLong(ValueError):
    """The peer sent more than `MAX_BYTES`, or `MAX_FIELDS` names of fields."""


class _Text(list[str]):
    """A text under way, in pieces."""


class _Items(list[Any]):
    """A list under way; pieces of one item come with its `index`."""

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[int, int] = {}

    def put(self, piece: Any) -> None:
        """Add a piece to its item, or as an item of its own."""
        index: Any = cast("dict[str, Any]", piece).get("index") if isinstance(piece, dict) else None
        if isinstance(index, int) and index in self._places:
            place = self._places[index]
            self[place] = _joined(self[place], piece)
            return
        if isinstance(index, int):
            self._places[index] = len(self)
        self.append(_joined(None, piece))

    def put_text(self, text: _Text) -> None:
        """Go on with a text where the list has begun."""
        last: Any = self[-1] if self else None
        part = cast("dict[str, Any]", last) if isinstance(last, dict) else {}
        if part.get("type") == "text" and type(part.get("text")) is _Text:
            part["text"] += text
        elif any(text):
            self.append({"type": "text", "text": text})


class Gist:
    """The events of one streamed chat or text completion, taken in one by one.

    Args:
        several: whether more than one answer was asked for. Then the text is that of the first one seen, and the
            others are counted.
        whole: whether the whole answer will be wanted; if not, only text, counts and ends are gathered.

    Attributes:
        finished: whether every answer that began has its finish reason, and there is one.
        steady: whether no finish reason was followed by more, which makes the others doubtful as well.
        said: how many events said something.
        pieces, chars: how many pieces of text came, reasoning included, and their characters.
        usage: as reported; None until it is.
    """

    def __init__(self, kind: Kind, *, several: bool = False, whole: bool = True) -> None:
        self._kind = kind
        self._several = several
        self._whole = whole
        self._said = "content" if kind is Kind.CHAT else "text"
        self._head: dict[str, Any] = {}
        self._shape: tuple[str, ...] = ()
        self._choice_shape: tuple[str, ...] = ()
        self._choice_known: set[str] = set()
        self._message: dict[str, Any] = {"role": "assistant", "content": None} if kind is Kind.CHAT else {}
        self._ends: dict[str, Any] = {}
        self.finished = False
        self.steady = True
        self.said = 0
        self._bytes = 0
        self.chars = 0
        self.pieces = 0
        self._first: Any = None
        self._first_number = 0
        self._over: dict[Any, bool] = {}
        self.usage: dict[str, Any] | None = None

    @property
    def answers(self) -> int:
        """How many answers have begun."""
        return len(self._over)

    @property
    def text(self) -> str:
        """The answer so far, without reasoning."""
        said = self._message.get(self._said)
        return "".join(said) if isinstance(said, _Text) else ""

    @property
    def tokens(self) -> int:
        """Output tokens so far: as reported, else estimated from pieces and characters."""
        reported = None if self.usage is None else _count(self.usage, "completion_tokens")
        return reported if reported is not None else max(self.pieces, self.chars // CHARS_PER_TOKEN)

    def take(self, event: dict[str, Any], size: int) -> None:
        """Take in the payload of one event.

        Args:
            size: its length in bytes as it came.

        Raises:
            AnswerTooLong: if the answer, or the number of different fields, exceeds its bound.
        """
        self._bytes += size
        if self._bytes > MAX_BYTES:
            raise AnswerTooLong(f"an answer of more than {MAX_BYTES} bytes")
        piece: Any = None
        try:  # the commonest event: one more piece of the answer's text
            (choice,) = event["choices"]
            delta = choice["delta"]
            piece = delta["content"]
            alike = (
                len(delta) == 1
                and type(piece) is str
                and choice["finish_reason"] is None
                and choice["index"] == self._first
                and event.get("usage") is None
                and tuple(event) == self._shape
                and tuple(choice) == self._choice_shape
            )
        except (KeyError, TypeError, ValueError):
            alike = False
        content = self._message.get("content")
        if alike and type(content) is _Text and not self._over[self._first_number]:
            content.append(piece)
            self.said += 1
            self.chars += len(piece)
            self.pieces += bool(piece)
        else:
            self._take_any(event)

    def _take_any(self, event: dict[str, Any]) -> None:
        self._shape = tuple(event)
        for name, value in event.items() if self._whole else ():
            if name not in ("choices", "usage") and not self._head.get(name):
                _bound(self._head)
                self._head[name] = value
        usage: Any = event.get("usage")
        if isinstance(usage, dict):
            self.usage = usage
        choices: Any = event.get("choices")
        if isinstance(choices, list):
            for choice in cast("list[Any]", choices):
                if isinstance(choice, dict):
                    self._take_choice(cast("dict[str, Any]", choice))

    def _take_choice(self, choice: dict[str, Any]) -> None:
        index: Any = choice.get("index", 0)
        number = index if self._several and isinstance(index, int) else 0
        if not self._over:
            self._first, self._first_number = index, number
        ends = _is_end(choice.get("finish_reason"))
        delta: Any = choice.get("delta") if self._kind is Kind.CHAT else {"text": choice.get("text")}
        first, says = not self._several or index == self._first, False
        if isinstance(delta, dict):
            for name, piece in cast("dict[str, Any]", delta).items():
                self._take_piece(name, piece, first=first)
                says = says or (bool(piece) and name not in _LABELS)
        over = self._over.get(number, False)
        if says:
            self.said += 1
            self.steady = self.steady and not over  # some servers send a finish reason with every event
        self._over[number] = ends or (over and not says)
        if len(self._over) > MAX_ANSWERS:
            raise AnswerTooLong(f"more than {MAX_ANSWERS} answers")
        self.finished = all(self._over.values())
        if first:
            self._take_ends(choice, ends=ends)

    def _take_ends(self, choice: dict[str, Any], *, ends: bool) -> None:
        self._choice_shape = tuple(choice)
        if self._whole and (ends or not self._choice_known.issuperset(choice)):
            self._choice_known.update(choice)
            _bound(self._choice_known)
            for name, value in choice.items():
                if name == "finish_reason" and not ends:
                    self._ends.setdefault(name)
                elif name not in ("delta", "text", "index") and (value is not None or name not in self._ends):
                    self._ends[name] = value

    def _take_piece(self, name: str, piece: Any, *, first: bool) -> None:
        text = isinstance(piece, str) and name not in _LABELS
        if text:
            self.chars += len(piece)
            self.pieces += bool(piece)
        if first and (self._whole or (text and name == self._said)):
            _grow(self._message, name, piece)

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
        ends = {"finish_reason": None, **self._ends}
        said = _whole(self._message)
        if self._kind is Kind.CHAT:
            calls: Any = said.get("tool_calls")
            for call in cast("list[Any]", calls) if isinstance(calls, list) else ():
                if isinstance(call, dict):
                    cast("dict[str, Any]", call).pop("index", None)  # it only serves to put pieces together
            choice = {"index": 0, "message": said, **ends}
            head = {**self._head, "object": "chat.completion"}
        else:
            choice = {"index": 0, "text": "", **said, **ends}
            head = {**self._head, "object": "text_completion"}
        return {**head, "choices": [choice], "usage": self.usage}


def _is_end(reason: object) -> bool:
    """Whether a finish reason is one: some servers send an empty one, or the word null, until there is."""
    return reason is not None and reason not in ("", "null")


def _grow(whole: dict[str, Any], name: str, piece: Any) -> None:
    """Add a piece to a field."""
    if name not in whole:
        _bound(whole)
        whole[name] = piece if name in _LABELS else _joined(None, piece)
    elif name not in _LABELS:
        whole[name] = _joined(whole[name], piece)
    elif piece is not None and piece != "":
        whole[name] = piece


def _joined(earlier: Any, piece: Any) -> Any:
    """Return a value with one more piece of it, as the SDKs put such deltas together.

    Texts are continued, objects grow field by field, and what a list holds goes to the item of the same
    `index`; anything else is replaced, but not by null. A text in a list of parts is a part of its own.
    """
    if piece is None:
        return earlier
    if isinstance(piece, str):
        if type(earlier) is _Items:
            earlier.put_text(_Text((piece,)))
        elif type(earlier) is _Text:
            earlier.append(piece)
        else:
            return _Text((piece,))
        return earlier
    if isinstance(piece, dict):
        whole: dict[str, Any] = cast("dict[str, Any]", earlier) if type(earlier) is dict else {}
        for name, part in cast("dict[str, Any]", piece).items():
            _grow(whole, name, part)
        return whole
    if isinstance(piece, list):
        items = earlier if type(earlier) is _Items else _Items()
        if type(earlier) is _Text:
            items.put_text(earlier)
        for item in cast("list[Any]", piece):
            items.put(item)
        return items
    return piece


def _whole(value: Any) -> Any:
    """Return a value with its texts put together."""
    if isinstance(value, _Text):
        return "".join(value)
    if isinstance(value, dict):
        return {name: _whole(part) for name, part in cast("dict[str, Any]", value).items()}
    return [_whole(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value


def _bound(fields: Sized) -> None:
    if len(fields) >= MAX_FIELDS:
        raise AnswerTooLong(f"an answer of more than {MAX_FIELDS} fields")


def _count(usage: object, name: str) -> int | None:
    """Return a number of tokens; None where the backend gave none or one that cannot be."""
    count = cast("dict[str, Any]", usage).get(name) if isinstance(usage, dict) else None
    known = isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= MAX_COUNT
    return count if known else None
