"""JSON to and from the wire: everything that is JSON gets through, nothing else does."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentsched.transport.jsontext import dumps, loads

texts = st.text(st.characters(exclude_categories=())) | st.sampled_from(
    ["\ud83d", "\udc00x", "a\ud83d\ude00"]
)
jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)


@given(value=jsons)
def test_what_is_written_is_utf8_and_means_the_same(value: Any) -> None:
    text = dumps(value).decode()  # strictly
    assert json.loads(text) == json.loads(json.dumps(value))
    assert dumps(loads(dumps(value))) == dumps(loads(json.dumps(value).encode()))


def test_halves_of_a_pair_that_came_apart_are_one_character_again() -> None:
    assert json.loads(dumps({"x": "a\ud83d" + "\ude00"})) == {"x": "a😀"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"{'a':1}",
        b'{"a":1}x',
        b"\xff\xfe",
        b'{"a":"\xff"}',
        '{"a":1}'.encode("utf-16"),
        '{"a":1}'.encode("utf-32-le"),
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"9" * 100_000 + b"x",
    ],
)
def test_what_is_not_json_is_one_kind_of_error(content: bytes) -> None:
    with pytest.raises(ValueError):
        loads(content)


@given(content=st.binary(max_size=40))
def test_no_bytes_do_worse_than_that(content: bytes) -> None:
    try:
        loads(content)
    except ValueError:
        pass


def test_a_byte_order_mark_is_no_part_of_the_value() -> None:
    assert loads(b'\xef\xbb\xbf{"a":1}') == {"a": 1}
