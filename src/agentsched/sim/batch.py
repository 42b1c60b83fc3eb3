"""The sequences that decode together, kept so that many equal steps cost as much as one.

All of them gain one token in every step, so nothing is stored per token: `steps` counts the engine's steps,
each sequence remembers the number at which it had none, and what a run of steps will need (who ends first,
who is to be reported, how many KV blocks) is read off heaps and residues instead of being walked through.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import sqrt

from agentsched.sim.calls import Sequence
from agentsched.sim.speed import Speed

_Entry = tuple[int, int, Sequence]


class Glide:
    """Give the time at which each step of an undisturbed run of decode steps ends.

    Every time is computed from the start of the run, never from the previous step, so it does not depend on
    how often anyone looked.
    """

    __slots__ = ("context", "context_s", "start", "step_s", "width")

    def __init__(self, start: float, speed: Speed, *, width: int, context: int) -> None:
        self.start = start
        self.step_s = speed.step(width)
        self.context_s = speed.context_s
        self.width = width
        self.context = context

    def end(self, steps: int) -> float:
        """Return when `steps` steps are done."""
        read = steps * self.context + self.width * (steps * (steps - 1) // 2)
        return self.start + steps * self.step_s + read * self.context_s

    def done(self, now: float, low: int, high: int) -> int:
        """Return how many steps are done at `now`, given that at least `low` are and only `high` matter."""
        if self.end(high) <= now:
            return high
        step = self._near(now, low, high - 1)
        while step > low and self.end(step) > now:
            step -= 1
        while step < high - 1 and self.end(step + 1) <= now:
            step += 1
        return step

    def first_after(self, moment: float, low: int, high: int) -> int:
        """Return the first step to end at or after `moment`, among `low` to `high`; `high` if none does."""
        step = self._near(moment, low, high)
        while step > low and self.end(step - 1) >= moment:
            step -= 1
        while step < high and self.end(step) < moment:
            step += 1
        return step

    def _near(self, moment: float, low: int, high: int) -> int:
        """Return a step among `low` to `high` that ends near `moment`; rounding may put it one or two off."""
        context_s, passed = self.context_s, moment - self.start
        if context_s:  # passed = steps * (step_s + context * context_s) + width * context_s * steps^2 / 2
            half = context_s * self.width / 2.0
            linear = self.step_s + context_s * self.context - half
            steps = (sqrt(linear * linear + 4.0 * half * max(passed, 0.0)) - linear) / (2.0 * half)
        else:
            steps = passed / self.step_s
        return max(low, int(min(steps, high)))


class DecodeBatch:
    """Hold the decoding sequences, and know what the coming steps will bring."""

    __slots__ = ("_ends", "_joined_sum", "_reports", "_residues", "block_tokens", "members", "steps")

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.steps = 0
        self.members: dict[int, Sequence] = {}
        self._ends: list[_Entry] = []
        self._reports: list[_Entry] = []
        self._residues = [0] * block_tokens
        self._joined_sum = 0

    @property
    def context(self) -> int:
        """Return the tokens whose KV a step reads now."""
        return len(self.members) * self.steps - self._joined_sum

    @property
    def next_end(self) -> int:
        """Return the step number at which the next sequence has all its tokens."""
        return self._ends[0][0]

    @property
    def next_report(self) -> int | None:
        """Return the step number of the next report that is due, if any is."""
        return self._reports[0][0] if self._reports else None

    def tokens(self, row: Sequence) -> int:
        """Return how many tokens a member has."""
        return self.steps - row.joined

    def computed(self, row: Sequence) -> int:
        """Return for how many tokens a member has KV: all but the newest."""
        return self.steps - self._offset(row)

    def _offset(self, row: Sequence) -> int:
        return row.joined - row.call.prompt_tokens + 1

    def add(self, row: Sequence, tokens: int) -> None:
        """Let a sequence join that has `tokens` of its tokens and lacks at least one."""
        row.joined = self.steps - tokens
        row.last_step = row.joined + row.call.output_tokens
        self.members[row.order] = row
        heappush(self._ends, (row.last_step, row.order, row))
        self._joined_sum += (offset := self._offset(row))
        self._residues[offset % self.block_tokens] += 1
        self._report_again(row, tokens)

    def _report_again(self, row: Sequence, tokens: int) -> None:
        every = row.call.report_every
        if every:
            step = row.joined + (tokens // every + 1) * every
            if step < row.last_step:
                heappush(self._reports, (step, row.order, row))

    def remove(self, row: Sequence) -> None:
        """Take a member out before its end."""
        self._drop(row)
        self._ends = [entry for entry in self._ends if entry[2] is not row]
        heapify(self._ends)
        if row.call.report_every:
            self._reports = [entry for entry in self._reports if entry[2] is not row]
            heapify(self._reports)

    def _drop(self, row: Sequence) -> None:
        del self.members[row.order]
        offset = self._offset(row)
        self._joined_sum -= offset
        self._residues[offset % self.block_tokens] -= 1

    def ended(self) -> list[Sequence]:
        """Take out the members that have all their tokens, in order of arrival."""
        done: list[Sequence] = []
        while self._ends and self._ends[0][0] <= self.steps:
            row = heappop(self._ends)[2]
            self._drop(row)
            done.append(row)
        return done

    def reports(self, until: int) -> list[tuple[int, Sequence]]:
        """Take out the reports due up to step number `until`, in order of step, then of arrival."""
        due: list[tuple[int, Sequence]] = []
        while self._reports and self._reports[0][0] <= until:
            step, _, row = heappop(self._reports)
            self._report_again(row, step - row.joined)
            due.append((step, row))
        return due

    def growth(self, start: int, stop: int) -> int:
        """Return the KV blocks to be added by the steps with numbers `start` up to, not including, `stop`."""
        residues, width = self._residues, self.block_tokens
        if stop - start == 1:
            return residues[start % width]
        rounds, rest = divmod(stop - start, width)
        first = start % width
        extra = sum(residues[first : first + rest])
        if first + rest > width:
            extra += sum(residues[: first + rest - width])
        return rounds * len(self.members) + extra

    def steps_within(self, blocks: int, most: int) -> int:
        """Return how many steps, `most` at most, can follow before they need more than `blocks` further blocks."""
        rounds, left = divmod(blocks, len(self.members))
        steps = rounds * self.block_tokens
        while steps < most and (need := self._residues[(self.steps + steps) % self.block_tokens]) <= left:
            left -= need
            steps += 1
        return min(steps, most)
