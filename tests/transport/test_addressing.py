"""What goes to a backend: the caller's bytes with another model, key and address, and nothing else changed."""

import json
import tracemalloc
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentsched import Backend
from agentsched.transport.head import Head
from agentsched.transport.incoming import Incoming, Kind
from agentsched.transport.jsontext import dumps, loads
from agentsched.transport.outgoing import MAX_REMEMBERED, Addressing, Outgoing
from agentsched.transport.streamable import streamable
from tests.doubles import ASK, STACKS, incoming

APP, SERVED = "app", 'Qwen/"Qwen3" ü'
PLAIN = Backend("http://a:1/v1")
RENAMING = Backend("http://a:1/v1", models={APP: SERVED})
USAGE = {"include_usage": True}


def sent(call: Incoming, backend: Backend = PLAIN, stack: str = "httpx2") -> Outgoing:
    return Addressing(STACKS[stack]).address(call, backend)


# -- the body, byte for byte --------------------------------------------------------------------------

gaps = st.sampled_from(["", "", "", " ", "  ", "\n", "\t ", "\r\n  "])

tricky = st.sampled_from(
    [
        '"stream":false',
        '{"model":"app"}',
        '"model"',
        '"model": "app"',
        "}",
        "{",
        "\\",
        '\\"',
        "\u2028é漢😀",
        '"stream_options":null',
        "",
    ]
)


@st.composite
def strings(draw: st.DrawFn, value: str | None = None) -> str:
    """A string as JSON text, some of its characters escaped; halves of surrogate pairs among them."""
    text = draw(tricky | st.text(max_size=6)) if value is None else value
    out: list[str] = []
    for char in text:
        if char in '"\\' or ord(char) < 32 or 0xD800 <= ord(char) < 0xE000 or draw(st.integers(0, 9)) == 0:
            units = char.encode("utf-16-be", "surrogatepass")
            out += [f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2)]
        else:
            out.append(char)
    if value is None and draw(st.integers(0, 5)) == 0:
        out.append(draw(st.sampled_from(["\\ud83d", "\\udc00", '\\"', "\\\\", "\\n"])))
    return '"' + "".join(out) + '"'


numbers = st.sampled_from(
    ["0", "-0", "1", "0.0", "0.00", "0e5", "1.50", "1E400", "-1e-400", "123456789012345678901234567890", "7"]
)
scalars = strings() | numbers | st.sampled_from(["true", "false", "null"])


