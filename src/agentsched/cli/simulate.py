"""`agentsched simulate`: a trace played against a fleet under several policies, as a table and a picture."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from agentsched.cli.plot import check_plot, latency_plot
from agentsched.cli.policies import made
from agentsched.cli.textfile import lines_of, text_of
from agentsched.errors import UsageError
from agentsched.model.value import value
from agentsched.policy import Policy
from agentsched.sim.fleetfile import Fleet, read_fleet
from agentsched.sim.plan import Plan
from agentsched.sim.player import Player, Run, Watch
from agentsched.sim.report import METRICS, Figures, figures, unloaded_s
from agentsched.sim.trace import read_trace

COLUMNS = (
    "mean_s",
    "p50_s",
    "p95_s",
    "p99_s",
    "slowdown",
    "slo_share",
    "goodput",
    "throughput",
    "call_p95_s",
)
"""The figures that the table has room for."""
WIDTH = 100
PLOT_SPEEDS = (0.5, 0.75, 1.0, 1.25, 1.5)
"""How many times faster than asked for the trace is played for the points of a line."""
MAX_SPEED_UP = 1e6

Arrivals = Sequence[tuple[float, Plan]]


@value
class Played:
    """What one policy made of a trace.

    Attributes:
        completed: how many queries got all their answers.
    """

    completed: int
    figures: Figures


def simulate_trace(
    trace: Path,
    fleet: Path,
    *,
    policies: Sequence[str],
    speed_up: float = 1.0,
    warm_up: int = 0,
    plot: Path | None = None,
    as_json: bool = False,
) -> None:
    """Play a trace and print what came of it, as a table or as JSON; with `plot`, draw a picture too.

    Args:
        policies: names of constructors of `Policy`.
        speed_up: how many times faster the queries arrive than in the trace.
        warm_up: how many queries come before those that count.

    Raises:
        UsageError: for files and options that cannot work.
    """
    chosen = {name: made(name) for name in policies}
    if plot is not None:
        check_plot(plot)
    left_out: Counter[str] = Counter()
    with lines_of(trace) as lines:
        arrivals = read_trace(lines, str(trace), on_left_out=lambda _, why: left_out.update([why]))
    backends = read_fleet(text_of(fleet), str(fleet))
    _check(arrivals, backends, speed_up=speed_up, warm_up=warm_up, plotted=plot is not None)
    for note in _notes(arrivals, backends, left_out):
        print(f"note: {note}", file=sys.stderr)
    speeds = [1.0] if plot is None else PLOT_SPEEDS
    played = _play_all(arrivals, backends, chosen, [speed_up * speed for speed in speeds], warm_up)
    asked = {name: played[name, speed_up] for name in chosen}
    print(_as_json(arrivals, asked, left_out.total()) if as_json else _as_table(asked, len(arrivals)))
    if plot is not None:
        _draw(plot, trace, arrivals, played)


# -- what is asked for -------------------------------------------------------------------------------------


def _check(arrivals: Arrivals, fleet: Fleet, *, speed_up: float, warm_up: int, plotted: bool) -> None:
    if not 1 / MAX_SPEED_UP <= speed_up <= MAX_SPEED_UP:
        raise UsageError(
            f"--speed-up is {speed_up!r}; it must be from {1 / MAX_SPEED_UP:g} to {MAX_SPEED_UP:g}"
        )
    if not 0 <= warm_up < len(arrivals):
        raise UsageError(f"--warm-up is {warm_up}; of {len(arrivals)} queries at least one has to count")
    if plotted and _rate(arrivals) is None:
        raise UsageError("--plot: all queries of the trace arrive at once, so there is no rate to draw")
    served = [backend.models for backend in fleet.backends]
    for model in dict.fromkeys(node.model for _, plan in arrivals for node in plan.nodes):
        if not any(models is None or model in models for models in served):
            raise UsageError(
                f"the trace has calls of the model {model!r}, which no backend of the fleet serves"
            )


def _notes(arrivals: Arrivals, fleet: Fleet, left_out: Counter[str]) -> list[str]:
    """Return what else the user should know of the trace."""
    notes: list[str] = []
    if left_out:
        why = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        notes.append(f"calls of the journal that are left out: {why}")
    room = max(min(spec.max_model_len, spec.kv_blocks * spec.block_tokens) for spec in fleet.specs)
    long = sum(node.input_tokens + node.output_tokens > room for _, plan in arrivals for node in plan.nodes)
    if long:
        notes.append(f"calls longer than the {room} tokens that a backend takes at most, which fail: {long}")
    return notes


def _rate(arrivals: Arrivals) -> float | None:
    """Return how many queries arrive per second; None if all arrive at once."""
    span_s = arrivals[-1][0] - arrivals[0][0]
    return (len(arrivals) - 1) / span_s if span_s else None


# -- playing -----------------------------------------------------------------------------------------------


class _Progress(Watch):
    def __init__(self, advance: Callable[[], None]) -> None:
        self._advance = advance

    def closed(self, run: Run) -> None:
        self._advance()


def _play_all(
    arrivals: Arrivals, fleet: Fleet, policies: Mapping[str, Policy], speeds: Sequence[float], warm_up: int
) -> dict[tuple[str, float], Played]:
    """Play every policy at every speed; show how far it is, if somebody looks."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    played: dict[tuple[str, float], Played] = {}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("queries", total=len(arrivals) * len(policies) * len(speeds))
        watches = [_Progress(lambda: progress.advance(task))] if console.is_terminal else []
        for name in policies:
            progress.update(task, description=name)
            for speed in speeds:
                played[name, speed] = _play(
                    arrivals, fleet, policies[name], speed=speed, warm_up=warm_up, watches=watches
                )
    return played


