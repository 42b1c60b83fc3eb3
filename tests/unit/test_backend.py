"""Backend: what is accepted, what it becomes, and that every mistake gets an error saying what is right."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentsched.errors import UnknownOption, UsageError
from agentsched.model import Backend

URL = "http://gpu-a:8000/v1"


# -- addresses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_url", "base_url", "name"),
    [
        ("http://gpu-a:8000/v1", "http://gpu-a:8000/v1", "gpu-a:8000"),
        ("http://gpu-a:8000/v1/", "http://gpu-a:8000/v1", "gpu-a:8000"),
        ("http://gpu-a:8000/v1//", "http://gpu-a:8000/v1", "gpu-a:8000"),
        ("  http://gpu-a:8000/v1\n", "http://gpu-a:8000/v1", "gpu-a:8000"),
        ("HTTPS://GPU-A.Example/OpenAI/V1", "https://gpu-a.example/OpenAI/V1", "gpu-a.example"),
        ("http://gpu-a", "http://gpu-a", "gpu-a"),
        ("http://gpu-a/", "http://gpu-a", "gpu-a"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1", "[::1]:8000"),
        ("https://api.example/client/@team/v1", "https://api.example/client/@team/v1", "api.example"),
    ],
)
def test_an_address_is_normalised_and_names_the_backend(given_url: str, base_url: str, name: str) -> None:
    backend = Backend(given_url)
    assert (backend.base_url, backend.name) == (base_url, name)


def test_normalising_twice_changes_nothing() -> None:
    for url in ("HTTP://A:1/v1/", "https://b.example/x/y//", "http://[::1]/v1"):
        once = Backend(url).base_url
        assert Backend(once).base_url == once


@pytest.mark.parametrize(
    "url",
    [
        "",
        "gpu-a:8000/v1",
        "gpu-a",
        "ftp://gpu-a/v1",
        "ws://gpu-a/v1",
        "http://",
        "http:///v1",
        "http://:8000/v1",
        "http://gpu-a:0/v1",
        "http://gpu-a:65536/v1",
        "http://gpu-a:port/v1",
        "http://[::1/v1",
        None,
        8000,
        b"http://gpu-a:8000/v1",
        ["http://gpu-a:8000/v1"],
    ],
)
def test_what_is_no_address_is_refused_with_an_example(url: object) -> None:
    with pytest.raises(UsageError, match=re.escape("an http(s) URL such as 'http://gpu-a:8000/v1'")):
        Backend(url)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url",
    ["http://gpu a/v1", "http://gpu-a/v 1", "http://gpu-a\n/v1", "http://gpu-a/v1\t/x", "http://gpu-a/\x00"],
)
def test_white_space_inside_an_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="white space or control characters"):
        Backend(url)


@pytest.mark.parametrize(
    "url", ["http://gpu-a/v1?version=hunter2", "http://gpu-a/v1/models#hunter2", "http://gpu-a?key=hunter2"]
)
def test_query_and_fragment_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError, match="must end with its path: no query, no fragment") as caught:
        Backend(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://me:hunter2@gpu-a/v1",
        "http://hunter2@gpu-a/v1",
        "ftp://me:hunter2@gpu-a/v1",
        "http://me:hunter2@gpu-a:99999/v1",
        "http://me:hunter2@[::1/v1",
        "http://me:hunter2@/v1",
        "me:hunter2@gpu-a/v1",
    ],
)
def test_credentials_in_an_address_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError, match="put credentials into api_key=") as caught:
        Backend(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("path", ["chat/completions", "completions", "embeddings/", "responses", "models"])
def test_the_address_of_one_endpoint_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="is one endpoint; give the API root, which most often ends in /v1"):
        Backend(f"http://gpu-a/v1/{path}")


# -- keys --------------------------------------------------------------------------------------------------


def test_a_key_is_kept_and_never_shown() -> None:
    backend = Backend(URL, api_key="sk-hunter2")
    assert backend.api_key == "sk-hunter2"
    assert "hunter2" not in repr(backend)
    assert "hunter2" not in str(backend)


@pytest.mark.parametrize("key", ["", "hunter2\n", "hunter2\x00", "hünter2", b"hunter2", 7])
def test_a_key_that_no_header_can_carry_is_refused_and_not_repeated(key: object) -> None:
    with pytest.raises(UsageError, match="api_key must be a non-empty string of printable ASCII") as caught:
        Backend(URL, api_key=key)  # type: ignore[arg-type]
    assert "nter2" not in str(caught.value)


# -- models ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("models", "kept"),
    [
        (None, None),
        (["x", "y"], {"x": "x", "y": "y"}),
        (("x",), {"x": "x"}),
        ({"x"}, {"x": "x"}),
        ((name for name in "xy"), {"x": "x", "y": "y"}),
        (["x", "x"], {"x": "x"}),
        (
            {"fast": "org/Model-7B", "slow": "org/Model-70B"},
            {"fast": "org/Model-7B", "slow": "org/Model-70B"},
        ),
    ],
)
def test_models_are_names_or_a_mapping(models: object, kept: dict[str, str] | None) -> None:
    assert Backend(URL, models=models).models == kept  # type: ignore[arg-type]


def test_models_cannot_be_changed_afterwards() -> None:
    given_models = {"x": "x"}
    backend = Backend(URL, models=given_models)
    given_models["y"] = "y"
    assert backend.models == {"x": "x"}
    with pytest.raises(TypeError):
        backend.models["y"] = "y"  # type: ignore[index]


@pytest.mark.parametrize("models", ["gpt", 7, True, object()])
def test_models_of_another_shape_are_refused(models: object) -> None:
    with pytest.raises(UsageError, match="models must be a list of names or a mapping"):
        Backend(URL, models=models)  # type: ignore[arg-type]


@pytest.mark.parametrize("models", [[], (), {}, set()])
def test_no_models_is_not_the_same_as_unknown_models(models: object) -> None:
    with pytest.raises(UsageError, match="models is empty; leave it out to ask the server"):
        Backend(URL, models=models)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "models",
    [[""], ["a\nb"], [None], [1], b"gpt", [["x"]], [{"x": "y"}], {"x": ""}, {"": "x"}, {"x": None}, {1: "x"}],
)
def test_what_is_no_model_name_is_refused(models: object) -> None:
    with pytest.raises(UsageError, match=re.escape("is not a model name (a non-empty printable string)")):
        Backend(URL, models=models)  # type: ignore[arg-type]


# -- limits ------------------------------------------------------------------------------------------------

LIMITS = ("max_concurrency", "rpm", "tpm")


@pytest.mark.parametrize("what", LIMITS)
@pytest.mark.parametrize(("limit", "kept"), [(None, None), (1, 1), (2.0, 2), (10**15, 10**15)])
def test_limits_are_whole_numbers(what: str, limit: object, kept: int | None) -> None:
    value = getattr(Backend(URL, **{what: limit}), what)  # type: ignore[arg-type]
    assert value == kept
    assert value is None or type(value) is int


@pytest.mark.parametrize("what", LIMITS)
@pytest.mark.parametrize(
    "limit", [0, -1, 0.5, 1.5, float("nan"), float("inf"), "3", True, False, [], 1j, 10**40]
)
def test_other_limits_are_refused_by_name(what: str, limit: object) -> None:
    message = f"Backend: {what} must be a whole number of at least 1, or None; got {limit!r}"
    with pytest.raises(UsageError, match=re.escape(message)):
        Backend(URL, **{what: limit})  # type: ignore[arg-type]


# -- names -------------------------------------------------------------------------------------------------


def test_a_name_replaces_the_address() -> None:
    assert Backend(URL, name="the big one").name == "the big one"


@pytest.mark.parametrize("name", ["", "a\nb", "bücher", 7, b"a"])
def test_a_name_that_no_header_can_carry_is_refused(name: object) -> None:
    with pytest.raises(UsageError, match="name must be a non-empty string of printable ASCII"):
        Backend(URL, name=name)  # type: ignore[arg-type]


def test_a_host_that_no_header_can_carry_needs_a_name() -> None:
    with pytest.raises(UsageError, match="name must be a non-empty string of printable ASCII"):
        Backend("http://bücher.example/v1")
    assert Backend("http://bücher.example/v1", name="books").name == "books"


# -- the value ---------------------------------------------------------------------------------------------


def test_a_backend_is_a_value() -> None:
    one, same = Backend(URL, models=["x"], rpm=3), Backend(URL + "/", models={"x": "x"}, rpm=3)
    assert one == same
    assert one != Backend(URL, models=["x"], rpm=4)
    with pytest.raises(AttributeError):
        one.rpm = 5  # type: ignore[misc]


def test_everything_but_the_address_is_named() -> None:
    with pytest.raises(TypeError):
        Backend(URL, "key")  # type: ignore[misc]
    with pytest.raises(
        UnknownOption, match=r"unknown option max_concurency \(did you mean max_concurrency\?\)"
    ):
        Backend(URL, max_concurency=3)  # type: ignore[call-arg]
    with pytest.raises(
        UnknownOption,
        match="the options are api_key, models, max_concurrency, rpm, tpm, metrics, priority, limits, name",
    ):
        Backend(URL, weight=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("option", ["metrics", "priority"])
@pytest.mark.parametrize("value", [None, 0, 1, "yes", 5])
def test_switches_are_switches(option: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"Backend: {option} must be True or False; got {value!r}"):
        Backend(URL, **{option: value})
    assert getattr(Backend(URL, **{option: True}), option) is True


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=6,
)


@given(
    url=st.just(URL) | st.text() | st.text().map("http://{}".format) | anything,
    options=st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(("api_key", "models", "max_concurrency", "rpm", "tpm", "name"), anything),
    ),
)
def test_whatever_is_given_it_is_a_backend_or_a_usage_error(url: object, options: dict[str, object]) -> None:
    try:
        backend = Backend(url, **options)  # type: ignore[arg-type]
    except UsageError as error:
        assert str(error).startswith("Backend: ")
    else:
        assert backend.base_url.startswith(("http://", "https://"))
        assert not backend.base_url.endswith("/")
        assert backend.name.isascii()
        assert backend.name.isprintable()
