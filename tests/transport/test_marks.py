"""The marks of prompts: equal as far as prompts begin alike, and different from there on."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentsched.transport.jsontext import loads
from agentsched.transport.marks import CHARS_PER_TOKEN, MARK_TOKENS, MASK, MOST_MARKS
from agentsched.transport.prompt import Prompt
from tests.doubles import incoming

WIDTH = MARK_TOKENS * CHARS_PER_TOKEN
PATHS = {"messages": "chat/completions", "prompt": "completions", "input": "responses"}

TURNS = st.lists(
    st.tuples(
        st.sampled_from(["system", "user", "assistant"]),
        st.builds(str.__mul__, st.sampled_from(["a", "b", "ж", "word "]), st.integers(0, 700)),
    ),
    max_size=6,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("x" * 600),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                "role type name content text tool_calls function function_call arguments output x".split()
            ),
            inner,
            max_size=4,
        )
    ),
)


def prompt_of(path: str | None = None, /, **body: Any) -> Prompt:
    known = next((PATHS[name] for name in PATHS if name in body), PATHS["messages"])
    return incoming({"model": "m", **body}, path=f"/v1/{path or known}", max_body_bytes=2**25).prompt


def marks_of(path: str | None = None, /, **body: Any) -> tuple[int, ...]:
    return prompt_of(path, **body).marks


def alike(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How long the common beginning is."""
    shorter = min(len(one), len(other))
    return next((i for i in range(shorter) if one[i] != other[i]), shorter)


def chat(turns: Sequence[tuple[str, Any]]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in turns]


def spelled(turns: Sequence[tuple[str, str]]) -> str:
    """What a template makes of a chat."""
    return "".join(f"\x1e{role}\x1f{content}" for role, content in turns)


def user(*content: Any) -> list[dict[str, Any]]:
    return chat([("user", list(content))])


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


# -- what begins alike --------------------------------------------------------------------------------


