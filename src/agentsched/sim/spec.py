"""What an engine is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from agentsched.sim.calls import Call, Refusal
from agentsched.sim.speed import Speed


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSpec:
    """Describe an engine. Limits are vLLM's defaults, but for `kv_blocks`: room for 131,072 tokens."""

    speed: Speed = field(default_factory=Speed)
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    kv_blocks: int = 8192
    block_tokens: int = 16
    max_model_len: int = 32768
    scheduling: Literal["fcfs", "priority"] = "fcfs"
    prefix_cache: bool = True
    max_queued: int | None = None
    """Calls waiting or running beyond which further ones are refused."""

    def __post_init__(self) -> None:
        """Refuse an engine that could never run a step."""
        if min(self.max_num_seqs, self.kv_blocks, self.block_tokens, self.max_model_len) < 1:
            raise ValueError("all limits must be at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError("max_num_batched_tokens must not be below max_num_seqs")

    def blocks(self, tokens: int) -> int:
        """Return how many KV blocks `tokens` tokens take."""
        return -(-tokens // self.block_tokens)

    def alone_s(self, input_tokens: int, output_tokens: int) -> float:
        """Return the seconds that a call takes when nothing else is there and nothing of its prompt is cached."""
        return self.speed.alone_s(input_tokens, output_tokens, chunk_tokens=self.max_num_batched_tokens)

    def refusal(self, call: Call, live: int) -> Refusal | None:
        """Say why a call can't be taken while `live` others are there, if it can't."""
        tokens = call.prompt_tokens + call.output_tokens
        if tokens > self.max_model_len:
            return Refusal.TOO_LONG
        if self.blocks(tokens) > self.kv_blocks:
            return Refusal.EXCEEDS_KV
        if self.max_queued is not None and live >= self.max_queued:
            return Refusal.QUEUE_FULL
        return None
