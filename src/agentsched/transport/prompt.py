"""The prompt of a call, read once: how long it is, and how it begins.

Its text is put together as chat templates do it: tools, then the messages in their order, each with its role. What is
no text, such as an image, is in it as a hash, so that it tells prompts apart and takes no room.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from agentsched.model.value import record
from agentsched.transport.jsontext import dumps
from agentsched.transport.marks import CHARS_PER_TOKEN, MARK_TOKENS, marks_of

Body = Mapping[str, Any]
Pieces = list[str]

_BEGIN, _SEPARATOR = "\x1e", "\x1f"
"""Before a role or a kind of item, and between what is said in one message."""

_SAID = frozenset(("content", "text", "tool_calls", "function", "arguments", "output"))
"""Fields of a message, and of its parts, that hold text; images and the like are no text."""

_TOLD = ("name", "content", "tool_calls", "function_call", "arguments", "output")
"""Fields of a message, or of an item of a response, that templates show, in their order."""

_TOOLS = ("tools", "functions")

_APART = (
    "chat_template",
    "documents",
    "reasoning_effort",
    "cache_salt",
    "previous_response_id",
    "conversation",
    "prompt",
)
"""Other fields that change how a chat begins, or keep its cache apart."""


@record
class Prompt:
    """What scheduling needs of a prompt.

    Attributes:
        chars: of its text and of the definitions of tools; a token id counts as `CHARS_PER_TOKEN`.
        marks: see `Request`; none where nothing is kept, as of embeddings.
    """

    chars: int
    marks: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """As estimated."""
        return self.chars // CHARS_PER_TOKEN


def chat_prompt(body: Body) -> Prompt:
    """Read the prompt of a chat completion."""
    pieces: Pieces = []
    chars = _tools(body, pieces)
    chars += _messages(body.get("messages"), "user", pieces)
    return _prompt(chars, _seed(body, _APART), "".join(pieces))


def response_prompt(body: Body) -> Prompt:
    """Read the prompt of a response: its instructions are a system message, and a plain input is a user's."""
    pieces: Pieces = []
    chars = _tools(body, pieces)
    chars += _messages(body.get("instructions"), "system", pieces)
    chars += _messages(body.get("input"), "user", pieces)
    return _prompt(chars, _seed(body, _APART), "".join(pieces))


def completion_prompt(body: Body) -> Prompt:
    """Read the prompt of a completion, a text or token ids; of a list of prompts the first is marked."""
    prompt: Any = body.get("prompt")
    chars, seed = text_chars(prompt), _seed(body, ("cache_salt",))
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        prompt = cast("list[Any]", prompt)[0]
    if isinstance(prompt, str):
        return _prompt(chars, seed, prompt)
    if isinstance(prompt, list) and all(isinstance(token, int) for token in cast("list[Any]", prompt)):
        return _prompt(chars, seed, tuple(cast("list[int]", prompt)))
    return _prompt(chars, seed, "")


def unmarked_prompt(body: Body, fields: Sequence[str]) -> Prompt:
    """Read how long a prompt is that stands in these fields."""
    return Prompt(sum(text_chars(body.get(name)) for name in fields))


def text_chars(value: Any) -> int:
    """Count the characters of all text in messages or prompts; token ids count as one token each."""
    chars, left = 0, [value]
    while left:
        value = left.pop()
        if isinstance(value, str):
            chars += len(value)
        elif isinstance(value, list):
            left += cast("list[Any]", value)
        elif isinstance(value, dict):
            left += [part for name, part in cast("dict[str, Any]", value).items() if name in _SAID]
        elif isinstance(value, int):
            chars += CHARS_PER_TOKEN
    return chars


def _prompt(chars: int, seed: str, text: str | tuple[int, ...]) -> Prompt:
    """Make a prompt; whatever is marked counts, roles included."""
    marks = marks_of(seed, text)
    return Prompt(max(chars, len(marks) * MARK_TOKENS * CHARS_PER_TOKEN), marks)


def _seed(body: Body, apart: Sequence[str]) -> str:
    model = body.get("model")
    seed = f"{_BEGIN}{model}" if isinstance(model, str) else _BEGIN
    for name in apart:
        if body.get(name) is not None:
            seed += f"{_SEPARATOR}{name}{_digest(body[name])}"
    return seed


def _tools(body: Body, pieces: Pieces) -> int:
    """Add the definitions of tools; return how many characters they have."""
    chars = 0
    for name in _TOOLS:
        tools = body.get(name)
        if tools:
            text = _spelled(tools)
            pieces += (_BEGIN, text)
            chars += len(text)
    return chars


def _messages(messages: Any, role: str, pieces: Pieces) -> int:
    """Add messages; return how many characters of text they have.

    Args:
        role: of a message that is no more than its text.
    """
    if messages is None:
        return 0
    if isinstance(messages, str):
        pieces += (_BEGIN, role, _SEPARATOR, messages)
        return len(messages)
    if not isinstance(messages, list):
        return _other(messages, pieces)
    return sum([_message(message, pieces) for message in cast("list[Any]", messages)])


def _message(message: Any, pieces: Pieces) -> int:
    if not isinstance(message, dict):
        return _other(message, pieces)
    message = cast("dict[str, Any]", message)
    role, content = message.get("role") or message.get("type"), message.get("content")
    if not isinstance(role, str):
        role = ""
    elif isinstance(content, str) and len(message) == 2:
        pieces += (_BEGIN, role, _SEPARATOR, content)
        return len(content)
    pieces += (_BEGIN, role, _SEPARATOR)
    chars, told = 0, False
    for name in _TOLD:
        value = message.get(name)
        if value is not None:
            told = True
            chars += _parts(value, pieces)
            if name != "content":
                pieces.append(_SEPARATOR)
    return chars if told else _other(message, pieces)


def _parts(value: Any, pieces: Pieces) -> int:
    """Add what is said in one field of a message."""
    if isinstance(value, str):
        pieces.append(value)
        return len(value)
    chars = 0
    for part in cast("list[Any]", value) if isinstance(value, list) else (value,):
        text = cast("dict[str, Any]", part).get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            pieces.append(text)
            chars += len(text)
        else:
            chars += _call(part, pieces)
    return chars


def _call(part: Any, pieces: Pieces) -> int:
    """Add the call of a function, without its id, which few templates show; what is none, as a hash."""
    function: Any = cast("dict[str, Any]", part).get("function", part) if isinstance(part, dict) else None
    if isinstance(function, dict):
        said = cast("dict[str, Any]", function)
        name, arguments = said.get("name"), said.get("arguments")
        if isinstance(name, str) and isinstance(arguments, str):
            pieces += (_SEPARATOR, name, _SEPARATOR, arguments)
            return len(name) + len(arguments)
    return _other(part, pieces)


def _other(value: Any, pieces: Pieces) -> int:
    """Add what is no text as a hash of it; return how many characters of text are in it all the same."""
    pieces += (_SEPARATOR, _digest(value))
    return text_chars(value)


def _digest(value: Any) -> str:
    return f"{hash(_spelled(value)):x}{_SEPARATOR}"


def _spelled(value: Any) -> str:
    try:
        return dumps(value).decode()
    except (ValueError, RecursionError):  # nested absurdly deep, or a number of absurdly many digits
        return ""
