"""Plays plans: queries arrive, each call is made as soon as what it waits for is there, and all is written down."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, nan

from agentsched.engine.commands import Resolve, Start
from agentsched.engine.events import QueryClosed, QueryOpened
from agentsched.model import Backend, Outcome, Query, Request
from agentsched.policy import Policy
from agentsched.sim.loop import Loop
from agentsched.sim.plan import Node, Plan, check_plan
from agentsched.sim.server import Server


@dataclass(slots=True)
class CallRow:
    """One call that was made; times in seconds.

    Attributes:
        number: of its node in the plan.
        started_at: when it was last given to a backend; nan if it never was.
    """

    run: "Run"
    number: int
    submitted_at: float
    started_at: float = nan
    ended_at: float = nan
    backend: str | None = None
    attempts: int = 0
    outcome: Outcome | None = None

    @property
    def node(self) -> Node:
        """What it asks for."""
        return self.run.plan.nodes[self.number]


@dataclass(slots=True)
class Run:
    """One query that arrived.

    Attributes:
        ended_at: when its last call was answered or it was given up; nan while it runs.
        completed: whether all of its calls were answered.
        given_up: whether one was not, or its deadline came: no further ones are made.
        why: how the first call that was not answered ended, or that it expired; None if it was not given up.
        waits_for: per node, how many answers are missing.
        followers: per node, those that wait for its answer, as often as they name it.
        live: ids of the calls under way.
        closed: whether it is over.
    """

    plan: Plan
    query: Query
    arrived_at: float
    waits_for: list[int] = field(init=False)
    followers: list[list[int]] = field(init=False)
    left: int = field(init=False)
    ended_at: float = nan
    completed: bool = False
    given_up: bool = False
    why: Outcome | None = None
    live: dict[str, None] = field(default_factory=dict[str, None])
    closed: bool = False

    def __post_init__(self) -> None:
        """Begin with nothing answered."""
        nodes = self.plan.nodes
        self.waits_for = [len(node.after) for node in nodes]
        self.followers = [[] for _ in nodes]
        self.left = len(nodes)
        for number, node in enumerate(nodes):
            for earlier in node.after:
                self.followers[earlier].append(number)

    @property
    def latency_s(self) -> float:
        """Seconds from arrival to end; infinite if it was not completed."""
        return self.ended_at - self.arrived_at if self.completed else inf


def query_of(plan: Plan, number: int, at: float) -> Query:
    """Return the query that a plan is when it arrives, the `number`-th to do so."""
    return Query(
        id=f"q{number}",
        workflow=plan.workflow,
        tenant=plan.tenant,
        priority=plan.priority,
        slo_s=plan.slo_s,
        deadline=at + plan.timeout_s if plan.timeout_s is not None else None,
    )


class Watch:
    """Is told what happens, before it does; a base for those who need some of it."""

    def opened(self, run: Run) -> None:
        """A query arrives."""

    def calling(self, request_id: str, call: CallRow) -> None:
        """A call is about to be made."""

    def started(self, request_id: str, call: CallRow) -> None:
        """A call has been given to a backend."""

    def ended(self, request_id: str, call: CallRow) -> None:
        """A call has ended."""

    def closed(self, run: Run) -> None:
        """A query is over."""


class Player:
    """Plays queries against a fleet in virtual time.

    Attributes:
        loop: the engine and its time.
        runs, calls: all of them, in the order in which they came.
    """

    def __init__(
        self, fleet: Sequence[tuple[Backend, Server]], *, policy: Policy, watches: Sequence[Watch] = ()
    ) -> None:
        self.loop = Loop(fleet, policy=policy, on_start=self._started, on_end=self._ended)
        self.runs: list[Run] = []
        self.calls: list[CallRow] = []
        self._live: dict[str, CallRow] = {}
        self._watches = watches

    def arrive(self, at: float, plan: Plan) -> None:
        """Have a query arrive.

        Raises:
            UsageError: if its plan cannot be carried out.
        """
        check_plan(plan)
        self.loop.at(at, lambda now: self._open(now, plan))

    def run(self, until: float = inf) -> None:
        """Play on, up to then."""
        self.loop.run(until)

    def _open(self, now: float, plan: Plan) -> None:
        query = query_of(plan, len(self.runs), now)
        run = Run(plan, query, now)
        self.runs.append(run)
        for watch in self._watches:
            watch.opened(run)
        self.loop.feed(QueryOpened(at=now, query=query))
        if query.deadline is not None and query.deadline < inf:
            self.loop.at(query.deadline, lambda _: self._expire(run))
        for number in [number for number, missing in enumerate(run.waits_for) if not missing]:
            self._reach(run, number)

    def _reach(self, run: Run, number: int) -> None:
        """Make a call whose turn it is, after its delay if it has one."""
        delay_s = run.plan.nodes[number].delay_s
        if delay_s:
            self.loop.at(self.loop.now + delay_s, lambda _: self._make_or_give_up(run, number))
        else:
            self._make_or_give_up(run, number)

    def _make_or_give_up(self, run: Run, number: int) -> None:
        """Make a call, unless its query has been given up or its deadline has come."""
        if run.given_up:
            return
        if self._is_late(run):
            self._give_up(run, Outcome.EXPIRED)
            self._end_if_over(run)
        else:
            self._call(run, number)

    def _expire(self, run: Run) -> None:
        """End a query at its deadline; the engine ends the calls under way, and the query with them."""
        if not run.live and not run.given_up and run.left:
            self._give_up(run, Outcome.EXPIRED)
            self._end_if_over(run)

    def _is_late(self, run: Run) -> bool:
        return run.query.deadline is not None and self.loop.now >= run.query.deadline

    def _call(self, run: Run, number: int) -> None:
        query, node, now = run.query, run.plan.nodes[number], self.loop.now
        request = Request(
            id=f"{query.id}.{number}",
            model=node.model,
            input_tokens=node.input_tokens if node.estimated_tokens is None else node.estimated_tokens,
            max_tokens=node.max_tokens,
            query=query.id,
            workflow=query.workflow,
            step=node.step,
            tenant=query.tenant,
            priority=query.priority,
            deadline=query.deadline,
            slo_at=run.arrived_at + query.slo_s if query.slo_s is not None else None,
            marks=node.marks,
        )
        call = self._live[request.id] = CallRow(run, number, now)
        run.live[request.id] = None
        self.calls.append(call)
        for watch in self._watches:
            watch.calling(request.id, call)
        self.loop.submit(request, node)

    def _started(self, now: float, start: Start) -> None:
        call = self._live[start.request_id]
        call.started_at, call.backend = now, start.backend
        call.attempts += 1
        for watch in self._watches:
            watch.started(start.request_id, call)

    def _ended(self, now: float, end: Resolve) -> None:
        call = self._live.pop(end.request_id)
        call.ended_at, call.outcome = now, end.outcome
        for watch in self._watches:
            watch.ended(end.request_id, call)
        run = call.run
        del run.live[end.request_id]
        self._conclude(call)

    def _conclude(self, call: CallRow) -> None:
        """Go on with what a call that has ended leads to."""
        run = call.run
        if run.closed:
            return
        if call.outcome is Outcome.COMPLETED:
            run.left -= 1
            if run.left and self._is_late(run):  # answered at the deadline: others may be in a delay now
                self._give_up(run, Outcome.EXPIRED)
            self._follow(run, call.number)
        else:
            self._give_up(run, call.outcome)
        self._end_if_over(run)

    def _follow(self, run: Run, number: int) -> None:
        """Make the calls that waited for this answer alone, unless the query has been given up."""
        for later in run.followers[number]:
            run.waits_for[later] -= 1
            if not run.waits_for[later] and not run.given_up:
                self._reach(run, later)

    def _give_up(self, run: Run, why: Outcome | None) -> None:
        """Make no further calls, and leave those under way."""
        if run.given_up:
            return
        run.given_up, run.why, run.ended_at = True, why, self.loop.now
        for request_id in list(run.live):
            self.loop.cancel(request_id)

    def _end_if_over(self, run: Run) -> None:
        if not run.closed and not run.live and (run.given_up or not run.left):
            self._close(self.loop.now, run)

    def _close(self, now: float, run: Run) -> None:
        run.closed = True
        if not run.given_up:
            run.completed, run.ended_at = True, now
        self.loop.feed(QueryClosed(at=now, query_id=run.query.id))
        for watch in self._watches:
            watch.closed(run)
