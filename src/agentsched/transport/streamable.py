"""Which calls may be streamed from the backend although their callers want one answer."""

from enum import StrEnum

from agentsched.transport.head import Head
from agentsched.transport.incoming import Incoming, Kind


class Engine(StrEnum):
    """Servers whose streams were compared with their whole answers, field by field."""

    LLAMA_CPP = "llama.cpp"


_PLAIN = frozenset(
    "model messages prompt max_tokens max_completion_tokens temperature top_p top_k min_p stop seed user "
    "stream presence_penalty frequency_penalty repetition_penalty logit_bias ignore_eos min_tokens priority "
    "cache_salt metadata store reasoning_effort chat_template_kwargs".split()
)
"""Body fields under which any server's streamed answer holds all that a whole one does."""

_PROVEN = {
    Engine.LLAMA_CPP: _PLAIN | frozenset(("n", "response_format")),
}
"""The fields of engines whose streams were shown to put together to the same answer under further ones.

Logprobs are not among them: llama.cpp leaves out tokens that bring no text of their own, such as special ones.
Neither are tools: servers parse the calls of a stream and of a whole answer by different code.
"""

_RESPONSE = frozenset(
    "model input instructions max_output_tokens temperature top_p tools tool_choice parallel_tool_calls text "
    "reasoning metadata store stream user truncation include previous_response_id service_tier seed "
    "prompt_cache_key safety_identifier top_logprobs top_k max_tool_calls priority cache_salt".split()
)
"""Fields of a response's request; the last event holds the whole response whatever they say."""


def streamable(incoming: Incoming, engine: Engine | None) -> bool:
    """Whether a streamed answer would tell all that a whole one does.

    Args:
        engine: what the backend runs; None where that is not known.
    """
    match incoming.kind:
        case Kind.CHAT | Kind.COMPLETION:
            fields = _PROVEN[engine] if engine is not None else _PLAIN
            return fields.issuperset(incoming.body) and (not incoming.several or _by_n(incoming, fields))
        case Kind.RESPONSE:
            return _RESPONSE.issuperset(incoming.body)
        case _:
            return False


def _by_n(incoming: Incoming, fields: frozenset[str]) -> bool:
    """Whether several answers are to one prompt; those to many are counted in other ways when streamed."""
    return "n" in fields and not isinstance(incoming.body.get("prompt"), list)


def engine_of(head: Head) -> Engine | None:
    """Return what an answer's head tells of its server; None where it tells nothing."""
    return Engine.LLAMA_CPP if head.get(b"server") == b"llama.cpp" else None
