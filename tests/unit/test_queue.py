"""Queue and lanes against sorted lists."""

from bisect import insort

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agentsched.engine.queue import FRONT, Choice, Key, Queue

CHOICES: list[Choice] = [("a",), ("a", "b"), ()]


class QueueMachine(RuleBasedStateMachine):
    """Push, remove, put back; after each step everything visible must agree with the lists."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue()
        self.lists: dict[Choice, list[tuple[Key, str]]] = {choice: [] for choice in CHOICES}
        self.arrivals = 0

    @property
    def entries(self) -> list[tuple[Choice, tuple[Key, str]]]:
        return [(choice, entry) for choice, entries in self.lists.items() for entry in entries]

    @rule(choice=st.sampled_from(CHOICES), priority=st.integers(-1, 1), rank=st.floats(allow_nan=False))
    def push(self, choice: Choice, priority: int, rank: float) -> None:
        self.arrivals += 1
        key, request_id = (-priority, rank, self.arrivals), f"r{self.arrivals}"
        self.queue.push(choice, key, request_id)
        insort(self.lists[choice], (key, request_id))

    @precondition(lambda self: self.entries)
    @rule(which=st.integers(0, 1_000), to=st.none() | st.sampled_from(CHOICES))
    def remove(self, which: int, to: Choice | None) -> None:
        """Take any entry out, and put it back where it was or elsewhere, as a re-listing of models does."""
        choice, (key, request_id) = self.entries[which % len(self.entries)]
        self.queue.remove(choice, key)
        self.lists[choice].remove((key, request_id))
        if to is not None:
            self.queue.push(to, key, request_id)
            insort(self.lists[to], (key, request_id))

    @rule(choice=st.sampled_from(CHOICES))
    def serve(self, choice: Choice) -> None:
        """Take the best of a lane out, as a start does."""
        if self.lists[choice]:
            key, _ = self.queue.lanes[choice].front[0]
            self.queue.remove(choice, key)
            self.lists[choice].pop(0)

    @invariant()
    def the_same_calls_wait(self) -> None:
        assert len(self.queue) == len(self.entries)
        assert sorted(self.queue) == sorted(entry for _, entry in self.entries)
        for choice, lane in self.queue.lanes.items():
            assert sorted(lane) == self.lists[choice]
            assert len(lane) == len(self.lists[choice])

    @invariant()
    def empty_lanes_do_not_exist(self) -> None:
        assert set(self.queue.lanes) == {choice for choice, entries in self.lists.items() if entries}

    @invariant()
    def entries_that_left_do_not_pile_up(self) -> None:
        for lane in self.queue.lanes.values():
            assert len(lane._heap) <= 2 * len(lane) + 1

    @invariant()
    def the_front_is_the_best_in_order(self) -> None:
        for choice, lane in self.queue.lanes.items():
            assert list(lane.front) == self.lists[choice][:FRONT]


class LazyQueueMachine(QueueMachine):
    """The same without looking at the fronts."""

    the_front_is_the_best_in_order = None  # type: ignore[assignment]


TestQueue = QueueMachine.TestCase
TestLazyQueue = LazyQueueMachine.TestCase
TestQueue.settings = TestLazyQueue.settings = settings(max_examples=60, stateful_step_count=40)


def test_order_is_priority_then_rank_then_arrival() -> None:
    queue = Queue()
    keys: list[Key] = [(0, 5.0, 4), (-1, 9.0, 3), (0, 1.0, 2), (0, 1.0, 1), (1, 0.0, 0)]
    for key in keys:
        queue.push(("a",), key, f"r{key[2]}")
    served: list[str] = []
    while queue:
        key, request_id = queue.lanes["a",].front[0]
        queue.remove(("a",), key)
        served.append(request_id)
    assert served == ["r3", "r1", "r2", "r4", "r0"]


@given(st.permutations(range(30)), st.sets(st.integers(0, 29)))
def test_whoever_leaves_the_others_keep_their_order(order: list[int], leaving: set[int]) -> None:
    """They leave unseen, so that the lane clears up in the middle of its heap."""
    queue = Queue()
    for number in order:
        queue.push(("a",), (0, 0.0, number), f"r{number}")
    for number in sorted(leaving):
        queue.remove(("a",), (0, 0.0, number))
    served: list[int] = []
    while queue:
        key, _ = queue.lanes["a",].front[0]
        queue.remove(("a",), key)
        served.append(key[2])
    assert served == sorted(set(range(30)) - leaving)


def test_an_entry_put_back_is_there_once() -> None:
    queue = Queue()
    keys: list[Key] = [(0, float(n), n) for n in range(5)]
    for key in keys:
        queue.push(("a",), key, f"r{key[2]}")
    for key in keys:
        queue.remove(("a",), key)
        queue.push(("a",), key, f"r{key[2]}")
    assert sorted(queue) == [(key, f"r{key[2]}") for key in keys]
    assert len(queue) == 5
