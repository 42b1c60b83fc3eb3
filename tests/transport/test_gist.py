"""A whole answer cut into any chunks comes together as the same object."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentsched.model import Usage
from agentsched.transport.gist import ChoicesGist as Gist
from agentsched.transport.incoming import Kind
from agentsched.transport.jsontext import dumps
from agentsched.transport.pieces import AnswerTooLong

texts = st.text(max_size=30) | st.sampled_from(["", "a😀b漢", '"\\', "x" * 100])
usages = st.builds(
    lambda given, written, details: {
        "prompt_tokens": given,
        "completion_tokens": written,
        "total_tokens": given + written,
        **details,
    },
    st.integers(0, 9_999),
    st.integers(0, 9_999),
    st.sampled_from([{}, {"prompt_tokens_details": None}, {"prompt_tokens_details": {"cached_tokens": 7}}]),
)
heads = st.fixed_dictionaries(
    {"id": st.just("c-1"), "created": st.just(7), "model": st.sampled_from(["m", "other"])},
    optional={"system_fingerprint": st.sampled_from([None, "fp"]), "service_tier": st.just("default")},
)
ends = st.fixed_dictionaries(
    {"finish_reason": st.sampled_from(["stop", "length"])},
    optional={
        "stop_reason": st.sampled_from([None, 7, "\n"]),
        "matched_stop": st.just("x"),
        "logprobs": st.none(),
    },
)


@st.composite
def pieces(draw: st.DrawFn, text: str) -> list[str]:
    """The text cut anywhere, also in the middle of what takes two units of UTF-16."""
    units = text.encode("utf-16-le", "surrogatepass")
    marks = sorted(draw(st.lists(st.integers(0, len(units) // 2), max_size=5)))
    parts = [units[2 * a : 2 * b] for a, b in zip([0, *marks], [*marks, len(units) // 2], strict=True)]
    return [part.decode("utf-16-le", "surrogatepass") for part in parts]


@st.composite
def cut_chats(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A whole chat completion, and its events."""
    fields = draw(st.sampled_from([("content",), ("reasoning_content", "content"), ("content", "reasoning")]))
    message = {"role": "assistant", "content": None} | {name: draw(texts) for name in fields}
    role = {"role": "assistant"} if draw(st.booleans()) else {}  # some servers repeat it
    if draw(st.booleans()):
        message["refusal"] = None
    cut = {name: draw(pieces(message[name])) for name in fields}
    if message["content"] == "" and (message.get("reasoning_content") or message.get("reasoning")):
        message["content"] = None  # as vLLM answers whole what it streams with an empty first piece
    return draw(
        finished(
            object_="chat.completion",
            said={"message": message},
            deltas=[{"delta": {**role, n: p}} for n in fields for p in cut[n]],
            first={"delta": {n: message[n] for n in ("role", "refusal") if n in message}},
            last={"delta": {}},
        )
    )