@given(shared=TURNS, one=TURNS, other=TURNS)
def test_marks_are_equal_exactly_as_far_as_prompts_begin_alike(
    shared: list[tuple[str, str]], one: list[tuple[str, str]], other: list[tuple[str, str]]
) -> None:
    chats = [shared + one, shared + other]
    marks = [marks_of(messages=chat(turns)) for turns in chats]
    texts = [spelled(turns) for turns in chats]
    assert [len(found) for found in marks] == [len(said) // WIDTH for said in texts]
    shown = alike(*texts) // WIDTH
    assert alike(*marks) == shown
    assert set(marks[0][shown:]).isdisjoint(marks[1][shown:]), "whoever has a mark has all before it"


@given(turns=TURNS, cuts=st.lists(st.integers(0, 3_000), max_size=3))
def test_texts_in_parts_are_alike(turns: list[tuple[str, str]], cuts: list[int]) -> None:
    def parts(said: str) -> list[Any]:
        ends = [0, *sorted(cuts), len(said)]
        return [text(said[a:b]) for a, b in pairwise(ends)]

    in_parts = prompt_of(messages=chat([(role, parts(said)) for role, said in turns]))
    assert in_parts.marks == marks_of(messages=chat(turns))
    assert in_parts.chars >= sum(len(said) for _, said in turns) or not turns


def test_a_growing_conversation_keeps_its_marks() -> None:
    messages = chat([("system", "be brief " * 200)])
    before: tuple[int, ...] = ()
    for turn in range(10):
        call = {"id": f"c{turn}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        messages += [
            {"role": "user", "content": f"question {turn} " * 40},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{turn}", "content": f"{turn} rows " * 50},
            {"role": "assistant", "content": [text(f"answer {turn} " * 30)]},
        ]
        marks = marks_of(messages=messages, tools=[{"type": "function", "function": {"name": "look"}}])
        assert marks[: len(before)] == before
        assert len(marks) > len(before)
        before = marks


LONG = chat([("system", "s" * 1_000), ("user", "u" * 1_000)])
TOOL = {"type": "function", "function": {"name": "look", "description": "d" * 20}}


@pytest.mark.parametrize(
    "other",
    [
        {"model": "n"},
        {"tools": [TOOL]},
        {"functions": [TOOL["function"]]},
        {"messages": chat([("system", "S" + "s" * 999), ("user", "u" * 1_000)])},
        {"messages": chat([("developer", "s" * 1_000), ("user", "u" * 1_000)])},
        {"messages": [{"name": "ann", **LONG[0]}, LONG[1]]},
        {"messages": LONG[::-1]},
        {"messages": LONG[1:]},
        {"cache_salt": "mine"},
        {"chat_template": "{{ messages }}"},
        {"documents": [{"text": "d"}]},
        {"reasoning_effort": "high"},
    ],
    ids=str,
)
def test_what_differs_from_the_first_mark_on(other: dict[str, Any]) -> None:
    one, another = marks_of(messages=LONG), marks_of(**{"messages": LONG, **other})
    assert len(one) == 3
    assert another
    assert set(one).isdisjoint(another)


@pytest.mark.parametrize(
    "other",
    [
        {"tools": []},
        {"tools": None, "cache_salt": None},
        {"temperature": 0.5, "stream": True, "max_tokens": 7, "user": "ann", "seed": 1},
        {"messages": [{**message, "cache_control": {"type": "ephemeral"}} for message in LONG]},
        {"messages": [{"refusal": None, **message} for message in LONG]},
    ],
    ids=str,
)
def test_what_makes_no_difference(other: dict[str, Any]) -> None:
    assert marks_of(**{"messages": LONG, **other}) == marks_of(messages=LONG)


def test_tools_come_first_and_in_their_order() -> None:
    tools = [{**TOOL, "function": {"name": f"tool{i}", "description": "d" * 600}} for i in range(3)]
    marks = marks_of(tools=tools, messages=LONG)
    assert alike(marks, marks_of(tools=tools, messages=LONG[1:])) == 3
    assert set(marks).isdisjoint(marks_of(tools=tools[::-1], messages=LONG))
    assert prompt_of(tools=tools, messages=LONG).chars == 2_000 + len(
        json.dumps(tools, separators=(",", ":"))
    )


def test_calls_of_tools_are_part_of_a_prompt_whatever_their_ids() -> None:
    def called(name: str, arguments: str, id_: str = "c1") -> tuple[int, ...]:
        function = {"name": name, "arguments": arguments}
        calls = [{"id": id_, "type": "function", "function": function}]
        return marks_of(messages=[{"role": "assistant", "tool_calls": calls}, LONG[0]])

    assert called("f", "{}") == called("f", "{}", "c2")
    assert len({called("f", "{}"), called("g", "{}"), called("f", '{"a":1}')}) == 3
    call = {"function": {"name": "f", "arguments": "a" * 600}}
    assert len(marks_of(messages=[{"content": "", "tool_calls": [call]}])) == 1
    legacy = {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}
    assert marks_of(messages=[legacy, LONG[0]])[0] != marks_of(messages=[{"role": "assistant"}, LONG[0]])[0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (image("data:a"), image("data:b")),
        (image("data:a"), text("")),
        (image("data:a"), {"type": "input_audio", "input_audio": {"data": "a"}}),
        (
            {"type": "input_audio", "input_audio": {"data": "a"}},
            {"type": "input_audio", "input_audio": {"data": "b"}},
        ),
    ],
    ids=str,
)
def test_images_and_sounds_count_by_what_is_in_them(one: Any, other: Any) -> None:
    said = text("t" * 2_000)
    assert marks_of(messages=user(one, said)) == marks_of(messages=user(one, said))
    assert set(marks_of(messages=user(one, said))).isdisjoint(marks_of(messages=user(other, said)))
    behind = (marks_of(messages=user(said, part, said)) for part in (one, other))
    assert alike(*behind) == 3


def test_an_image_takes_no_room() -> None:
    """It has few tokens for its size."""
    prompt = prompt_of(messages=user(image("A" * 100_000), text("t" * 900)))
    assert (prompt.tokens, len(prompt.marks)) == (225, 1)


# -- other kinds --------------------------------------------------------------------------------------


def test_texts_and_token_ids_of_completions() -> None:
    assert marks_of(prompt="p" * 1_100)[:1] == marks_of(prompt="p" * 600)
    assert set(marks_of(prompt="p" * 600)).isdisjoint(marks_of(prompt="q" + "p" * 599))
    ids = list(range(300))
    assert len(marks_of(prompt=ids)) == 2
    assert marks_of(prompt=ids)[:1] == marks_of(prompt=[*ids[:128], 7])
    assert set(marks_of(prompt=ids)).isdisjoint(marks_of(prompt=[7, *ids[1:]]))
    assert set(marks_of(prompt=ids)).isdisjoint(marks_of(prompt=ids, model="n"))
    assert set(marks_of(prompt=ids)).isdisjoint(marks_of(prompt=ids, cache_salt="mine"))


