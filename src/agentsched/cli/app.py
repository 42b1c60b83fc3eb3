"""The commands and their options."""

from pathlib import Path
from typing import Annotated, Any

import typer

from agentsched.cli.policies import constructors
from agentsched.cli.profile import profile_servers
from agentsched.cli.replay import replay_journal
from agentsched.cli.simulate import simulate_trace

NAMES = "|".join(constructors())

Wrong: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""What typer raises for options and arguments that are wrong; where it lives depends on its version."""

app = typer.Typer(
    help="Play traces against fleets in virtual time, and journals once more; measure servers.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.command()
def simulate(  # noqa: PLR0917 - typer's way to declare options
    trace: Annotated[Path, typer.Argument(help="Calls: CSV, JSON Lines, or a journal.")],
    fleet: Annotated[Path, typer.Argument(help="Backends: TOML.")],
    policy: Annotated[
        list[str] | None, typer.Option(metavar=NAMES, help="One to play; may be given several times.")
    ] = None,
    speed_up: Annotated[float, typer.Option(help="How many times faster queries arrive.")] = 1.0,
    warm_up: Annotated[int, typer.Option(help="How many queries come before those that count.")] = 0,
    plot: Annotated[
        Path | None, typer.Option(help="SVG or PNG: latency against rate, at five speeds.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON.")] = False,
) -> None:
    """Play a trace against a fleet under each policy, and compare."""
    simulate_trace(
        trace,
        fleet,
        policies=policy or ["fcfs", "default"],
        speed_up=speed_up,
        warm_up=warm_up,
        plot=plot,
        json=as_json,
    )


@app.command()
def replay(
    journal: Annotated[Path, typer.Argument(help="What Scheduler(journal=...) recorded.")],
    policy: Annotated[str | None, typer.Option(metavar=NAMES, help="The recorded one if not given.")] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="Print so many events; all are compared.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Print the verdict only.")] = False,
) -> None:
    """Have the events of a journal happen again, and explain the first decision that is another one now."""
    same = replay_journal(journal, policy=policy, limit=0 if check else limit)
    raise typer.Exit(0 if same else 1)


@app.command()
def profile(  # noqa: PLR0917 - typer's way to declare options
    urls: Annotated[
        list[str] | None,
        typer.Argument(metavar="[URL]...", help="Servers: API roots, most often ending in /v1."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The first that each server lists if not given.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="The environment variable that holds the servers' key.")
    ] = None,
    max_seconds: Annotated[float, typer.Option(help="How long each server is measured at most.")] = 60.0,
    max_calls: Annotated[int, typer.Option(min=1, help="How many calls are made to each at most.")] = 150,
    journal: Annotated[
        Path | None, typer.Option(help="Learn from what Scheduler(journal=...) recorded, too.")
    ] = None,
    output: Annotated[Path, typer.Option(help="For Scheduler(profile=...); what is there is kept.")] = Path(
        "profile.json"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure how fast servers are, with calls of its own, and save that for schedulers to begin with."""
    well = profile_servers(
        urls or [],
        output=output,
        model=model,
        api_key_env=api_key_env,
        max_seconds=max_seconds,
        max_calls=max_calls,
        journal=journal,
        json=as_json,
    )
    raise typer.Exit(0 if well else 1)
