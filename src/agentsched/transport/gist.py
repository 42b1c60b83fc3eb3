"""What a streamed answer says: text, usage and end, gathered from its events, and the whole answer.

The whole answer equals what the server would have sent without streaming: the same fields, each put together
from its pieces.
"""

from typing import Any, Protocol, cast

from agentsched.model import Usage
from agentsched.transport.incoming import Kind
from agentsched.transport.pieces import LABELS, AnswerTooLong, Text, assembled, bound, grow, longer
from agentsched.transport.usage import counted, estimated, written

MAX_ANSWERS = 2**16
"""Answers to one call: prompts times `n`."""

_NOT_HEAD = frozenset(("choices", "usage"))
_NOT_END = frozenset(("delta", "text", "index"))

_INSTEAD = ("reasoning", "reasoning_content", "tool_calls", "refusal")
"""With one of them, a message that says nothing has no content, where a stream begins with an empty one."""

_GROWING = frozenset(("logprobs", "token_ids"))
"""Fields beside the message whose pieces are put one after the other."""


class Gist(Protocol):
    """The events of one streamed answer, taken in one by one.

    Attributes:
        finished: whether all that began has ended, and something has.
        ended: whether all that began has ended at some time; some servers say more after a finish reason.
        done: whether it may be the whole answer if nothing follows.
        settled: whether nothing that follows would belong to it.
        said: how many events said something.
        pieces, chars: how many pieces of text came, reasoning included, and their characters.
        piece: what the latest event brought if that was one more piece of the only answer's text and nothing else.
        usage: as reported; None until it is.
        text: the answer so far, without reasoning.
        tokens: output tokens so far: as reported, else estimated from pieces and characters.
    """

    finished: bool
    done: bool
    settled: bool
    said: int
    pieces: int
    chars: int
    piece: str | None
    usage: dict[str, Any] | None

    @property
    def ended(self) -> bool: ...
    @property
    def text(self) -> str: ...
    @property
    def tokens(self) -> int: ...

    def take(self, event: dict[str, Any]) -> bool:
        """Take in the payload of one event; return whether it says by itself that it is the last one.

        Raises:
            AnswerTooLong: if the number of answers, or of different fields, exceeds its bound.
        """
        ...

    def add(self, piece: str) -> None:
        """Take in an event like the latest, where that one set `piece`."""
        ...

    def counted(self) -> Usage:
        """Return the usage in our terms."""
        ...

    def whole(self) -> dict[str, Any]:
        """Return the answer as one object."""
        ...


class _Answer:
    """One of the answers asked for.

    Attributes:
        message: what it says; a completion's text stands under `text`.
        ends: the fields beside it.
        shape: the names of the fields of its latest piece; `extras` those that may hold what must be kept.
    """

    __slots__ = ("ended", "ends", "extras", "index", "message", "over", "shape")

    def __init__(self, index: Any, message: dict[str, Any]) -> None:
        self.index = index
        self.message = message
        self.ends: dict[str, Any] = {}
        self.over = self.ended = False
        self.shape: tuple[str, ...] = ()
        self.extras: tuple[str, ...] = ()


