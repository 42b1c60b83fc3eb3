"""The decorator of the house's values: frozen to the type checker, quick to make at run time.

A frozen dataclass costs three times as much to create as a plain one, since every field is set through
`object.__setattr__`; the engine makes a dozen values per call.
"""

from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """Make a class a slotted dataclass with keyword-only fields that nobody assigns to after creation."""
    made: Any = dataclass(slots=True, kw_only=True)
    return made(cls)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """Like `value`, for classes of few fields whose order says what they are."""
    made: Any = dataclass(slots=True)
    return made(cls)