@st.composite
def objects(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    keys = draw(st.lists(strings() | st.sampled_from(['"model"', '"stream"', '"n"']), max_size=3))
    parts = [f"{draw(gaps)}{key}{draw(gaps)}:{draw(gaps)}{draw(values)}{draw(gaps)}" for key in keys]
    return "{" + (",".join(parts) or draw(gaps)) + "}"


@st.composite
def arrays(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    parts = draw(st.lists(values, max_size=3))
    return "[" + draw(gaps) + f"{draw(gaps)},{draw(gaps)}".join(parts) + draw(gaps) + "]"


values = st.recursive(scalars, lambda inner: objects(inner) | arrays(inner), max_leaves=8)

STREAMS = [None, "false", "null", "0", "-0", "0.0", "0.00", "0e5", '""', "[]", "{}", "true", "1", '"yes"']
OPTIONS = [
    None,
    "null",
    "{}",
    '{"include_usage":false}',
    '{ "include_usage" :0,"model":"app"}',
    '{"include_usage":true}',
    "1.00",
    '"stream"',
]


class Body:
    """A JSON object as text, and the same with other values in some places."""

    def __init__(self, members: list[tuple[str, str, str, str]], tail: str) -> None:
        self.members = members
        self.tail = tail

    def text(self, changed: dict[str, str], appended: dict[str, Any]) -> bytes:
        parts = [
            before + key + between + changed.get(json.loads(key), value)
            for key, between, value, before in self.members
        ]
        more = "," + dumps(appended).decode()[1:-1] if appended else ""
        return ("{" + ",".join(parts) + more + "}" + self.tail).encode("utf-8", "surrogatepass")

    @property
    def content(self) -> bytes:
        return self.text({}, {})


@st.composite
def bodies(draw: st.DrawFn) -> Body:
    known = {"model", "stream", "stream_options"}
    names = draw(
        st.lists(
            st.sampled_from(["messages", "metadata", "user", "stop", "tools", "seed", "x", "\u00e9", 'a"b']),
            unique=True,
            max_size=4,
        )
    )
    found = {name: draw(values) for name in names}
    found["model"] = draw(strings(APP))
    for name, choice in (("stream", STREAMS), ("stream_options", OPTIONS)):
        value = draw(st.sampled_from(choice))
        if value is not None:
            found[name] = value
    members: list[tuple[str, str, str, str]] = []
    for name in draw(st.permutations(list(found))):
        key = draw(strings(name)) if name in known and draw(st.integers(0, 3)) == 0 else json.dumps(name)
        between = f"{draw(gaps)}:{draw(gaps)}"
        members.append((key, between, found[name], draw(gaps)))
    return Body(members, draw(gaps))


@given(body=bodies())
def test_only_what_must_change_changes(body: Body) -> None:
    call = incoming(body.content)
    out = sent(call, RENAMING)
    had: dict[str, Any] = json.loads(body.content)
    changes: dict[str, Any] = {"model": SERVED}
    if out.streamed:
        if not call.stream:
            changes["stream"] = True
        if not call.wants_usage:
            options = had.get("stream_options")
            changes["stream_options"] = {**(options if isinstance(options, dict) else {}), **USAGE}
    changed = {name: dumps(value).decode() for name, value in changes.items() if name in had}
    appended = {name: value for name, value in changes.items() if name not in had}
    assert out.content == body.text(changed, appended)
    assert loads(out.content).keys() == had.keys() | changes.keys()


@given(body=bodies())
def test_a_body_that_need_not_change_is_passed_on_as_it_is(body: Body) -> None:
    call = incoming(body.content, path="/v1/embeddings")
    assert sent(call).content is call.content


@given(body=bodies())
def test_what_is_asked_of_the_backend_follows_the_allow_list(body: Body) -> None:
    call = incoming(body.content)
    out = sent(call)
    assert out.streamed == (call.stream or streamable(call, None))
    after: dict[str, Any] = loads(out.content)
    assert bool(after.get("stream")) == out.streamed
    assert out.hide_usage == (out.streamed and not call.wants_usage)
    if out.streamed:
        assert after["stream_options"]["include_usage"]


def test_a_field_given_twice_is_replaced_wherever_it_stands() -> None:
    call = incoming(b'{"model":"old","seed":1,"model":"app","tools":[]}')
    name = dumps(SERVED)
    assert sent(call, RENAMING).content == b'{"model":%b,"seed":1,"model":%b,"tools":[]}' % (name, name)


def test_a_name_spelled_with_escapes_is_not_mistaken_for_another() -> None:
    call = incoming(b'{"mod\\u0065l":"app","tools":[],"metadata":{"model":"app"}}')
    expected = b'{"mod\\u0065l":%b,"tools":[],"metadata":{"model":"app"}}' % dumps(SERVED)
    assert sent(call, RENAMING).content == expected


def test_a_number_of_any_size_passes() -> None:
    huge = b"9" * 4_000
    call = incoming(b'{"model":"app","seed":' + huge + b',"metadata":{"model":"app"}}')
    assert huge in sent(call, RENAMING).content


@pytest.mark.parametrize(
    ("given_options", "sent_options"),
    [
        (None, USAGE),
        ({"include_usage": False, "continuous_usage_stats": True}, {**USAGE, "continuous_usage_stats": True}),
        ({"include_usage": True, "other": 1}, {"include_usage": True, "other": 1}),
    ],
)
def test_stream_options_of_the_app_are_kept(given_options: Any, sent_options: Any) -> None:
    more = {} if given_options is None else {"stream_options": given_options}
    out = sent(incoming(ASK, stream=True, **more))
    assert json.loads(out.content)["stream_options"] == sent_options
    assert out.hide_usage == (sent_options != given_options)


@pytest.mark.parametrize(
    "fields", [{"tools": []}, {"n": 2}, {"logprobs": True}, {"response_format": {}}, {"unheard_of": 1}]
)
def test_what_is_not_known_to_be_equal_is_not_streamed_behind_the_callers_back(fields: Any) -> None:
    call = incoming(ASK, **fields)
    out = sent(call)
    assert not out.streamed
    assert out.content is call.content


@pytest.mark.parametrize(
    ("prompt", "streamed"),
    [("one", True), ([1, 2, 3], True), (["one", "two"], False), (["one"], False), ([[1], [2]], False)],
)
def test_several_prompts_are_several_answers(prompt: Any, streamed: bool) -> None:
    call = incoming({"model": APP, "prompt": prompt}, path="/v1/completions")
    assert sent(call).streamed == streamed


# -- the model's name ---------------------------------------------------------------------------------


def test_the_models_name_is_mapped_and_remembered_for_the_way_back() -> None:
    out = sent(incoming(ASK, model=APP, tools=[]), RENAMING)
    assert json.loads(out.content)["model"] == SERVED
    assert out.model_back == APP


@pytest.mark.parametrize("models", [None, [APP], {APP: APP}, {"other": SERVED}])
def test_an_equal_or_unknown_name_stays(models: Any) -> None:
    call = incoming(ASK, model=APP, tools=[])
    out = sent(call, Backend("http://a:1/v1", models=models))
    assert out.content is call.content
    assert out.model_back is None


def test_paths_that_are_not_understood_are_mapped_too() -> None:
    call = incoming({"query": "x", "model": APP}, path="/v1/rerank?x=1")
    out = sent(call, RENAMING)
    assert call.kind is Kind.OPAQUE
    assert out.content == b'{"query": "x", "model": %b}' % dumps(SERVED)
    assert str(out.url) == "http://a:1/v1/rerank?x=1"
    assert not out.streamed


# -- headers and keys ---------------------------------------------------------------------------------

SECRETS = [
    (b"Authorization", b"Bearer app-secret"),
    (b"api-key", b"app-secret"),
    (b"X-Api-Key", b"app-secret"),
    (b"Cookie", b"session=app-secret"),
    (b"Proxy-Authorization", b"Basic app-secret"),
]


def test_the_apps_own_secrets_never_leave(stack: ModuleType) -> None:
    for backend in (PLAIN, Backend("http://a:1/v1", api_key="backend-key")):
        out = Addressing(stack).address(incoming(ASK, headers=SECRETS), backend)
        assert not any(b"app-secret" in value for _, value in out.headers.raw)


def test_each_backend_gets_its_own_key_and_no_other(stack: ModuleType) -> None:
    addressing = Addressing(stack)
    call = incoming(ASK, headers=SECRETS)
    fleet = {key: Backend(f"http://{key or 'none'}:1/v1", api_key=key) for key in ("key-a", "key-b", None)}
    for _ in range(2):  # the second time from what was remembered
        for key, backend in fleet.items():
            headers = addressing.address(call, backend).headers
            assert headers.get("authorization") == (None if key is None else f"Bearer {key}")


def test_headers_of_the_connection_and_of_the_sdk_are_dropped_and_all_others_kept(stack: ModuleType) -> None:
    dropped = {
        b"Host": b"agentsched.invalid",
        b"Connection": b"keep-alive, x-mine",
        b"Keep-Alive": b"5",
        b"Transfer-Encoding": b"chunked",
        b"Content-Length": b"3",
        b"TE": b"trailers",
        b"Trailer": b"x",
        b"Upgrade": b"h2c",
        b"Expect": b"100-continue",
        b"Accept": b"*/*",
        b"Accept-Encoding": b"gzip",
        b"X-Stainless-Retry-Count": b"0",
        b"x-stainless-lang": b"python",
    }
    kept = {b"Content-Type": b"application/json", b"User-Agent": b"mine", b"X-Request-Id": b"r", b"x-a": b"b"}
    call = incoming(ASK, headers=[*dropped.items(), *kept.items(), (b"x-a", b"again")])
    raw = Addressing(stack).address(call, PLAIN).headers.raw
    assert [pair for pair in raw if pair[0].lower() not in (b"host", b"accept", b"accept-encoding")] == [
        *kept.items(),
        (b"x-a", b"again"),
        (b"endpoint-load-metrics-format", b"TEXT"),
    ]
    assert dict(raw)[b"accept"] == b"text/event-stream"
    assert dict(raw)[b"accept-encoding"] == b"identity"


LOAD = b"endpoint-load-metrics-format"


@pytest.mark.parametrize(
    ("asks", "call", "backend"),
    [
        (True, incoming(ASK), PLAIN),
        (True, incoming(ASK, tools=[]), PLAIN),
        (True, incoming(path="/v1/embeddings"), PLAIN),
        (False, incoming(ASK), Backend("http://a:1/v1", metrics=False)),
        (False, incoming(path="/v1/rerank"), PLAIN),
        (False, incoming(b"", method="GET", path="/v1/models"), PLAIN),
    ],
)
def test_backends_that_may_be_looked_at_are_asked_for_their_load(
    stack: ModuleType, asks: bool, call: Incoming, backend: Backend
) -> None:
    out = Addressing(stack).address(call, backend)
    assert out.asks_load == asks
    assert out.headers.get(LOAD.decode()) == ("TEXT" if asks else None)


@pytest.mark.parametrize("name", [LOAD, b"Endpoint-Load-Metrics-Format"])
def test_an_app_that_asks_for_the_load_itself_is_the_one_who_is_told(stack: ModuleType, name: bytes) -> None:
    out = Addressing(stack).address(incoming(ASK, headers=[(name, b"JSON")]), PLAIN)
    assert not out.asks_load
    assert out.headers.get_list(LOAD.decode()) == ["JSON"]


def test_header_sets_of_calls_that_are_asked_other_things_are_not_mixed_up(stack: ModuleType) -> None:
    addressing = Addressing(stack)
    same = [(b"content-type", b"application/json"), (b"accept", b"text/plain")]
    deaf = Backend(PLAIN.base_url, metrics=False)
    for _ in range(2):
        asked = addressing.address(incoming(ASK, tools=[], headers=same), PLAIN)
        passed = addressing.address(incoming(ASK, path="/v1/rerank", headers=same), PLAIN)
        unasked = addressing.address(incoming(ASK, tools=[], headers=same), deaf)
        assert [LOAD.decode() in one.headers for one in (asked, passed, unasked)] == [True, False, False]
        accepted = [one.headers["accept"] for one in (asked, passed, unasked)]
        assert accepted == ["application/json, */*", "text/plain", "application/json, */*"]


def test_what_is_not_streamed_asks_for_json(stack: ModuleType) -> None:
    headers = Addressing(stack).address(incoming(ASK, tools=[]), PLAIN).headers
    assert headers["accept"].startswith("application/json")


def test_method_path_and_query_stay(stack: ModuleType) -> None:
    call = incoming(b"", method="DELETE", path="/v1/files/a%20b?after=1&x=%2F", headers=())
    out = Addressing(stack).address(call, Backend("https://host/prefix/v1/"))
    assert (out.method, str(out.url)) == ("DELETE", "https://host/prefix/v1/files/a%20b?after=1&x=%2F")


def test_what_is_remembered_is_bounded_and_changes_nothing(stack: ModuleType) -> None:
    addressing = Addressing(stack)
    for number in range(MAX_REMEMBERED + 10):
        call = incoming(b"", method="GET", path=f"/v1/files/{number}", headers=[(b"x-n", b"%d" % number)])
        for _ in range(2):
            out = addressing.address(call, PLAIN)
            assert str(out.url) == f"http://a:1/v1/files/{number}"
            assert out.headers["x-n"] == str(number)
        assert len(addressing._urls) <= MAX_REMEMBERED
        assert len(addressing._headers) <= MAX_REMEMBERED


def test_a_text_full_of_escapes_costs_memory_once() -> None:
    content = b'{"stop":["model"],"messages":"' + b"\\n" * 400_000 + b'","model":"app"}'
    call = incoming(content)
    tracemalloc.start()
    try:
        outgoing = sent(call, RENAMING)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert loads(outgoing.content)["model"] == SERVED
    assert peak < 3 * len(content)


@pytest.mark.parametrize(
    ("fields", "streamed"),
    [
        ({"n": 2}, True),
        ({"response_format": {"type": "json_object"}}, True),
        ({"logprobs": True}, False),
        ({"tools": []}, False),
        ({"a_field_of_tomorrow": 1}, False),
    ],
)
def test_what_is_proven_of_an_engine_is_streamed_from_it_alone(
    stack: ModuleType, fields: dict[str, Any], streamed: bool
) -> None:
    addressing, call = Addressing(stack), incoming(ASK, **fields)
    assert not addressing.address(call, PLAIN).streamed
    addressing.learn(PLAIN.name, Head(200, [(b"Server", b"uvicorn")]))
    assert not addressing.address(call, PLAIN).streamed
    addressing.forget(PLAIN.name)
    addressing.learn(PLAIN.name, Head(200, [(b"Server", b"llama.cpp")]))
    assert addressing.address(call, PLAIN).streamed == streamed
    assert not addressing.address(call, Backend("http://other:1/v1")).streamed


FINGERPRINT = {"system_fingerprint": "vllm-0.32.0-9056746f"}


@pytest.mark.parametrize(
    ("fields", "streamed"),
    [({"logprobs": True}, True), ({"n": 2}, True), ({"tools": []}, False), ({"echo": True}, False)],
)
def test_vllm_is_known_by_the_fingerprint_of_a_whole_answer(
    stack: ModuleType, fields: dict[str, Any], streamed: bool
) -> None:
    addressing, call, head = Addressing(stack), incoming(ASK, **fields), Head(200, [(b"Server", b"uvicorn")])
    addressing.learn(PLAIN.name, head)
    addressing.learn(PLAIN.name, head, {"system_fingerprint": None})
    assert not addressing.address(call, PLAIN).streamed
    addressing.learn(PLAIN.name, head, FINGERPRINT)
    assert addressing.address(call, PLAIN).streamed == streamed


def test_answers_to_many_prompts_are_streamed_from_vllm_alone(stack: ModuleType) -> None:
    addressing = Addressing(stack)
    call = incoming({"model": "m", "prompt": ["a", "b"]}, path="/v1/completions")
    addressing.learn(PLAIN.name, Head(200, [(b"Server", b"llama.cpp")]))
    assert not addressing.address(call, PLAIN).streamed
    addressing.forget(PLAIN.name)
    addressing.learn(PLAIN.name, Head(200, []), FINGERPRINT)
    assert addressing.address(call, PLAIN).streamed
