"""When faults hit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentsched.testing.faults import FaultPlan, Hang, Refuse, Rule, Status, chance


def hits(rule: Rule, calls: int = 10, *, spacing: float = 1.0) -> list[int]:
    plan = FaultPlan()
    plan.rules.append(rule)
    return [n for n in range(1, calls + 1) if plan.pick(number=n, now=n * spacing) is not None]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Rule(fault=Hang()), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (Rule(fault=Hang(), nth=(2, 5)), [2, 5]),
        (Rule(fault=Hang(), between=(3.0, 6.0)), [3, 4, 5]),
        (Rule(fault=Hang(), times=2), [1, 2]),
        (Rule(fault=Hang(), nth=(2, 5, 7), between=(0.0, 6.0), times=1), [2]),
        (Rule(fault=Hang(), share=0.0), []),
    ],
)
def test_a_rule_hits_where_all_its_conditions_hold(rule: Rule, expected: list[int]) -> None:
    assert hits(rule) == expected


@given(st.integers(0, 2**32), st.floats(0.05, 0.95))
def test_chance_repeats_and_keeps_its_share(seed: int, share: float) -> None:
    first = hits(Rule(fault=Hang(), share=share, seed=seed), 400)
    assert first == hits(Rule(fault=Hang(), share=share, seed=seed), 400)
    assert abs(len(first) / 400 - share) < 0.15
    assert all(0 <= chance(seed, number) < 1 for number in range(20))


def test_the_first_rule_that_applies_decides() -> None:
    plan = FaultPlan()
    plan.rules += [Rule(fault=Status(code=429), nth=(2,)), Rule(fault=Status(code=500))]
    picked = [plan.pick(number=n, now=0.0) for n in (1, 2)]
    assert picked == [Status(code=500), Status(code=429)]
    assert [rule.hits for rule in plan.rules] == [1, 1]


def test_a_door_is_shut_only_by_a_rule_that_hits_every_call() -> None:
    plan = FaultPlan()
    plan.rules.append(Rule(fault=Refuse(), nth=(1,)))
    assert not plan.refusing(0.0)
    plan.rules.append(Rule(fault=Refuse(), between=(1.0, 2.0)))
    assert [plan.refusing(now) for now in (0.5, 1.0, 1.9, 2.0)] == [False, True, True, False]
