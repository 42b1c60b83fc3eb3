"""One continuous-batching engine in model seconds: what it does with the calls it is given, and when.

The rules, which are vLLM's at the resolution of engine steps:

1. The engine works in steps. In a step every decoding sequence gains a token, and what is left of
   `max_num_batched_tokens` goes to prompts, those begun first. The end of a prefill yields the first token.
2. A call is ready `entry_s` after it was submitted, and joins the first step that begins after that, in
   order of arrival (or of priority, lower first), while there are seats, tokens in the step and KV blocks
   for all of its prompt. The head of the queue is never overtaken for lack of blocks.
3. Blocks for generated tokens are taken when needed. If none is left, the sequence that is last in the same
   order loses its blocks and waits again; later it computes its prompt and its tokens anew. No call joins
   in that step.
4. Full blocks with known hashes are shared from the step on that computes them, and stay findable when free.
   A call's generated blocks become findable when it leaves. One token at least is always computed.
5. A call aborted while it waits is gone at once; in the batch it occupies its seat to the end of the
   current step.

Everything is computed from the times of `submit`, `abort` and `slow_down` alone: how often `advance` is called, and up
to when, changes nothing. Steps between two events are never walked through.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from agentsched.sim.batch import DecodeBatch, Glide
from agentsched.sim.calls import Call, CallId, Kind, Output, Refusal, Sequence
from agentsched.sim.gauges import Counters, Gauges
from agentsched.sim.line import Line
from agentsched.sim.memory import Memory
from agentsched.sim.spec import BackendSpec


class _Doing(StrEnum):
    NOTHING = "nothing"
    MIXED = "mixed"
    """One step with some prefill in it; it ends at `_step_end`."""
    DECODE = "decode"
    """Steps of the same sequences, along `_glide`, up to step number `_turn`."""


class BackendModel:
    """Play one engine: `submit` and `abort` as things happen, `advance` at `next_at()` or at any time."""

    def __init__(self, spec: BackendSpec) -> None:
        self.spec = spec
        self.counters = Counters()
        self.now = 0.0
        self._memory = Memory(spec)
        self._batch = DecodeBatch(spec.block_tokens)
        self._live: dict[CallId, Sequence] = {}
        self._line = Line()
        self._prefilling: list[Sequence] = []
        self._leaving: list[Sequence] = []
        self._outputs: list[Output] = []
        self._order = 0
        self._doing = _Doing.NOTHING
        self._boundary = 0.0
        self._step_end = 0.0
        self._chunks: list[tuple[Sequence, int]] = []
        self._glide = Glide(0.0, spec.speed, width=1, context=0)
        self._glide_from = 0
        self._turn = 0

    # ---- the face

    def submit(self, now: float, call: Call) -> Refusal | None:
        """Take a call that arrives at `now`, or say why not."""
        self._run(now)
        if call.call_id in self._live:
            raise ValueError(f"call id {call.call_id!r} is in use")
        if (refusal := self.spec.refusal(call, len(self._live))) is not None:
            self.counters.refused[refusal] = self.counters.refused.get(refusal, 0) + 1
            return refusal
        self._order += 1
        rank = call.priority if self.spec.scheduling == "priority" else 0
        key = (rank, self._order)
        row = Sequence(call, order=self._order, key=key, now=now, ready_at=now + self.spec.speed.entry_s)
        self._live[call.call_id] = row
        self._line.arrive(row)
        if self._doing is _Doing.DECODE:
            self._turn_for_entry()
        return None

    def abort(self, now: float, call_id: CallId) -> int | None:
        """End a call early; return how many tokens it had written, None if it was not there any more."""
        self._run(now)
        row = self._live.pop(call_id, None)
        if row is None:
            return None
        seated = row.order in self._batch.members
        if seated:
            row.tokens = self._batch.tokens(row)
        if seated or self._line.head() is row:  # its seat, or its place at the head, is someone else's next
            self._turn = min(self._turn, self._batch.steps + 1)
        row.ended = True
        if seated or row in self._prefilling:
            self._leaving.append(row)
        else:
            self._line.forget(row)
        self.counters.aborted += 1
        self.counters.generation_tokens += row.tokens
        self._say(Kind.ABORTED, now, row)
        return row.tokens

    def slow_down(self, now: float, factor: float) -> None:
        """Have steps take `factor` times as long from `now` on, as does what is left of the one under way."""
        if not factor >= 1.0:
            raise ValueError(f"an engine does not slow down by a factor of {factor}")
        self._run(now)
        self.spec = replace(self.spec, speed=self.spec.speed.slower(factor))
        if self._doing is _Doing.MIXED:
            self._step_end = now + factor * (self._step_end - now)
        elif self._doing is _Doing.DECODE:
            batch = self._batch
            begun = now - factor * (now - self._glide.end(batch.steps - self._glide_from))
            self._glide = Glide(begun, self.spec.speed, width=len(batch.members), context=batch.context)
            self._glide_from = batch.steps
            self._turn_for_entry()

    def next_at(self) -> float | None:
        """Return when something happens next, if nothing is done to it before; None if never."""
        if self._outputs:
            return self.now
        match self._doing:
            case _Doing.NOTHING:
                return self._line.next_ready_at
            case _Doing.MIXED:
                return self._step_end
            case _Doing.DECODE:
                report = self._batch.next_report
                step = self._turn if report is None else min(self._turn, report)
                return self._glide.end(step - self._glide_from)

    def advance(self, now: float) -> list[Output]:
        """Play up to and including `now`; return what happened, in order, since `advance` was last called."""
        self._run(now)
        outputs, self._outputs = self._outputs, []
        return outputs

    def tokens(self, call_id: CallId) -> int:
        """Return how many tokens a live call has at the time last advanced to; 0 for any other."""
        row = self._live.get(call_id)
        if row is None:
            return 0
        return self._batch.tokens(row) if row.order in self._batch.members else row.tokens

    def cached_tokens(self, blocks: tuple[int, ...]) -> int:
        """Return for how many leading tokens a prompt of these blocks would find KV at the time last advanced to."""
        return self._memory.pool.find(blocks)[0] * self.spec.block_tokens

    def gauges(self) -> Gauges:
        """Return the gauges at the time last advanced to. A call counts as waiting from its arrival."""
        running = len(self._batch.members) + len(self._prefilling)
        waiting = len(self._live) + len(self._leaving) - running
        return Gauges(
            running=running, waiting=waiting, kv_usage=self._memory.pool.used / self._memory.pool.capacity
        )

    def generated(self) -> int:
        """Return all tokens generated so far, those of live calls included."""
        live = sum(self.tokens(call_id) for call_id in self._live)
        return self.counters.generation_tokens + live

    def check(self) -> None:
        """Raise AssertionError if the books do not add up."""
        pool, batch = self._memory.pool, self._batch
        assert 0 <= pool.used <= pool.capacity and pool.idle <= pool.free, "KV blocks out of bounds"
        assert pool.free == pool.capacity - pool.used, "KV blocks miscounted"
        assert len(batch.members) + len(self._prefilling) <= self.spec.max_num_seqs, (
            "more sequences than seats"
        )
        in_batch = [row for row in batch.members.values() if not row.ended]
        prefilling = [row for row in self._prefilling if not row.ended]
        queued = len(self._live) - len(in_batch) - len(prefilling)
        assert 0 <= queued <= len(self._line), "calls astray"
        if not self._live and self._doing is _Doing.NOTHING:
            assert pool.used == 0, "blocks held by nobody"

    # ---- time

    def _run(self, now: float) -> None:
        if now < self.now:
            raise ValueError(f"time runs backwards: {now} after {self.now}")
        while True:
            match self._doing:
                case _Doing.NOTHING:
                    ready_at = self._line.next_ready_at
                    if ready_at is None or ready_at > now:
                        break
                    self._boundary = ready_at
                case _Doing.MIXED:
                    if self._step_end > now:
                        break
                    self._end_mixed_step()
                case _Doing.DECODE:
                    if not self._decode_until(now):
                        break
            self._plan()
        self.now = now

    def _decode_until(self, now: float) -> bool:
        """Do the decode steps that end by `now`; return whether the run of them is over."""
        batch, glide, origin = self._batch, self._glide, self._glide_from
        begun = batch.steps + 1
        steps = origin + glide.done(now, batch.steps - origin, self._turn - origin)
        for step, row in batch.reports(steps):
            if not row.ended:
                self._say(Kind.PROGRESS, glide.end(step - origin), row, tokens=step - row.joined)
        over = steps == self._turn
        self._memory.pool.reserve(batch.growth(begun, steps if over else steps + 1))
        self.counters.steps += steps - batch.steps
        batch.steps = steps
        if over:
            self._boundary = glide.end(steps - origin)
            self._end_decodes()
        return over

    def _end_mixed_step(self) -> None:
        self._boundary = now = self._step_end
        batch = self._batch
        batch.steps += 1
        self.counters.steps += 1
        for _, row in batch.reports(batch.steps):
            if not row.ended:
                self._say(Kind.PROGRESS, now, row, tokens=batch.tokens(row))
        self._end_decodes()
        for row, tokens in self._chunks:
            row.computed += tokens
            if row.computed == row.target and not row.ended:
                self._prefilling.remove(row)
                self._end_prefill(row)
        self._chunks = []

    def _end_prefill(self, row: Sequence) -> None:
        now, call = self._boundary, row.call
        if call.output_tokens:
            row.tokens += 1
        if row.first_at < 0.0:
            row.first_at = now
            self.counters.begin(row)
            if call.output_tokens:
                self._say(Kind.FIRST_TOKEN, now, row)
        elif row.tokens < call.output_tokens and call.report_every and row.tokens % call.report_every == 0:
            self._say(Kind.PROGRESS, now, row)
        if row.tokens == call.output_tokens:
            self._finish(row, row.computed)
        else:
            self._batch.add(row, row.tokens)

    def _end_decodes(self) -> None:
        for row in self._batch.ended():
            row.tokens = row.call.output_tokens
            computed = row.call.prompt_tokens + row.tokens - 1
            if row.ended:
                self._leaving.remove(row)
                self._memory.release(row, computed)
                self.counters.wasted_tokens += computed - row.cached
            else:
                self._finish(row, computed)

    def _finish(self, row: Sequence, computed: int) -> None:
        now = self._boundary
        row.ended = True
        del self._live[row.call.call_id]
        self._memory.release(row, computed)
        self.counters.finish(row, now)
        self._say(Kind.FINISHED, now, row)

    # ---- the next step

    def _plan(self) -> None:
        """Decide what the step that begins at the boundary does."""
        self._let_leave()
        self._line.enter(self._boundary)
        preempted = self._make_room()
        chunks = self._share_out(admit=not preempted)
        if chunks:
            tokens = sum(count for _, count in chunks)
            speed, width = self.spec.speed, len(self._batch.members) + len(chunks)
            read = self._batch.context * speed.context_s
            self._chunks = chunks
            self._step_end = self._boundary + speed.step(width, tokens) + read
            self._doing = _Doing.MIXED
        elif self._batch.members:
            self._start_glide(longest=1 if preempted else None)
        else:
            self._doing = _Doing.NOTHING

    def _start_glide(self, *, longest: int | None) -> None:
        """Run decode steps, `longest` at most, until one ends, blocks run out or an arrival may join."""
        batch = self._batch
        self._glide = Glide(self._boundary, self.spec.speed, width=len(batch.members), context=batch.context)
        self._glide_from = batch.steps
        begun = batch.growth(batch.steps, batch.steps + 1)
        to_end = batch.next_end - batch.steps
        most = to_end if longest is None else min(to_end, longest)
        self._turn = batch.steps + batch.steps_within(self._memory.pool.free + begun, most)
        self._doing = _Doing.DECODE
        self._turn_for_entry()

    def _turn_for_entry(self) -> None:
        """End the run of decode steps where the next arrival could join, if there is a seat for it."""
        ready_at = self._line.next_ready_at
        if ready_at is not None and len(self._batch.members) < self.spec.max_num_seqs:
            origin = self._glide_from
            low, high = self._batch.steps + 1 - origin, self._turn - origin
            self._turn = origin + self._glide.first_after(ready_at, low, high)

    def _let_leave(self) -> None:
        for row in self._leaving:
            self.counters.wasted_tokens += self._unseat(row) - row.cached
        self._leaving = []

    def _unseat(self, row: Sequence) -> int:
        """Take a sequence's seat and blocks; return for how many tokens it had KV."""
        batch = self._batch
        if row.order in batch.members:
            row.tokens = batch.tokens(row)
            computed = batch.computed(row)
            batch.remove(row)
        else:
            computed = row.computed
            self._prefilling.remove(row)
        self._memory.release(row, computed)
        return computed

    def _make_room(self) -> bool:
        """Reserve the blocks that the decoders need now; return whether a sequence was preempted for it."""
        batch, pool, preempted = self._batch, self._memory.pool, False
        while (need := batch.growth(batch.steps, batch.steps + 1)) > pool.free:
            self._preempt(max((*batch.members.values(), *self._prefilling), key=lambda row: row.key))
            preempted = True
        pool.reserve(need)
        return preempted

    def _preempt(self, row: Sequence) -> None:
        row.lost = self._unseat(row)
        row.computed = 0
        row.target = row.call.prompt_tokens + row.tokens
        row.preemptions += 1
        self.counters.preemptions += 1
        self._line.put_back(row)
        self._say(Kind.PREEMPTED, self._boundary, row)

    def _share_out(self, *, admit: bool) -> list[tuple[Sequence, int]]:
        """Give the tokens of the step that no decoder takes to prompts: first to those begun, then to new ones."""
        chunks: list[tuple[Sequence, int]] = []
        if not self._prefilling and not self._line.waits:
            return chunks
        budget = self.spec.max_num_batched_tokens - len(self._batch.members)
        begun = iter(list(self._prefilling))
        while budget > 0:
            row = next(begun, None)
            if (
                row is None
                and admit
                and len(self._batch.members) + len(self._prefilling) < self.spec.max_num_seqs
            ):
                row = self._admit()
            if row is None:
                break
            count = min(budget, row.target - row.computed)
            self._memory.publish(row, row.computed + count)  # at once: the next one may share it
            chunks.append((row, count))
            budget -= count
        return chunks

    def _admit(self) -> Sequence | None:
        """Give the head of the queue a seat and its blocks, if there are enough."""
        row = self._line.head()
        if row is None or not self._memory.seat(row):
            return None
        self._line.pop()
        self._prefilling.append(row)
        if row.admitted_at < 0.0:
            row.admitted_at = self._boundary
            row.cached = row.computed
            self.counters.admit(row, caching=self.spec.prefix_cache)
        else:
            self.counters.wasted_tokens += max(row.lost - row.computed, 0)
        self._say(Kind.ADMITTED, self._boundary, row)
        return row

    def _say(self, kind: Kind, at: float, row: Sequence, *, tokens: int | None = None) -> None:
        count = row.tokens if tokens is None else tokens
        self._outputs.append(Output(kind, at, row.call.call_id, count, row.cached))
