"""Events that repeat all but a piece of text: taken without parsing, they mean what parsing them would."""

import json
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched import Backend, Limits
from agentsched.transport import eventstream
from agentsched.transport.gist import ChoicesGist
from agentsched.transport.incoming import Kind
from agentsched.transport.refrain import Refrain
from tests.doubles import EVENTS_TYPE, MODEL, STACKS, Script, counts, delta, event, incoming
from tests.transport.ran import Ran, run

DONE = b"data: [DONE]\n\n"


def framed(payload: Any, *, plain_ascii: bool = False) -> bytes:
    return b"data: " + json.dumps(payload, separators=(",", ":"), ensure_ascii=plain_ascii).encode() + b"\n\n"


words = st.sampled_from(
    ["", " ", "a", "token ", "stop", "c1", MODEL, "content", "é", '"', "\\", "\u2028", "\x7f"]
)
texts = st.one_of(words, st.text(max_size=4))

ODD: tuple[Callable[[bytes], bytes], ...] = (
    lambda whole: b"",
    lambda whole: b": ping\n\n",
    lambda whole: b": ping ",
    lambda whole: b"data: null\n\n",
    lambda whole: b"data: \n\n",
    lambda whole: whole[:-1],
    lambda whole: whole[:-2] + b"\r\n\r",
    lambda whole: whole[:25],
    lambda whole: whole[25:],
    lambda whole: whole * 2,
    lambda whole: whole.replace(b'"content":"', b'"content":"\t'),
    lambda whole: whole.replace(b'"content":"', b'"content":"\xff'),
    lambda whole: whole.replace(b'"content":"', b'"content":"\\u00e9\\n'),
    lambda whole: whole.replace(b'"content":"', b'"content":"no","refusal":"'),
    lambda whole: whole.replace(b'"content":"', b'"role":"user","content":"'),
    lambda whole: whole.replace(b'"content":"', b'"reasoning":"hm","content":"'),
    lambda whole: whole.replace(b'"content":"', b'"tool_calls":[{"index":0}],"content":"'),
    lambda whole: whole.replace(b'"finish_reason":null', b'"finish_reason":"stop"'),
    lambda whole: whole.replace(b'"finish_reason":null', b'"finish_reason":null,"logprobs":{"content":[]}'),
    lambda whole: whole.replace(b'"index":0', b'"index":1'),
    lambda whole: whole.replace(b'"index":0', b'"index":1') * 2,
    lambda whole: whole.replace(b'"created":1', b'"created":2'),
    lambda whole: whole.replace(b'"created":1', b'"error":{"message":"x"}'),
    lambda whole: whole.replace(b'"created":1', b'"usage":{"completion_tokens":7}'),
)


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Events of one form, and between them some that differ a little."""
    beside = draw(st.sampled_from([{}, {}, {"usage": None}, {"system_fingerprint": "a"}]))
    plain_ascii = draw(st.booleans())

    def alike(most: int) -> list[bytes]:
        said = draw(st.lists(texts, min_size=1, max_size=most))
        return [framed(delta(text, **beside), plain_ascii=plain_ascii) for text in said]

    script = [framed(delta("", role="assistant", **beside)), *alike(4), *alike(4)]
    for odd in draw(st.lists(st.sampled_from(ODD), max_size=3)):
        script += [*map(odd, alike(1)), *alike(3)]
    return script


def attempt(script: Sequence[bytes], *, backend: Backend, limits: Limits | None = None, **asked: Any) -> Ran:
    call = incoming(**{"stream": True, **asked})
    return run(STACKS["httpx"], Script(headers=EVENTS_TYPE, pieces=script), call, backend, limits=limits)


def seen(ran: Ran) -> tuple[Any, ...]:
    sink = ran.sink
    return sink.chunks, sink.log, sink.progress, sink.usage, ran.ended


@given(
    script=streams(),
    asked=st.sampled_from([{}, {"stream": False}, {"n": 2}]),
    renamed=st.booleans(),
    limits=st.sampled_from([None, Limits(idle_s=5.0)]),
)
@settings(max_examples=500)
def test_a_stream_means_the_same_with_and_without_it(
    script: list[bytes], asked: dict[str, Any], renamed: bool, limits: Limits | None
) -> None:
    backend = Backend("http://b:1/v1", models={MODEL: "other"} if renamed else None)
    whole = [*script, b"\n\n", framed(delta(finish="stop")), framed(counts()), DONE]
    quick = attempt(whole, backend=backend, limits=limits, **asked)
    with patch.object(Refrain, "piece", lambda *_: None):
        parsed = attempt(whole, backend=backend, limits=limits, **asked)
    assert seen(quick) == seen(parsed)


@pytest.mark.parametrize("stream", [False, True])
def test_most_events_of_a_stream_are_not_parsed(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    def loads(content: bytes) -> Any:
        parsed.append(content)
        return json.loads(content)

    monkeypatch.setattr(eventstream, "loads", loads)
    said = [event(delta(f"w{n} ")) for n in range(100)]
    script = [event(delta("", role="assistant")), *said, event(delta(finish="stop")), event(counts()), DONE]
    ran = attempt(script, backend=Backend("http://b:1/v1"), stream=stream)
    assert ran.ended is None
    assert len(parsed) == 4, "the role, the first text, the finish and the usage"


def learned(*events: tuple[bytes, str]) -> Refrain:
    refrain = Refrain()
    for chunk, piece in events:
        refrain.learn(chunk, piece)
    return refrain


def test_the_place_of_the_piece_is_proven_not_guessed() -> None:
    same = framed(delta("c1"))  # its id reads "c1" as well, and comes first
    assert learned((same, "c1")).piece(same) is None
    other = framed(delta("x"))
    assert learned((same, "c1"), (other, "x")).piece(same) == "c1"


@pytest.mark.parametrize("text", ['"', "\\", "\n", "\t", "\x00", '","role":"x'])
def test_a_piece_that_does_not_stand_as_it_reads_is_left_to_the_parser(text: str) -> None:
    known = learned((framed(delta("x")), "x"))
    assert known.piece(framed(delta("y"))) == "y"
    written = framed(delta("@")).replace(b"@", text.encode())
    assert known.piece(written) is None
    assert known.piece(framed(delta(text))) is None


@pytest.mark.parametrize("other", [b"null", b"[]", b'{"choices":1}'])
def test_an_event_that_names_its_choices_twice_is_learned_or_not_but_breaks_nothing(other: bytes) -> None:
    chunk = b'data: {"\\u0063hoices":%b,"choices":[{"delta":{"content":"choices"}}]}\n\n' % other
    assert learned((chunk, "choices")).piece(chunk) is None


@pytest.mark.parametrize("piece", ['"', "\\", "\ud800", "?", ""])
def test_any_piece_may_be_offered(piece: str) -> None:
    chunk = framed(delta(piece.replace("\ud800", "?")))
    known = learned((chunk, piece))
    assert known.piece(framed(delta("y"))) in (None, "y")


def test_shorter_than_what_repeats_is_no_event() -> None:
    chunk = b'data: {"choices":[{"delta":{"content":"aa"}}]}\n\n'
    known = learned((chunk, "aa"))
    assert known.piece(chunk.replace(b"aa", b"")) == ""
    assert known.piece(chunk.replace(b'"aa"', b'"')) is None


@pytest.mark.parametrize(("several", "piece"), [(False, "b"), (True, None)])
def test_of_several_answers_an_event_may_mean_another_one_than_the_latest(
    several: bool, piece: str | None
) -> None:
    gist = ChoicesGist(Kind.CHAT, wanted=2, several=several)
    for payload in (delta("", role="assistant"), delta("a"), delta("b")):
        gist.take(payload)
    assert gist.said == 2
    assert gist.piece == piece
