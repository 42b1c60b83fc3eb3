"""Values that come in pieces, put together as the SDKs do it."""

from collections.abc import Sized
from typing import Any, cast

MAX_BYTES = 256 * 2**20
"""No language model's answer is longer, its events' frames included."""

MAX_FIELDS = 1_000
"""An answer has a dozen."""

LABELS = frozenset(("index", "type", "id", "role", "format"))
"""Fields that each piece of a message repeats."""


class AnswerTooLong(ValueError):
    """The peer sent more than `MAX_BYTES`, or `MAX_FIELDS` names of fields."""


class Text(list[str]):
    """A text under way, in pieces."""


class Items(list[Any]):
    """A list under way; pieces of one item come with its `index`."""

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[int, int] = {}

    def put(self, piece: Any) -> None:
        """Add a piece to its item, or as an item of its own."""
        index: Any = cast("dict[str, Any]", piece).get("index") if isinstance(piece, dict) else None
        if isinstance(index, int) and index in self._places:
            place = self._places[index]
            self[place] = joined(self[place], piece)
            return
        if isinstance(index, int):
            self._places[index] = len(self)
        self.append(joined(None, piece))

    def put_text(self, text: Text) -> None:
        """Go on with a text where the list has begun."""
        last: Any = self[-1] if self else None
        part = cast("dict[str, Any]", last) if isinstance(last, dict) else {}
        if part.get("type") == "text" and type(part.get("text")) is Text:
            part["text"] += text
        elif any(text):
            self.append({"type": "text", "text": text})


def grow(whole: dict[str, Any], name: str, piece: Any) -> None:
    """Add a piece to a field.

    Raises:
        AnswerTooLong: for more than `MAX_FIELDS` fields.
    """
    if name not in whole:
        whole[name] = piece if name in LABELS else joined(None, piece)
        bound(whole)
    elif name not in LABELS:
        whole[name] = joined(whole[name], piece)
    elif piece is not None and piece != "":
        whole[name] = piece


def joined(earlier: Any, piece: Any) -> Any:
    """Return a value with one more piece of it, as the SDKs put such deltas together.

    Texts are continued, objects grow field by field, and what a list holds goes to the item of the same
    `index`; anything else is replaced, but not by null. A text in a list of parts is a part of its own.
    """
    if piece is None:
        return earlier
    if isinstance(piece, str):
        if type(earlier) is Items:
            earlier.put_text(Text((piece,)))
        elif type(earlier) is Text:
            earlier.append(piece)
        else:
            return Text((piece,))
        return earlier
    if isinstance(piece, dict):
        whole: dict[str, Any] = cast("dict[str, Any]", earlier) if type(earlier) is dict else {}
        for name, part in cast("dict[str, Any]", piece).items():
            grow(whole, name, part)
        return whole
    if isinstance(piece, list):
        items = earlier if type(earlier) is Items else Items()
        if type(earlier) is Text:
            items.put_text(earlier)
        for item in cast("list[Any]", piece):
            items.put(item)
        return items
    return piece


def longer(earlier: Any, piece: Any) -> Any:
    """Return a list, or an object of lists, with what another one holds after it: logprobs, token ids."""
    if isinstance(earlier, list) and isinstance(piece, list):
        items = cast("list[Any]", earlier)
        items += cast("list[Any]", piece)
        return items
    if isinstance(earlier, dict) and isinstance(piece, dict):
        whole = cast("dict[str, Any]", earlier)
        for name, part in cast("dict[str, Any]", piece).items():
            whole[name] = longer(whole.get(name), part)
        bound(whole)
        return whole
    return cast("Any", earlier) if piece is None else piece


def assembled(value: Any) -> Any:
    """Return a value with its texts put together."""
    if isinstance(value, Text):
        return "".join(value)
    if isinstance(value, dict):
        return {name: assembled(part) for name, part in cast("dict[str, Any]", value).items()}
    return [assembled(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value


def bound(fields: Sized) -> None:
    """Refuse fields where there are too many.

    Raises:
        AnswerTooLong: if there are.
    """
    if len(fields) > MAX_FIELDS:
        raise AnswerTooLong(f"an answer of more than {MAX_FIELDS} fields")
