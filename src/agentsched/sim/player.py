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
        ended_at: when its last call was answered, or one was not for the first time; nan while it runs.
        completed: whether all of its calls were answered.
        given_up: whether one was not: no further ones are made.
        waits_for: per node, how many answers are missing.
        live: ids of the calls under way.
    """

    plan: Plan
    query: Query
    arrived_at: float
    waits_for: list[int]
    left: int
    ended_at: float = nan
    completed: bool = False
    given_up: bool = False
    live: dict[str, None] = field(default_factory=dict[str, None])

    @property
    def latency_s(self) -> float:
        """Seconds from arrival to end; infinite if it was not completed."""
        return self.ended_at - self.arrived_at if self.completed else inf


class Player:
    """Plays queries against a fleet in virtual time.

    Attributes:
        loop: the engine and its time.
        runs, calls: all of them, in the order in which they came.
    """

    def __init__(self, fleet: Sequence[tuple[Backend, Server]], *, policy: Policy) -> None:
        self.loop = Loop(fleet, policy=policy, on_start=self._started, on_end=self._ended)
        self.runs: list[Run] = []
        self.calls: list[CallRow] = []
        self._live: dict[str, CallRow] = {}

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
        query = Query(
            id=f"q{len(self.runs)}",
            workflow=plan.workflow,
            tenant=plan.tenant,
            priority=plan.priority,
            slo_s=plan.slo_s,
            deadline=now + plan.timeout_s if plan.timeout_s is not None else None,
        )
        waits_for = [len(node.after) for node in plan.nodes]
        run = Run(plan, query, now, waits_for, len(plan.nodes))
        self.runs.append(run)
        self.loop.feed(QueryOpened(at=now, query=query))
        for number, missing in enumerate(waits_for):
            if not missing:
                self._call(run, number)

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
        )
        call = self._live[request.id] = CallRow(run, number, now)
        run.live[request.id] = None
        self.calls.append(call)
        self.loop.submit(request, node)

    def _started(self, now: float, start: Start) -> None:
        call = self._live[start.request_id]
        call.started_at, call.backend = now, start.backend
        call.attempts += 1

    def _ended(self, now: float, end: Resolve) -> None:
        call = self._live.pop(end.request_id)
        call.ended_at, call.outcome = now, end.outcome
        run = call.run
        del run.live[end.request_id]
        if end.outcome is Outcome.COMPLETED:
            run.left -= 1
            self._follow(run, call.number)
        elif not run.given_up:
            run.given_up, run.ended_at = True, now
            for request_id in list(run.live):
                self.loop.cancel(request_id)
        if not run.live and (run.given_up or not run.left):
            self._close(now, run)

    def _follow(self, run: Run, number: int) -> None:
        """Make the calls that waited for this answer alone, unless the query has been given up."""
        for later, node in enumerate(run.plan.nodes[number + 1 :], number + 1):
            if number in node.after:
                run.waits_for[later] -= node.after.count(number)
                if not run.waits_for[later] and not run.given_up:
                    self._call(run, later)

    def _close(self, now: float, run: Run) -> None:
        if not run.left:
            run.completed, run.ended_at = True, now
        self.loop.feed(QueryClosed(at=now, query_id=run.query.id))
