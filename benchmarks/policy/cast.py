"""Everybody who competes or is looked at beside those who do, by name."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.policy.clairvoyant import CLAIRVOYANT, FUSING
from benchmarks.policy.contender import Contender
from benchmarks.policy.lies import LIED_TO
from benchmarks.policy.ours import ABLATIONS, OURS
from benchmarks.policy.peers import PEERS

COMPETING = (*PEERS, *OURS, CLAIRVOYANT, FUSING)
CAST: Mapping[str, Contender] = {
    contender.name: contender for contender in (*COMPETING, *ABLATIONS, *LIED_TO)
}
