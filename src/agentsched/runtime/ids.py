"""Names of requests and queries: unique over processes, in order within one."""

import itertools
import os

from agentsched.runtime.fork import watch


class RequestIds:
    """Makes names."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.start_anew()
        watch(self)

    def new(self) -> str:
        """Return the next name."""
        return f"as-{self._prefix}-{next(self._numbers):x}"

    def hold(self) -> None: ...

    def let_go(self) -> None: ...

    def start_anew(self) -> None:
        """Be told apart from the parent."""
        self._prefix = os.urandom(4).hex()
