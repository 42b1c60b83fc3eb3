"""The ids of an answer's tokens, as vLLM tells them beside the text."""

from typing import Any, cast


class TokenIds:
    """Those of one answer's prompt and text.

    Args:
        model: which they are ids of, as its servers call it.

    Attributes:
        written: those of the text that has come. Not those that brought none after it: the beginning of a character,
            whose text would be missing if the rest came after them.
        known: whether they are all there.
    """

    def __init__(self, model: str | None) -> None:
        self.model = model
        self.prompt: list[int] = []
        self.written: list[int] = []
        self.known = True
        self._silent: list[int] = []

    def take_out(self, payload: dict[str, Any]) -> None:
        """Take the ids out of an event of the only answer: vLLM has nulls there where nobody asks for them."""
        prompt: Any = _taken(payload, "prompt_token_ids")
        choices: Any = payload.get("choices")
        for choice in cast("list[Any]", choices) if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self._take(cast("dict[str, Any]", choice), prompt)

    def go_on(self) -> None:
        """Take those of another backend, which goes on after what is written."""
        self._silent.clear()

    def _take(self, choice: dict[str, Any], prompt: Any) -> None:
        of_choice = _taken(choice, "prompt_token_ids")
        prompt = prompt if of_choice is None else of_choice
        if not self.prompt and _are_ids(prompt):
            self.prompt = prompt
        written = _taken(choice, "token_ids")
        delta: Any = choice.get("delta", choice)
        said = cast("dict[str, Any]", delta) if isinstance(delta, dict) else {}
        text = said.get("content") or said.get("text")
        if _are_ids(written):
            self._silent += written
            if text:
                self.written += self._silent
                self._silent.clear()
        elif text:
            self.known = False
        self.known = self.known and bool(self.prompt)


def _taken(fields: dict[str, Any], name: str) -> Any:
    value = fields.get(name)
    if value is not None:
        fields[name] = None
    return value


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in cast("list[Any]", value))
