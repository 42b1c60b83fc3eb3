"""What has come of an answer that did not come to its end, and how another backend is asked for the rest."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, cast

from agentsched.model.value import record
from agentsched.transport.gist import ChoicesGist
from agentsched.transport.incoming import Incoming, Kind
from agentsched.transport.jsontext import dumps

_FIELDS = frozenset(
    "model messages prompt max_tokens max_completion_tokens temperature top_p top_k min_p stop seed user "
    "stream stream_options presence_penalty frequency_penalty repetition_penalty logit_bias ignore_eos min_tokens "
    "priority cache_salt metadata store chat_template_kwargs".split()
)
"""Body fields that say the same of the rest of an answer as of the whole. Not among them: those by which an answer has
a form that its rest has not, such as `tools`, `response_format` and `logprobs`."""

_CAPS = ("max_tokens", "max_completion_tokens")


class Way(StrEnum):
    """How a backend goes on with a text that another one began."""

    PROMPT = "after the prompt"
    """What is to be completed is the prompt and the text."""

    MESSAGE = "as its own last message"
    """vLLM, llama.cpp: where they are told to."""

    ANEW = "from the beginning"
    """Nothing was said yet, though the caller knows that somebody will speak."""


@record
class Partial:
    """An answer under way: text, and nothing else.

    Attributes:
        gist: what has come, from one backend or from several, one after the other.
        event: the first event, by which those of another backend are made to look like the first one's.
        tokens: of the answer so far.
    """

    gist: ChoicesGist
    event: Mapping[str, Any]
    tokens: int

    @property
    def text(self) -> str:
        """The answer so far."""
        return self.gist.text


def extendable(incoming: Incoming) -> bool:
    """Whether there is a way to go on with an answer to this call that is text alone so far."""
    body = incoming.body
    if incoming.several or not _FIELDS.issuperset(body):
        return False
    if incoming.kind is Kind.CHAT:
        messages: Any = body.get("messages")
        last: Any = cast("list[Any]", messages)[-1] if isinstance(messages, list) and messages else None
        return isinstance(last, dict) and cast("dict[str, Any]", last).get("role") != "assistant"
    # without a cap some servers write 16 tokens, and others to their end: how many are left is not known then
    capped = incoming.max_tokens is not None
    return incoming.kind is Kind.COMPLETION and isinstance(body.get("prompt"), str) and capped


def rest_fields(incoming: Incoming, partial: Partial, way: Way) -> dict[str, bytes]:
    """Return the body's fields, as JSON, that ask a backend for the rest of an answer in its way."""
    body, kept = incoming.body, partial.tokens
    if way is Way.ANEW:
        return {}
    fields: dict[str, bytes] = {}
    for cap in _CAPS:
        if isinstance(body.get(cap), int):
            fields[cap] = dumps(max(body[cap] - kept, 1))
    if isinstance(body.get("min_tokens"), int):
        fields["min_tokens"] = dumps(max(body["min_tokens"] - kept, 0))
    if way is Way.PROMPT:
        fields["prompt"] = dumps(body["prompt"] + partial.text)
        return fields
    fields["messages"] = dumps([*body["messages"], {"role": "assistant", "content": partial.text}])
    return fields | {"add_generation_prompt": b"false", "continue_final_message": b"true"}
