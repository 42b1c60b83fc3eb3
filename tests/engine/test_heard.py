"""What is heard of a backend in parts, from its answers' heads, and what of it is taken back when it does not move."""

from math import inf

import pytest

from agentsched.engine.budget import FULL, SHARE, Budget
from agentsched.engine.heard import FRESH_S, FROZEN, LOOK_FROM, LOOK_S, WATCHED, Heard
from agentsched.model import Signals


class Told:
    """One backend of which eight calls of 100 tokens are known."""

    def __init__(self, *, running: int = 8) -> None:
        self.heard, self.budget, self.running = Heard(asked=True), Budget(), running

    def say(
        self,
        at: float,
        *,
        running: int | None = None,
        waiting: int | None = None,
        kv_usage: float | None = None,
        kv_tokens: int | None = None,
    ) -> bool:
        signals = Signals(running=running, waiting=waiting, kv_usage=kv_usage, kv_tokens=kv_tokens)
        held = 100.0 * self.running
        return self.heard.hear(at, signals, running=self.running, held=held, budget=self.budget)


# -- parts --------------------------------------------------------------------------------------------


def test_where_the_batch_is_not_told_our_own_count_is_taken() -> None:
    """Of eight calls two wait, so six fill half of the memory."""
    part, full = Told(), Told()
    part.say(0.0, waiting=2, kv_usage=0.5)
    full.say(0.0, running=6, waiting=2, kv_usage=0.5)
    assert part.budget.tokens == full.budget.tokens == pytest.approx(FULL * 800 * 6 / 8 / 0.5)


def test_a_part_does_not_make_others_calls_forgotten() -> None:
    """Who does not count the batch does not know better than who did."""
    told = Told()
    told.say(0.0, running=50, waiting=8)
    told.say(1.0, waiting=0, kv_usage=0.5)
    assert told.heard.foreign(1.0) == 50
    told.say(FRESH_S + 0.5, waiting=20, kv_usage=0.6)
    assert told.heard.foreign(FRESH_S + 0.5) == 20 - 8, "twelve at least, now that nothing else is known"
    told.say(FRESH_S + 1.0, running=8)
    assert told.heard.foreign(FRESH_S + 1.0) == 0


def test_others_calls_do_not_stay_fresh_by_parts() -> None:
    told = Told()
    told.say(0.0, running=58)
    for second in range(1, 20):
        told.say(float(second), waiting=0, kv_usage=second / 100)
    assert told.heard.foreign(19.0) == 0


def test_the_memory_stays_known_where_another_page_speaks_of_calls_only() -> None:
    told = Told()
    told.say(0.0, kv_usage=0.5)
    told.say(1.0, running=8)
    assert told.heard.kv_usage == 0.5
    assert told.heard.tells(FRESH_S)
    assert not told.heard.tells(FRESH_S + 0.1)


def test_a_page_of_calls_that_comes_between_hides_no_memory_that_stands_still() -> None:
    told = Told()
    for number in range(2 * FROZEN + 2):
        told.say(float(number), **({"running": 8} if number % 2 else {"kv_usage": 0.5}))
    assert told.heard.frozen
    told.say(50.0, kv_usage=0.6)
    assert not told.heard.frozen


def test_calls_alone_that_stand_still_are_not_believed_either() -> None:
    told = Told()
    for number in range(FROZEN + 1):
        told.say(float(number), running=50)
    assert told.heard.frozen
    assert told.heard.foreign(float(FROZEN)) == 0


def test_nothing_said_cuts_the_budget_so_far_that_nothing_more_is_heard() -> None:
    told = Told(running=16)
    told.say(0.0, waiting=1_000, kv_usage=1.0)
    assert told.budget.tokens == 100 * WATCHED
    assert WATCHED > LOOK_FROM


# -- how often ----------------------------------------------------------------------------------------


def test_answers_are_heard_as_often_as_pages_are_looked_at() -> None:
    told = Told()
    assert told.heard.news_due(0.0, LOOK_FROM)
    assert not told.heard.news_due(0.0, LOOK_FROM - 1), "there is nothing to hold back"
    told.say(1.0, kv_usage=0.5)
    assert not told.heard.news_due(LOOK_S + 0.9, 8)
    assert told.heard.news_due(LOOK_S + 1.0, 8)
    told.say(LOOK_S + 1.0, running=8)
    assert told.heard.news_due(LOOK_S + 1.0, 8), "that said nothing of memory"


# -- what is taken back -------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_usage", [0.0, 1.0])
@pytest.mark.parametrize("running", [None, 8])
def test_what_was_said_since_it_stands_still_is_taken_back(kv_usage: float, running: int | None) -> None:
    told, waiting = Told(running=16), 100 if kv_usage else 0
    told.say(0.0, running=16, kv_usage=0.4)
    before = told.budget.tokens
    for number in range(1, FROZEN + 1):
        assert told.budget.tokens != before or number == 1
        told.say(float(number), running=running, waiting=waiting, kv_usage=kv_usage)
    more = told.say(FROZEN + 1.0, running=running, waiting=waiting, kv_usage=kv_usage)
    assert told.heard.frozen
    assert told.budget.tokens == before
    assert more == (kv_usage == 1.0)
    told.say(FROZEN + 2.0, running=running, waiting=waiting, kv_usage=kv_usage)
    assert told.budget.tokens == before


def test_who_never_said_anything_else_leaves_no_bound_but_the_memory_that_it_told_of() -> None:
    silent, spoke = Told(), Told()
    for number in range(FROZEN + 1):
        silent.say(float(number), kv_usage=1.0)
        spoke.say(float(number), running=8, kv_usage=1.0, kv_tokens=10_000)
    assert silent.budget.tokens == inf
    assert spoke.budget.tokens == SHARE * 10_000


def test_what_first_tokens_taught_since_stays_where_only_calls_stand_still() -> None:
    told = Told()
    told.say(0.0, running=8)
    told.budget.first_token(0.5, 0.2, 500.0, late=True)
    learned = told.budget.tokens
    for number in range(1, FROZEN + 2):
        told.say(float(number), running=8)
    assert told.heard.frozen
    assert told.budget.tokens == learned
