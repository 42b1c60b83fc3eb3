"""Directory: who serves what, as configured, as listed, as refused; and when lists are asked for."""

from hypothesis import given
from hypothesis import strategies as st

from agentsched.engine.directory import MAX_CHOICES, MAX_REFUSALS, REFUSED_S, RELIST_S, Directory
from agentsched.model import Backend
from tests.strategies import MODELS, maybe, model_lists


def backend(name: str, models: object = None) -> Backend:
    return Backend(f"http://{name}/v1", name=name, models=models)  # type: ignore[arg-type]


def asked(*backends: Backend, at: float = 0.0) -> Directory:
    directory = Directory(backends)
    directory.to_ask(at, missing=False)
    return directory


def test_configured_models_are_known_from_the_start() -> None:
    directory = Directory([backend("a", ["x"]), backend("b", {"x": "org/X", "y": "org/Y"})])
    assert directory.choice("x", (), 0.0) == ("a", "b")
    assert directory.choice("y", (), 0.0) == ("b",)
    assert directory.choice("org/Y", (), 0.0) == ()
    assert directory.served() == ["x", "y"]
    assert directory.to_ask(0.0, missing=True) == []
    assert not directory.pending


def test_a_call_without_a_model_may_go_anywhere_but_not_twice() -> None:
    directory = Directory([backend("a", ["x"]), backend("b"), backend("c", ["y"])])
    assert directory.choice(None, (), 0.0) == ("a", "b", "c")
    assert directory.choice(None, ("b", "a"), 0.0) == ("c",)


def test_backends_are_asked_once_and_unknown_until_they_answer() -> None:
    directory = Directory([backend("a"), backend("b", ["x"]), backend("c")])
    assert directory.choice("x", (), 0.0) == ("b",)
    assert directory.to_ask(0.0, missing=False) == ["a", "c"]
    assert directory.to_ask(1.0, missing=True) == []
    assert directory.pending
    directory.listed("a", ("x", "z"), 1.0)
    assert directory.choice("x", (), 1.0) == ("a", "b")
    assert directory.pending
    directory.listed("c", ("y",), 1.5)
    assert not directory.pending
    assert directory.choice("y", (), 1.5) == ("c",)
    assert directory.served() == ["x", "y", "z"]
    assert directory.to_ask(1e9, missing=False) == []


def test_a_backend_that_cannot_say_may_be_tried_with_any_name() -> None:
    directory = asked(backend("a"))
    directory.listed("a", None, 1.0)
    assert directory.choice("whatever", (), 1.0) == ("a",)
    assert directory.served() == []


def test_a_backend_that_lists_nothing_serves_nothing() -> None:
    directory = asked(backend("a"))
    directory.listed("a", (), 1.0)
    assert directory.choice("x", (), 1.0) == ()
    assert directory.choice(None, (), 1.0) == ("a",)


def test_a_list_is_asked_for_again_when_a_model_is_missing_and_the_list_is_old() -> None:
    directory = asked(backend("a"))
    directory.listed("a", ("x",), 2.0)
    assert directory.to_ask(2.0 + RELIST_S - 0.001, missing=True) == []
    assert directory.to_ask(2.0 + RELIST_S, missing=False) == []
    assert directory.to_ask(2.0 + RELIST_S, missing=True) == ["a"]
    assert directory.to_ask(3.0 + RELIST_S, missing=True) == []


def test_what_was_listed_stays_known_while_the_list_is_asked_for_again() -> None:
    directory = asked(backend("a"))
    directory.listed("a", ("x",), 0.0)
    assert directory.to_ask(RELIST_S, missing=True) == ["a"]
    assert directory.pending
    assert directory.choice("x", (), RELIST_S) == ("a",)
    assert directory.choice("y", (), RELIST_S) == ()
    directory.listed("a", ("y",), RELIST_S + 1)
    assert directory.choice("x", (), RELIST_S + 1) == ()
    assert directory.choice("y", (), RELIST_S + 1) == ("a",)


def test_an_answer_nobody_asked_for_counts() -> None:
    directory = Directory([backend("a")])
    directory.listed("a", ("x",), 5.0)
    assert directory.choice("x", (), 5.0) == ("a",)
    assert directory.to_ask(5.0, missing=True) == []


