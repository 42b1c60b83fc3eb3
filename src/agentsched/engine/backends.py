"""A backend's row: what it was given, what runs there, what was learned of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentsched.engine.budget import Budget, is_late
from agentsched.engine.heard import Heard
from agentsched.engine.rows import AttemptRow, RequestRow
from agentsched.engine.window import Window
from agentsched.errors import UsageError
from agentsched.model import Backend, BackendLoad, Failure, Signals, Usage
from agentsched.predict import Calibration, Learned, Prefixes, Profile, Speed
from agentsched.predict.speed import Pace

STAY_MEMORY = 20
"""Calls after which an old one's stay has lost weight 1/e."""


@dataclass(slots=True)
class BackendRow:
    """A backend with what runs there and what was learned of it.

    Attributes:
        has_slot: whether fewer calls run there than it may be given.
        unread_tokens: of prompts released there that have not shown a first token.
        held_tokens: committed to it: prompts as far as they are not cached, and expected answers.
        read_tokens: of prompts it has read, since it is known.
        stay_s: mean seconds that a call holds its room there; None until one has ended.
        draining: whether it takes no more calls and is gone once those that run there have ended.
        homed, homed_tokens: calls that wait and would go there first, and what they would commit.
    """

    name: str
    spec: Backend
    index: int
    speed: Speed
    prefixes: Prefixes = field(default_factory=Prefixes)
    calibration: Calibration = field(default_factory=Calibration)
    budget: Budget = field(default_factory=Budget)
    heard: Heard = field(init=False)
    running: dict[int, AttemptRow] = field(default_factory=dict[int, AttemptRow])
    has_slot: bool = True
    draining: bool = False
    unread_tokens: int = 0
    held_tokens: float = 0.0
    read_tokens: int = 0
    stay_s: float | None = None
    homed: int = 0
    homed_tokens: float = 0.0
    started: int = 0
    failed: int = 0
    last_failure: Failure | None = None
    rpm: Window | None = None
    tpm: Window | None = None
    _calls: float = 0.0
    _tokens: float = 0.0
    _at: float = 0.0

    def __post_init__(self) -> None:
        """Begin with nothing heard."""
        self.heard = Heard(asked=self.spec.metrics)

    def hear(self, now: float, signals: Signals | None) -> bool:
        """Take what the engine says of its load; return whether it means more room."""
        held, running = self.held_tokens, len(self.running)
        if signals is not None and signals.kv_tokens:
            self.prefixes.bound(signals.kv_tokens)
        return self.heard.hear(now, signals, running=running, held=held, budget=self.budget)

    @property
    def learned(self) -> Learned:
        """What a later run may begin with."""
        speed = self.speed
        return Learned(
            prefill=speed.prefill.learned(), decode=speed.decode.learned(), kv_tokens=self.budget.told
        )

    # -- room -----------------------------------------------------------------------------------------

    def needs(self, row: RequestRow) -> tuple[int, float]:
        """Return how much of a call's prompt would be spared here, and what it would commit."""
        marks, job = row.request.marks, row.job
        if not marks:
            return 0, job.input_tokens + job.output_tokens
        cached = self.prefixes.hit(marks)
        if cached:  # marks stand for tokens as they were estimated; and one token at least is read
            cached = cached * job.input_tokens // max(row.request.input_tokens, 1)
            cached = max(min(cached, job.input_tokens - 1), 0)
        return cached, job.input_tokens - cached + job.output_tokens

    def has_room(self, tokens: float) -> bool:
        """Whether that may be committed too; to a backend that has nothing, anything may."""
        return self.held_tokens + tokens <= self.budget.tokens or not self.running

    def wait_s(self, calls: int, tokens: float, stay_s: float) -> float:
        """Return the seconds until there is room for so many calls more, if what runs stays as long as others did.

        Args:
            tokens: that these calls would commit.
            stay_s: how long calls stay, where none has ended here yet.
        """
        running = len(self.running)
        if not running:
            return 0.0
        most = self.spec.max_concurrency
        too_many = (running + calls - most) / running if most is not None else 0.0
        wanted = self.held_tokens + tokens - self.budget.tokens
        too_much = wanted / self.held_tokens if self.held_tokens > 0 else 0.0
        return max(too_many, too_much, 0.0) * (self.stay_s if self.stay_s is not None else stay_s)

    def fits_at(self, now: float, tokens: float) -> float:
        """Return when the rate limits let a call of so many tokens start; `now` if they do already."""
        at = now
        if self.rpm is not None:
            at = max(at, self.rpm.free_at(now, 1))
        if self.tpm is not None:
            at = max(at, self.tpm.free_at(now, tokens))
        return at

    # -- one attempt ----------------------------------------------------------------------------------

    def admit(self, now: float, attempt_id: int, row: RequestRow, cached: int, tokens: float) -> AttemptRow:
        """Take a call in that needs as much: see `needs`."""
        self._pass(now)
        request, unread = row.request, row.job.input_tokens - cached
        attempt = AttemptRow(
            attempt_id,
            request.id,
            self,
            now,
            unread,
            cached,
            self.unread_tokens,
            tokens,
            self.rpm.charge(now, 1) if self.rpm else None,
            self.tpm.charge(now, row.tokens_wanted) if self.tpm else None,
        )
        pace = self.speed.pace
        if pace is not None:
            read_s = (self.unread_tokens + unread) * pace.prefill_s
            step_s = pace.step_s(len(self.running) + self.heard.foreign(now), self.held_tokens)
            attempt.expected_s = pace.entry_s + read_s + row.job.output_tokens * step_s
        running, limit = self.running, self.spec.max_concurrency
        running[attempt_id] = attempt
        self.has_slot = limit is None or len(running) < limit
        self.unread_tokens += unread
        self.held_tokens += tokens
        self.started += 1
        if request.marks:
            self.prefixes.read(request.marks)
        return attempt

    def release(self, now: float, attempt: AttemptRow) -> None:
        """Free the call's room."""
        self._pass(now)
        del self.running[attempt.id]
        self.has_slot = True
        self.held_tokens = self.held_tokens - attempt.held_tokens if self.running else 0.0
        if attempt.first_at is None:
            self.unread_tokens -= attempt.unread_tokens

    def refund(self, attempt: AttemptRow) -> None:
        """Give back what a call that was never sent was charged."""
        if self.rpm and attempt.request_charge:
            self.rpm.correct(attempt.request_charge, 0)
        if self.tpm and attempt.token_charge:
            self.tpm.correct(attempt.token_charge, 0)

    def progressed(self, attempt: AttemptRow, tokens: int) -> None:
        """Note how much has been written: an answer that is longer than expected holds more."""
        attempt.tokens = max(attempt.tokens, tokens)
        more = attempt.unread_tokens + attempt.tokens - attempt.held_tokens
        if more > 0:
            attempt.held_tokens += more
            self.held_tokens += more

    def first_token(self, now: float, attempt: AttemptRow, tokens: int, connect_s: float) -> bool:
        """Note that the prompt has been read, learn how fast, and return whether that means more room."""
        self._pass(now)
        self.unread_tokens -= attempt.unread_tokens
        self.read_tokens += attempt.unread_tokens
        attempt.first_at = now
        attempt.first_tokens = tokens
        attempt.first_calls, attempt.first_held = self._calls, self._tokens
        attempt.first_read = self.read_tokens
        read, took_s = attempt.unread_ahead + attempt.unread_tokens, now - attempt.started_at - connect_s
        expected_s = self.speed.expected_first_s(read)
        before = self.budget.tokens
        if expected_s is not None and not self.heard.tells(now):
            late = is_late(expected_s, took_s)
            self.budget.first_token(now, attempt.started_at, self.held_tokens, late=late)
        self.speed.observe_prefill(read, took_s)
        return self.budget.tokens > before

    def finished(self, now: float, attempt: AttemptRow, usage: Usage, *, learn: bool) -> int:
        """Settle the token limit, learn the speed, and return how many tokens were written."""
        written = usage.output_tokens if usage.output_tokens is not None else attempt.tokens
        if self.tpm and attempt.token_charge:
            given = usage.input_tokens if usage.input_tokens is not None else attempt.input_tokens
            self.tpm.correct(attempt.token_charge, given + written)
        stay_s = now - attempt.started_at
        self.stay_s = stay_s if self.stay_s is None else self.stay_s + (stay_s - self.stay_s) / STAY_MEMORY
        if attempt.cached_tokens or usage.cached_tokens:
            self.prefixes.told(attempt.cached_tokens, usage.cached_tokens)
        if learn:
            self._learn(now, attempt, written, stay_s)
        return written

    def _learn(self, now: float, attempt: AttemptRow, written: int, stay_s: float) -> None:
        """Learn how fast it writes, and how far expectations are to be trusted."""
        if attempt.first_at is not None and now > attempt.first_at:
            self._pass(now)
            seconds = now - attempt.first_at
            self.speed.observe_decode(
                written - attempt.first_tokens,
                seconds,
                (self._calls - attempt.first_calls) / seconds,
                read=self.read_tokens - attempt.first_read,
                held=(self._tokens - attempt.first_held) / seconds,
            )
        if attempt.expected_s > 0 and stay_s > 0:
            self.calibration.observe(attempt.expected_s, stay_s)

    def _pass(self, now: float) -> None:
        """Add up the call-seconds and the token-seconds served; their growth over a time gives means."""
        passed = now - self._at
        if passed > 0.0:
            self._calls += len(self.running) * passed
            self._tokens += self.held_tokens * passed
            self._at = now

    # -- what a policy sees ---------------------------------------------------------------------------

    def load(self, now: float, cached_tokens: int, pace: Pace) -> BackendLoad:
        """Return what a policy sees of it."""
        running = len(self.running) + self.heard.foreign(now)
        return BackendLoad(
            self.name,
            running,
            self.unread_tokens,
            cached_tokens,
            pace.entry_s,
            pace.prefill_s,
            pace.step_s(running, self.held_tokens),
            pace.batch_s,
            pace.read_s,
        )


