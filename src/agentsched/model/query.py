"""One run of a workflow: what it is called, for whom it runs, how long it may take."""

from agentsched.model.value import value


@value
class Query:
    """A run of a workflow.

    Attributes:
        slo_s: seconds after opening by which it wishes to be done; None for no wish.
        deadline: engine time of its hard end; None for never.
        max_calls: most calls it may make; None for no limit.
    """

    id: str
    workflow: str
    tenant: str | None = None
    priority: int = 0
    slo_s: float | None = None
    deadline: float | None = None
    max_calls: int | None = None
