"""The engine's rules once more, in the plainest way: everything is searched, nothing is remembered cleverly.

`Shadow.take(event, commands)` says whether the commands are what the rules ask for after the event. It knows
the events, the fleet and nothing of the engine. Which backend a call goes to is left open: that is the
policy's choice. That it may go there, and that nobody better ranked could have gone anywhere, is not.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from agentsched.engine.commands import Abort, Command, ListModels, Resolve, Start, WakeAt
from agentsched.engine.events import (
    Cancelled,
    Closed,
    Event,
    Failed,
    Finished,
    ModelsListed,
    Progressed,
    QueryClosed,
    QueryOpened,
    Submitted,
    Woke,
)
from agentsched.model import Backend, Failure, FailureKind, Outcome, Reason, Request

MINUTE_S = 60.0
BELIEVED_S = 30.0
RELIST_S = 5.0
SETTLE_S = 0.5
MAX_ORPHANED = 3
MOST_TOKENS = 131_072
USUAL_TOKENS = 256.0
TEMPLATE_TOKENS = 32
CREDIBLE = 5.0
PROMPTS = 50
SLACK = 1e-6
"""Tokens: sums of floats in another order differ by less."""

End = tuple[Outcome, Reason | None]


@dataclass(eq=False)
class Use:
    """What a started call counts on its backend's limits."""

    at: float
    requests: float
    tokens: float


@dataclass(eq=False)
class Call:
    """A request from the cradle to the grave."""

    request: Request
    rank: float
    number: int
    prompt_tokens: int
    expected_tokens: float
    choice: tuple[str, ...] = ()
    tried: list[str] = field(default_factory=list)
    attempts: int = 0
    orphaned: int = 0
    attempt: int | None = None
    backend: str | None = None
    failed_at: str | None = None
    use: Use | None = None
    seen_tokens: int = 0
    kept: int = 0
    began: bool = False
    last_failure: Failure | None = None
    end: Resolve | None = None

    @property
    def place(self) -> tuple[int, float, int]:
        """By priority, then those who had a part of their answer, then by rank, then first come, first served."""
        return (-self.request.priority, -inf if self.began else self.rank, self.number)

    @property
    def wanted(self) -> float:
        return self.prompt_tokens + self.kept + self.expected_tokens

    def keep(self, tokens: int) -> None:
        """So much of the answer is there."""
        self.expected_tokens = max(self.expected_tokens - (tokens - self.kept), 1.0)
        self.kept = tokens
        self.began = self.began or tokens > 0


