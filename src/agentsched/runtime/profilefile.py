"""Profiles on disk: read whole, written whole or not at all."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

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


def save_profile(profile: Profile, path: str | Path) -> None:
    """Write a profile to a file, in the place of what was there; that stays as it is if anything goes wrong.

    Raises:
        UsageError: if it cannot be written.
    """
    path = Path(path)
    try:
        handle, made = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(written(profile))
            Path(made).chmod(0o644)
            Path(made).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(made).unlink()
            raise
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
