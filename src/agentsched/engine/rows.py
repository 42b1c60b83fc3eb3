"""The rows of the engine's tables. State and its bookkeeping; the decisions are the engine's."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentsched.engine.queue import Choice, Key
from agentsched.engine.window import Charge, Window
from agentsched.errors import UsageError
from agentsched.model import Backend, BackendLoad, Failure, Job, Request, Usage
from agentsched.predict import Speed
from agentsched.predict.speed import BATCH_SLOPE


@dataclass(slots=True)
class RequestRow:
    """A live request: it waits (`attempt` is None) or runs.

    Attributes:
        tried: backends that failed it, in that order.
        choice: the lane it waits in.
    """

    request: Request
    job: Job
    key: Key
    choice: Choice = ()
    tried: tuple[str, ...] = ()
    attempts: int = 0
    orphaned: int = 0
    attempt: "AttemptRow | None" = None
    last_failure: Failure | None = None
    last_backend: str | None = None

    @property
    def tokens_wanted(self) -> float:
        """What a token limit is charged before the real numbers are known."""
        return self.job.input_tokens + self.job.output_tokens


@dataclass(slots=True)
class AttemptRow:
    """A call at a backend.

    Attributes:
        prefill_ahead: input tokens that the backend had to read before this call's own.
        first_load: the backend's load integral when the first token came.
        charges: what it was charged on the backend's request and token limits.
    """

    id: int
    request_id: str
    backend: "BackendRow"
    started_at: float
    input_tokens: int
    prefill_ahead: int
    request_charge: Charge | None
    token_charge: Charge | None
    tokens: int = 0
    first_at: float | None = None
    first_tokens: int = 0
    first_load: float = 0.0


@dataclass(slots=True)
class BackendRow:
    """A backend with what runs there and what was learned of it.

    Attributes:
        has_slot: whether fewer calls run there than it may be given.
    """

    name: str
    spec: Backend
    index: int
    speed: Speed = field(default_factory=Speed)
    running: dict[int, AttemptRow] = field(default_factory=dict[int, AttemptRow])
    has_slot: bool = True
    prefill_tokens: int = 0
    started: int = 0
    failed: int = 0
    last_failure: Failure | None = None
    rpm: Window | None = None
    tpm: Window | None = None
    _load: float = 0.0
    _load_at: float = 0.0

    def fits_at(self, now: float, tokens: float) -> float:
        """Return when the rate limits let a call of so many tokens start; `now` if they do already."""
        at = now
        if self.rpm is not None:
            at = max(at, self.rpm.free_at(now, 1))
        if self.tpm is not None:
            at = max(at, self.tpm.free_at(now, tokens))
        return at

    def admit(self, now: float, attempt_id: int, row: RequestRow) -> AttemptRow:
        """Take a call in."""
        self.load_integral(now)
        attempt = AttemptRow(
            attempt_id,
            row.request.id,
            self,
            now,
            row.request.input_tokens,
            self.prefill_tokens,
            self.rpm.charge(now, 1) if self.rpm else None,
            self.tpm.charge(now, row.tokens_wanted) if self.tpm else None,
        )
        self.running[attempt_id] = attempt
        limit = self.spec.max_concurrency
        self.has_slot = limit is None or len(self.running) < limit
        self.prefill_tokens += attempt.input_tokens
        self.started += 1
        return attempt

    def release(self, now: float, attempt: AttemptRow) -> None:
        """Free the call's room."""
        self.load_integral(now)
        del self.running[attempt.id]
        self.has_slot = True
        if attempt.first_at is None:
            self.prefill_tokens -= attempt.input_tokens

    def refund(self, attempt: AttemptRow) -> None:
        """Give back what a call that was never sent was charged."""
        if self.rpm and attempt.request_charge:
            self.rpm.correct(attempt.request_charge, 0)
        if self.tpm and attempt.token_charge:
            self.tpm.correct(attempt.token_charge, 0)

    def first_token(self, now: float, attempt: AttemptRow, tokens: int, connect_s: float) -> None:
        """Note that the prompt has been read, and learn how fast."""
        self.prefill_tokens -= attempt.input_tokens
        attempt.first_at = now
        attempt.first_tokens = tokens
        attempt.first_load = self.load_integral(now)
        read = attempt.prefill_ahead + attempt.input_tokens
        self.speed.observe_prefill(read, now - attempt.started_at - connect_s)

    def finished(self, now: float, attempt: AttemptRow, usage: Usage, *, learn: bool) -> int:
        """Settle the token limit, learn the speed, and return how many tokens were written."""
        given = usage.input_tokens if usage.input_tokens is not None else attempt.input_tokens
        written = usage.output_tokens if usage.output_tokens is not None else attempt.tokens
        if self.tpm and attempt.token_charge:
            self.tpm.correct(attempt.token_charge, given + written)
        if learn and attempt.first_at is not None and now > attempt.first_at:
            seconds = now - attempt.first_at
            batch = (self.load_integral(now) - attempt.first_load) / seconds
            self.speed.observe_decode(written - attempt.first_tokens, seconds, batch)
        return written

    def load_integral(self, now: float) -> float:
        """Return the call-seconds served up to now; its growth over a duration is the mean batch."""
        self._load += len(self.running) * (now - self._load_at)
        self._load_at = now
        return self._load

    def load(self, prefill_s: float, decode_s: float) -> BackendLoad:
        """Return what a policy sees; the arguments stand in for what was not measured yet."""
        speed = self.speed
        alone = speed.decode_s if speed.decode_s is not None else decode_s
        return BackendLoad(
            name=self.name,
            running=len(self.running),
            prefill_tokens=self.prefill_tokens,
            prefill_s_per_token=speed.prefill_s if speed.prefill_s is not None else prefill_s,
            decode_s_per_token=alone * (1.0 + BATCH_SLOPE * len(self.running)),
        )


def fleet_rows(backends: Sequence[Backend]) -> dict[str, BackendRow]:
    """Return a row for each backend, by name.

    Raises:
        UsageError: for no backends or for two with the same name or address.
    """
    _check_distinct(backends)
    return {spec.name: _row(spec, index) for index, spec in enumerate(backends)}


def _check_distinct(backends: Sequence[Backend]) -> None:
    if not backends:
        raise UsageError("Scheduler needs at least one Backend")
    for attribute in ("base_url", "name"):
        seen: dict[str, None] = {}
        for backend in backends:
            value = getattr(backend, attribute)
            if value in seen:
                raise UsageError(f"two backends have the {attribute} {value!r}; each must be given once")
            seen[value] = None


def _row(spec: Backend, index: int) -> BackendRow:
    rpm = Window(spec.rpm) if spec.rpm is not None else None
    tpm = Window(spec.tpm) if spec.tpm is not None else None
    return BackendRow(spec.name, spec, index, rpm=rpm, tpm=tpm)
