"""What a policy gets to see: a waiting call and a backend's load, as plain numbers."""

from agentsched.model.value import value


@value
class Job:
    """A call that waits, with what the past says about it.

    Attributes:
        id: the request's.
        query: the run of a workflow that it belongs to; None outside.
        submitted_at, deadline, slo_at: engine seconds.
        input_tokens: estimated prompt tokens.
        output_tokens: expected output tokens, at least 1, capped by the caller's `max_tokens`.
    """

    id: str
    model: str | None
    query: str | None
    workflow: str | None
    step: str | None
    tenant: str | None
    priority: int
    submitted_at: float
    deadline: float | None
    slo_at: float | None
    input_tokens: int
    output_tokens: float


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
