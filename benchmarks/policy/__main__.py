"""Play the bench: `python -m benchmarks.policy core` plays the core table and writes `docs/benchmarks.md`.

row WORKLOAD FLEET LOAD    one row, printed
core                       the core table, capacities and plots, written to the page
full                       the same and all other rows; what was played before is not played again
tune WORKLOAD/FLEET ...    measure load 1.0 and set everybody's dials, once; kept in `tuned.json`
"""

from __future__ import annotations

import argparse
import sys
import time

from benchmarks.policy import smoke
from benchmarks.policy.cast import CAST
from benchmarks.policy.pool import ROOT, Pool, Store
from benchmarks.policy.report.book import FAIR, write_page
from benchmarks.policy.report.page import table
from benchmarks.policy.report.standings import standings
from benchmarks.policy.row import CORE, CORE_SEEDS, FULL, Row
from benchmarks.policy.tuning import tune

KEPT = ROOT / ".bench" / "policy.jsonl"


def main() -> int:
    given = _parser().parse_args()
    began = time.perf_counter()
    with Pool(Store(KEPT), given.jobs, _tell) as pool:
        match given.command:
            case "row":
                row = Row(
                    workload=given.workload, fleet=given.fleet, load=given.load, arrivals=given.arrivals
                )
                print(table(standings(row, FAIR, range(given.seeds), pool)))
            case "tune":
                sites = given.sites or sorted({"/".join(row.site) for row in (*CORE, *FULL)})
                for site in sites:
                    workload, _, fleet = site.partition("/")
                    found = tune((workload, fleet), pool)
                    print(f"{site}: {found.rate:.4f} queries/s, {found.dials}")
            case "smoke":
                smoke.record()
            case command:
                print(write_page(pool, range(given.seeds), full=command == "full"))
    print(f"{time.perf_counter() - began:.0f} s", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policy", description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--seeds", type=int, default=CORE_SEEDS, help=f"seeds per row ({CORE_SEEDS})")
    commands = parser.add_subparsers(dest="command", required=True)
    row = commands.add_parser("row", help="play one row and print it")
    row.add_argument("workload")
    row.add_argument("fleet")
    row.add_argument("load", type=float)
    row.add_argument("--arrivals", default="poisson")
    commands.add_parser("core", help="play the core table and write the page")
    commands.add_parser("full", help="play every row and write the page")
    commands.add_parser("smoke", help="record the figures that the tests compare with")
    tuning = commands.add_parser("tune", help=f"measure and set, for the dials of {len(CAST)} contenders")
    tuning.add_argument("sites", nargs="*", metavar="WORKLOAD/FLEET")
    return parser


def _tell(done: int, of: int) -> None:
    if sys.stderr.isatty() or done == of or done % 50 == 0:
        print(f"\r{done} of {of}", end="" if sys.stderr.isatty() else "\n", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
