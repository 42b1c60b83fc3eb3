"""Play the bench: `python -m benchmarks.policy core` plays the core table and writes `docs/benchmarks.md`.

row WORKLOAD FLEET LOAD    one row, printed
core                       the core table, capacities and plots, written to the page
full                       the same and all other rows; what was played before is not played again
gates [CLAIM ...]          what is claimed of the default policy, judged, printed and written to `docs/gates.md`;
                           some of the claims are only printed, or written in place of what the page says of them
tune WORKLOAD/FLEET ...    measure load 1.0 and set everybody's dials, once; kept in `tuned.json`
"""

from __future__ import annotations

import argparse
import sys
import time
from math import inf

from agentsched.sim.gpus import FLEETS
from benchmarks.policy import smoke
from benchmarks.policy.cast import COMPETING
from benchmarks.policy.pool import ROOT, Pool, Store
from benchmarks.policy.report.book import FAIR, section, write_page
from benchmarks.policy.report.claims import CLAIMS
from benchmarks.policy.report.gates import SEEDS as GATES_SEEDS
from benchmarks.policy.report.gates import OtherSeeds, page, write_gates
from benchmarks.policy.report.standings import standings
from benchmarks.policy.row import CLOSED, CORE, CORE_SEEDS, FULL, Row
from benchmarks.policy.traffic import ARRIVALS
from benchmarks.policy.tuned import NeverTuned
from benchmarks.policy.tuning import tune
from benchmarks.policy.workloads import WORKLOADS

KEPT = ROOT / ".bench" / "policy.jsonl"


def main() -> int:
    parser = _parser()
    given = parser.parse_args()
    if given.command == "row" and given.arrivals == CLOSED and given.load != int(given.load):
        parser.error(f"argument load: {given.load:g} queries cannot be in a closed loop")
    try:
        return _run(given)
    except (NeverTuned, OtherSeeds) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; what was played is kept", file=sys.stderr)
        return 130


def _run(given: argparse.Namespace) -> int:
    began = time.perf_counter()
    with Pool(Store(KEPT), given.jobs, _tell) as pool:
        match given.command:
            case "row":
                row = Row(
                    workload=given.workload, fleet=given.fleet, load=given.load, arrivals=given.arrivals
                )
                print(section(standings(row, FAIR, range(given.seeds), pool)))
            case "tune":
                for site in given.sites or sorted({row.site for row in (*CORE, *FULL)}):
                    found = tune(site, pool)
                    print(f"{'/'.join(site)}: {found.rate:.4f} queries/s, {found.dials}")
            case "gates" if given.claims:
                claims = [claim for claim in CLAIMS if claim.name in given.claims]
                if given.write:
                    print(write_gates(pool, range(given.seeds), claims))
                else:
                    print(page(claims, pool, range(given.seeds)))
            case "gates":
                print(write_gates(pool, range(given.seeds)))
            case "smoke":
                smoke.record()
            case command:
                print(write_page(pool, range(given.seeds), full=command == "full"))
    print(f"{time.perf_counter() - began:.0f} s", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policy", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    row = commands.add_parser("row", parents=[_common()], help="play one row and print it")
    row.add_argument("workload", choices=sorted(WORKLOADS))
    row.add_argument("fleet", choices=sorted(FLEETS))
    row.add_argument("load", type=_load, help="as a share of the site's load 1.0; queries in a closed loop")
    row.add_argument("--arrivals", default="poisson", choices=[*ARRIVALS, CLOSED])
    commands.add_parser("core", parents=[_common()], help="play the core table and write the page")
    commands.add_parser("full", parents=[_common()], help="play every row and write the page")
    gates = commands.add_parser("gates", parents=[_common(GATES_SEEDS)], help="judge what is claimed")
    gates.add_argument("claims", nargs="*", type=_claim, metavar="CLAIM", help=", ".join(_claims()))
    gates.add_argument("--write", action="store_true", help="write claims that are named to the page too")
    commands.add_parser("smoke", parents=[_common()], help="record the figures that the tests compare with")
    tuning = commands.add_parser(
        "tune", parents=[_common()], help=f"measure and set, for the dials of {len(COMPETING)} contenders"
    )
    tuning.add_argument("sites", nargs="*", type=_site, metavar="WORKLOAD/FLEET")
    return parser


def _common(seeds: int = CORE_SEEDS) -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--jobs", type=_count, default=2, help="processes (2)")
    common.add_argument("--seeds", type=_count, default=seeds, help=f"seeds per row ({seeds})")
    return common


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1000:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 to 999")
    return int(text)


def _load(text: str) -> float:
    try:
        load = float(text)
    except ValueError:
        load = 0.0
    if not 0 < load < inf:
        raise argparse.ArgumentTypeError(f"{text} is not a load above 0")
    return load


def _claims() -> list[str]:
    return [claim.name for claim in CLAIMS]


def _claim(text: str) -> str:
    if text not in _claims():
        raise argparse.ArgumentTypeError(f"{text} is not one of {', '.join(_claims())}")
    return text


def _site(text: str) -> tuple[str, str]:
    workload, _, fleet = text.partition("/")
    if workload not in WORKLOADS or fleet not in FLEETS:
        raise argparse.ArgumentTypeError(
            f"{text} is not one of {', '.join(sorted(WORKLOADS))} with one of {', '.join(sorted(FLEETS))}"
        )
    return workload, fleet


def _tell(done: int, of: int) -> None:
    if sys.stderr.isatty() or done == of or done % 50 == 0:
        print(f"\r{done} of {of}", end="" if sys.stderr.isatty() else "\n", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
