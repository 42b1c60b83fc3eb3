"""`agentsched simulate`: figures for chosen policies, a picture, and one line for whatever is wrong."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentsched.cli.plot import latency_plot
from agentsched.errors import UsageError
from agentsched.sim.fleetfile import KEYS
from agentsched.sim.gpus import FLEETS
from agentsched.sim.report import METRICS
from agentsched.sim.trace import read_trace
from agentsched.sim.tracerow import COLUMNS
from tests.cli.conftest import Ran

Run = Callable[..., Ran]
MAIN = (sys.executable, "-c", "from agentsched.cli import main; main()")


def test_a_table_compares_the_policies(run: Run, trace: Path, fleet: Path) -> None:
    code, out, err = run("simulate", trace, fleet)
    assert (code, err) == (0, "")
    head, units, *rows = out.splitlines()
    assert max(map(len, out.splitlines())) <= 100
    assert head.split()[:4] == ["completed", "mean", "P50", "P95"]
    assert units.split()[:4] == ["policy", "queries", "s", "s"]
    assert [row.split()[:2] for row in rows] == [["fcfs", "40/40"], ["default", "40/40"]]
    assert all(float(cell) > 0 for row in rows for cell in row.split()[2:])


def test_json_holds_every_figure_and_twice_the_same(run: Run, trace: Path, fleet: Path) -> None:
    ran = run("simulate", trace, fleet, "--json", "--policy", "fcfs", "--warm-up", 5)
    assert ran == run("simulate", trace, fleet, "--json", "--policy", "fcfs", "--warm-up", 5)
    found = json.loads(ran[1])
    assert (found["queries"], found["calls"], found["calls_left_out"]) == (40, 120, 0)
    assert list(found["policies"]) == ["fcfs"]
    assert list(found["policies"]["fcfs"]) == ["completed", *METRICS]


def test_faster_arrivals_take_longer(run: Run, trace: Path, fleet: Path) -> None:
    means = [
        json.loads(run("simulate", trace, fleet, "--json", "--policy", "fcfs", "--speed-up", speed)[1])[
            "policies"
        ]["fcfs"]["mean_s"]
        for speed in (0.1, 1, 10)
    ]
    assert means == sorted(means)
    assert means[2] > 1.5 * means[0]


def test_what_never_completes_is_told(run: Run, tmp_path: Path, fleet: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text("time_s,input_tokens,output_tokens\n0,100,5\n1,90000,5\n")
    code, out, err = run("simulate", path, fleet, "--policy", "fcfs")
    assert code == 0
    assert "1/2" in out
    assert " inf " in out
    assert err == "note: calls longer than the 32768 tokens that a backend takes at most, which fail: 1\n"
    figures = json.loads(run("simulate", path, fleet, "--json", "--policy", "fcfs")[1])["policies"]["fcfs"]
    assert (figures["completed"], figures["mean_s"]) == (1, None)


def test_a_picture_is_drawn(run: Run, trace: Path, fleet: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    code, out, _ = run("simulate", trace, fleet, "--policy", "fcfs", "--plot", path)
    assert (code, out.count("fcfs")) == (0, 1)
    assert "P95 latency of a query" in path.read_text()


def test_a_picture_is_the_same_every_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        lines = {"fcfs": [(1.0, 2.0), (2.0, 9.0)], "default": [(1.0, 1.5), (2.0, 4.0)]}
        latency_plot(tmp_path / f"{name}.svg", lines, x_title="rate", y_title="P95, s", title="two")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_picture_of_nothing_and_of_odd_names(tmp_path: Path) -> None:
    titles = {"x_title": "x", "y_title": "y", "title": "$\\frac{"}
    latency_plot(tmp_path / "empty.png", {}, **titles)
    assert (tmp_path / "empty.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="cannot write"):
        latency_plot(tmp_path / "missing" / "a.svg", {"fcfs": [(1.0, 2.0)]}, **titles)


def test_a_recorded_journal_is_a_trace(run: Run, journal: Path, fleet: Path) -> None:
    code, out, err = run("simulate", journal, fleet, "--json", "--policy", "default")
    assert code == 0
    assert err == "note: calls of the journal that are left out: 1 cancelled\n"
    found = json.loads(out)
    assert (found["queries"], found["calls"], found["calls_left_out"]) == (6, 12, 1)
    assert found["policies"]["default"]["completed"] == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.csv", "{fleet}"], "cannot read missing.csv: No such file or directory"),
        (["/", "{fleet}"], "cannot read /: Is a directory"),
        (["{trace}", "missing.toml"], "cannot read missing.toml: No such file or directory"),
        (["{trace}", "{trace}"], "{trace} is not TOML: "),
        (["{trace}", "{binary}"], "{binary}: the file is not UTF-8 text"),
        (["{binary}", "{fleet}"], "{binary}: line 2: character 1 is not UTF-8 text"),
        (["{fleet}", "{fleet}"], "{fleet}: line 1: "),
        (["{trace}", "{fleet}", "--policy", "best"], "no policy is called 'best'; there are fcfs, default"),
        (["{trace}", "{fleet}", "--speed-up", "0"], "--speed-up is 0.0; it must be from 1e-06 to 1e+06"),
        (["{trace}", "{fleet}", "--speed-up", "nan"], "--speed-up is nan"),
        (
            ["{trace}", "{fleet}", "--warm-up", "40"],
            "--warm-up is 40; of 40 queries at least one has to count",
        ),
        (["{trace}", "{fleet}", "--warm-up", "-1"], "--warm-up is -1"),
        (["{trace}", "{fleet}", "--plot", "a.gif"], "plot: 'a.gif' must end in .svg or .png"),
        (["{trace}", "{fleet}", "--plot", "none/a.svg"], "plot: there is no folder 'none'"),
        (["{one}", "{fleet}", "--plot", "a.svg"], "--plot: all queries of the trace arrive at once"),
        (["{one}", "{served}"], "the trace has calls of the model 'm', which no backend of the fleet serves"),
    ],
)
def test_whatever_is_wrong_is_one_line(
    run: Run, trace: Path, fleet: Path, arguments: list[str], message: str
) -> None:
    files = {"trace": trace, "fleet": fleet}
    for name, content in {
        "binary": b"a,b\n\xff\xfe\n",
        "one": b"time_s,input_tokens,output_tokens\n1,2,3\n",
        "served": b'[[backend]]\nname = "a"\ngpu = "A100"\nmodels = ["qwen3"]\n',
    }.items():
        files[name] = trace.parent / name
        files[name].write_bytes(content)
    if "{binary}" in arguments[0]:
        files["binary"].write_bytes(b"time_s,input_tokens,output_tokens\n\xff\xfe\n")
    code, out, err = run("simulate", *(one.format(**files) for one in arguments))
    assert (code, out) == (2, "")
    assert err.startswith("agentsched: " + message.format(**files))
    assert err.count("\n") == 1


def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('gone', name='typer')")
    ran = subprocess.run(
        MAIN,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == "agentsched: typer is missing: pip install 'agentsched[cli]'\n"


def test_a_full_disk_is_one_line(trace: Path, fleet: Path) -> None:
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [*MAIN, "simulate", trace, fleet],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=30,
        )
    assert (ran.returncode, ran.stderr) == (1, "agentsched: No space left on device\n")


def test_the_commands_of_the_documents_run(
    run: Run, journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text(encoding="utf-8")
    blocks: dict[str, str] = dict(re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL))
    monkeypatch.chdir(tmp_path)
    assert journal == tmp_path / "run.jsonl"
    Path("calls.csv").write_text(blocks["csv"], encoding="utf-8")
    Path("fleet.toml").write_text(blocks["toml"], encoding="utf-8")
    commands = [line.split() for line in blocks["sh"].splitlines()]
    assert len(commands) == 5
    for program, *arguments in commands:
        assert program == "agentsched"
        assert run(*arguments)[0] == 0
    assert Path("latency.svg").exists()
    with Path("calls.csv").open(encoding="utf-8") as lines:
        (_, plan), _ = read_trace(lines, "calls.csv")
    assert [(node.step, node.after, round(node.delay_s, 9)) for node in plan.nodes] == [
        ("plan", (), 0.0),
        ("search", (0,), 0.1),
        ("answer", (0,), 0.1),
        ("check", (1, 2), 1.3),
    ]
    named = re.search(r"by its name: (.*?), as in", text, re.DOTALL)
    assert named is not None
    assert re.findall(r"`(\w+)`", named[1]) == list(FLEETS)
    assert all(f"`{column}`" in text for column in COLUMNS)
    assert all(key in text for key in KEYS)
