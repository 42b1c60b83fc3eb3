"""The command line: `agentsched simulate`, `agentsched replay` and `agentsched profile`, with the `cli` extra."""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from agentsched.cli.telling import printable
from agentsched.errors import UsageError

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit: 0 if all is well, 1 if not, 2 if it was asked for wrongly, 130 if it was interrupted.

    Args:
        arguments: those of the process if None.
    """
    if sys.stdout is None:
        _end("stdout is closed", 1)
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        _end("interrupted", code)
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    try:
        from agentsched.cli.app import Wrong, app
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("agentsched"):
            raise
        _end(f"{error.name} is missing: pip install 'agentsched[cli]', or '.[cli]' in a checkout", 1)
    try:
        code = app(args=arguments or ["--help"], standalone_mode=False)
        sys.stdout.flush()
    except Wrong as error:
        _end(str(error.format_message()), 2)
    except UsageError as error:
        _end(str(error), 2)
    except BrokenPipeError:  # whoever read has seen enough
        _drop_output()
        return 1
    except OSError as error:  # what is read, and pictures, have errors of their own
        _drop_output()
        _end(f"cannot write to stdout: {error.strerror or error}", 1)
    return (code or 0) if arguments else 2


def _drop_output() -> None:
    """Have what is still to be written go nowhere: the interpreter would try once more when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end(what: str, code: int) -> NoReturn:
    print(f"agentsched: {printable(' '.join(what.splitlines()))}", file=sys.stderr)
    sys.exit(code)
