"""What a policy gets to see: a waiting call and a backend's load, as plain numbers."""

from agentsched.model.request import Request
from agentsched.model.value import record


@record
class Job:
    """A call that waits, with what the past says about it; whatever is known of the request can be asked of it.

    Attributes:
        submitted_at, deadline, slo_at: engine seconds.
        output_tokens: expected output tokens, at least 1, capped by the caller's `max_tokens`.
        input_tokens: expected prompt tokens.
    """

    request: Request
    submitted_at: float
    output_tokens: float
    input_tokens: int

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def model(self) -> str | None:
        return self.request.model

    @property
    def query(self) -> str | None:
        return self.request.query

    @property
    def workflow(self) -> str | None:
        return self.request.workflow

    @property
    def step(self) -> str | None:
        return self.request.step

    @property
    def tenant(self) -> str | None:
        return self.request.tenant

    @property
    def priority(self) -> int:
        return self.request.priority

    @property
    def deadline(self) -> float | None:
        return self.request.deadline

    @property
    def slo_at(self) -> float | None:
        return self.request.slo_at


@record
class BackendLoad:
    """A backend at the moment of a decision about one call.

    Attributes:
        running: calls there that have not ended, others' as far as the engine tells of them.
        unread_tokens: input tokens released to it that have not shown a first token yet; what is cached aside.
        cached_tokens: how much of this call's prompt its prefix cache holds, by what was sent there before.
        entry_s: seconds until the first token of an empty prompt.
        prefill_s: seconds to read one input token.
        decode_s: seconds to write one output token if this call joined.
        batch_s: seconds by which each output token of those who run there would take longer.
        read_s: seconds that those who run there would lose per token that is read of this call's prompt.
    """

    name: str
    running: int
    unread_tokens: int
    cached_tokens: int
    entry_s: float
    prefill_s: float
    decode_s: float
    batch_s: float
    read_s: float
