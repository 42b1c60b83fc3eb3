"""The fake tokenizer and the default answers."""

import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentsched.testing.asked import read_generation
from agentsched.testing.responder import (
    FakeRequest,
    Reply,
    cut,
    default_responder,
    drawn_length,
    pseudo_text,
    reply_to,
)
from agentsched.testing.tokens import (
    Spelling,
    count,
    from_ids,
    render_chat,
    split_answer,
    to_cells,
    to_ids,
    to_text,
)

texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=60)


@given(texts)
def test_ids_bring_the_text_back(text: str) -> None:
    cells = to_cells(text)
    assert from_ids(to_ids(cells)) == cells
    assert to_text(cells) == text
    assert count(cells) == -(-len(text.encode()) // 4)


@given(texts, st.integers(1, 40), st.data())
def test_a_spelling_in_any_pieces_is_the_text(text: str, tokens: int, data: st.DataObject) -> None:
    for spelling in (Spelling(text), Spelling(text, tokens)):
        cuts = sorted({0, spelling.tokens, *data.draw(st.lists(st.integers(0, spelling.tokens), max_size=5))})
        pieces = [spelling.piece(a, b) for a, b in pairwise(cuts)]
        assert b"".join(pieces).decode() == text
        assert count(spelling.cells()) == (
            spelling.tokens if text else count(to_cells(text)) or spelling.tokens
        )


def test_plain_english_has_four_characters_a_token() -> None:
    assert count(to_cells("four char of one, eight")) == 6
    assert to_cells("abcde") == b"abcde\0\0\0"


def test_the_template_leaves_an_answer_open_and_a_prompt_can_be_split_there() -> None:
    messages = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "so far "}]
    asked = render_chat(messages[:1])
    assert split_answer(asked) == (asked, b"")
    assert split_answer(render_chat(messages, generate=False, unfinished=True)) == (
        asked,
        to_cells("so far "),
    )
    assert split_answer(render_chat(messages))[1] == b""
    assert split_answer(to_cells("plain"))[1] == b""


def test_parts_and_tool_calls_count_as_text() -> None:
    plain = render_chat([{"role": "user", "content": "a question"}])
    assert render_chat([{"role": "user", "content": [{"type": "text", "text": "a question"}]}]) == plain
    assert (
        len(render_chat([{"role": "assistant", "content": None, "tool_calls": [{"id": 1}]}])) > len(plain) / 2
    )


def ask(cells: bytes, body: dict[str, object] | None = None, **headers: str) -> FakeRequest:
    return FakeRequest(backend="b", kind="chat", model="m", body=body or {}, headers=headers, cells=cells)


@given(st.integers(0, 39), st.booleans())
def test_the_default_answer_goes_on_where_a_partial_one_was_cut(tokens: int, by_ids: bool) -> None:
    question = messages = [{"role": "user", "content": "tell me"}]
    body: dict[str, object] = {"metadata": {"fake_output_tokens": "40"}}
    whole = default_responder(ask(render_chat(question), body)).text
    begun = whole[: tokens * 4]
    if by_ids:
        cells = from_ids(to_ids(render_chat(question)) + to_ids(to_cells(begun)))
    else:
        messages = [*question, {"role": "assistant", "content": begun}]
        cells = render_chat(messages, generate=False, unfinished=True)
    assert begun + reply_to(ask(cells, body | {"messages": messages}), default_responder).text == whole
    assert len(whole) == 160


def test_a_foreign_partial_answer_gets_some_other_text() -> None:
    messages = [{"role": "user", "content": "tell me"}, {"role": "assistant", "content": "I never said that"}]
    cells = render_chat(messages, generate=False, unfinished=True)
    assert reply_to(ask(cells, {"messages": messages}), default_responder).text


def test_answers_depend_on_prompt_model_and_seed_only() -> None:
    first = default_responder(ask(b"one\0"))
    assert first == default_responder(ask(b"one\0"))
    assert first != default_responder(ask(b"two\0"))
    assert first != default_responder(ask(b"one\0", {"seed": 1}))


@pytest.mark.parametrize("place", ["header", "metadata"])
def test_a_request_may_say_how_long_its_answer_is(place: str) -> None:
    if place == "header":
        request = ask(b"one\0", None, **{"x-fake-output-tokens": "7"})
    else:
        request = ask(b"one\0", {"metadata": {"fake_output_tokens": 7}})
    assert Spelling(default_responder(request).text).tokens == 7


def test_drawn_lengths_are_log_normal_around_120() -> None:
    lengths = [drawn_length(str(number).encode()) for number in range(4000)]
    assert 115 < statistics.median(lengths) < 125
    assert 0.035 < sum(length > 320 for length in lengths) / 4000 < 0.065


@given(st.integers(1, 50), st.integers(1, 50))
def test_a_longer_text_begins_with_the_shorter(a: int, b: int) -> None:
    short, long = pseudo_text(b"seed", min(a, b)), pseudo_text(b"seed", max(a, b))
    assert long.startswith(short) and len(long) == 4 * max(a, b)


@pytest.mark.parametrize(
    ("reply", "limits", "text", "tokens", "reason"),
    [
        (Reply("abcdefgh"), {}, "abcdefgh", 2, "stop"),
        (Reply("abcdefgh"), {"limit": 1}, "abcd", 1, "length"),
        (Reply("abcdefgh"), {"stops": ("x", "f", "ef")}, "abcd", 1, "stop"),
        (Reply("abcd"), {"least": 3, "limit": 3}, "abcdabcdabcd", 3, "stop"),
        (Reply("abcdefgh", 8), {"limit": 3}, "abc", 3, "length"),
        (Reply("ab", 8), {}, "ab", 8, "stop"),
        (Reply(""), {}, "", 1, "stop"),
        (Reply("", tool_calls=(("f", "{}"),)), {}, "", 1, "tool_calls"),
        (Reply("x", finish_reason="content_filter"), {}, "x", 1, "content_filter"),
    ],
)
def test_a_reply_is_cut_to_what_was_asked(
    reply: Reply, limits: dict[str, object], text: str, tokens: int, reason: str
) -> None:
    spelling, why = cut(reply, **({"limit": 99, "least": 0, "stops": ()} | limits))  # type: ignore[arg-type]
    assert (spelling.piece(0, spelling.tokens).decode(), spelling.tokens, why) == (text, tokens, reason)


@given(
    st.dictionaries(
        st.sampled_from(
            "messages prompt max_tokens n stop min_tokens priority stream_options metadata seed".split()
        ),
        st.recursive(
            st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content"]), inner)
            ),
            max_leaves=6,
        ),
    ),
    st.sampled_from(["chat", "completion"]),
)
def test_any_body_is_read_or_refused_with_a_reason(body: dict[str, object], kind: str) -> None:
    from agentsched.testing import ErrorReply

    try:
        asked = read_generation(body, kind, max_model_len=100)  # type: ignore[arg-type]
    except ErrorReply as error:
        assert error.code == 400 and error.message
    else:
        assert 1 <= asked.limit <= 100 - count(asked.cells)
        assert asked.least <= asked.limit
