"""Server-sent events: however the bytes are cut, the events are the same; nothing crashes, nothing grows."""

import re
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentsched.transport import sse
from agentsched.transport.sse import Decoder, EventTooLong, ServerEvent, encode

lines = st.sampled_from(
    [
        b"data: {}",
        b"data:x",
        b"data: [DONE]",
        b"data:",
        b"data",
        b"data:  two",
        b"event: error",
        b"id: 7",
        b": keep-alive",
        b"",
        b"",
        b"database: no",
        b"data: a:b",
        b"x" * 30,
    ]
)
ends = st.sampled_from([b"\n", b"\n", b"\r\n", b"\r\n", b"\r"])
streams = st.lists(st.tuples(lines, ends).map(b"".join), max_size=12).map(b"".join)
garbage = st.lists(st.sampled_from([b"\n", b"\r", b"data:", b" ", b"\x00\xff", b"a"]), max_size=20).map(
    b"".join
)


def decoded(*chunks: bytes) -> list[ServerEvent]:
    decoder = Decoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)] + decoder.flush()


def cut(content: bytes, places: list[int]) -> list[bytes]:
    marks = [0, *sorted(place % (len(content) + 1) for place in places), len(content)]
    return [content[a:b] for a, b in pairwise(marks)]


def reference(content: bytes) -> list[bytes]:
    """The payloads, as the standard says: lines end in CR, LF or CRLF; an empty line ends an event."""
    payloads: list[bytes] = []
    data: list[bytes] = []
    for line in [*re.split(rb"\r\n|\n|\r", content), b""]:
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif not line and data:
            payloads.append(b"\n".join(data))
            data = []
    return payloads


@given(content=streams | garbage, places=st.lists(st.integers(0, 1_000), max_size=8))
def test_any_cut_gives_the_same_events(content: bytes, places: list[int]) -> None:
    assert decoded(*cut(content, places)) == decoded(content)


@given(content=streams | garbage)
def test_byte_by_byte_is_the_same_too(content: bytes) -> None:
    assert decoded(*(content[i : i + 1] for i in range(len(content)))) == decoded(content)


@given(content=streams | garbage)
def test_payloads_are_what_the_standard_says(content: bytes) -> None:
    assert [data for _, data in decoded(content) if data is not None] == reference(content)


@given(content=streams | garbage, places=st.lists(st.integers(0, 1_000), max_size=8))
def test_what_is_forwarded_means_the_same(content: bytes, places: list[int]) -> None:
    forwarded = b"".join(whole for whole, _ in decoded(*cut(content, places)))
    assert reference(forwarded) == reference(content)


@given(payload=st.binary(max_size=20).filter(lambda b: b"\n" not in b and b"\r" not in b))
def test_what_is_encoded_is_decoded(payload: bytes) -> None:
    assert [data for _, data in decoded(encode(payload))] == [payload]


def test_an_event_of_one_line_is_forwarded_as_it_came() -> None:
    (event,) = Decoder().feed(b"data: {}\n\n")
    assert event == (b"data: {}\n\n", b"{}")


def test_comments_and_keep_alives_carry_nothing() -> None:
    assert [data for _, data in decoded(b": ping\n\nid: 3\n\nevent: x\ndata: y\n\n")] == [
        None,
        None,
        b"y",
    ]


def test_an_event_comes_out_as_soon_as_its_empty_line_is_there() -> None:
    decoder = Decoder()
    assert decoder.feed(b"data: a\n") == []
    assert [data for _, data in decoder.feed(b"\ndata: b")] == [b"a"]
    assert [data for _, data in decoder.feed(b"\r\n\r")] == [b"b"]
    assert [data for _, data in decoder.feed(b"\ndata: c\n\n")] == [b"c"]


def test_the_last_empty_line_may_be_forgotten() -> None:
    decoder = Decoder()
    assert decoder.feed(b"data: [DONE]\n") == []
    assert [data for _, data in decoder.flush()] == [b"[DONE]"]
    assert decoder.flush() == []


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_an_event_has_a_longest_size(monkeypatch: pytest.MonkeyPatch, end: bytes) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1_000)
    decoder = Decoder()
    assert len(decoder.feed((b"data: " + b"x" * 900 + end * 2) * 10)) == 10
    decoder.feed(b"data: " + b"x" * 900)
    with pytest.raises(EventTooLong, match="1000 bytes"):
        decoder.feed(end + b"data: " + b"x" * 200)


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
@pytest.mark.parametrize("payload", [b"x" * 300_000, b"\rx" * 150_000], ids=["one line", "many lines"])
def test_a_large_event_byte_by_byte_costs_what_its_length_does(
    monkeypatch: pytest.MonkeyPatch, payload: bytes, end: bytes
) -> None:
    looked_at = 0

    class Counting:
        def finditer(self, buffer: bytearray, start: int) -> Iterator[re.Match[bytes]]:
            nonlocal looked_at
            looked_at += len(buffer) - start
            return blank_line.finditer(buffer, start)

    blank_line = sse._BLANK_LINE
    monkeypatch.setattr(sse, "_BLANK_LINE", Counting())
    content = b"data: " + payload + end
    ((whole, _),) = decoded(*(content[i : i + 1] for i in range(len(content))))
    assert whole.startswith(b"data: ")
    assert looked_at <= 5 * len(content)