def fleet_rows(backends: Sequence[Backend], profile: Profile | None = None) -> dict[str, BackendRow]:
    """Return a row for each backend, by name, with what a profile says of it.

    Raises:
        UsageError: for no backends or for two with the same name or address.
    """
    if not backends:
        raise UsageError("Scheduler needs at least one Backend")
    _check_distinct(backends)
    profile = profile if profile is not None else Profile()
    return {spec.name: backend_row(spec, index, profile.of(spec)) for index, spec in enumerate(backends)}


def _check_distinct(backends: Sequence[Backend]) -> None:
    """Raise a UsageError if two backends have the same name or address."""
    for attribute in ("base_url", "name"):
        seen: dict[str, None] = {}
        for backend in backends:
            value = getattr(backend, attribute)
            if value in seen:
                raise UsageError(f"two backends have the {attribute} {value!r}; each must be given once")
            seen[value] = None


def backend_row(spec: Backend, index: int, learned: Learned | None = None) -> BackendRow:
    """Return the row of a backend of which no more is known yet than an earlier run has learned."""
    rpm = Window(spec.rpm) if spec.rpm is not None else None
    tpm = Window(spec.tpm) if spec.tpm is not None else None
    row = BackendRow(spec.name, spec, index, Speed(learned), rpm=rpm, tpm=tpm)
    if learned is not None and learned.kv_tokens:
        row.prefixes.bound(learned.kv_tokens)
        row.budget.tell(learned.kv_tokens)
    return row
