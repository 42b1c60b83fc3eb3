"""Words for the terminal, which names and paths cannot play with."""

import sys


def printable(text: str) -> str:
    """Return the text with escapes for what cannot be printed."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def note(what: str) -> None:
    """Tell something beside the result, in one line."""
    print(f"note: {printable(what)}", file=sys.stderr)
