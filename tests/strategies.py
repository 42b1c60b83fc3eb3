"""Hypothesis strategies for the nouns and the engine's alphabet, shared by all tests."""

from typing import Any, TypeVar

from hypothesis import strategies as st

from agentsched.engine.events import (
    BackendJoined,
    BackendLeft,
    Cancelled,
    Closed,
    Event,
    Failed,
    Finished,
    ModelsListed,
    Progressed,
    QueryClosed,
    QueryOpened,
    Signalled,
    Submitted,
    Woke,
)
from agentsched.model import Backend, Failure, FailureKind, Query, Reason, Request, Signals, Usage
from agentsched.predict import Learned, Measured, Profile, Speed, Steps
from agentsched.predict.prompts import PromptRatio

T = TypeVar("T")

SERVED = ("small", "large")
"""Models that fleets serve."""

MODELS = (*SERVED, "absent", None)
"""Models that requests ask for."""


def maybe(strategy: st.SearchStrategy[T]) -> st.SearchStrategy[T | None]:
    """Draw None as well."""
    return st.none() | strategy


times = st.floats(0, 1e6, allow_nan=False)
durations = st.floats(0.001, 1e4, allow_nan=False)
tokens = st.integers(0, 100_000)
labels = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=12)
model_lists = st.lists(st.sampled_from(SERVED), min_size=1, unique=True).map(tuple)

model_maps = model_lists.map(lambda names: {name: f"org/{name}" for name in names})

requests = st.builds(
    Request,
    id=labels,
    model=maybe(labels),
    input_tokens=tokens,
    max_tokens=maybe(st.integers(1, 100_000)),
    query=maybe(labels),
    workflow=maybe(labels),
    step=maybe(labels),
    tenant=maybe(labels),
    priority=st.integers(-5, 5),
    deadline=maybe(times),
    slo_at=maybe(times),
    marks=st.lists(st.integers(0, 2**52 - 1), max_size=5).map(tuple),
)

queries = st.builds(
    Query,
    id=labels,
    workflow=labels,
    tenant=maybe(labels),
    priority=st.integers(-5, 5),
    slo_s=maybe(durations),
    deadline=maybe(times),
    max_calls=maybe(st.integers(1, 100)),
)

failures = st.builds(
    Failure,
    kind=st.sampled_from(FailureKind),
    status=maybe(st.integers(400, 599)),
    retry_after_s=maybe(durations),
    delivered=st.booleans(),
    detail=st.text(max_size=30),
)

usages = st.builds(Usage, input_tokens=maybe(tokens), output_tokens=maybe(tokens), cached_tokens=tokens)

signals = st.builds(
    Signals,
    running=maybe(st.integers(0, 500)),
    waiting=maybe(st.integers(0, 500)),
    kv_usage=maybe(st.floats(0, 1)),
    kv_tokens=maybe(st.integers(1, 10**7)),
)


def recorded(name: str, **facts: Any) -> Backend:
    """Return a backend as it comes back from a journal, which keeps no addresses."""
    return Backend(f"http://{name.encode().hex()}.invalid", name=name, **facts)


backends = st.builds(
    recorded,
    name=st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=12),
    models=maybe(model_lists),
    max_concurrency=maybe(st.integers(1, 100)),
    rpm=maybe(st.integers(1, 100)),
    tpm=maybe(st.integers(1, 100_000)),
    metrics=st.booleans(),
)

seen = st.lists(
    st.tuples(
        st.integers(64, 10_000),
        st.integers(1, 900),
        st.floats(1, 30),
        st.integers(0, 9_000),
        st.floats(0.2, 5),
    ),
    max_size=12,
)
"""What a speed is learned from: tokens read and written, mean batch, tokens read meanwhile, times the usual time."""