def test_a_refusal_is_believed_for_a_while_and_for_one_model_only() -> None:
    directory = asked(backend("a"), backend("b", ["x", "y"]))
    directory.listed("a", None, 0.0)
    directory.refuse("a", "x", 10.0)
    directory.refuse("b", "x", 15.0)
    assert directory.choice("x", (), 10.0) == ()
    assert directory.choice("y", (), 10.0) == ("a", "b")
    assert directory.choice("x", (), 10.0 + REFUSED_S) == ("a",)
    assert directory.choice("x", (), 15.0 + REFUSED_S) == ("a", "b")


def test_a_new_list_overrules_refusals() -> None:
    directory = asked(backend("a"))
    directory.listed("a", ("x",), 0.0)
    directory.refuse("a", "x", 1.0)
    assert directory.choice("x", (), 2.0) == ()
    directory.listed("a", ("x",), 3.0)
    assert directory.choice("x", (), 3.0) == ("a",)


def test_no_list_overrules_no_refusal() -> None:
    directory = asked(backend("a"))
    directory.listed("a", None, 0.0)
    directory.refuse("a", "x", 1.0)
    directory.listed("a", None, 6.0)
    assert directory.choice("x", (), 6.0) == ()


def test_refusals_are_bounded_and_the_oldest_go_first() -> None:
    directory = asked(backend("a"))
    directory.listed("a", None, 0.0)
    for number in range(MAX_REFUSALS):
        directory.refuse("a", f"m{number}", 1.0)
    directory.refuse("a", "m0", 2.0)  # again: now the youngest
    directory.refuse("a", "one more", 2.0)
    assert len(directory._entries["a"].refused) == MAX_REFUSALS
    assert directory.choice("m1", (), 3.0) == ("a",), "the oldest is forgotten"
    assert directory.choice("m0", (), 3.0) == ()
    assert directory.choice("m2", (), 3.0) == ()
    assert directory.choice("one more", (), 3.0) == ()


def test_kept_choices_are_bounded_and_stay_right() -> None:
    directory = asked(backend("a"), backend("b", ["m1"]))
    directory.listed("a", None, 0.0)
    for number in [*range(2 * MAX_CHOICES + 10), 1, 0]:
        assert directory.choice(f"m{number}", (), 0.0) == (("a", "b") if number == 1 else ("a",))
        assert len(directory._choices) <= MAX_CHOICES


steps = st.lists(
    st.tuples(
        st.sampled_from(["look", "look", "look", "refuse", "list"]),
        st.sampled_from([0.0, 0.0, 1.0, REFUSED_S - 1, REFUSED_S]),
        st.sampled_from(MODELS),
        st.sampled_from("abc"),
        maybe(model_lists | st.just(())),
    ),
    max_size=40,
)


@given(maybe(model_lists), steps)
def test_who_serves_what_is_what_the_past_says(
    configured: tuple[str, ...] | None,
    steps: list[tuple[str, float, str | None, str, tuple[str, ...] | None]],
) -> None:
    """The oracle looks through all that was ever said."""
    directory = Directory([backend("a", configured), backend("b"), backend("c")])
    lists: dict[str, tuple[str, ...] | None] = {}
    refused: dict[tuple[str, str], float] = {}
    now = 0.0
    for what, wait, model, name, models in steps:
        now += wait
        if what == "refuse" and model is not None:
            directory.refuse(name, model, now)
            refused[name, model] = now
        elif what == "list":
            directory.listed(name, models, now)
            lists[name] = models if models is not None else lists.get(name)
            if models is not None:
                refused = {key: at for key, at in refused.items() if key[0] != name}
        expected: list[str] = []
        for each in "abc":
            if model is not None:
                if now < refused.get((each, model), -REFUSED_S) + REFUSED_S:
                    continue
                known = configured if each == "a" and configured is not None else lists.get(each, ())
                if known is not None and model not in known:
                    continue
            expected.append(each)
        assert directory.choice(model, (), now) == tuple(expected)
        assert directory.choice(model, ("b",), now) == tuple(each for each in expected if each != "b")
