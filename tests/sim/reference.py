"""The backend model's rules once more, played step by step with every sequence and block spelled out.

Slow and plain on purpose: the oracle for `agentsched.sim.backend`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from agentsched.sim.calls import Call, Kind
from agentsched.sim.spec import BackendSpec


@dataclass
class Seq:
    call: Call
    order: int
    ready_at: float
    key: tuple[int, int]
    tokens: int = 0
    computed: int = 0
    target: int = 0
    first: bool = True
    cached: int | None = None
    blocks: list[object] = field(default_factory=list)
    decoding: bool = False
    ended: bool = False

    def hashes(self, spec: BackendSpec) -> tuple[int, ...]:
        return self.call.prompt_blocks + self.call.output_blocks if spec.prefix_cache else ()


class ReferenceEngine:
    """Run a whole script of (time, "submit"/"abort"/"slow", call, id or factor) and return the outputs."""

    def __init__(self, spec: BackendSpec) -> None:
        self.spec = spec
        self.waiting: list[Seq] = []
        self.running: list[Seq] = []
        self.all: dict[object, Seq] = {}
        self.held: dict[int, int] = {}
        self.idle: list[int] = []  # oldest first
        self.aborted: list[Seq] = []
        self.own = 0
        self.peak_used = 0
        self.outputs: list[tuple[str, float, object, int, int]] = []

    # -- blocks

    @property
    def free(self) -> int:
        return self.spec.kv_blocks - len(self.held) - self.own

    def trim(self) -> None:
        self.peak_used = max(self.peak_used, len(self.held) + self.own)
        assert self.free >= 0
        while len(self.idle) > self.free:
            self.idle.pop(0)

    def release(self, seq: Seq) -> None:
        width = self.spec.block_tokens
        hashes = seq.hashes(self.spec)[: seq.computed // width]
        held = [block for block in seq.blocks if block is not None]
        unpublished = hashes[len(held) :]
        self.own -= len(seq.blocks) - len(held)
        for block in reversed(unpublished):
            if block not in self.held:
                if block in self.idle:
                    self.idle.remove(block)
                self.idle.append(block)
        for block in reversed(held):
            self.held[block] -= 1
            if not self.held[block]:
                del self.held[block]
                self.idle.append(block)
        seq.blocks = []
        self.trim()

    def publish(self, seq: Seq, computed: int) -> None:
        hashes = seq.hashes(self.spec)
        for index in range(min(computed // self.spec.block_tokens, len(hashes))):
            if seq.blocks[index] is None:
                block = hashes[index]
                self.held[block] = self.held.get(block, 0) + 1
                if block in self.idle:
                    self.idle.remove(block)
                self.own -= 1
                seq.blocks[index] = block

    # -- the script

    def play(self, script: list[tuple[float, str, object]]) -> list[tuple[str, float, object, int, int]]:
        pending = list(script)
        now = 0.0
        while True:
            ready = [s for s in self.waiting if s.ready_at <= now]
            if not self.running and not ready:
                arrivals = [s.ready_at for s in self.waiting]
                next_script = pending[0][0] if pending else None
                wake = min(arrivals) if arrivals else None
                if wake is None and next_script is None:
                    return self.outputs
                if wake is None or (next_script is not None and next_script < wake):
                    self.act(*pending.pop(0))
                    continue
                now = wake
                # what happens at exactly the wake-up comes after the step is planned, so nothing to do here
            now = self.step(now, pending)

    def act(self, at: float, verb: str, what: object) -> None:
        if verb == "slow":
            assert isinstance(what, float)
            self.spec = replace(self.spec, speed=self.spec.speed.slower(what))
            return
        if verb == "submit":
            assert isinstance(what, Call)
            order = len(self.all) + 1
            rank = what.priority if self.spec.scheduling == "priority" else 0
            seq = Seq(what, order, at + self.spec.speed.entry_s, (rank, order), target=what.prompt_tokens)
            self.all[what.call_id] = seq
            self.waiting.append(seq)
            return
        seq = self.all.get(what)
        if seq is None or seq.ended:
            return
        seq.ended = True
        if seq in self.waiting:
            self.waiting.remove(seq)
        else:
            self.aborted.append(seq)
        self.say(Kind.ABORTED, at, seq)

    def say(self, kind: Kind, at: float, seq: Seq) -> None:
        self.outputs.append((kind, at, seq.call.call_id, seq.tokens, seq.cached or 0))

    def step(self, start: float, pending: list[tuple[float, str, object]]) -> float:
        spec, width = self.spec, self.spec.block_tokens
        for seq in self.aborted:
            self.running.remove(seq)
            self.release(seq)
        self.aborted = []
        preempted = False
        while True:
            need = [s for s in self.running if s.decoding and s.computed % width == 0]
            if len(need) <= self.free:
                break
            victim = max(self.running, key=lambda s: s.key)
            self.running.remove(victim)
            self.release(victim)
            victim.computed, victim.decoding = 0, False
            victim.target = victim.call.prompt_tokens + victim.tokens
            self.waiting.append(victim)
            self.say(Kind.PREEMPTED, start, victim)
            preempted = True
        for seq in need:
            seq.blocks.append(None)
            self.own += 1
        self.trim()
        decoders = [s for s in self.running if s.decoding]
        budget = spec.max_num_batched_tokens - len(decoders)
        chunks: list[tuple[Seq, int]] = []
        for seq in self.running:
            if not seq.decoding and budget:
                take = min(budget, seq.target - seq.computed)
                self.publish(seq, seq.computed + take)
                chunks.append((seq, take))
                budget -= take
        while not preempted and budget and len(self.running) < spec.max_num_seqs:
            queue = sorted((s for s in self.waiting if s.ready_at <= start), key=lambda s: s.key)
            if not queue or not self.admit(queue[0], start):
                break
            take = min(budget, queue[0].target - queue[0].computed)
            self.publish(queue[0], queue[0].computed + take)
            chunks.append((queue[0], take))
            budget -= take
        if not chunks and not decoders:
            return start
        prefill = sum(take for _, take in chunks)
        read = sum(s.computed for s in decoders)
        seconds = spec.speed.step(len(decoders) + len(chunks), prefill) + read * spec.speed.context_s
        end = start + seconds
        while pending and pending[0][0] < end:
            at, verb, what = pending.pop(0)
            if verb == "slow":
                assert isinstance(what, float)
                end = at + what * (end - at)
            self.act(at, verb, what)
        self.finish_step(end, decoders, chunks)
        return end

    def admit(self, seq: Seq, start: float) -> bool:
        spec, width = self.spec, self.spec.block_tokens
        hits: list[int] = []
        for block in seq.hashes(spec)[: (seq.target - 1) // width]:
            if block not in self.held and block not in self.idle:
                break
            hits.append(block)
        blocks = -(-seq.target // width)
        if blocks - sum(block in self.held for block in hits) > self.free:
            return False
        for block in hits:
            self.held[block] = self.held.get(block, 0) + 1
            if block in self.idle:
                self.idle.remove(block)
        self.own += blocks - len(hits)
        self.trim()
        seq.blocks = [*hits, *([None] * (blocks - len(hits)))]
        seq.computed = len(hits) * width
        if seq.cached is None:
            seq.cached = seq.computed
        self.waiting.remove(seq)
        self.running.append(seq)
        self.say(Kind.ADMITTED, start, seq)
        return True

    def finish_step(self, end: float, decoders: list[Seq], chunks: list[tuple[Seq, int]]) -> None:
        decoders = sorted(decoders, key=lambda s: s.order)
        for seq in decoders:
            seq.computed += 1
            seq.tokens += 1
            if not seq.ended:
                every = seq.call.report_every
                if every and seq.tokens % every == 0 and seq.tokens < seq.call.output_tokens:
                    self.say(Kind.PROGRESS, end, seq)
        for seq in decoders:
            if seq.tokens == seq.call.output_tokens:
                self.finish(end, seq)
        for seq, take in chunks:
            seq.computed += take
            if seq.computed == seq.target and not seq.ended:
                self.finish_prefill(end, seq)

    def finish_prefill(self, end: float, seq: Seq) -> None:
        every = seq.call.report_every
        if seq.call.output_tokens:
            seq.tokens += 1
            if seq.first:
                self.say(Kind.FIRST_TOKEN, end, seq)
            elif every and seq.tokens % every == 0 and seq.tokens < seq.call.output_tokens:
                self.say(Kind.PROGRESS, end, seq)
            seq.first = False
        seq.decoding = True
        if seq.tokens == seq.call.output_tokens:
            self.finish(end, seq)

    def finish(self, end: float, seq: Seq) -> None:
        if seq.ended:  # aborted during its last step
            self.aborted.remove(seq)
        else:
            self.say(Kind.FINISHED, end, seq)
        seq.ended = True
        self.running.remove(seq)
        self.release(seq)