class ChoicesGist:
    """The events of one streamed chat or text completion.

    Args:
        wanted: how many answers were asked for.
        several: whether more than one was: by `n`, or by a list of prompts, be it of one.
        whole: whether the whole answer will be wanted; if not, only texts, counts and ends are gathered.
    """

    def __init__(self, kind: Kind, *, wanted: int = 1, several: bool = False, whole: bool = True) -> None:
        self._kind = kind
        self._wanted = wanted
        self._several = several
        self._whole = whole
        self._said_in = "content" if kind is Kind.CHAT else "text"
        self._head: dict[str, Any] = {}
        self._shape: tuple[str, ...] = ()
        self._answers: dict[int, _Answer] = {}
        self._flowing: dict[Any, _Answer] = {}
        self._unfinished = 0
        self._steady = self._text_alone = True
        self.finished = self.done = self.settled = False
        self.said = 0
        self.chars = 0
        self.pieces = 0
        self.piece: str | None = None
        self.usage: dict[str, Any] | None = None
        self._timings: Any = None
        self._latest = Text()

    @property
    def ended(self) -> bool:
        return bool(self._answers) and all(answer.ended for answer in self._answers.values())

    @property
    def text(self) -> str:
        """The answer so far, without reasoning; of several, the one seen first."""
        for answer in self._answers.values():
            said = answer.message.get(self._said_in)
            return "".join(said) if isinstance(said, Text) else ""
        return ""

    @property
    def plain(self) -> bool:
        """Whether it is text alone so far, and has not ended."""
        answers = list(self._answers.values())  # another thread may look while they come
        return self._text_alone and not any(answer.ended for answer in answers)

    @property
    def tokens(self) -> int:
        return written(self.usage, self.pieces, self.chars)

    def take(self, event: dict[str, Any]) -> bool:
        try:  # the commonest event: one more piece of an answer's text
            (choice,) = event["choices"]
            delta = choice["delta"]
            piece = delta["content"]
            answer = self._flowing[choice["index"]]
            if (
                len(delta) == 1
                and type(piece) is str
                and choice["finish_reason"] is None
                and event.get("usage") is None
                and tuple(event) == self._shape
                and tuple(choice) == answer.shape
            ):
                for name in answer.extras:
                    if choice[name] is not None:
                        break
                else:
                    self._latest = answer.message["content"]
                    self.add(piece)
                    self.piece = None if self._several else piece
                    return False
        except (KeyError, TypeError, ValueError):
            pass
        self.piece = None
        self._take_any(event)
        return False

    def add(self, piece: str) -> None:
        self._latest.append(piece)
        if piece:
            self.said += 1
            self.pieces += 1
            self.chars += len(piece)

    def _take_any(self, event: dict[str, Any]) -> None:
        self._shape = tuple(event)
        if self._whole:
            head = self._head
            for name, value in event.items():
                if name not in _NOT_HEAD and not head.get(name):
                    head[name] = value
            bound(head)
        usage: Any = event.get("usage")
        if isinstance(usage, dict):
            self.usage = usage
        if "timings" in event:
            self._timings = event["timings"]
        choices: Any = event.get("choices")
        if isinstance(choices, list):
            for choice in cast("list[Any]", choices):
                if isinstance(choice, dict):
                    self._take_choice(cast("dict[str, Any]", choice))
            self.finished = not self._unfinished and bool(self._answers)
            self.done = self.finished and len(self._answers) >= self._wanted
            self.settled = self.done and self._steady

    def _take_choice(self, choice: dict[str, Any]) -> None:
        index: Any = choice.get("index", 0)
        answer = self._answer(index if self._several and isinstance(index, int) else 0, index)
        ends = _is_end(choice.get("finish_reason"))
        delta: Any = choice.get("delta") if self._kind is Kind.CHAT else {"text": choice.get("text")}
        says = False
        if isinstance(delta, dict):
            for name, piece in cast("dict[str, Any]", delta).items():
                self._take_piece(answer, name, piece)
                if piece and name not in LABELS:
                    says = True
                    self._text_alone = self._text_alone and name == self._said_in and isinstance(piece, str)
        if says:
            self.said += 1
            self._steady = self._steady and not answer.over  # some send a finish reason with every event
        over = ends or (answer.over and not says)
        answer.ended = answer.ended or ends
        self._unfinished += answer.over - over
        answer.over = over
        if self._whole:
            self._take_ends(answer, choice, ends=ends)
        answer.shape = tuple(choice)
        answer.extras = tuple(name for name in choice if name not in ("index", "delta", "finish_reason"))
        if type(answer.message.get("content")) is Text and not over:
            self._flowing[answer.index] = answer
        else:
            self._flowing.pop(answer.index, None)

    def _answer(self, number: int, index: Any) -> _Answer:
        answer = self._answers.get(number)
        if answer is None:
            if len(self._answers) >= MAX_ANSWERS:
                raise AnswerTooLong(f"more than {MAX_ANSWERS} answers")
            said: dict[str, Any] = {"role": "assistant", "content": None} if self._kind is Kind.CHAT else {}
            hashable = index if isinstance(index, (int, str)) else None
            answer = self._answers[number] = _Answer(hashable, said)
            self._unfinished += 1
        return answer

    def _take_ends(self, answer: _Answer, choice: dict[str, Any], *, ends: bool) -> None:
        known = answer.ends
        for name, value in choice.items():
            if name in _NOT_END:
                continue
            if name == "finish_reason" and not ends:
                known.setdefault(name)
            elif name in _GROWING:
                known[name] = longer(known.get(name), value)
            elif value is not None or name not in known:
                known[name] = value
        bound(known)

    def _take_piece(self, answer: _Answer, name: str, piece: Any) -> None:
        text = isinstance(piece, str) and name not in LABELS
        if text:
            self.chars += len(piece)
            self.pieces += bool(piece)
        if self._whole or (text and name == self._said_in):
            grow(answer.message, name, piece)

    def counted(self) -> Usage:
        return counted(self.usage, estimated(self.pieces, self.chars), self._timings)

    def whole(self) -> dict[str, Any]:
        kind = "chat.completion" if self._kind is Kind.CHAT else "text_completion"
        choices = [self._choice(number, self._answers[number]) for number in sorted(self._answers)]
        return {**self._head, "object": kind, "choices": choices, "usage": self.usage}

    def _choice(self, number: int, answer: _Answer) -> dict[str, Any]:
        said = assembled(answer.message)
        ends = {"finish_reason": None, **answer.ends}
        if self._kind is not Kind.CHAT:
            return {"index": number, "text": "", **said, **ends}
        if said["content"] == "" and any(said.get(name) for name in _INSTEAD):
            said["content"] = None
        calls: Any = said.get("tool_calls")
        for call in cast("list[Any]", calls) if isinstance(calls, list) else ():
            if isinstance(call, dict):
                cast("dict[str, Any]", call).pop("index", None)  # it only serves to put pieces together
        return {"index": number, "message": said, **ends}


def _is_end(reason: object) -> bool:
    """Whether a finish reason is one: some servers send an empty one, or the word null, until there is."""
    return reason is not None and reason not in ("", "null")
