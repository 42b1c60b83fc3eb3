"""Profiles on disk: read whole, written whole or not at all."""

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from agentsched.engine.profilejson import MOST_CHARACTERS, read_profile, written
from agentsched.engine.words import shown
from agentsched.errors import UsageError
from agentsched.predict import Profile


def load_profile(path: str | Path) -> Profile:
    """Return the profile that a file holds.

    Raises:
        UsageError: if it cannot be read or holds none; the message names the file and what is wrong.
    """
    name = f"profile: {shown(str(path))}"
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(MOST_CHARACTERS + 1)
    except UnicodeDecodeError:
        raise UsageError(f"{name} is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{name} cannot be read: {_why(error)}") from None
    return read_profile(text, name)


def check_place(path: str | Path) -> None:
    """Refuse a place where no profile could be saved, before minutes go into one.

    Raises:
        UsageError: if there is no such folder, or nothing can be made in it, or the place is a folder itself.
    """
    if Path(path).is_dir():
        raise UsageError(f"profile: {shown(str(path))} is a folder; name a file in it")
    with _beside(Path(path)):
        pass


def save_profile(profile: Profile, path: str | Path) -> None:
    """Write a profile to a file, in the place of what was there; that stays as it is if anything goes wrong.

    Raises:
        UsageError: if it cannot be written.
    """
    with _beside(Path(path)) as (handle, made):
        with handle:
            handle.write(written(profile))
        made.chmod(0o644)
        made.replace(path)


@contextmanager
def _beside(path: Path) -> Generator[tuple[TextIO, Path], None, None]:
    """Open a file of another name in the same folder; it is gone in the end, unless it has got that name."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        made = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                yield file, made
        finally:
            made.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise UsageError(f"profile: {shown(str(path))} cannot be written: {_why(error)}") from None


def checked_profile(profile: object) -> Profile | None:
    """Return the profile that was given to a scheduler, itself or by the name of its file.

    Raises:
        UsageError: if it is neither, or the file holds none.
    """
    if profile is None or isinstance(profile, Profile):
        return profile
    if isinstance(profile, (str, Path)):
        return load_profile(profile)
    raise UsageError(
        f"profile must be a file that `agentsched profile` wrote, or None; got {type(profile).__name__}"
    )


def _why(error: Exception) -> str:
    return str(error.strerror or error) if isinstance(error, OSError) else str(error)
