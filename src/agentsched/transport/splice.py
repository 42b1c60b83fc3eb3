"""Set fields of a JSON object and leave all its other bytes as they came."""

import json
import re
from collections.abc import Collection, Iterator, Mapping

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
"""Possessive: a long text leaves no trail of places to come back to."""

_TOKEN = re.compile(_STRING + rb"|[{}\[\],]", re.DOTALL)
_COLON = re.compile(rb"\s*:\s*")
_SCALAR = re.compile(_STRING + rb"|[^,}\]\s]+", re.DOTALL)


def with_fields(content: bytes, had: Collection[str], fields: Mapping[str, bytes]) -> bytes:
    """Return the object with its fields set: replaced where they stand, else appended.

    Args:
        content: the text of a valid JSON object that has at least one field.
        had: the names of its fields.
        fields: the new values, as JSON text.
    """
    pieces: list[bytes | memoryview] = []
    view, done = memoryview(content), 0
    replaced = [name for name in fields if name in had]
    if replaced:
        for name, start, end in _places(content, replaced):
            pieces += (view[done:start], fields[name])
            done = end
    if len(replaced) < len(fields):
        end = content.rindex(b"}")
        pieces.append(view[done:end])
        pieces += [b',"%b":%b' % (name.encode(), new) for name, new in fields.items() if name not in had]
        done = end
    pieces.append(view[done:])
    return b"".join(pieces)


def _places(content: bytes, names: Collection[str]) -> list[tuple[str, int, int]]:
    """Return name, start and end of the values that stand under these names at the top, in order."""
    places: list[tuple[str, int, int]] = []
    for name in names:
        key = b'"' + name.encode() + b'"'
        if content.count(key) != 1 or b"\\u" in content:
            # the same text stands elsewhere too, or the name may be spelled in another way
            return list(_all_places(content, names))
        places.append((name, *_value(content, content.index(key) + len(key))))
    return sorted(places, key=lambda place: place[1])


def _all_places(content: bytes, names: Collection[str]) -> Iterator[tuple[str, int, int]]:
    depth, is_key = 0, False
    for token in _TOKEN.finditer(content):
        kind = token[0][:1]
        if kind == b'"':
            if depth == 1 and is_key and (name := json.loads(token[0])) in names:
                yield (name, *_value(content, token.end()))
            is_key = False
        elif kind == b",":
            is_key = depth == 1
        elif kind in b"{[":
            depth += 1
            is_key = depth == 1
        else:
            depth -= 1


def _value(content: bytes, key_end: int) -> tuple[int, int]:
    """Return start and end of the value after a key."""
    colon = _COLON.match(content, key_end)
    start = colon.end() if colon is not None else key_end
    if content[start] not in b"{[":
        scalar = _SCALAR.match(content, start)
        return start, scalar.end() if scalar is not None else start
    depth = 0
    for token in _TOKEN.finditer(content, start):
        depth += (token[0] in b"{[") - (token[0] in b"}]")
        if depth == 0:
            return start, token.end()
    return start, len(content)
