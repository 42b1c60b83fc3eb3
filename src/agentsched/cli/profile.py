"""`agentsched profile`: measures servers and reads journals, for schedulers that begin with what is known."""

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from agentsched.cli.learned import as_json, as_table
from agentsched.cli.telling import note, printable
from agentsched.cli.textfile import lines_of
from agentsched.engine.words import shown
from agentsched.errors import AgentschedError, UsageError
from agentsched.model import Backend
from agentsched.predict import Measured, Profile
from agentsched.runtime.climb import measure
from agentsched.runtime.ladder import calls_of
from agentsched.runtime.profilefile import check_place, load_profile, save_profile
from agentsched.sim.journalprofile import journal_profile
from agentsched.sim.trace import checked_lines

MOST_SECONDS = 86_400.0


def profile_servers(
    urls: Sequence[str],
    *,
    output: Path,
    model: str | None = None,
    api_key_env: str | None = None,
    max_seconds: float = 60.0,
    max_calls: int = 150,
    journal: Path | None = None,
    json: bool = False,
) -> bool:
    """Learn from a journal and from calls to servers, one after the other, and print what was learned.

    The file has what it had, but for what is newer. It is written after the journal and after each server, whole or not
    at all, so that an interruption loses no more than the server that was being measured.

    Args:
        max_seconds, max_calls: for each server.

    Returns:
        Whether all of the servers could be measured.

    Raises:
        UsageError: for options and files that cannot work; nothing was sent then.
    """
    backends = _backends(urls, api_key_env)
    if not backends and journal is None:
        raise UsageError("profile: give the address of a server, such as http://gpu-a:8000/v1, or --journal")
    if not 1.0 <= max_seconds <= MOST_SECONDS:
        raise UsageError(f"--max-seconds is {max_seconds!r}; it must be from 1 to {MOST_SECONDS:g}")
    known = load_profile(output) if output.exists() else Profile()
    check_place(output)
    learned, well = Profile(), True
    if journal is not None:
        learned = _read(journal)
        save_profile(known.updated(learned), output)
    for backend in backends:
        measured = _measured(backend, model, max_seconds=max_seconds, max_calls=max_calls)
        if measured is None:
            well = False
            continue
        learned = learned.updated(Profile(backends=(measured,)))
        save_profile(known.updated(learned), output)
    if learned != Profile():
        print(as_json(learned) if json else as_table(learned))
    return well


def _backends(urls: Sequence[str], api_key_env: str | None) -> list[Backend]:
    key = None
    if api_key_env is not None:
        key = os.environ.get(api_key_env)
        if key is None:
            raise UsageError(f"--api-key-env: there is no environment variable {shown(api_key_env)}")
    backends = [Backend(url, api_key=key) for url in urls]
    for number, backend in enumerate(backends):
        if backend.base_url in [other.base_url for other in backends[:number]]:
            raise UsageError(f"profile: {backend.base_url} is given twice")
    return backends


def _read(path: Path) -> Profile:
    with lines_of(path) as lines:
        try:
            return journal_profile((line for _, line in checked_lines(lines)), on_torn=_tell_of_torn)
        except UsageError as error:
            raise UsageError(f"{shown(str(path))}: {error}") from None


def _tell_of_torn(line: int) -> None:
    note(f"line {line}, the last one, was not written to its end and is left out")


def _measured(backend: Backend, model: str | None, *, max_seconds: float, max_calls: int) -> Measured | None:
    """Measure a server, and show how far that is, if somebody looks; say why in a line if it cannot be."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task(shown(backend.name), total=calls_of(None, max_calls))
            climb = measure(
                backend,
                model=model,
                max_seconds=max_seconds,
                max_calls=max_calls,
                on_calls=lambda calls: progress.advance(task, calls),
            )
            measured = asyncio.run(climb)
    except UsageError:
        raise
    except AgentschedError as error:
        what = " ".join(f"{backend.base_url}: {error}".split())
        print(f"agentsched: {printable(what)}", file=sys.stderr)
        return None
    return replace(measured, at=datetime.now(UTC).isoformat(timespec="seconds"))
