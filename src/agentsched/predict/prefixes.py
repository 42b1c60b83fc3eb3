"""What a backend's prefix cache holds, as far as it can be told from what was sent there.

A prompt is known by its marks: hashes of its text from the beginning up to every `MARK_TOKENS`-th token. Whoever has
a mark has read all before it.
"""

from collections.abc import Sequence

MARK_TOKENS = 128
"""Tokens from one mark to the next; what is shared is known to within so many."""

MOST_MARKS = 20_000
"""Most marks kept per backend: 2.5 million tokens, more than engines hold."""

LEAST_MARKS = 8
CUT, GROWTH = 0.8, 1.02
"""How the belief in the cache's size follows: down where a prefix that should be there was not, up where it was."""


class Prefixes:
    """The marks that one backend has read, least recently used first.

    Attributes:
        reports: whether the backend ever said that something was cached: only then does its silence say anything.
    """

    __slots__ = ("_marks", "_most", "reports")

    def __init__(self) -> None:
        self._marks: dict[int, None] = {}
        self._most = float(MOST_MARKS)
        self.reports = False

    def __len__(self) -> int:
        return len(self._marks)

    def hit(self, marks: Sequence[int]) -> int:
        """Return how many tokens of a prompt with these marks need not be read."""
        known = self._marks
        if not known or not marks or marks[0] not in known:
            return 0
        low, high = 1, len(marks)
        while low < high:
            middle = (low + high + 1) // 2
            if marks[middle - 1] in known:
                low = middle
            else:
                high = middle - 1
        return low * MARK_TOKENS

    def read(self, marks: Sequence[int]) -> None:
        """Note a prompt that is sent there."""
        known = self._marks
        for mark in reversed(marks):  # what is shared by many goes last
            known.pop(mark, None)
            known[mark] = None
        while len(known) > self._most:
            del known[next(iter(known))]

    def bound(self, tokens: int) -> None:
        """Take for how many tokens the backend has memory."""
        self._most = min(self._most, max(tokens / MARK_TOKENS, LEAST_MARKS))

    def told(self, expected: int, cached: int) -> None:
        """Take how many tokens of a prompt the backend says were cached, where so many were expected to be."""
        if cached > 0:
            self.reports = True
        if not self.reports or expected < 2 * MARK_TOKENS:
            return
        if cached * 2 < expected:
            self._most = max(CUT * min(self._most, len(self._marks)), LEAST_MARKS)
        elif len(self._marks) + 1 > self._most:
            self._most = min(self._most * GROWTH, MOST_MARKS)
