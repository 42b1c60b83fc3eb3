"""The fleets of the bench: those of `agentsched.sim.gpus`, with coarser memory blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from agentsched.sim import gpus
from agentsched.sim.spec import BackendSpec
from benchmarks.policy.prompts import BLOCK_TOKENS


def fleet(name: str) -> dict[str, BackendSpec]:
    """Return a fleet's engines by name.

    Blocks hold `BLOCK_TOKENS` tokens instead of 16: that misses at most one block's worth of a shared prefix
    per call, and long prompts cost a quarter of the time to play.
    """
    return {label: _coarse(spec) for label, spec in gpus.fleet(name).items()}


def kv_tokens(spec: BackendSpec) -> int:
    """Return for how many tokens an engine has memory."""
    return spec.kv_blocks * spec.block_tokens


def mean_alone_s(fleet_of: Mapping[str, BackendSpec], input_tokens: int, output_tokens: int) -> float:
    """Return the seconds a call takes alone, as the mean over the backends."""
    return sum(spec.alone_s(input_tokens, output_tokens) for spec in fleet_of.values()) / len(fleet_of)


def _coarse(spec: BackendSpec) -> BackendSpec:
    return replace(
        spec, kv_blocks=spec.kv_blocks * spec.block_tokens // BLOCK_TOKENS, block_tokens=BLOCK_TOKENS
    )
