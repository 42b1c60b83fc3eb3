"""`agentsched replay`: a journal back to its commands, and the first difference explained."""

from math import inf
from pathlib import Path

from agentsched.cli.policies import constructors, made
from agentsched.cli.telling import note
from agentsched.cli.textfile import lines_of
from agentsched.engine.difference import difference
from agentsched.engine.journal import named
from agentsched.engine.reader import Head, read_journal
from agentsched.engine.rerun import Rerun, Step
from agentsched.engine.words import command_words, event_words, shown
from agentsched.errors import UsageError
from agentsched.policy import Policy
from agentsched.sim.trace import checked_lines


def replay_journal(path: Path, *, policy: str | None = None, limit: int | None = None) -> bool:
    """Print a journal's events with the commands that they lead to, and the verdict.

    Args:
        policy: its name; None takes the one that the journal was recorded with, else the default.
        limit: how many events are printed; None for all.

    Returns:
        Whether no command is another one than was recorded.

    Raises:
        UsageError: if the file cannot be read or is not a journal; the message names file and line.
    """
    if policy is not None:
        made(policy)  # a name that is wrong is not the file's fault
    with lines_of(path) as lines:
        try:
            checked = (line for _, line in checked_lines(lines))
            head, entries = read_journal(checked, on_torn=_tell_of_torn)
            rerun = Rerun(head, entries, _chosen(head, policy))
            return _replayed(rerun, inf if limit is None else limit)
        except UsageError as error:
            raise UsageError(f"{shown(str(path))}: {error}") from None


def _replayed(rerun: Rerun, limit: float) -> bool:
    events = commands = 0
    found = None
    for step in rerun:
        if events < limit:
            print(_line(rerun, step))
        events += 1
        commands += len(step.commands)
        found = difference(rerun, step)
        if found is not None:
            break
    if events > limit > 0:
        print(f"... and {events - int(limit)} more events")
    if found is not None:
        print(f"a difference after {events} events, {found}")
        return False
    said = f"{events} events led to {commands} commands"
    if rerun.head.has_commands:
        print(f"no difference: {said}, as recorded")
    else:
        print(f"{said}; a journal of version {rerun.head.version} holds no commands to compare")
    return True


def _chosen(head: Head, name: str | None) -> Policy:
    """Return the policy to replay with; say so if it may not be the one that the journal was recorded with."""
    same = (one for one in constructors() if named(made(one)) == head.policy)
    name = name or next(same, "default")
    policy = made(name)
    if head.policy is None:
        note(f"the journal does not say with which policy it was recorded; replaying with {name}")
    elif named(policy) != head.policy:
        parts = ", ".join(f"{shown(part)} {shown(what)}" for part, what in head.policy.items())
        note(f"recorded with another policy ({parts}); replaying with {name}")
    return policy


def _tell_of_torn(line: int) -> None:
    note(f"line {line}, the last one, was not written to its end and is left out")


def _line(rerun: Rerun, step: Step) -> str:
    said = "; ".join(command_words(command, rerun.starts) for command in step.commands)
    event = step.recorded.event
    return f"{step.recorded.line:6d} {event.at:12.3f}  {event_words(event, rerun.starts)}" + (
        f" -> {said}" if said else ""
    )