def _play(
    arrivals: Arrivals,
    fleet: Fleet,
    policy: Policy,
    *,
    speed: float,
    warm_up: int,
    watches: Sequence[Watch],
) -> Played:
    servers = fleet.fresh()
    player = Player(servers, policy=policy, watches=watches)
    first_s = arrivals[0][0]
    for at, plan in arrivals:
        player.arrive((at - first_s) / speed, plan)
    player.run()
    specs = list(dict.fromkeys(fleet.specs))
    found = figures(
        player.runs,
        player.calls,
        lambda plan: unloaded_s(plan, specs),
        engines=[server.model for _, server in servers],
        first=warm_up,
    )
    return Played(completed=sum(run.completed for run in player.runs), figures=found)


# -- telling -----------------------------------------------------------------------------------------------


def _as_table(played: dict[str, Played], queries: int) -> str:
    table = Table(box=None, padding=(0, 1), header_style="")
    table.add_column("\npolicy")
    table.add_column("completed\nqueries", justify="right")
    for name in COLUMNS:
        metric = METRICS[name]
        table.add_column(f"{metric.title}\n{metric.unit}", justify="right")
    for policy, one in played.items():
        cells = [f"{one.figures[name]:.{METRICS[name].digits}f}" for name in COLUMNS]
        table.add_row(policy, f"{one.completed}/{queries}", *cells)
    console = Console(width=max(WIDTH, 12 * len(COLUMNS)), color_system=None)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _as_json(arrivals: Arrivals, played: dict[str, Played], left_out: int) -> str:
    """Return all figures; what is not finite, because queries were not completed or did not spread, is null."""
    return json.dumps(
        {
            "queries": len(arrivals),
            "calls": sum(len(plan.nodes) for _, plan in arrivals),
            "calls_left_out": left_out,
            "policies": {
                name: {
                    "completed": one.completed,
                    **{what: number if isfinite(number) else None for what, number in one.figures.items()},
                }
                for name, one in played.items()
            },
        },
        indent=2,
    )


def _draw(path: Path, trace: Path, arrivals: Arrivals, played: dict[tuple[str, float], Played]) -> None:
    rate = _rate(arrivals)
    assert rate is not None
    series: dict[str, list[tuple[float, float]]] = {}
    for (name, speed), one in played.items():
        p95_s = one.figures["p95_s"]
        if isfinite(p95_s):
            series.setdefault(name, []).append((rate * speed, p95_s))
    latency_plot(
        path,
        series,
        x_title="arriving queries / s",
        y_title="P95 latency of a query, s",
        title=trace.name,
    )
