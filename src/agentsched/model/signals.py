"""What an engine says of its own load."""

from agentsched.model.value import value


@value
class Signals:
    """Gauges of one engine, as far as it shows them; None for what it does not.

    Attributes:
        running, waiting: calls in its batch, and in its queue; whoever sent them.
        kv_usage: share of its KV memory that is in use, 0 to 1.
        kv_tokens: tokens that its KV memory holds.
    """

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    kv_tokens: int | None = None
