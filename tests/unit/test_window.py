"""Window: never more than the limit in any minute, against a plain list of what started."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentsched.engine.window import WINDOW_S, Charge, Window


@dataclass
class Log:
    """The oracle: everything that ever started, looked through from the beginning each time."""

    limit: int
    started: list[list[float]] = field(default_factory=list)

    def inside(self, now: float) -> float:
        return sum(amount for at, amount in self.started if at + WINDOW_S > now)

    def fits(self, now: float, amount: float) -> bool:
        return self.inside(now) + amount <= self.limit or self.inside(now) == 0

    def free_at(self, now: float, amount: float) -> float:
        times = [now, *(at + WINDOW_S for at, _ in self.started if at + WINDOW_S > now)]
        return min(time for time in times if self.fits(time, amount))


steps = st.lists(
    st.tuples(
        st.sampled_from(["start", "start", "start", "less", "more", "refund"]),
        st.integers(0, 70),  # seconds that pass before
        st.integers(0, 130),  # amount: up to more than the limit
        st.integers(0, 40),  # which earlier start is corrected
    ),
    max_size=40,
)


@given(limit=st.sampled_from([1, 7, 100]), steps=steps)
def test_the_window_says_what_a_list_says(limit: int, steps: list[tuple[str, int, int, int]]) -> None:
    window, log, now = Window(limit), Log(limit), 0.0
    charges: list[Charge] = []
    for what, wait, amount, which in steps:
        now += wait
        if what == "start":
            at = window.free_at(now, amount)
            assert at == log.free_at(now, amount)
            assert window.used == log.inside(now)
            now = at
            assert window.free_at(now, amount) == now, "what was promised holds"
            charges.append(window.charge(now, amount))
            log.started.append([now, amount])
        elif charges:
            old = int(charges[which % len(charges)].amount)
            new = {"less": old // 2, "more": old + amount, "refund": 0}[what]
            window.correct(charges[which % len(charges)], new)
            if log.started[which % len(charges)][0] + WINDOW_S > now:
                log.started[which % len(charges)][1] = new
    window.free_at(now, 0)
    assert window.used == log.inside(now)


@given(
    limit=st.integers(1, 50),
    calls=st.lists(st.tuples(st.floats(0, 30), st.integers(1, 60), st.integers(0, 60)), max_size=60),
)
def test_no_minute_ever_sees_more_than_the_limit(limit: int, calls: list[tuple[float, int, int]]) -> None:
    """Corrections here only give back: only an estimate that was too low can break the promise."""
    window, now = Window(limit), 0.0
    charges: list[Charge] = []
    for wait, amount, real in calls:
        now = window.free_at(now + wait, amount)
        charges.append(window.charge(now, amount))
        if real < amount:
            window.correct(charges[-1], real)
    for first in charges:
        minute = [c.amount for c in charges if first.at <= c.at < first.at + WINDOW_S and c.amount]
        assert sum(minute) <= limit or len(minute) == 1


@given(limit=st.integers(1, 1_000), amounts=st.lists(st.floats(0.1, 300), min_size=1, max_size=60))
def test_fractions_do_not_pile_up(limit: int, amounts: list[float]) -> None:
    window, now = Window(limit), 0.0
    for amount in amounts:
        now = window.free_at(now, amount)
        window.charge(now, amount)
        window.free_at(now, 0)
        assert window.used <= limit * (1 + 1e-12) or window.used == pytest.approx(amount)
    window.free_at(now + WINDOW_S, 0)
    assert window.used == 0


def test_what_fits_starts_at_once() -> None:
    window = Window(2)
    assert window.free_at(5.0, 1) == 5.0
    window.charge(5.0, 1)
    assert window.free_at(5.0, 1) == 5.0
    window.charge(5.0, 1)
    assert window.free_at(5.0, 1) == 65.0


def test_a_charge_counts_for_exactly_a_minute() -> None:
    window = Window(1)
    window.charge(10.0, 1)
    assert window.free_at(69.999, 1) == 70.0
    assert window.free_at(70.0, 1) == 70.0


def test_more_than_the_limit_waits_for_a_quiet_minute() -> None:
    window = Window(100)
    assert window.free_at(0.0, 500) == 0.0
    window.charge(0.0, 10)
    window.charge(30.0, 10)
    assert window.free_at(31.0, 500) == 90.0
    window.charge(90.0, 500)
    assert window.free_at(91.0, 1) == 150.0


def test_what_was_given_back_is_no_company() -> None:
    window = Window(100)
    refunded = window.charge(0.0, 60)
    window.correct(refunded, 0)
    assert window.used == 0
    assert window.free_at(1.0, 500) == 1.0


def test_only_what_really_ran_holds_up_what_is_too_large() -> None:
    window = Window(100)
    window.charge(0.0, 60)
    window.correct(window.charge(20.0, 30), 0)
    assert window.free_at(21.0, 500) == 60.0


@pytest.mark.parametrize("looked_at", [60.0, 130.0])
def test_a_correction_that_comes_too_late_changes_nothing(looked_at: float) -> None:
    window = Window(100)
    old = window.charge(0.0, 50)
    window.free_at(looked_at, 0)
    window.charge(looked_at, 20)
    window.correct(old, 90)
    assert window.used == 20
