"""Everybody who competes, by name."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.policy.clairvoyant import CLAIRVOYANT, FUSING
from benchmarks.policy.contender import Contender
from benchmarks.policy.ours import OURS
from benchmarks.policy.peers import PEERS

CAST: Mapping[str, Contender] = {
    contender.name: contender for contender in (*PEERS, *OURS, CLAIRVOYANT, FUSING)
}
