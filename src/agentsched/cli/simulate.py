"""`agentsched simulate`: a trace played against a fleet under several policies, as a table and a picture."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from agentsched.cli.played import Names, Played, as_json, as_table, label
from agentsched.cli.plot import check_plot, latency_plot
from agentsched.cli.policies import made
from agentsched.cli.telling import note
from agentsched.cli.textfile import lines_of, text_of
from agentsched.engine.words import shown
from agentsched.errors import UsageError
from agentsched.policy import Policy
from agentsched.sim.fleetfile import Fleet, read_fleet
from agentsched.sim.journaltrace import LeftOut
from agentsched.sim.plan import Node, Plan
from agentsched.sim.player import Player, Run, Watch
from agentsched.sim.report import figures, room_tokens, unloaded_s
from agentsched.sim.spec import BackendSpec
from agentsched.sim.trace import read_trace

PLOT_SPEEDS = (0.5, 0.75, 1.0, 1.25, 1.5)
"""How many times faster than asked for the trace is played for the points of a line."""
MAX_SPEED_UP = 1e6

Arrivals = Sequence[tuple[float, Plan]]


def simulate_trace(
    trace: Path,
    fleet: Path,
    *,
    policies: Sequence[str],
    speed_up: float = 1.0,
    warm_up: int = 0,
    plot: Path | None = None,
    json: bool = False,
) -> None:
    """Play a trace and print what came of it, as a table or as JSON; with `plot`, draw a picture too.

    Args:
        policies: names of constructors of `Policy`.
        speed_up: how many times faster the queries arrive than in the trace.
        warm_up: how many queries come before those that count.

    Raises:
        UsageError: for files and options that cannot work.
    """
    chosen = _chosen(policies)
    if plot is not None:
        check_plot(plot)
    left_out = LeftOut()
    with lines_of(trace) as lines:
        arrivals = read_trace(lines, shown(str(trace)), left_out=left_out)
    backends = read_fleet(text_of(fleet), shown(str(fleet)))
    _check(arrivals, backends, speed_up=speed_up, warm_up=warm_up, plotted=plot is not None)
    for what in (*_left_out(left_out), *_too_long(arrivals, backends)):
        note(what)
    speeds = [1.0] if plot is None else PLOT_SPEEDS
    played = _play_all(arrivals, backends, chosen, [speed_up * speed for speed in speeds], warm_up)
    asked = {names: played[names, speed_up] for names in chosen}
    print(as_json(asked, _facts(arrivals, left_out, warm_up)) if json else as_table(asked))
    if plot is not None:
        _draw(plot, trace, arrivals, played)


# -- what is asked for -------------------------------------------------------------------------------------


def _chosen(policies: Sequence[str]) -> dict[Names, Policy]:
    """Return the policies with all the names that each was asked for by."""
    chosen: list[tuple[list[str], Policy]] = []
    for name in dict.fromkeys(policies):
        policy = made(name)
        same = next((names for names, known in chosen if known == policy), None)
        if same is None:
            chosen.append(([name], policy))
        else:
            same.append(name)
    return {tuple(names): policy for names, policy in chosen}


def _check(arrivals: Arrivals, fleet: Fleet, *, speed_up: float, warm_up: int, plotted: bool) -> None:
    if not 1 / MAX_SPEED_UP <= speed_up <= MAX_SPEED_UP:
        raise UsageError(
            f"--speed-up is {speed_up!r}; it must be from {1 / MAX_SPEED_UP:g} to {MAX_SPEED_UP:g}"
        )
    if not 0 <= warm_up < len(arrivals):
        raise UsageError(f"--warm-up is {warm_up}; of {len(arrivals)} queries at least one has to count")
    if plotted and _rate(arrivals) is None:
        raise UsageError("--plot: all queries of the trace arrive at once, so there is no rate to draw")
    for model in dict.fromkeys(node.model for _, plan in arrivals for node in plan.nodes):
        if not fleet.serving(model):
            raise UsageError(
                f"the trace has calls of the model {model!r}, which no backend of the fleet serves"
            )


def _left_out(left_out: LeftOut) -> list[str]:
    """Return what the user should know of what a journal lacks."""
    notes: list[str] = []
    if left_out.torn is not None:
        notes.append(f"line {left_out.torn}, the last one, was not written to its end and is left out")
    if left_out.calls:
        reasons = Counter(why for _, why in left_out.calls)
        why = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
        notes.append(f"calls of the journal that are left out: {why}")
    if left_out.dropped or left_out.shortened:
        notes.append(
            f"queries of the journal that are left out, for they have no other calls: {left_out.dropped}; "
            f"that lack some of their calls: {left_out.shortened}"
        )
    return notes


def _too_long(arrivals: Arrivals, fleet: Fleet) -> list[str]:
    """Return how many calls have no room at the backends that serve their model, or at some of them."""
    rooms: dict[str | None, tuple[int, int]] = {}
    nowhere = somewhere = most = 0
    for node in (node for _, plan in arrivals for node in plan.nodes):
        if node.model not in rooms:
            found = [room_tokens(spec) for spec in fleet.serving(node.model)]
            rooms[node.model] = min(found), max(found)
        least, room = rooms[node.model]
        tokens = node.input_tokens + node.output_tokens
        if tokens > room:
            nowhere, most = nowhere + 1, max(most, room)
        elif tokens > least:
            somewhere += 1
    notes: list[str] = []
    if nowhere:
        notes.append(
            f"calls longer than the {most} tokens that a backend serving their model takes at most, "
            f"which fail: {nowhere}"
        )
    if somewhere:
        notes.append(
            "calls longer than some of the backends that serve their model take, "
            f"which fail if they are sent there: {somewhere}"
        )
    return notes


def _facts(arrivals: Arrivals, left_out: LeftOut, warm_up: int) -> dict[str, int]:
    return {
        "queries": len(arrivals) - warm_up,
        "calls": sum(len(plan.nodes) for _, plan in arrivals[warm_up:]),
        "warm_up": warm_up,
        "calls_left_out": len(left_out.calls),
        "queries_left_out": left_out.dropped,
        "queries_shortened": left_out.shortened,
    }


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
    arrivals: Arrivals, fleet: Fleet, policies: Mapping[Names, Policy], speeds: Sequence[float], warm_up: int
) -> dict[tuple[Names, float], Played]:
    """Play every policy at every speed; show how far it is, if somebody looks."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    played: dict[tuple[Names, float], Played] = {}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("queries", total=len(arrivals) * len(policies) * len(speeds))
        watches = [_Progress(lambda: progress.advance(task))] if console.is_terminal else []
        for names, policy in policies.items():
            progress.update(task, description=label(names))
            for speed in speeds:
                played[names, speed] = _play(
                    arrivals, fleet, policy, speed=speed, warm_up=warm_up, watches=watches
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
    serving = _serving(fleet)
    found = figures(
        player.runs,
        player.calls,
        lambda plan: unloaded_s(plan, fleet.specs, serving=serving),
        engines=[server.model for _, server in servers],
        first=warm_up,
    )
    counted = player.runs[warm_up:]
    lost = Counter(run.why for run in counted if run.why is not None)
    return Played(queries=len(counted), lost=lost, figures=found)


def _serving(fleet: Fleet) -> Callable[[Node], Sequence[BackendSpec]]:
    """Return what gives the engines that serve a call's model."""
    known: dict[str | None, Sequence[BackendSpec]] = {}

    def serving(node: Node) -> Sequence[BackendSpec]:
        if node.model not in known:
            known[node.model] = fleet.serving(node.model)
        return known[node.model]

    return serving


# -- drawing -----------------------------------------------------------------------------------------------


def _draw(path: Path, trace: Path, arrivals: Arrivals, played: Mapping[tuple[Names, float], Played]) -> None:
    rate = _rate(arrivals)
    assert rate is not None
    series: dict[str, list[tuple[float, float]]] = {}
    gone: dict[str, list[float]] = {}
    for (names, speed), one in played.items():
        p95_s = one.figures["p95_s"]
        if isfinite(p95_s):
            series.setdefault(label(names), []).append((rate * speed, p95_s))
        else:
            gone.setdefault(label(names), []).append(rate * speed)
    if not series:
        note(f"plot: P95 is infinite everywhere, so there is nothing to draw; {path} is not written")
        return
    for name, rates in gone.items():
        at = ", ".join(f"{one:.4g}" for one in rates)
        note(f"plot: P95 of {name} is infinite at {at} queries/s, where there is no point")
    latency_plot(
        path,
        series,
        x_title="arriving queries / s",
        y_title="P95 latency of a query, s",
        title=trace.name,
    )
