"""Files that a user names: read as they are needed, with one clear error for what cannot be read."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from agentsched.errors import UsageError
from agentsched.sim.trace import MAX_LINE

MAX_BYTES = 10_000_000
"""Of a file that is read as a whole."""


@contextmanager
def lines_of(path: Path) -> Generator[Iterator[str], None, None]:
    """Open a file and give its lines; of one that is too long, so much that it is seen.

    What is not UTF-8 stands as surrogates in them.

    Raises:
        UsageError: if it cannot be opened.
    """
    try:
        file = path.open(encoding="utf-8", errors="surrogateescape")
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    with file:
        yield iter(partial(file.readline, MAX_LINE + 1), "")


def text_of(path: Path) -> str:
    """Return all of it.

    Raises:
        UsageError: if it cannot be read or is no text.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(MAX_BYTES + 1)
    except UnicodeDecodeError:
        raise UsageError(f"{path}: the file is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    if len(text) > MAX_BYTES:
        raise UsageError(f"{path}: the file is longer than {MAX_BYTES} characters")
    return text


def _unreadable(path: Path, error: Exception) -> UsageError:
    why = error.strerror if isinstance(error, OSError) else error
    return UsageError(f"cannot read {path}: {why}")
