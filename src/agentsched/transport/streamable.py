"""Which calls may be streamed from the backend although their callers want one answer."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from agentsched.model.value import record
from agentsched.transport.head import Head
from agentsched.transport.incoming import Incoming, Kind


class Engine(StrEnum):
    """Servers whose streams were compared with their whole answers, field by field."""

    LLAMA_CPP = "llama.cpp"
    VLLM = "vllm"


_PLAIN = frozenset(
    "model messages prompt max_tokens max_completion_tokens temperature top_p top_k min_p stop seed user "
    "stream presence_penalty frequency_penalty repetition_penalty logit_bias ignore_eos min_tokens priority "
    "cache_salt metadata store reasoning_effort chat_template_kwargs".split()
)
"""Body fields under which any server's streamed answer holds all that a whole one does."""


@record
class _Proof:
    """What an engine's streams were shown to put together to the same answer.

    Attributes:
        fields: of the body, under which they do.
        prompts: whether they do where there are several prompts.
    """

    fields: frozenset[str]
    prompts: bool


_PROVEN = {
    Engine.LLAMA_CPP: _Proof(_PLAIN | frozenset(("n", "response_format")), prompts=False),
    Engine.VLLM: _Proof(
        _PLAIN
        | frozenset(
            "n response_format structured_outputs logprobs top_logprobs return_tokens_as_token_ids return_token_ids "
            "stop_token_ids include_stop_str_in_output skip_special_tokens spaces_between_special_tokens bad_words "
            "allowed_token_ids length_penalty truncate_prompt_tokens include_reasoning add_generation_prompt "
            "continue_final_message request_id service_tier".split()
        ),
        prompts=True,
    ),
}
"""Shown by `tests/real`, with llama.cpp of 2026-10 and vLLM 0.32; fields that are null do not count.

Not among them: llama.cpp's logprobs, which leave out tokens that bring no text of their own, such as special
ones; tools anywhere, since servers parse the calls of a stream and of a whole answer by different code, which
disagrees where a call is malformed or cut; and what vLLM refuses in a stream or answers otherwise
(`prompt_logprobs`, `echo`, beam search).
"""

_UNKNOWN = _Proof(_PLAIN, prompts=False)

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
            proof = _PROVEN[engine] if engine is not None else _UNKNOWN
            if not proof.fields.issuperset(incoming.body):
                return False
            return not isinstance(incoming.body.get("prompt"), list) or proof.prompts or not incoming.several
        case Kind.RESPONSE:
            return _RESPONSE.issuperset(incoming.body)
        case _:
            return False


def engine_of(head: Head) -> Engine | None:
    """Return what the head of an answer tells of its server; None where it tells nothing."""
    return Engine.LLAMA_CPP if head.get(b"server") == b"llama.cpp" else None


def engine_by_fingerprint(answer: Mapping[str, Any]) -> Engine | None:
    """Return what a whole answer tells of its server; None where it tells nothing."""
    fingerprint = answer.get("system_fingerprint")
    return Engine.VLLM if isinstance(fingerprint, str) and fingerprint.startswith("vllm-") else None
