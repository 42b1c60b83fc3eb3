"""What a policy gets to see: a waiting call and a backend's load, as plain numbers."""

from agentsched.model.request import Request
from agentsched.model.value import record, value


@record
class Job:
    """A call that waits, with what the past says about it; whatever is known of the request can be asked of it.

    Attributes:
        submitted_at, deadline, slo_at: engine seconds.
        input_tokens: estimated prompt tokens.
        output_tokens: expected output tokens, at least 1, capped by the caller's `max_tokens`.
    """

    request: Request
    submitted_at: float
    output_tokens: float

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

    @property
    def input_tokens(self) -> int:
        return self.request.input_tokens


@value
class BackendLoad:
    """A backend at the moment of a decision.

    Attributes:
        running: calls released to it and not ended.
        prefill_tokens: input tokens released to it that have not shown a first token yet.
        prefill_s_per_token: learned seconds to read one input token.
        decode_s_per_token: learned seconds to write one output token if one more call joined.
    """

    name: str
    running: int
    prefill_tokens: int
    prefill_s_per_token: float
    decode_s_per_token: float