@st.composite
def cut_completions(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A whole text completion, and its events."""
    text = draw(texts)
    return draw(
        finished(
            object_="text_completion",
            said={"text": text},
            deltas=[{"text": piece} for piece in draw(pieces(text))],
            first=None,
            last={"text": ""},
        )
    )


@st.composite
def finished(
    draw: st.DrawFn,
    *,
    object_: str,
    said: dict[str, Any],
    deltas: list[dict[str, Any]],
    first: dict[str, Any] | None,
    last: dict[str, Any],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    head, end, usage = draw(heads), draw(ends), draw(usages)
    null_ends = dict.fromkeys(end) if draw(st.booleans()) else {"finish_reason": None}
    chunk = {**head, "object": "chat.completion.chunk" if "message" in said else object_}
    choices = [{"index": 0, **part, **null_ends} for part in ([first] if first else []) + deltas]
    if draw(st.booleans()):
        choices[-1] |= end
    else:
        choices.append({"index": 0, **last, **end})
    events: list[dict[str, Any]] = [{**chunk, "choices": [choice]} for choice in choices]
    how = draw(st.sampled_from(["own event", "last event", "every event"]))
    if how == "own event":
        nulls = draw(st.booleans())
        events = [{**event, "usage": None} if nulls else event for event in events]
        events.append({**chunk, "choices": [], "usage": usage})
    elif how == "last event":
        events[-1]["usage"] = usage
    else:
        events = [{**event, "usage": {**usage, "completion_tokens": i}} for i, event in enumerate(events)]
        events[-1]["usage"] = usage
    choice = {"index": 0, **said, **end}
    return {**head, "object": object_, "choices": [choice], "usage": usage}, events


def gathered(kind: Kind, events: list[dict[str, Any]], **options: Any) -> Gist:
    gist = Gist(kind, **options)
    for event in events:
        content = json.dumps(event)
        gist.take(json.loads(content))
    return gist


@given(cut=cut_chats())
def test_a_chat_completion_comes_together(cut: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    whole, events = cut
    gist = gathered(Kind.CHAT, events)
    assert gist.finished
    assert json.loads(dumps(gist.whole())) == whole


@given(cut=cut_completions())
def test_a_text_completion_comes_together(cut: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    whole, events = cut
    gist = gathered(Kind.COMPLETION, events)
    assert gist.finished
    assert json.loads(dumps(gist.whole())) == whole


@given(cut=cut_chats() | cut_completions(), kind=st.sampled_from([Kind.CHAT, Kind.COMPLETION]))
def test_the_usage_counts(cut: tuple[dict[str, Any], list[dict[str, Any]]], kind: Kind) -> None:
    whole, events = cut
    usage = whole["usage"]
    details = usage.get("prompt_tokens_details") or {}
    assert gathered(kind, events).counted() == Usage(
        usage["prompt_tokens"], usage["completion_tokens"] or None, details.get("cached_tokens", 0)
    )


@given(cut=cut_chats(), stop=st.integers(0, 30))
def test_the_text_so_far_is_what_was_said_without_reasoning(
    cut: tuple[dict[str, Any], list[dict[str, Any]]], stop: int
) -> None:
    _, events = cut
    said = [e["choices"][0]["delta"].get("content") or "" for e in events[:stop] if e["choices"]]
    assert gathered(Kind.CHAT, events[:stop]).text == "".join(said)


def test_a_null_does_not_take_back_what_was_said() -> None:
    late = {"choices": [{"delta": {}, "finish_reason": None, "stop_reason": None, "more": 1}]}
    end = {"choices": [{"delta": {}, "finish_reason": "stop", "stop_reason": 7}]}
    choice = gathered(Kind.CHAT, [*chunks("a"), end, late]).whole()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"], choice["more"]) == ("stop", 7, 1)


# -- several answers ----------------------------------------------------------------------------------


def said_by(index: int, text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": finish}]}


def test_several_answers_are_over_when_all_are() -> None:
    gist = Gist(Kind.CHAT, several=True)
    for event in (said_by(0, "a"), said_by(1, "x"), said_by(0, "b"), said_by(1, "y"), said_by(0, "", "stop")):
        gist.take(event)
        assert not gist.finished
    gist.take(said_by(1, "z", "length"))
    assert gist.finished
    assert gist.text == "ab", "the text of one answer, not a mixture"
    assert gist.tokens == 5


def test_several_answers_in_one_event() -> None:
    both = {"choices": [*said_by(1, "x")["choices"], *said_by(0, "a", "stop")["choices"]]}
    gist = gathered(Kind.CHAT, [both], several=True)
    assert not gist.finished
    assert gist.text == "x"
    gist.take(said_by(1, "y", "stop"))
    assert gist.finished


def test_a_lone_answer_may_have_any_number() -> None:
    gist = gathered(Kind.CHAT, [said_by(7, "a"), said_by(7, "b"), said_by(7, "c", "stop")])
    assert gist.finished
    assert gist.whole()["choices"][0]["message"]["content"] == "abc"
    assert gist.whole()["choices"][0]["index"] == 0


def test_one_answer_is_one_whatever_its_number() -> None:
    gist = gathered(Kind.CHAT, [said_by(0, "a"), said_by(1, "b"), said_by(1, "c", "stop")])
    assert gist.finished
    assert gist.text == gist.whole()["choices"][0]["message"]["content"] == "abc"


# -- ends that are none -------------------------------------------------------------------------------


@pytest.mark.parametrize("none", ["", "null", None])
def test_a_finish_reason_that_is_none_ends_nothing(none: Any) -> None:
    gist = gathered(Kind.CHAT, [said_by(0, "a", none), said_by(0, "b", none)])
    assert not gist.finished
    assert gist.whole()["choices"][0]["finish_reason"] is None
    gist.take(said_by(0, "c", "length"))
    gist.take(said_by(0, "", none))
    assert gist.finished
    assert gist.whole()["choices"][0]["finish_reason"] == "length"


def test_text_after_a_finish_reason_takes_it_back() -> None:
    gist = gathered(Kind.CHAT, [said_by(0, "a", "stop")])
    assert gist.finished
    gist.take(said_by(0, "b"))
    assert not gist.finished
    gist.take(said_by(0, "c", "stop"))
    assert gist.finished
    assert gist.text == "abc"


def test_so_does_anything_else_that_is_said_after_it() -> None:
    call = [{"index": 0, "function": {"arguments": "{"}}]
    gist = gathered(Kind.CHAT, [said_by(0, "a", "stop"), {"choices": [{"delta": {"tool_calls": call}}]}])
    assert not gist.finished
    assert not gist.settled
    several = [said_by(0, "a", "stop"), said_by(1, "b"), said_by(0, "more")]
    gist = gathered(Kind.CHAT, [*several, said_by(1, "", "stop")], several=True)
    assert not gist.finished


def test_a_head_that_is_empty_at_first_is_filled_in() -> None:
    empty = {"id": "", "model": "", "created": 0, "fingerprint": None, "choices": [], "filters": [1]}
    full = {"id": "c", "model": "m", "created": 7, "fingerprint": "fp"}
    gist = gathered(Kind.CHAT, [empty, {**full, **said_by(0, "a")}, {**full, **said_by(0, "", "stop")}])
    whole = gist.whole()
    assert {name: whole[name] for name in full} == full
    assert whole["filters"] == [1]


def test_many_answers_are_no_long_answer() -> None:
    gist = gathered(
        Kind.COMPLETION, [{"choices": [{"index": i, "text": "x"}]} for i in range(5_000)], several=True
    )
    assert [choice["index"] for choice in gist.whole()["choices"]] == [*range(5_000)]
    with pytest.raises(AnswerTooLong, match="answers"):
        gathered(Kind.COMPLETION, [{"choices": [{"index": i} for i in range(100_000)]}], several=True)


@pytest.mark.parametrize("label", [None, ""])
def test_a_label_that_is_empty_changes_none(label: Any) -> None:
    deltas: list[Any] = [
        {"role": "assistant", "content": None},
        {"role": label, "content": "a", "tool_calls": [{"index": 0, "id": "c-1", "type": "function"}]},
        {"role": label, "content": "b", "tool_calls": [{"index": 0, "id": label, "type": label}]},
    ]
    gist = gathered(Kind.CHAT, [{"choices": [{"index": 0, "delta": one}]} for one in deltas])
    message = gist.whole()["choices"][0]["message"]
    assert message == {
        "role": "assistant",
        "content": "ab",
        "tool_calls": [{"id": "c-1", "type": "function"}],
    }


def test_who_wants_no_whole_answer_may_be_told_anything() -> None:
    long = [
        {"choices": [{"index": 0, "delta": {"content": "a", f"x{i}": [i]}}], f"y{i}": i} for i in range(5_000)
    ]
    gist = gathered(Kind.CHAT, long, whole=False)
    assert gist.text == "a" * 5_000


def test_long_lists_are_no_long_answers() -> None:
    numbered = [{"index": i, "text": "x"} for i in range(5_000)]
    assert said_in("details", *([one] for one in numbered)) == numbered
    assert said_in("hidden_states", [0.5] * 5_000) == [0.5] * 5_000


# -- counting before the count is known ---------------------------------------------------------------


def chunks(*texts: str) -> list[dict[str, Any]]:
    return [{"choices": [{"delta": {"content": text}}]} for text in texts]


def test_tokens_are_estimated_by_the_larger_of_pieces_and_characters() -> None:
    assert gathered(Kind.CHAT, chunks("a", "", "b")).tokens == 2
    assert gathered(Kind.CHAT, chunks("x" * 400)).tokens == 100
    assert gathered(Kind.CHAT, []).counted() == Usage(None, None, 0)


def test_reasoning_is_output_too() -> None:
    event = {"choices": [{"delta": {"reasoning_content": "x" * 40}}]}
    gist = gathered(Kind.CHAT, [event])
    assert (gist.tokens, gist.text) == (10, "")


LIES = [-1, -(10**12), 10**30, True, 2.5, "7", None, [], {}]


@pytest.mark.parametrize("lie", LIES, ids=repr)
def test_a_count_that_cannot_be_is_no_count(lie: Any) -> None:
    usage = {
        "completion_tokens": lie,
        "prompt_tokens": lie,
        "prompt_tokens_details": {"cached_tokens": lie},
    }
    gist = gathered(Kind.CHAT, [*chunks("a", "b"), {"choices": [], "usage": usage}])
    assert gist.counted() == Usage(None, 2, 0)
    assert gist.tokens == 2
    assert gist.whole()["usage"] == usage  # the caller sees what the backend said


# -- whatever comes -----------------------------------------------------------------------------------

jsons = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "usage", "content", "finish_reason", "text", "role", "index", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(events=st.lists(st.dictionaries(st.sampled_from(["choices", "usage", "id"]), jsons), max_size=5))
@pytest.mark.parametrize("kind", [Kind.CHAT, Kind.COMPLETION])
def test_no_event_crashes_it(kind: Kind, events: list[dict[str, Any]]) -> None:
    gist = gathered(kind, events)
    json.dumps(gist.whole())
    assert gist.tokens >= 0
    assert isinstance(gist.text, str)
    assert gist.counted().cached_tokens >= 0


# -- what is no plain text ----------------------------------------------------------------------------


def said_in(name: str, *parts: Any) -> Any:
    """The field of the whole message that comes of these deltas."""
    events = [{"choices": [{"index": 0, "delta": {name: part}, "finish_reason": None}]} for part in parts]
    return gathered(Kind.CHAT, events).whole()["choices"][0]["message"][name]


def test_calls_of_tools_come_together() -> None:
    parts = [
        [{"index": 0, "id": "c-1", "type": "function", "function": {"name": "f", "arguments": ""}}],
        [{"index": 0, "function": {"arguments": '{"a":'}}],
        [{"index": 1, "id": "c-2", "type": "function", "function": {"name": "g", "arguments": "{}"}}],
        [{"index": 0, "function": {"arguments": "1}"}}],
    ]
    assert said_in("tool_calls", *parts) == [
        {"id": "c-1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
        {"id": "c-2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]


def test_details_of_reasoning_come_together() -> None:
    parts = [
        [{"type": "reasoning.text", "text": "one ", "format": "x", "index": 0}],
        [{"type": "reasoning.text", "text": "two", "format": "x", "index": 0}],
        [{"type": "reasoning.encrypted", "data": "zzz", "index": 1}],
    ]
    assert said_in("reasoning_details", *parts) == [
        {"type": "reasoning.text", "text": "one two", "format": "x", "index": 0},
        {"type": "reasoning.encrypted", "data": "zzz", "index": 1},
    ]


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ([["a"], ["b"]], ["a", "b"]),
        (
            [{"id": "x", "data": "a"}, {"data": "b", "expires_at": 7}],
            {"id": "x", "data": "ab", "expires_at": 7},
        ),
        ([1, 2, None], 2),
        ([None, None], None),
        (["a", ["b"]], [{"type": "text", "text": "a"}, "b"]),
        ([[{"type": "thinking"}], "4", "2", ""], [{"type": "thinking"}, {"type": "text", "text": "42"}]),
        ([["b"], ""], ["b"]),
        ([{"a": "x"}, "y"], "y"),
        ([{"index": 0}, {"index": 0}], {"index": 0}),
        ([[{"index": 0, "n": 1}, "x"], [{"index": 0, "n": 2}]], [{"index": 0, "n": 2}, "x"]),
    ],
)
def test_what_else_comes_in_pieces(parts: list[Any], whole: Any) -> None:
    assert said_in("extra", *parts) == whole


@given(
    items=st.lists(st.text(max_size=20), min_size=1, max_size=4),
    order=st.lists(st.integers(0, 10_000), max_size=60),
)
def test_items_that_are_told_in_turns_come_together(items: list[str], order: list[int]) -> None:
    left = list(items)
    parts: list[Any] = []
    for number in [*order, *(i * 100 + 99 for i in range(len(items)))]:
        which, size = number % len(items), number // 100 % 10
        text, left[which] = left[which][:size], left[which][size:]
        parts.append([{"index": which, "text": text}])
    parts += [[{"index": which, "text": rest}] for which, rest in enumerate(left)]
    known = {item["index"]: item["text"] for item in said_in("reasoning_details", *parts)}
    assert known == dict(enumerate(items))


def test_fields_without_end_are_an_answer_too_long() -> None:
    with pytest.raises(AnswerTooLong, match="fields"):
        gathered(Kind.CHAT, [{f"x{i}": i} for i in range(10_000)])
    with pytest.raises(AnswerTooLong, match="fields"):
        gathered(Kind.CHAT, [{"choices": [{"delta": {f"x{i}": "y"}}]} for i in range(10_000)])
    with pytest.raises(AnswerTooLong, match="fields"):
        gathered(Kind.CHAT, [{"choices": [{"delta": {"x": {f"y{i}": i}}}]} for i in range(10_000)])
    with pytest.raises(AnswerTooLong, match="fields"):
        gathered(Kind.COMPLETION, [{"choices": [{f"x{i}": "y"}]} for i in range(10_000)])
