"""What was measured once and is kept: load 1.0 of every site, and everybody's dials there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.policy.contender import Dials
from benchmarks.policy.row import CLOSED, Row

FILE = Path(__file__).with_name("tuned.json")
Site = tuple[str, str]


class NeverTuned(LookupError):
    """A site of which nothing is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What belongs to a workload on a fleet.

    Attributes:
        rate: queries a second that FIFO behind its best limits completes when it always has some waiting.
        dials: by contender and load.
        ceilings: for clairvoyant contenders, by load and then by metric: the dials that are best for it.
    """

    rate: float
    dials: Mapping[str, Mapping[str, Dials]]
    ceilings: Mapping[str, Mapping[str, Mapping[str, Dials]]]

    def dials_of(self, contender: str, load: float) -> Dials:
        """Return a fair contender's dials, those of the load nearest to this one; none if it has none."""
        by_load = self.dials.get(contender)
        return by_load[_nearest(by_load, load)] if by_load else ()

    def ceiling(self, contender: str, load: float) -> Mapping[str, Dials]:
        """Return a clairvoyant contender's dials by metric, those of the load nearest to this one."""
        by_load = self.ceilings[contender]
        return by_load[_nearest(by_load, load)]


def tuned(site: Site) -> Tuned:
    """Return what is kept of a site.

    Raises:
        NeverTuned: if it was never measured; the message says how to.
    """
    found = _all().get("/".join(site))
    if found is None:
        raise NeverTuned(
            f"{'/'.join(site)} was never tuned: python -m benchmarks.policy tune {'/'.join(site)}"
        )
    return found


def _nearest(loads: Iterable[str], load: float) -> str:
    return min(loads, key=lambda known: abs(float(known) - load))


def rate_of(row: Row) -> float:
    """Return the queries a second of an open row; 0 for a closed one."""
    if row.arrivals == CLOSED:
        return 0.0
    return tuned(row.site).rate * row.load


@cache
def _all() -> dict[str, Tuned]:
    kept = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return {site: _tuned(found) for site, found in kept.items()}


def keep(site: Site, found: Tuned) -> None:
    """Write a site down, beside the others."""
    kept = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    kept["/".join(site)] = {"rate": found.rate, "dials": found.dials, "ceilings": found.ceilings}
    FILE.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n", encoding="utf-8")
    _all.cache_clear()


def _tuned(found: Mapping[str, Any]) -> Tuned:
    return Tuned(
        rate=found["rate"],
        dials={
            name: {load: tuple(dials) for load, dials in by_load.items()}
            for name, by_load in found["dials"].items()
        },
        ceilings={
            name: {
                load: {metric: tuple(dials) for metric, dials in best.items()}
                for load, best in by_load.items()
            }
            for name, by_load in found["ceilings"].items()
        },
    )
