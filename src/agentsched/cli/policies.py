"""The policies that can be named: the constructors of `Policy` that need nothing."""

from collections.abc import Callable, Mapping
from inspect import Parameter, signature

from agentsched.errors import UsageError
from agentsched.policy import Policy


def constructors() -> Mapping[str, Callable[[], Policy]]:
    """Return them by name, in the order in which they are written there."""
    made = {
        name: member.__func__ for name, member in vars(Policy).items() if isinstance(member, staticmethod)
    }
    return {
        name: make
        for name, make in made.items()
        if not name.startswith("_")
        and all(one.default is not Parameter.empty for one in signature(make).parameters.values())
    }


def made(name: str) -> Policy:
    """Return the policy of that name.

    Raises:
        UsageError: if there is none.
    """
    known = constructors()
    if name not in known:
        raise UsageError(f"no policy is called {name!r}; there are {', '.join(known)}")
    return known[name]()
