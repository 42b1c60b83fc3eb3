"""Deadlines against a plain table of what is live."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from agentsched.engine.deadlines import Deadlines

steps = st.lists(st.tuples(st.sampled_from("pppeedn"), st.integers(0, 50)), max_size=120)


@given(steps)
def test_what_is_due_and_next_is_what_a_table_says(steps: list[tuple[str, int]]) -> None:
    deadlines, now = Deadlines(), 0.0
    live: dict[str, float] = {}
    for number, (what, value) in enumerate(steps):
        if what == "p":
            deadlines.push(now + value, f"r{number}")
            live[f"r{number}"] = now + value
        elif what == "e" and live:
            del live[list(live)[value % len(live)]]
        elif what == "d":
            now += value / 5
            due = list(deadlines.due(now, live))
            assert sorted(due) == sorted(name for name, at in live.items() if at <= now)
            assert [live[name] for name in due] == sorted(live[name] for name in due)
            for name in due:
                del live[name]
        assert deadlines.next(live) == min(live.values(), default=inf)


def test_a_deadline_is_due_when_it_is_reached() -> None:
    deadlines = Deadlines()
    deadlines.push(5.0, "r1")
    assert list(deadlines.due(4.999, {"r1"})) == []
    assert list(deadlines.due(5.0, {"r1"})) == ["r1"]
    assert list(deadlines.due(5.0, {"r1"})) == []


def test_ending_calls_while_reading_what_is_due() -> None:
    deadlines, live = Deadlines(), {"r1": 0, "r2": 0}
    deadlines.push(1.0, "r1")
    deadlines.push(2.0, "r2")
    due: list[str] = []
    for request_id in deadlines.due(3.0, live):
        live.clear()
        due.append(request_id)
    assert due == ["r1"]


@given(st.lists(st.booleans(), min_size=150, max_size=400), st.integers(0, 5))
def test_ended_calls_do_not_pile_up(stays: list[bool], every: int) -> None:
    """A far deadline keeps its entry in the heap after its call has ended; trimming bounds how many."""
    deadlines, live = Deadlines(), {}
    for number, stay in enumerate(stays):
        deadlines.push(1e6 + number % 7, f"r{number}")
        if stay and number % (every + 2) == 0:
            live[f"r{number}"] = None
        deadlines.trim(live)
        assert len(deadlines) <= 64 + 2 * len(live)
    assert sorted(deadlines.due(2e6, live)) == sorted(live)


def test_trimming_keeps_the_order() -> None:
    deadlines = Deadlines()
    live = {f"r{n}": None for n in range(100, 110)}
    for n in range(300, 0, -1):
        deadlines.push(float(n), f"r{n}")
    deadlines.trim(live)
    assert len(deadlines) == 10
    assert list(deadlines.due(1_000.0, live)) == [f"r{n}" for n in range(100, 110)]
