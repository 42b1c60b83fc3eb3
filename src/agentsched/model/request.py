"""One call that the app wants answered, as the engine sees it: counts and context, never the body."""

from agentsched.model.value import record, value


@value
class Request:
    """What is known of a call before it runs.

    Attributes:
        model: the name that the app used; None where the path has no model and any backend will do.
        input_tokens: estimated prompt tokens, at least 0.
        max_tokens: the caller's cap on output tokens; None if it set none.
        query, workflow, step: the run this call belongs to, its template, its node; None outside.
        priority: higher is more urgent.
        deadline: engine time after which an answer is of no use; None for never.
        slo_at: engine time by which the query wishes to be done; never raises. None for no wish.
        sdk_retry: which try of the app's SDK this is; 0 for the first. The engine knows each as a call of its own.
        marks: hashes of the prompt from its beginning up to every 128th token; prompts that begin alike have the same
            first marks.
    """

    id: str
    model: str | None
    input_tokens: int
    max_tokens: int | None = None
    query: str | None = None
    workflow: str | None = None
    step: str | None = None
    tenant: str | None = None
    priority: int = 0
    deadline: float | None = None
    slo_at: float | None = None
    sdk_retry: int = 0
    marks: tuple[int, ...] = ()


@record
class Usage:
    """Tokens of a finished call, as the backend counted them.

    Attributes:
        input_tokens, output_tokens: None where the backend did not say.
        cached_tokens: input tokens that a prefix cache spared; 0 where the backend did not say.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int = 0
