"""The command line: `agentsched simulate` and `agentsched replay`, with the `cli` extra."""

import os
import sys
from collections.abc import Sequence

from agentsched.errors import UsageError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 if all is well, 1 if not, 2 if it was asked for wrongly.

    Args:
        arguments: those of the process if None.
    """
    try:
        from agentsched.cli.app import app
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("agentsched"):
            raise
        sys.exit(f"agentsched: {error.name} is missing: pip install 'agentsched[cli]'")
    try:
        app(args=arguments, standalone_mode=True)
    except UsageError as error:
        _end(" ".join(str(error).splitlines()), 2)
    except BrokenPipeError:  # whoever read has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _end(str(error.strerror or error), 1)


def _end(what: str, code: int) -> None:
    print(f"agentsched: {what}", file=sys.stderr)
    sys.exit(code)