class Shadow:
    """What must be true after the events so far.

    Args:
        rank: what the engine's policy ranks by; 0 for all is first come, first served.
    """

    def __init__(self, fleet: Sequence[Backend], max_queued: int, rank: Callable[[Request], float]) -> None:
        self.fleet = {backend.name: backend for backend in fleet}
        self.max_queued = max_queued
        self.rank = rank
        self.now = 0.0
        self.closed = False
        self.calls: dict[str, Call] = {}
        self.running: dict[int, Call] = {}
        self.attempt_ids: set[int] = set()
        self.uses: dict[str, list[Use]] = defaultdict(list)
        self.lists: dict[str, tuple[str, ...] | None] = {}
        self.asked_at: dict[str, float] = {}
        self.pending: set[str] = set()
        self.settles_at = -inf
        self.held_up = False
        self.refused: dict[tuple[str, str], float] = {}
        self.max_calls: dict[str, int | None] = {}
        self.lengths: dict[tuple[object, ...], list[int]] = defaultdict(list)
        self.prompts: dict[str | None, list[tuple[float, float]]] = defaultdict(list)
        self.armed = inf
        self._ends: dict[str, End] = {}
        self._asks: list[str] = []

    # -- reading --------------------------------------------------------------------------------------

    @property
    def live(self) -> list[Call]:
        return [call for call in self.calls.values() if call.end is None]

    @property
    def waiting(self) -> list[Call]:
        return sorted((c for c in self.live if c.attempt is None), key=lambda call: call.place)

    def at(self, backend: str) -> list[Call]:
        return [call for call in self.running.values() if call.backend == backend]

    def has_slot(self, backend: str) -> bool:
        limit = self.fleet[backend].max_concurrency
        return limit is None or len(self.at(backend)) < limit

    def allowed_at(self, backend: str, call: Call, now: float) -> bool:
        """Whether the rate limits let the call start there then, if nothing else starts before."""
        spec = self.fleet[backend]
        recent = [use for use in self.uses[backend] if use.at + MINUTE_S > now]
        tokens = sum(use.tokens for use in recent)
        return (spec.rpm is None or sum(use.requests for use in recent) + 1 <= spec.rpm) and (
            spec.tpm is None or tokens + call.wanted <= spec.tpm + SLACK or tokens <= SLACK
        )

    def surely_allowed_at(self, backend: str, call: Call, now: float) -> bool:
        """The same, with rounding errors in the engine's favour."""
        spec = self.fleet[backend]
        tokens = sum(use.tokens for use in self.uses[backend] if use.at + MINUTE_S > now)
        near = spec.tpm is not None and min(tokens, abs(tokens + call.wanted - spec.tpm)) <= SLACK
        return self.allowed_at(backend, call, now) and (tokens == 0 or not near)

    def heads(self) -> list[Call]:
        """Those whom nobody in front of them with the same choice of backends holds up."""
        first: dict[tuple[str, ...], Call] = {}
        for call in self.waiting:
            first.setdefault(call.choice, call)
        return list(first.values())

    def could_start(self, call: Call) -> list[str]:
        return [b for b in call.choice if self.has_slot(b) and self.surely_allowed_at(b, call, self.now)]

    def serves(self, backend: str, model: str | None) -> bool:
        if model is None:
            return True
        if self.refused.get((backend, model), -inf) > self.now:
            return False
        configured = self.fleet[backend].models
        if configured is not None:
            return model in configured
        if backend not in self.lists:
            return False
        listed = self.lists[backend]
        return listed is None or model in listed

    @property
    def settling(self) -> bool:
        """Whether the first calls still wait for all backends to say what they serve."""
        return self.now < self.settles_at and any(name not in self.lists for name in self.pending)

    def used_calls(self, query: str) -> int:
        return sum(
            c.request.query == query and (c.end is None or c.attempts > 0) for c in self.calls.values()
        )

    # -- one event ------------------------------------------------------------------------------------

    def take(self, event: Event, commands: Iterable[Command]) -> None:
        """Check the commands of an event, and follow them."""
        self.now = max(self.now, event.at)
        self._ends, self._asks = {}, []
        newcomer = self._expect(event)
        for call in self.live:
            deadline = call.request.deadline
            if deadline is not None and deadline <= self.now:
                self._ends.setdefault(call.request.id, (Outcome.EXPIRED, None))
        if self.now >= self.settles_at and self.held_up:
            self._listed_anew()
        listed: list[str] = []
        for command in commands:
            match command:
                case Start():
                    self._started(command)
                case Abort(attempt_id):
                    call = self.running.pop(attempt_id)
                    call.attempt = None
                    assert call.request.id in self._ends, "aborted, but not to end"
                case Resolve():
                    self._resolved(command, newcomer)
                case ListModels(backend):
                    listed.append(backend)
                case WakeAt(at):
                    assert at > self.now, "a wake-up that is due already would ring for ever"
                    self.armed = min(self.armed, at)
        assert listed == self._asks
        if newcomer is not None and newcomer in self.waiting:
            assert len(self.waiting) <= self.max_queued, "it was let in though too many wait"
        for request_id in self._ends:
            assert self.calls[request_id].end is not None, f"{request_id} should have ended"
        self._check_rest()

    def _expect(self, event: Event) -> Call | None:
        """Follow what the event itself does, and write down who must end; return the newcomer."""
        match event:
            case Submitted():
                return self._submitted(event.request)
            case Progressed() if event.attempt_id in self.running:
                call = self.running[event.attempt_id]
                call.seen_tokens = max(call.seen_tokens, event.output_tokens)
            case Finished() if event.attempt_id in self.running:
                call = self._vacate(event.attempt_id)
                given, written = event.usage.input_tokens, event.usage.output_tokens
                written = call.seen_tokens if written is None else written
                assert call.use is not None
                read = call.prompt_tokens + call.kept if given is None else given
                if given is not None and not event.kept_tokens:
                    self._count_prompt(call.request, given)
                call.use.tokens = read + written
                written += event.kept_tokens
                if written > 0:
                    cap = call.request.max_tokens
                    learned = written if cap is None else min(written, cap)
                    self.lengths[self._history(call.request)].append(min(learned, MOST_TOKENS))
                self._ends[call.request.id] = (Outcome.COMPLETED, None)
            case Failed() if event.attempt_id in self.running:
                self._failed(self._vacate(event.attempt_id), event.failure)
            case Cancelled() if event.request_id in self.calls:
                if self.calls[event.request_id].end is None:
                    self._ends[event.request_id] = (Outcome.CANCELLED, event.reason)
            case ModelsListed(answered=False):
                self.pending.discard(event.backend)
                self.asked_at.pop(event.backend, None)
                self._listed_anew()
            case ModelsListed():
                self.lists[event.backend] = (
                    event.models if event.models is not None else self.lists.get(event.backend)
                )
                self.asked_at[event.backend] = self.now
                self.pending.discard(event.backend)
                if event.models is not None:
                    self.refused = {key: at for key, at in self.refused.items() if key[0] != event.backend}
                self._listed_anew()
            case QueryOpened():
                self.max_calls[event.query.id] = event.query.max_calls
            case QueryClosed():
                pass  # its limit holds on
            case Woke():
                pass  # whoever rings the bell knows whether it was the one that was armed
            case Closed():
                self.closed = True
                for call in self.live:
                    how = Outcome.CANCELLED if call.attempts else Outcome.REJECTED
                    self._ends[call.request.id] = (how, Reason.CLOSED)
            case _:
                pass  # of an attempt that is over
        return None

    def _submitted(self, request: Request) -> Call:
        limit = self.max_calls.get(request.query or "")
        exhausted = limit is not None and self.used_calls(request.query or "") >= limit
        past = self.lengths[self._history(request)]
        mean = sum(past) / len(past) if past else USUAL_TOKENS
        expected = max(1.0, mean if request.max_tokens is None else min(mean, request.max_tokens))
        prompt = self._prompt_tokens(request)
        call = self.calls[request.id] = Call(request, self.rank(request), len(self.calls), prompt, expected)
        if self.closed:
            self._ends[request.id] = (Outcome.REJECTED, Reason.CLOSED)
        elif exhausted:
            self._ends[request.id] = (Outcome.REJECTED, Reason.CALL_LIMIT)
        else:
            self._enqueue(call)
        return call

    def _failed(self, call: Call, failure: Failure) -> None:
        backend, model = call.backend, call.request.model
        assert backend is not None
        assert call.use is not None
        if failure.kind is not FailureKind.UNABLE or call.last_failure is None:
            call.last_failure, call.failed_at = failure, call.backend
        else:
            call.backend = call.failed_at
        call.keep(failure.kept_tokens or 0)
        if failure.kind in (FailureKind.REFUSED, FailureKind.UNSENDABLE, FailureKind.UNABLE):
            call.use.requests = call.use.tokens = 0
        if failure.kind is FailureKind.UNKNOWN_MODEL and model is not None:
            self.refused[backend, model] = self.now + BELIEVED_S
        if failure.kind is FailureKind.OWNER_GONE and call.orphaned < MAX_ORPHANED:
            call.orphaned += 1
        else:
            call.tried.append(backend)
        over = failure.delivered and failure.kept_tokens is None
        if over or failure.kind in (FailureKind.INVALID, FailureKind.UNSENDABLE):
            self._ends[call.request.id] = (Outcome.FAILED, None)
        else:
            self._enqueue(call)

    def _listed_anew(self) -> None:
        self.held_up = self.settling
        if not self.held_up:
            for call in self.waiting:
                moves = not call.choice or self._choice(call) != call.choice
                if moves and call.request.id not in self._ends:
                    self._enqueue(call)

    def _choice(self, call: Call) -> tuple[str, ...]:
        return tuple(
            name for name in self.fleet if name not in call.tried and self.serves(name, call.request.model)
        )

    def _enqueue(self, call: Call) -> None:
        """Find where the call may go, who has to be asked, and whether there is any hope."""
        call.choice = self._choice(call)
        missing = not call.choice and not call.tried
        for name, spec in self.fleet.items():
            if spec.models is None and name not in self.pending:
                asked_at = self.asked_at.get(name)
                if asked_at is None:
                    self.settles_at = self.now + SETTLE_S
                unlisted = self.lists.get(name) is None
                if asked_at is None or ((missing or unlisted) and asked_at + RELIST_S <= self.now):
                    self.pending.add(name)
                    self.asked_at[name] = self.now
                    self._asks.append(name)
        if call.request.model is not None and self.settling:
            call.choice, self.held_up = (), True
        if not call.choice and not self.pending:
            hopeless: End = (Outcome.REJECTED, Reason.UNKNOWN_MODEL)
            self._ends[call.request.id] = hopeless if call.last_failure is None else (Outcome.FAILED, None)

    # -- commands -------------------------------------------------------------------------------------

    def _started(self, command: Start) -> None:
        call, name = self.calls[command.request_id], command.backend
        assert not self.closed
        assert call.end is None
        assert call.attempt is None
        assert call.request.id not in self._ends, "started, but it should have ended"
        assert command.attempt_id not in self.attempt_ids, "an attempt's id came twice"
        assert name in call.choice
        assert name not in call.tried
        assert self.has_slot(name), f"{name} is full"
        assert self.allowed_at(name, call, self.now), f"{name} has no allowance left"
        for other in self.heads():
            assert other.place >= call.place or not self.could_start(other), (
                f"{other.request.id} was overtaken"
            )
            assert other is call or other.choice != call.choice, (
                f"{other.request.id} was overtaken in its lane"
            )
        self.attempt_ids.add(command.attempt_id)
        call.attempt, call.backend, call.seen_tokens = command.attempt_id, name, 0
        call.attempts += 1
        call.use = Use(self.now, 1, call.wanted)
        self.uses[name].append(call.use)
        self.running[command.attempt_id] = call

    def _resolved(self, command: Resolve, newcomer: Call | None) -> None:
        call = self.calls[command.request_id]
        assert call.end is None, "a call ended twice"
        assert call.attempt is None, "ended, but it runs"
        full = (Outcome.REJECTED, Reason.QUEUE_FULL)
        if (
            call is newcomer
            and (command.outcome, command.reason) == full
            and call.request.id not in self._ends
        ):
            assert len(self.waiting) > self.max_queued
            self._ends[call.request.id] = full
        assert (command.outcome, command.reason) == self._ends.get(call.request.id)
        assert command == Resolve(
            request_id=call.request.id,
            outcome=command.outcome,
            failure=call.last_failure if command.outcome is Outcome.FAILED else None,
            backend=call.backend,
            attempts=call.attempts,
            reason=command.reason,
        )
        call.end = command

    def _vacate(self, attempt_id: int) -> Call:
        call = self.running.pop(attempt_id)
        call.attempt = None
        return call

    # -- between events -------------------------------------------------------------------------------

    def _check_rest(self) -> None:
        """Nobody waits who could run, and whoever waits for a point in time will be woken by then."""
        for call in self.live:
            deadline = call.request.deadline
            assert deadline is None or self.now < deadline
            assert deadline is None or self.armed <= deadline, "nobody will notice the deadline"
            held = call.attempt is None and call.request.model is not None and self.settling
            assert not held or self.armed <= self.settles_at, "nobody will notice that the fleet is known"
        for call in self.heads():
            assert not self.could_start(call), f"{call.request.id} waits for nothing"
            for name in call.choice:
                if self.has_slot(name):
                    assert self.armed <= self._free_at(name, call), "nobody will notice the allowance"
        if self.closed:
            assert not self.live

    def _free_at(self, backend: str, call: Call) -> float:
        later = sorted(use.at + MINUTE_S for use in self.uses[backend] if use.at + MINUTE_S > self.now)
        return next(at for at in later if self.surely_allowed_at(backend, call, at))

    def _count_prompt(self, request: Request, counted: int) -> None:
        estimated = request.input_tokens
        if estimated >= TEMPLATE_TOKENS:
            known = min(max(counted, estimated / CREDIBLE), estimated * CREDIBLE)
            self.prompts[request.model].append((estimated, known))

    def _prompt_tokens(self, request: Request) -> int:
        """What the prompt should have by what was counted before, of which an old one weighs less."""
        seen = self.prompts[request.model]
        weights = [(1 - 1 / PROMPTS) ** age for age in range(len(seen))][::-1]
        counted = sum(weight * known for weight, (_, known) in zip(weights, seen, strict=True))
        estimated = sum(weight * estimate for weight, (estimate, _) in zip(weights, seen, strict=True))
        return round(request.input_tokens * counted / estimated) if seen else request.input_tokens

    @staticmethod
    def _history(request: Request) -> tuple[object, ...]:
        return (request.model, request.workflow, request.step)
