"""Files that a user names: read as they are needed, with one clear error for what cannot be read."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from agentsched.engine.words import shown
from agentsched.errors import UsageError
from agentsched.sim.fleetfile import MAX_CHARACTERS
from agentsched.sim.trace import MAX_LINE


@contextmanager
def lines_of(path: Path) -> Generator[Iterator[str], None, None]:
    """Open a file and give its lines; of one that is too long, so much that it is seen.

    What is not UTF-8 stands as surrogates in them.

    Raises:
        UsageError: if it cannot be opened; and, without its name, if it cannot be read further on.
    """
    try:
        file = path.open(encoding="utf-8", errors="surrogateescape")
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    with file:
        yield _lines(file)


def text_of(path: Path) -> str:
    """Return all of it, or so much that it is seen that it is too long.

    Raises:
        UsageError: if it cannot be read or is no text.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            return file.read(MAX_CHARACTERS + 1)
    except UnicodeDecodeError:
        raise UsageError(f"{shown(str(path))}: the file is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _lines(file: TextIO) -> Iterator[str]:
    while True:
        try:
            line = file.readline(MAX_LINE + 1)
        except OSError as error:
            raise UsageError(f"the file cannot be read: {error.strerror}") from None
        if not line:
            return
        yield line


def _unreadable(path: Path, error: Exception) -> UsageError:
    why = error.strerror if isinstance(error, OSError) else error
    return UsageError(f"cannot read {shown(str(path))}: {why}")
