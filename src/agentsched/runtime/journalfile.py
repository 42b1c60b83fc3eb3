"""The journal on disk: written as events happen, given up rather than in anybody's way."""

import logging
from pathlib import Path

from agentsched.errors import UsageError

log = logging.getLogger("agentsched")


class JournalFile:
    """A text file that takes lines until it is closed or the disk refuses one.

    Raises:
        UsageError: if it cannot be opened for writing.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            self._file = Path(path).open("w", encoding="utf-8", buffering=1)  # noqa: SIM115 - open for as long as the scheduler is
        except OSError as error:
            raise UsageError(f"journal: cannot write {str(path)!r}: {error.strerror}") from None

    def write(self, line: str) -> None:
        """Append a line; the first failure ends the journal, not the app."""
        try:
            self._file.write(line)
        except ValueError:
            pass  # it is closed
        except OSError as error:
            log.warning("journal %s ends here: %s", self._file.name, error.strerror)
            self.close()

    def close(self) -> None:
        """Close it; what is written afterwards is dropped."""
        try:
            self._file.close()
        except OSError:
            pass  # what could not be written is not more lost than before