def taught(observations: list[tuple[int, int, float, int, float]], kv_tokens: int | None) -> Learned:
    """Return what a speed has learned from such observations."""
    speed = Speed()
    for read, wrote, batch, meanwhile, slow in observations:
        speed.observe_prefill(read, slow * (0.01 + read * 2e-4))
        step_s = 0.02 + 0.001 * (batch - 1)
        speed.observe_decode(wrote, slow * wrote * step_s, batch, read=meanwhile, held=batch * (read + wrote))
    return Learned(prefill=speed.prefill.learned(), decode=speed.decode.learned(), kv_tokens=kv_tokens)


def counted(calls: list[tuple[str | None, str | None, str | None, int, int, float]]) -> Steps:
    """Return the steps of such calls: their key, tokens read and written, seconds."""
    steps = Steps()
    for model, workflow, step, read, written, seconds in calls:
        steps.observe((model, workflow, step), read=read, written=written, service_s=seconds)
    return steps


learned = st.builds(taught, seen, maybe(st.integers(1, 10**6)))

measured = st.builds(
    Measured,
    base_url=maybe(labels.map("http://{}/v1".format)),
    name=labels,
    learned=learned,
    source=st.sampled_from(["calibration", "journal", "run"]),
    at=maybe(labels),
    calls=tokens,
    seconds=durations,
    ladder=st.lists(st.tuples(st.integers(1, 9_000), st.integers(1, 64)), max_size=4).map(tuple),
)

steps = st.lists(
    st.tuples(maybe(labels), maybe(labels), maybe(labels), tokens, tokens, st.floats(0, 1e9)), max_size=20
).map(lambda calls: counted(calls).rows())

profiles = st.builds(
    Profile,
    backends=st.lists(measured, max_size=3, unique_by=lambda one: one.base_url or (one.name,)).map(tuple),
    prompts=st.lists(
        st.builds(
            lambda model, estimated, ratio: PromptRatio(model, estimated * ratio, estimated),
            maybe(labels),
            st.floats(1, 1e9),
            st.floats(0.2, 5),
        ),
        max_size=3,
        unique_by=lambda one: one.model,
    ).map(tuple),
    steps=steps,
)

events: st.SearchStrategy[Event] = st.one_of(
    st.builds(Submitted, at=times, request=requests),
    st.builds(Cancelled, at=times, request_id=labels, reason=st.sampled_from(Reason)),
    st.builds(
        Progressed, at=times, attempt_id=tokens, output_tokens=tokens, connect_s=durations | st.just(0)
    ),
    st.builds(Finished, at=times, attempt_id=tokens, usage=usages, learn=st.booleans()),
    st.builds(Failed, at=times, attempt_id=tokens, failure=failures),
    st.builds(ModelsListed, at=times, backend=labels, models=maybe(st.lists(labels).map(tuple))),
    st.builds(Signalled, at=times, backend=labels, signals=maybe(signals)),
    st.builds(BackendJoined, at=times, backend=backends, learned=maybe(learned)),
    st.builds(
        BackendLeft,
        at=times,
        backend=labels,
        drain=st.booleans(),
        seen=st.lists(tokens).map(tuple),
        successor=maybe(backends),
        learned=maybe(learned),
    ),
    st.builds(QueryOpened, at=times, query=queries),
    st.builds(QueryClosed, at=times, query_id=labels),
    st.builds(Woke, at=times),
    st.builds(Closed, at=times),
)


@st.composite
def fleets(draw: st.DrawFn, most: int = 3) -> list[Backend]:
    """Draw one to `most` backends with any mixture of limits, with and without configured models."""
    return [
        Backend(
            f"http://{name}:8000/v1",
            name=name,
            models=draw(maybe(model_lists | model_maps)),
            max_concurrency=draw(maybe(st.integers(1, 3))),
            rpm=draw(maybe(st.integers(1, 4))),
            tpm=draw(maybe(st.sampled_from([60, 300, 1_000]))),
            metrics=draw(st.booleans()),
        )
        for name in "abcdef"[: draw(st.integers(1, most))]
    ]