def test_of_several_prompts_the_first_is_marked() -> None:
    assert marks_of(prompt=["p" * 600, "q" * 600]) == marks_of(prompt="p" * 600)
    ids = list(range(300))
    assert marks_of(prompt=[ids, [1]]) == marks_of(prompt=ids)
    assert prompt_of(prompt=["p" * 600, "q" * 600]).chars == 1_200
    assert prompt_of(prompt=[ids, [1]]).tokens == 301


def test_responses_have_instructions_and_items() -> None:
    marks = marks_of(instructions="i" * 600, input="u" * 1_000)
    assert len(marks) == 3
    assert alike(marks, marks_of(instructions="i" * 600, input="v" * 1_000)) == 1
    assert marks == marks_of(
        instructions="i" * 600, input=chat([("user", [{"type": "input_text", "text": "u" * 1_000}])])
    )
    assert set(marks).isdisjoint(marks_of(instructions="j" * 600, input="u" * 1_000))
    stored = marks_of(instructions="i" * 600, input="u" * 1_000, previous_response_id="r1")
    assert set(marks).isdisjoint(stored)


def test_items_of_responses_differ_by_what_they_hold() -> None:
    behind = {"role": "user", "content": "u" * 1_000}
    items: list[Any] = [
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "[]"},
        {"type": "function_call", "call_id": "c", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [image("a")]},
        {"type": "reasoning", "summary": [], "encrypted_content": "a"},
        {"type": "reasoning", "summary": [], "encrypted_content": "b"},
        {"type": "item_reference", "id": "a"},
    ]
    assert len({marks_of(input=[item, behind])[0] for item in items}) == len(items)


@pytest.mark.parametrize(
    "body",
    [
        {"path": "embeddings", "input": "x" * 2_000},
        {"path": "rerank", "query": "x" * 2_000},
        {"path": "chat/completions/x", "messages": LONG},
        {"path": "chat/completions", "messages": chat([("user", "x" * (WIDTH - len("\x1euser\x1f") - 1))])},
        {"path": "completions", "prompt": "x" * (WIDTH - 1)},
        {"path": "completions", "prompt": [1] * (MARK_TOKENS - 1)},
        {"path": "completions", "prompt": []},
        {"path": "responses"},
    ],
    ids=lambda body: str(body)[:60],
)
def test_what_has_no_marks(body: dict[str, Any]) -> None:
    assert marks_of(body.pop("path"), **body) == ()


def test_marks_end_somewhere() -> None:
    assert len(marks_of(prompt="x" * (MOST_MARKS + 10) * WIDTH)) == MOST_MARKS
    assert len(marks_of(prompt=[1] * (MOST_MARKS + 10) * MARK_TOKENS)) == MOST_MARKS


# -- whatever stands there ----------------------------------------------------------------------------


@given(
    body=st.dictionaries(
        st.sampled_from(
            "messages prompt input instructions tools functions documents cache_salt conversation".split()
        ),
        JSON,
    )
)
def test_no_body_is_too_strange(body: dict[str, Any]) -> None:
    for path in PATHS.values():
        prompt = incoming(json.dumps({"model": "m", **body}).encode(), path=f"/v1/{path}").prompt
        assert all(0 <= mark <= MASK for mark in prompt.marks)
        assert prompt.tokens >= len(prompt.marks) * MARK_TOKENS, "nobody has read more than there is"


@pytest.mark.parametrize("field", ["messages", "prompt", "input", "tools", "instructions", "cache_salt"])
@pytest.mark.parametrize(
    "value",
    [
        b"[" * 150 + b"]" * 150,
        b"[" * 900 + b"]" * 900,
        b'{"content":' * 300 + b"1" + b"}" * 300,
        b'[{"role":"user","content":' + b"[" * 400 + b"]" * 400 + b"}]",
        b"1" * 4_000,
        b"[" + b"9" * 4_000 + b"]",
        b"1e999",
        b'"\\ud800"',
        b'[{"role":"\\ud800","content":[{"x":"\\udfff"}]}]',
        b'"\\u0000\\u001e\\u001f"',
        b"[NaN,Infinity]",
    ],
    ids=lambda value: value[:30].decode(),
)
def test_hostile_values(field: str, value: bytes) -> None:
    content = b'{"model":"m","%b":%b}' % (field.encode(), value)
    loads(content)
    for path in PATHS.values():
        prompt = incoming(content, path=f"/v1/{path}").prompt
        assert prompt.tokens >= 0
        assert len(prompt.marks) <= 4_000 // MARK_TOKENS


def test_roles_count_where_there_is_little_else() -> None:
    prompt = prompt_of(messages=chat([("user", "x"), *[("assistant", "")] * 200]))
    assert prompt.marks
    assert prompt.tokens == len(prompt.marks) * MARK_TOKENS
