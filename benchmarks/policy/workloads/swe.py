"""A coding agent that repairs issues: attempts of up to five calls each, with tests in between.

Every instance, with the tokens of each call, is real (Aider on SWE-bench Lite, GPT-4o and Claude 3 Opus in
turn); no more than six attempts are taken, the agent's own limit. Two things are cut. Prompts go up to 70,000
tokens and more: in an attempt whose longest call would exceed 30,000 with its answer, the files are shortened
by as much as is too long, and so is the map of the repository that an attempt begins with. And attempts began
minutes apart: tests take a tenth of that here, from 30 s to 120 s, or a simulated day would hold few instances.

Lengths of the system prompt and of issues are estimates; they tell only what is shared.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from random import Random

from agentsched.sim.plan import Plan
from agentsched.sim.prompt import Piece, tokens_of
from benchmarks.policy.data import EditCall, edits
from benchmarks.policy.draws import tag
from benchmarks.policy.prompts import LIMIT_TOKENS, MARK_TOKENS, Draft, shared

SYSTEM = shared("aider template: edit files", 1_700)
ISSUE_TOKENS = 400
FEWEST_FILE_TOKENS = 500
MOST_ATTEMPTS = 6
MAP_LIMIT_TOKENS = 29_500
"""A prompt with a map of the repository: room for the longest choice of files."""

TEST_SHARE, FEWEST_TEST_S, MOST_TEST_S = 0.1, 30.0, 120.0


@cache
def _instances() -> tuple[tuple[str, tuple[tuple[EditCall, ...], ...]], ...]:
    """Return the instances with their attempts."""
    found: list[tuple[str, tuple[tuple[EditCall, ...], ...]]] = []
    for instance, calls in edits().items():
        numbers = list(dict.fromkeys(call.attempt for call in calls))[:MOST_ATTEMPTS]
        attempts = tuple(tuple(call for call in calls if call.attempt == number) for number in numbers)
        found.append((instance, attempts))
    return tuple(found)


def swe(dice: Random) -> Iterator[Plan]:
    """Repair one issue after the other, each as likely as any."""
    instances = _instances()
    while True:
        instance, attempts = dice.choice(instances)
        draft = Draft("swe", tag(dice))
        after = _attempt(draft, instance, attempts[0], (), 0.0)
        for before, calls in pairwise(attempts):
            apart_s = calls[0].started_s - before[0].started_s
            test_s = min(max(TEST_SHARE * apart_s, FEWEST_TEST_S), MOST_TEST_S)
            after = _attempt(draft, instance, calls, after, test_s)
        yield draft.plan()


def _attempt(
    draft: Draft, instance: str, calls: Sequence[EditCall], after: tuple[int, ...], delay_s: float
) -> tuple[int, ...]:
    issue = shared(f"issue {instance}", ISSUE_TOKENS)
    excess = max((call.prompt + call.output for call in calls if call.number), default=0)
    excess = max(excess + MARK_TOKENS - LIMIT_TOKENS, 0)
    body: tuple[Piece, ...] = ()
    for call in calls:
        if not call.number:
            now = _opening("map for", instance, min(call.prompt, MAP_LIMIT_TOKENS), issue)
        else:
            prompt = max(call.prompt - excess, SYSTEM.tokens + ISSUE_TOKENS + FEWEST_FILE_TOKENS)
            grown = prompt - tokens_of(body)
            if body and grown > 0:
                now = body = (*body, draft.own(f"reply before call {call.attempt}.{call.number}", grown))
            else:
                now = body = _opening("files for", instance, prompt, issue)
        after = (
            draft.call(
                "edit" if call.number else "choose_files", now, call.output, after=after, delay_s=delay_s
            ),
        )
        if call.number:
            body = (*body, draft.own(f"edit {call.attempt}.{call.number}", call.output))
        delay_s = 0.0
    return after


def _opening(what: str, instance: str, tokens: int, issue: Piece) -> tuple[Piece, ...]:
    rest = tokens - SYSTEM.tokens - issue.tokens
    return SYSTEM, shared(f"{what} {instance}, {rest} tokens", rest), issue
