"""Where a journal that happens again first goes another way, and what the two ways were."""

from collections.abc import Iterable, Mapping
from itertools import zip_longest
from math import inf
from typing import cast

from agentsched.engine.commands import Command, Forget, ListModels, LookAt, Resolve, Start
from agentsched.engine.engine import Engine
from agentsched.engine.journal import named
from agentsched.engine.reader import read_journal
from agentsched.engine.rerun import Rerun, Step
from agentsched.engine.words import command_words, event_words, shown
from agentsched.errors import UsageError
from agentsched.model.value import value
from agentsched.policy import Policy


@value
class Difference:
    """The first event that leads to other commands than it did.

    Attributes:
        line: of the event in the journal, counted from 1.
        event: what happened, in words.
        recorded, now: the first command that differs; None where there is none any more.
        facts: what is known of the requests, the backends and the policy, in lines for people.
    """

    line: int
    event: str
    recorded: Command | None
    now: Command | None
    facts: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(
            (
                f"line {self.line}: {self.event}",
                f"  recorded: {_told(self.recorded)}",
                f"  now:      {_told(self.now)}",
                *(f"  {fact}" for fact in self.facts),
            )
        )


def first_difference(lines: Iterable[str], policy: Policy) -> Difference | None:
    """Return where a journal's commands are not what the events lead to now; None if they all are.

    Raises:
        UsageError: if the lines are not a journal, or one of version 1, which holds no commands.
    """
    rerun = Rerun(*read_journal(lines), policy)
    if not rerun.head.has_commands:
        raise UsageError("a journal of version 1 holds no commands to compare")
    return next((found for step in rerun if (found := difference(rerun, step)) is not None), None)


def difference(rerun: Rerun, step: Step) -> Difference | None:
    """Explain the latest step, if it leads to other commands than were recorded; what was not recorded is no other."""
    recorded, event = step.recorded.commands, step.recorded.event
    if recorded is None or recorded == step.commands:
        return None
    pairs = zip_longest(recorded, step.commands)
    then, now = next((then, now) for then, now in pairs if then != now)
    return Difference(
        line=step.recorded.line,
        event=f"at {event.at!r} s, {event_words(event, rerun.starts)}",
        recorded=then,
        now=now,
        facts=(*_requests(rerun.engine, then, now), *_backends(rerun.engine, then, now), *_policies(rerun)),
    )


def _told(command: Command | None) -> str:
    return "nothing more" if command is None else command_words(command, {})


def _requests(engine: Engine, *commands: Command | None) -> list[str]:
    ids = [command.request_id for command in commands if isinstance(command, (Start, Resolve))]
    return [_request(engine, request_id) for request_id in dict.fromkeys(ids)]


def _request(engine: Engine, request_id: str) -> str:
    story = engine.story(request_id)
    if not story:
        return f"{shown(request_id)}: no such call"
    facts = [f"{name} {_plain(fact)}" for name, fact in story[0].facts.items() if fact is not None]
    for entry in story[1:]:
        prices = entry.facts.get("expected_cost_s")
        if isinstance(prices, Mapping):
            facts.append(f"priced {_plain(cast('object', prices))}")
    return f"{shown(request_id)}: {story[-1].what}, submitted at {story[0].at!r} s, {', '.join(facts)}"


def _backends(engine: Engine, *commands: Command | None) -> list[str]:
    kinds = (Start, Resolve, ListModels, LookAt, Forget)
    names = [command.backend for command in commands if isinstance(command, kinds)]
    return [_backend(engine, name) for name in dict.fromkeys(names) if name is not None]


def _backend(engine: Engine, name: str) -> str:
    row = engine.backends.get(name)
    if row is None:
        return f"{shown(name)}: no such backend"
    return (
        f"{shown(name)}: now {len(row.running)} running of {row.spec.max_concurrency or 'any number'}, "
        f"{row.held_tokens:.0f} tokens committed of {_budget(row.budget.tokens)}, "
        f"{row.unread_tokens} input tokens unread, {row.started} started so far{', draining' if row.draining else ''}"
    )


def _budget(tokens: float) -> str:
    return f"{tokens:.0f}" if tokens < inf else "any number"


def _policies(rerun: Rerun) -> list[str]:
    then, now = rerun.head.policy or {}, named(rerun.engine.policy)
    if then == now:
        return ["the policy is the one that it was recorded with"]
    changed = [part for part in {**then, **now} if then.get(part) != now.get(part)]
    return [
        f"{shown(part)} of the policy was {shown(then.get(part, 'not there'))}, now it is {now.get(part, 'not there')}"
        for part in changed
    ]


def _plain(fact: object) -> str:
    if isinstance(fact, Mapping):
        prices = cast("Mapping[str, float]", fact)
        return ", ".join(f"{shown(name)} {price:.6g} s" for name, price in prices.items())
    return f"{fact:.9g}" if isinstance(fact, float) else shown(str(fact))
