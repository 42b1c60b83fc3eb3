"""What was learned of one backend, apart from what runs there: enough for a later run to begin with."""

from agentsched.model.value import value
from agentsched.predict.fit import Fitted


@value
class Learned:
    """What was learned of one backend.

    Attributes:
        prefill, decode: see `Speed`; None if it was not measured.
        kv_tokens: that the engine said it has memory for; None if it did not say.
    """

    prefill: Fitted | None = None
    decode: Fitted | None = None
    kv_tokens: int | None = None
