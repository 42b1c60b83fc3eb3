"""What has come of an answer that did not come to its end, and how another backend is asked for the rest."""

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, cast

from agentsched.model.value import record
from agentsched.transport.gist import ChoicesGist
from agentsched.transport.incoming import Incoming, Kind
from agentsched.transport.jsontext import dumps
from agentsched.transport.tokenids import TokenIds

_FIELDS = frozenset(
    "model messages prompt max_tokens max_completion_tokens temperature top_p top_k min_p stop seed user "
    "stream stream_options presence_penalty frequency_penalty repetition_penalty logit_bias ignore_eos min_tokens "
    "priority cache_salt metadata store chat_template_kwargs".split()
)
"""Body fields that say the same of the rest of an answer as of the whole. Not among them: those by which an answer has
a form that its rest has not, such as `tools`, `response_format` and `logprobs`."""

_OF_A_CHAT = frozenset(("messages", "chat_template_kwargs"))

_AS_USUAL: Mapping[str, Any] = MappingProxyType(
    {
        "n": 1,
        "best_of": 1,
        "logprobs": False,
        "echo": False,
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
    }
)
"""What other fields may hold as well, and null: as if they were not there."""

_CAPS = ("max_tokens", "max_completion_tokens")


class Way(StrEnum):
    """How a backend goes on with a text that another one began."""

    PROMPT = "after the prompt"
    """What is to be completed is the prompt and the text."""

    MESSAGE = "as its own last message"
    """vLLM, llama.cpp: where they are told to."""

    IDS = "after the ids of its tokens"
    """vLLM: token by token as if nothing had happened, where other ways cut the text into tokens anew."""

    ANEW = "from the beginning"
    """Nothing was said yet, though the caller knows that somebody will speak."""


@record
class Partial:
    """An answer under way: text, and nothing else.

    Attributes:
        gist: what has come, from one backend or from several, one after the other.
        event: the first event, by which those of another backend are made to look like the first one's.
        tokens: of the answer so far.
        ids: of all tokens so far; None where not all are known.
    """

    gist: ChoicesGist
    event: Mapping[str, Any]
    tokens: int
    ids: TokenIds | None = None

    @property
    def text(self) -> str:
        """The answer so far."""
        return self.gist.text


def extendable(incoming: Incoming) -> bool:
    """Whether there is a way to go on with an answer to this call that is text alone so far."""
    body = _telling(incoming)
    if incoming.several or not _FIELDS.issuperset(body):
        return False
    if any(type(body.get(cap, 1)) is not int for cap in _CAPS):
        return False
    if incoming.kind is Kind.CHAT:
        messages: Any = body.get("messages")
        last: Any = cast("list[Any]", messages)[-1] if isinstance(messages, list) and messages else None
        return isinstance(last, dict) and cast("dict[str, Any]", last).get("role") != "assistant"
    # without a cap some servers write 16 tokens, and others to their end: how many are left is not known then
    capped = incoming.max_tokens is not None
    return incoming.kind is Kind.COMPLETION and isinstance(body.get("prompt"), str) and capped


def may_go_on_by_ids(incoming: Incoming) -> bool:
    """Whether an answer to this call may be gone on with after the ids of its tokens.

    Where a stop may begin in it, vLLM holds back text whose ids it has told.
    """
    return not incoming.body.get("stop") and extendable(incoming)


def goes_on_by_ids(incoming: Incoming) -> bool:
    """Whether a call is made of the ids of an answer's tokens so far."""
    return incoming.kind is Kind.COMPLETION and isinstance(incoming.body.get("prompt"), list)


def rest_of(incoming: Incoming, partial: Partial, way: Way, *, window: int = 0) -> Incoming:
    """Return the call that asks for the rest of an answer in a backend's way.

    Args:
        window: most tokens of prompt and answer together, at a backend that goes on by ids.
    """
    if way is Way.ANEW:
        return incoming
    body = _telling(incoming)
    for cap in _CAPS:
        if body.get(cap, 0) > 0:  # llama.cpp takes a negative one for none
            body[cap] = max(body[cap] - partial.tokens, 1)
    if type(body.get("min_tokens")) is int:
        body["min_tokens"] = max(body["min_tokens"] - partial.tokens, 0)
    kind = incoming.kind
    if way is Way.IDS:
        assert partial.ids is not None
        prompt = [*partial.ids.prompt, *partial.ids.written]
        cap = max(body.pop("max_completion_tokens", 0), 0) or max(body.get("max_tokens", 0), 0)
        body = {name: part for name, part in body.items() if name not in _OF_A_CHAT}
        body |= {"prompt": prompt, "max_tokens": cap or max(window - len(prompt), 1)}
        kind = Kind.COMPLETION
    elif way is Way.PROMPT:
        body["prompt"] += partial.text
    else:
        body["messages"] = [*body["messages"], {"role": "assistant", "content": partial.text}]
        body |= {"add_generation_prompt": False, "continue_final_message": True}
    path = str(kind) + incoming.path.removeprefix(incoming.kind)
    return replace(incoming, kind=kind, path=path, content=dumps(body), body=body)


def _telling(incoming: Incoming) -> dict[str, Any]:
    """Return the fields of the body that say something."""
    usual = _AS_USUAL
    return {
        name: value
        for name, value in incoming.body.items()
        if value is not None and (value != usual.get(name) or type(value) is not type(usual[name]))
    }
