"""What servers, callers and threads may do to answers that go on elsewhere."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx2
import pytest

from agentsched import Backend, BackendError, Limits, Scheduler
from agentsched.engine.events import Finished
from agentsched.testing import VirtualClock
from agentsched.transport.ability import BEGUN
from tests.doubles import (
    ASK,
    MODEL,
    Script,
    assert_quiet,
    counts,
    delta,
    event,
    events,
    outcome,
    said,
    upstream,
    whole,
)

WORDS = [f"w{number} " for number in range(20)]
BROKEN = events(delta("", role="assistant"), *map(delta, WORDS), httpx2.ReadError("gone"), done=False)
REST = events(delta("", role="assistant"), delta("the "), delta("end"), delta(finish="stop"), counts(9, 2))
NO = whole({"error": {"message": "no such field", "code": 400}}, status=400)
YES = events(delta("", role="assistant"), delta("wide"), delta(finish="length"))
TEXT = "".join(WORDS) + "the end"

Answering = Script | Callable[[Any], Script]


class Asked:
    """A backend that answers what asks whether it can go on, and the rest of calls, as told."""

    def __init__(self, rest: Answering = REST, first: Answering = NO, second: Answering = YES) -> None:
        self.rest, self.first, self.second = rest, first, second
        self.bodies: list[Any] = []
        self.paths: list[str] = []
        self.probes = 0

    def __call__(self, request: Any) -> Script:
        body = json.loads(request.content)
        if BEGUN in str(body):
            self.probes += 1
            answer = self.first if body["add_generation_prompt"] else self.second
        else:
            self.bodies.append(body)
            self.paths.append(request.url.path)
            answer = self.rest
        return answer if isinstance(answer, Script) else answer(request)


class Stage:
    """A scheduler over backends that answer as they are told, each by its name."""

    def __init__(self, limits: Mapping[str, Any] | None = None, **backends: Answering) -> None:
        self.backends = backends
        self.clock = VirtualClock()
        self.transport = upstream(httpx2, self._answer)
        fleet = [self.backend(name, **(limits or {})) for name in backends]
        self.scheduler = Scheduler(fleet, upstream=self.transport, clock=self.clock)

    def backend(self, name: str, **options: Any) -> Backend:
        return Backend(f"http://{name}:1/v1", name=name, **{"models": [MODEL], "metrics": False, **options})

    def _answer(self, request: Any) -> Script:
        answer = self.backends[request.url.host]
        return answer if isinstance(answer, Script) else answer(request)

    async def call(self, path: str = "/chat/completions", **fields: Any) -> Any:
        """Return what came of a call: its bytes, or the error it ended with."""
        body = {name: value for name, value in {**ASK, "stream": True, **fields}.items() if value != "-"}
        http = self.scheduler.http_async_client()
        answer = await outcome(http.post(path, json=body, timeout=None))
        return answer if isinstance(answer, Exception) else answer.content

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        async def quietly() -> None:
            await main()
            await assert_quiet(self.scheduler)
            assert self.transport.seen.open == 0

        self.clock.run(quietly())

    def say(self, **fields: Any) -> Any:
        """Make one call in virtual time and return what came of it."""
        found: list[Any] = []

        async def main() -> None:
            found.append(await self.call(**fields))

        self.run(main)
        return found[0]


def text_of(answer: bytes) -> str:
    if answer.startswith(b"{"):
        return json.loads(answer)["choices"][0]["message"]["content"]
    found = [json.loads(line[6:]) for line in answer.split(b"\n\n") if line.startswith(b"data: {")]
    return "".join(one["choices"][0]["delta"].get("content") or "" for one in found if one["choices"])


def test_it_is_one_answer() -> None:
    assert text_of(Stage(a=BROKEN, b=Asked()).say()) == TEXT


# -- what asks whether a backend can --------------------------------------------------------------------

NONSENSE: dict[str, Script] = {
    "500": whole({"error": "no"}, status=500),
    "401": whole({"error": "no"}, status=401),
    "a page": whole(b"\x00\xff<html>"),
    "nested": Script(headers=[("content-type", "text/event-stream")], pieces=[b"data: " + b"[" * 200_000]),
    "a number": Script(pieces=[b"data: 5\n\n"]),
    "too much": Script(pieces=[b"data: " + b"x" * 2**19] * 3),
    "nothing": Script(before=[1e6]),
}


@pytest.mark.parametrize("asked", ["first", "second"])
@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE)
def test_a_backend_that_only_stumbles_over_the_question_begins_anew_what_nobody_has_seen(
    nonsense: Script, asked: str
) -> None:
    stage = Stage(a=BROKEN, b=Asked(**{asked: nonsense}))
    assert text_of(stage.say(stream=False)) == "the end"


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE)
def test_a_stream_goes_on_at_a_third_backend(nonsense: Script) -> None:
    stage = Stage(a=BROKEN, b=Asked(first=nonsense), c=Asked())
    assert text_of(stage.say()) == TEXT


def test_the_question_may_be_refused_inside_a_stream() -> None:
    refused = events({"error": {"message": "both are set", "code": 400}})
    assert text_of(Stage(a=BROKEN, b=Asked(first=refused)).say()) == TEXT


def test_the_text_is_not_lost_where_a_backend_leaves_while_it_is_asked() -> None:
    asked = Asked(first=NONSENSE["nothing"])
    stage = Stage(a=BROKEN, b=asked)

    async def main() -> None:
        call = asyncio.ensure_future(stage.call())
        await asyncio.sleep(1)
        assert asked.probes == 1
        stage.scheduler.fleet.remove("b")
        error = await call
        assert isinstance(error, BackendError)
        assert error.partial_text == "".join(WORDS)

    stage.run(main)


def test_the_error_of_one_that_was_removed_names_it() -> None:
    stage = Stage(
        a=events(delta("", role="assistant"), *map(delta, WORDS), 100.0),
        b=Asked(first=whole({"error": "no"}, status=200)),
    )

    async def main() -> None:
        call = asyncio.ensure_future(stage.call())
        await asyncio.sleep(1)
        stage.backends["b"] = Asked(second=NO)
        stage.scheduler.fleet.remove("a")
        error = await call
        assert str(error).startswith("a: removed from the fleet (tried 2 times)")
        assert error.partial_text == "".join(WORDS)

    stage.run(main)


# -- what is sent for the rest --------------------------------------------------------------------------


@pytest.mark.parametrize(("cap", "left"), [(-1, -1), (30, 10), (5, 1), (None, None)])
def test_the_rest_has_the_cap_that_is_left(cap: int | None, left: int | None) -> None:
    rest = Asked()
    assert text_of(Stage(a=BROKEN, b=rest).say(max_tokens=cap)) == TEXT
    assert rest.bodies[0].get("max_tokens") == left


@pytest.mark.parametrize("cap", [True, "100", 100.0, [1]])
def test_a_cap_that_is_no_number_prevents_it(cap: Any) -> None:
    assert isinstance(Stage(a=BROKEN, b=Asked()).say(max_tokens=cap), BackendError)


USUAL: dict[str, Any] = {
    "n": 1,
    "logprobs": False,
    "tools": None,
    "tool_choice": "none",
    "top_logprobs": None,
    "response_format": {"type": "text"},
    "future": None,
}


def test_fields_that_say_nothing_do_not_prevent_it() -> None:
    rest = Asked()
    assert text_of(Stage(a=BROKEN, b=rest).say(**USUAL)) == TEXT
    assert not USUAL.keys() & rest.bodies[0].keys()


@pytest.mark.parametrize("field", [{"logprobs": 0}, {"logprobs": True}, {"tools": [1]}, {"n": 2}])
def test_fields_that_look_like_it_do(field: dict[str, Any]) -> None:
    assert isinstance(Stage(a=BROKEN, b=Asked()).say(**field), BackendError)


def test_the_rest_is_asked_for_without_a_priority_that_is_refused() -> None:
    def strict(request: Any) -> Script:
        refused = {"error": {"message": "unknown field: priority", "code": 400}}
        return whole(refused, status=400) if b"priority" in request.content else REST

    stage = Stage(limits={"priority": True}, a=BROKEN, b=Asked(rest=strict))

    async def main() -> None:
        async with stage.scheduler.query("q", priority=3):
            assert text_of(await stage.call()) == TEXT

    stage.run(main)


def test_what_a_rest_added_before_it_was_refused_counts() -> None:
    more = events(delta("", role="assistant"), *[delta("x ")] * 10, {"error": {"code": 400, "message": "oh"}})
    last = Asked()
    got = Stage(a=BROKEN, b=Asked(rest=more), c=last).say(max_tokens=100)
    assert text_of(got) == "".join(WORDS) + "x " * 10 + "the end"
    assert last.bodies[0]["max_tokens"] == 70


def test_a_transport_that_cancels_itself_breaks_an_answer_like_others() -> None:
    async def cancel() -> None:
        raise asyncio.CancelledError

    first = events(delta("", role="assistant"), *map(delta, WORDS), cancel, done=False)
    assert text_of(Stage(a=first, b=Asked()).say()) == TEXT


@pytest.mark.parametrize("stream", [True, False])
def test_a_server_is_not_taken_for_the_one_that_began(stream: bool) -> None:
    def of(server: str, *payloads: dict[str, Any]) -> list[dict[str, Any]]:
        return [{**payload, "system_fingerprint": server} for payload in payloads]

    begun = of("vllm-0.32", delta("", role="assistant"), *map(delta, WORDS))
    rest = of("b123", delta("", role="assistant"), delta("the end"), delta(finish="stop"), counts())
    stage = Stage(a=events(*begun, httpx2.ReadError("gone"), done=False), b=Asked(rest=events(*rest)))
    assert text_of(stage.say(stream=stream)) == TEXT
    assert not stage.scheduler._driver.addressing.exact("b")


# -- the ids of tokens ----------------------------------------------------------------------------------


def completed(text: str, ids: Any = None, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "token_ids": ids, "finish_reason": finish}
    return {"id": "cmpl", "object": "text_completion", "created": 2, "model": MODEL, "choices": [choice]}


ENDED = events(completed("the ", [1]), completed("end", [2]), completed("", [3], "stop"))


def with_ids(text: str, ids: Any, **more: Any) -> dict[str, Any]:
    payload = delta(text, **more)
    payload["choices"][0]["token_ids"] = ids
    return payload


def by_ids(*words: dict[str, Any]) -> tuple[Stage, Asked]:
    """Two backends known as vLLM, of which the first breaks an answer off after a prompt of two tokens."""
    head = with_ids("", None, role="assistant") | {"prompt_token_ids": [7, 8]}
    rest = Asked(rest=lambda request: ENDED if request.url.path == "/v1/completions" else REST)
    stage = Stage(a=events(head, *words, httpx2.ReadError("gone"), done=False), b=rest)
    for name in stage.backends:
        stage.scheduler._driver.addressing.learn(name, None, {"system_fingerprint": "vllm-0.32"})
    return stage, rest


TOLD = [with_ids(word, [number]) for number, word in enumerate(WORDS)]


def test_ids_whose_text_has_not_come_are_not_gone_on_after() -> None:
    """They begin a character: vLLM takes those of a prompt as said."""
    stage, rest = by_ids(*TOLD[:10], with_ids("", [90]), *TOLD[10:], with_ids("", [91]), with_ids("", [92]))
    assert text_of(stage.say(max_tokens=100)) == TEXT
    assert rest.bodies[0]["prompt"] == [7, 8, *range(10), 90, *range(10, 20)]
    assert rest.bodies[0]["max_tokens"] == 79


def test_where_text_may_be_held_back_the_ids_are_not_gone_on_after() -> None:
    """Of a text in which a stop may begin, vLLM tells the ids before it shows the text."""
    stage, rest = by_ids(*TOLD)
    assert text_of(stage.say(max_tokens=100, stop=["the end of all"])) == TEXT
    assert rest.paths == ["/v1/chat/completions"]


@pytest.mark.parametrize("ids", [["1"], [True], "x", 5, {"a": 1}, [[1]], [1.0], None])
def test_ids_that_are_none_are_not_gone_on_after(ids: Any) -> None:
    stage, rest = by_ids(*TOLD[:5], with_ids(WORDS[5], ids), *TOLD[6:])
    assert text_of(stage.say(max_tokens=100)) == TEXT
    assert rest.paths == ["/v1/chat/completions"]


def test_several_tokens_an_event_do_not_make_the_rest_shorter_than_nothing() -> None:
    stage, rest = by_ids(*[with_ids(word, [1] * 9) for word in WORDS])
    engine, fed = stage.scheduler._driver.engine, list[Any]()
    handle = engine.handle
    engine.handle = lambda event: (fed.append(event), handle(event))[1]  # type: ignore[method-assign]
    assert text_of(stage.say(max_tokens=1_000)) == TEXT
    assert rest.bodies[0]["max_tokens"] == 1_000 - 180
    (finished,) = [event for event in fed if isinstance(event, Finished)]
    assert (finished.usage.output_tokens, finished.kept_tokens) == (2, 180)


# -- removed from another thread ------------------------------------------------------------------------


def removing(stage: Callable[[], Stage], name: str) -> Callable[[], Awaitable[None]]:
    """Remove a backend from another thread, of which the loop hears at its next turn."""

    async def remove() -> None:
        thread = threading.Thread(target=lambda: stage().scheduler.fleet.remove(name))
        thread.start()
        thread.join()

    return remove


def test_what_comes_after_a_removal_nobody_has_seen() -> None:
    def rest(request: Any) -> Script:
        return REST if b"continue_final_message" in request.content else said("anew")

    chunk = b"".join(map(event, [delta("", role="assistant"), *map(delta, WORDS)]))
    stage = Stage(a=events(removing(lambda: stage, "a"), chunk, 100.0), b=Asked(rest=rest))
    assert text_of(stage.say()) == "anew"


def test_what_a_rest_says_after_its_removal_is_seen_and_kept() -> None:
    more = events(removing(lambda: stage, "b"), delta("", role="assistant"), delta("middle "), 100.0)
    stage = Stage(a=BROKEN, b=Asked(rest=more), c=Asked())
    assert text_of(stage.say()) == "".join(WORDS) + "middle the end"


@pytest.mark.parametrize(
    "last", [delta(finish="stop"), delta() | {"choices": [{"delta": {"refusal": "no"}}]}]
)
def test_what_turns_out_not_to_be_gone_on_with_is_not_said_twice(last: dict[str, Any]) -> None:
    first = events(delta("", role="assistant"), *map(delta, WORDS), removing(lambda: stage, "a"), last, 100.0)
    stage = Stage(a=first, b=Asked())
    error = stage.say()
    assert str(error).startswith("a: removed from the fleet")
    assert error.partial_text == "".join(WORDS)


def test_two_backends_may_be_removed_before_the_loop_hears_of_it() -> None:
    async def both() -> None:
        for name in ("a", "b"):
            await removing(lambda: stage, name)()

    first = events(delta("", role="assistant"), *map(delta, WORDS), both, delta("more "), 100.0)
    stage = Stage(a=first, b=Asked(), c=Asked())
    assert text_of(stage.say()) == "".join(WORDS) + "more the end"


def test_what_breaks_after_a_removal_is_kept_as_well() -> None:
    broken = events(removing(lambda: stage, "a"), *map(delta, WORDS), httpx2.ReadError("gone"), done=False)
    stage = Stage(a=events(delta("So ", role="assistant"), *broken.pieces), b=Asked())
    assert text_of(stage.say()) == "So " + TEXT


# -- how long it may take -------------------------------------------------------------------------------


def test_a_rest_that_does_not_begin_is_given_up() -> None:
    silent = Asked(rest=events(delta("", role="assistant"), 1e6))
    stage = Stage(limits={"limits": Limits(first_token_s=5.0)}, a=BROKEN, b=silent, c=Asked())
    assert text_of(stage.say()) == TEXT
    assert stage.clock() < 10
