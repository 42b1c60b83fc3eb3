"""The tree of errors: what can be caught as what, whose fault each is, and that the drawing is true."""

import inspect
import pickle
import re

import pytest

import agentsched
from agentsched import errors
from agentsched.errors import (
    AgentschedError,
    BackendError,
    BackendOverloaded,
    BackendProtocolError,
    BackendTimeout,
    BackendUnavailable,
    CallLimitReached,
    Expired,
    FleetEmpty,
    InvariantBroken,
    QueueFull,
    Rejected,
    SchedulerClosed,
    UnknownModel,
    UnknownOption,
    UsageError,
)

TREE: dict[type[AgentschedError], tuple[type[AgentschedError], str]] = {
    UsageError: (AgentschedError, "caller"),
    UnknownModel: (UsageError, "caller"),
    UnknownOption: (UsageError, "caller"),
    Rejected: (AgentschedError, "scheduler"),
    QueueFull: (Rejected, "scheduler"),
    CallLimitReached: (Rejected, "caller"),
    FleetEmpty: (Rejected, "caller"),
    SchedulerClosed: (Rejected, "caller"),
    Expired: (AgentschedError, "caller"),
    BackendError: (AgentschedError, "backend"),
    BackendUnavailable: (BackendError, "backend"),
    BackendOverloaded: (BackendError, "backend"),
    BackendTimeout: (BackendError, "backend"),
    BackendProtocolError: (BackendError, "backend"),
    InvariantBroken: (AgentschedError, "scheduler"),
}


def defined() -> set[type]:
    found = (kind for _, kind in inspect.getmembers(errors, inspect.isclass))
    return {kind for kind in found if issubclass(kind, Exception) and kind.__module__ == errors.__name__}


def test_the_tree_is_complete() -> None:
    assert defined() == {AgentschedError, *TREE}


@pytest.mark.parametrize("kind", TREE)
def test_parent_and_fault(kind: type[AgentschedError]) -> None:
    parent, fault = TREE[kind]
    assert kind.__bases__[0] is parent
    assert kind.fault == fault


def test_retry_decorators_of_frameworks_leave_them_alone() -> None:
    assert AgentschedError.__bases__ == (RuntimeError,)
    assert issubclass(UsageError, ValueError)
    assert issubclass(UnknownOption, TypeError)
    assert not any(issubclass(kind, (OSError, ConnectionError)) for kind in TREE)


def test_the_drawing_shows_each_error_below_its_parent() -> None:
    above: list[str] = []
    drawn: dict[str, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"    ([│ ]*)([├└]── )?([A-Z]\w+)", line)
        if found:
            depth = (found.start(3) - 4) // 4
            above[depth:] = [found[3]]
            drawn[found[3]] = above[depth - 1] if depth else ""
    expected = {kind.__name__: parent.__name__ for kind, (parent, _) in TREE.items()}
    assert drawn == {"AgentschedError": "", **expected}


def test_all_are_part_of_the_face() -> None:
    for kind in defined():
        assert getattr(agentsched, kind.__name__) is kind
        assert kind.__name__ in agentsched.__all__


@pytest.mark.parametrize("kind", [kind for kind in TREE if not issubclass(kind, BackendError)])
def test_nothing_was_sent_unless_it_says_so(kind: type[AgentschedError]) -> None:
    assert (kind("no").sent, kind("no").request_id, str(kind("no"))) == (False, None, "no")
    error = kind("no", sent=True, request_id="r1")
    assert (error.sent, error.request_id) == (True, "r1")


@pytest.mark.parametrize("kind", [kind for kind in TREE if issubclass(kind, BackendError)])
def test_a_backend_error_says_where_and_what_there_is(kind: type[BackendError]) -> None:
    error = kind("no", backend="a")
    assert (error.backend, error.attempts, error.partial_text, error.sent) == ("a", 1, "", True)
    error = kind("no", backend="a", attempts=2, partial_text="so", sent=False, request_id="r1")
    assert (error.attempts, error.partial_text, error.sent, error.request_id) == (2, "so", False, "r1")
    with pytest.raises(TypeError, match="backend"):
        kind("no")  # type: ignore[call-arg]


def test_only_an_overloaded_backend_says_when_to_return() -> None:
    assert BackendOverloaded("no", backend="a").retry_after_s is None
    assert not hasattr(BackendUnavailable("no", backend="a"), "retry_after_s")


@pytest.mark.parametrize("kind", TREE)
def test_errors_travel_between_processes(kind: type[AgentschedError]) -> None:
    error = kind("no", backend="a", partial_text="so") if issubclass(kind, BackendError) else kind("no")
    error.request_id = "r1"
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == "no"
    assert vars(copy) == vars(error)


def test_errors_made_for_an_sdk_arrive_as_what_they_are() -> None:
    made = type("Expired", (Expired, LookupError), {"__module__": Expired.__module__})
    copy = pickle.loads(pickle.dumps(made("no", sent=True)))
    assert type(copy) is Expired
    assert copy.sent


def test_errors_of_other_floors_travel_too() -> None:
    assert type(pickle.loads(pickle.dumps(Elsewhere("no")))) is Elsewhere


class Elsewhere(UsageError):
    """An error that another module derived."""
