"""`agentsched simulate`: figures for chosen policies, a picture, and one line for whatever is wrong."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentsched.cli import played
from agentsched.policy import Policy
from agentsched.runtime.profilefile import load_profile
from agentsched.sim.fleetfile import KEYS
from agentsched.sim.gpus import FLEETS
from agentsched.sim.player import Player
from agentsched.sim.report import METRICS
from agentsched.sim.trace import read_trace
from agentsched.sim.tracerow import COLUMNS
from agentsched.testing import FakeBackend, FakeFleet
from tests.cli.conftest import Ran, measured_in_virtual_time

Run = Callable[..., Ran]
MAIN = (sys.executable, "-c", "from agentsched.cli import main; main()")


def test_a_table_compares_the_policies(run: Run, trace: Path, fleet: Path) -> None:
    code, out, err = run("simulate", trace, fleet)
    assert (code, err) == (0, "")
    head, units, row, same = out.splitlines()
    assert max(map(len, out.splitlines())) <= 100
    assert head.split()[:4] == ["completed", "mean", "P50", "P95"]
    assert units.split()[:4] == ["policy", "queries", "s", "s"]
    assert row.split()[:2] == ["fcfs", "40/40"]
    assert all(float(cell) > 0 for cell in row.split()[2:])
    assert same == "fcfs = default: the same policy in this version"


def test_json_holds_every_figure_and_twice_the_same(run: Run, trace: Path, fleet: Path) -> None:
    ran = run("simulate", trace, fleet, "--json", "--warm-up", 5)
    assert ran == run("simulate", trace, fleet, "--json", "--warm-up", 5)
    found = json.loads(ran[1])
    policies = found.pop("policies")
    assert found == {
        "queries": 35,
        "calls": 105,
        "warm_up": 5,
        "calls_left_out": 0,
        "queries_left_out": 0,
        "queries_shortened": 0,
    }
    assert list(policies) == ["fcfs", "default"]
    assert policies["fcfs"] == policies["default"]
    assert list(policies["fcfs"]) == ["completed", "not_completed", *METRICS]
    assert (policies["fcfs"]["completed"], policies["fcfs"]["not_completed"]) == (35, {})


def test_policies_that_are_the_same_are_played_once(
    run: Run, trace: Path, fleet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Policy] = []

    class Counted(Player):
        def __init__(self, *given: Any, policy: Policy, **options: Any) -> None:
            made.append(policy)
            super().__init__(*given, policy=policy, **options)

    monkeypatch.setattr("agentsched.cli.simulate.Player", Counted)
    shortest = Policy(rank=lambda job: job.request.input_tokens)
    monkeypatch.setattr(Policy, "shortest", staticmethod(lambda: shortest), raising=False)
    names = ("fcfs", "shortest", "default", "fcfs")
    _, out, _ = run("simulate", trace, fleet, *(part for name in names for part in ("--policy", name)))
    assert made == [Policy.fcfs(), shortest]
    first, second, same = out.splitlines()[2:]
    assert (first.split()[0], second.split()[0]) == ("fcfs", "shortest")
    assert same.startswith("fcfs = default: ")


def test_only_queries_that_count_are_counted(run: Run, tmp_path: Path, fleet: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text("time_s,input_tokens,output_tokens\n0,90000,5\n" + "1,10,5\n2,10,5\n9,10,5\n")
    _, out, _ = run("simulate", path, fleet, "--policy", "fcfs")
    assert "3/4" in out
    _, out, _ = run("simulate", path, fleet, "--policy", "fcfs", "--warm-up", 1)
    assert "3/3" in out
    assert "not completed" not in out


def test_rates_that_cannot_be_told_are_a_dash(run: Run, tmp_path: Path, fleet: Path) -> None:
    path = tmp_path / "two.csv"
    path.write_text("time_s,input_tokens,output_tokens\n0,10,1000\n1,10,1000\n")
    for options in ((), ("--warm-up", 1)):
        row = run("simulate", path, fleet, "--policy", "fcfs", *options)[1].splitlines()[-1].split()
        assert row[-3:-1] == ["-", "-"]
    figures = json.loads(run("simulate", path, fleet, "--policy", "fcfs", "--json")[1])["policies"]["fcfs"]
    assert (figures["goodput"], figures["throughput"]) == (None, None)


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
    assert out.splitlines()[-1] == (
        "fcfs: 1 of 2 queries not completed (1 failed); each counts as infinitely long: inf"
    )
    assert err == (
        "note: calls longer than the 32768 tokens that a backend serving their model takes at most, "
        "which fail: 1\n"
    )
    figures = json.loads(run("simulate", path, fleet, "--json", "--policy", "fcfs")[1])["policies"]["fcfs"]
    assert (figures["completed"], figures["mean_s"]) == (1, None)
    assert figures["not_completed"] == {"failed": 1}


SERVED = """
[[backend]]
name = "x"
gpu = "A100"
models = ["x"]
max_model_len = 4000
[[backend]]
name = "xy"
gpu = "A40"
models = ["x", "y"]
max_model_len = 2000
"""


def test_calls_are_compared_with_the_backends_that_serve_them(run: Run, tmp_path: Path) -> None:
    path, fleet = tmp_path / "calls.csv", tmp_path / "served.toml"
    fleet.write_text(SERVED)
    rows = [("x", 100), ("x", 3000), ("y", 100), ("y", 3000), ("x", 5000), ("", 3000)]
    path.write_text(
        "time_s,model,input_tokens,output_tokens\n"
        + "".join(f"{at},{model},{tokens},5\n" for at, (model, tokens) in enumerate(rows))
    )
    _, out, err = run("simulate", path, fleet, "--policy", "fcfs", "--json")
    assert err.splitlines() == [
        "note: calls longer than the 4000 tokens that a backend serving their model takes at most, which fail: 2",
        "note: calls longer than some of the backends that serve their model take, "
        "which fail if they are sent there: 2",
    ]
    assert json.loads(out)["policies"]["fcfs"]["not_completed"]["failed"] >= 2


def test_slowdown_is_told_by_the_backends_that_serve_a_call(run: Run, tmp_path: Path) -> None:
    path, fleet = tmp_path / "calls.csv", tmp_path / "served.toml"
    fleet.write_text(SERVED)
    path.write_text("time_s,model,input_tokens,output_tokens\n0,y,100,50\n100,y,100,50\n")
    _, out, _ = run("simulate", path, fleet, "--policy", "fcfs", "--json")
    assert json.loads(out)["policies"]["fcfs"]["slowdown"] == pytest.approx(1.0)


def test_calls_without_a_model_go_anywhere(run: Run, tmp_path: Path) -> None:
    path, fleet = tmp_path / "calls.csv", tmp_path / "served.toml"
    fleet.write_text(SERVED)
    path.write_text("time_s,input_tokens,output_tokens\n0,10,10\n1,10,10\n")
    code, out, err = run("simulate", path, fleet, "--policy", "fcfs")
    assert (code, err) == (0, "")
    assert "2/2" in out


def test_a_recorded_journal_is_a_trace(run: Run, journal: Path, fleet: Path) -> None:
    code, out, err = run("simulate", journal, fleet, "--json", "--policy", "default")
    assert code == 0
    notes = err.splitlines()
    assert notes == [
        "note: calls of the journal that are left out: 1 cancelled",
        "note: queries of the journal that are left out, for they have no other calls: 1; "
        "that lack some of their calls: 0",
    ]
    found = json.loads(out)
    assert (found["queries"], found["calls"], found["calls_left_out"]) == (6, 12, 1)
    assert (found["queries_left_out"], found["queries_shortened"]) == (1, 0)
    assert found["policies"]["default"]["completed"] == 6
    journal.write_bytes(b"\xef\xbb\xbf\n" + journal.read_bytes() + b'\n{"event":"Wo')
    code, again, err = run("simulate", journal, fleet, "--json", "--policy", "default")
    assert (code, json.loads(again)) == (0, found)
    lines = journal.read_text().count("\n") + 1
    assert err.splitlines() == [
        f"note: line {lines}, the last one, was not written to its end and is left out",
        *notes,
    ]


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
        (["{trace}", "{fleet}", "--plot", "{folder}"], "plot: cannot write {folder}: Is a directory"),
        (["{trace}", "{fleet}", "--plot", "/proc/a.svg"], "plot: cannot write /proc/a.svg: "),
        (["{trace}", "{fleet}", "--speed-up", "fast"], "Invalid value for '--speed-up': "),
        (["{trace}", "{fleet}", "--speed"], "No such option: --speed"),
        (["{trace}"], "Missing argument '"),
        (["a\n\x1b[2Jb.csv", "{fleet}"], "cannot read 'a\\n\\x1b[2Jb.csv': No such file"),
        (["{odd}", "{fleet}"], "'{parent}/odd\\x1b[2J\\udcff.csv': line 1: character 1 is not UTF-8 text"),
        (["/proc/self/mem", "{fleet}"], "/proc/self/mem: the file cannot be read: Input/output error"),
        (["{one}", "{fleet}", "--plot", "a.svg"], "--plot: all queries of the trace arrive at once"),
        (["{of}", "{served}"], "the trace has calls of the model 'm', which no backend of the fleet serves"),
    ],
)
def test_whatever_is_wrong_is_one_line(
    run: Run, trace: Path, fleet: Path, arguments: list[str], message: str
) -> None:
    files = {"trace": trace, "fleet": fleet, "parent": trace.parent, "folder": trace.parent / "folder.svg"}
    files["folder"].mkdir()
    files["odd"] = trace.parent / "odd\x1b[2J\udcff.csv"
    files["odd"].write_bytes(b"\xff\n")
    for name, content in {
        "binary": b"a,b\n\xff\xfe\n",
        "one": b"time_s,input_tokens,output_tokens\n1,2,3\n",
        "of": b"time_s,input_tokens,output_tokens,model\n1,2,3,m\n",
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
    assert err[:-1].isprintable()


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
    assert (
        ran.stderr
        == "agentsched: typer is missing: pip install 'agentsched[cli]', or '.[cli]' in a checkout\n"
    )


@pytest.mark.parametrize("command", ["simulate", "replay", ""])
def test_help_is_there_and_nothing_asked_for_is_asked_for_wrongly(run: Run, command: str) -> None:
    code, out, err = run(*filter(None, [command, "--help"]))
    assert (code, err) == (0, "")
    assert "Usage: " in out
    if not command:
        assert run()[0] == 2
        assert "Usage: " in run()[1]


@pytest.mark.parametrize("command", ["simulate", "replay"])
def test_a_wrong_policy_is_not_the_files_fault(run: Run, journal: Path, fleet: Path, command: str) -> None:
    files = [journal, fleet] if command == "simulate" else [journal]
    code, _, err = run(command, *files, "--policy", "nix")
    assert (code, err) == (2, "agentsched: no policy is called 'nix'; there are fcfs, default\n")


def test_whoever_interrupts_gets_one_line(
    run: Run, trace: Path, fleet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_given: object, **_options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("agentsched.cli.simulate.read_trace", interrupted)
        assert run("simulate", trace, fleet) == (130, "", "agentsched: interrupted\n")
    importing = ModuleType("agentsched.cli.app")
    monkeypatch.setattr(importing, "__getattr__", interrupted, raising=False)
    monkeypatch.setitem(sys.modules, "agentsched.cli.app", importing)
    assert run("simulate", trace, fleet) == (130, "", "agentsched: interrupted\n")


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
    assert (ran.returncode, ran.stderr) == (
        1,
        "agentsched: cannot write to stdout: No space left on device\n",
    )


def test_a_closed_output_is_one_line(trace: Path, fleet: Path) -> None:
    command = shlex.join([*map(str, MAIN), "simulate", str(trace), str(fleet)])
    ran = subprocess.run(
        ["sh", "-c", f"{command} >&-"], stderr=subprocess.PIPE, text=True, check=False, timeout=30
    )
    assert (ran.returncode, ran.stderr) == (1, "agentsched: stdout is closed\n")


def test_the_largest_figures_are_not_cut() -> None:
    figures = dict.fromkeys(METRICS, 123_456_789_012.0)
    queries = 1_000_000
    table = played.as_table({("fcfs",): played.Played(queries=queries, lost={}, figures=figures)})
    assert "…" not in table
    assert f"{queries}/{queries}" in table
    assert table.count("123456789012.0") == len(played.COLUMNS)


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
    assert len(commands) == 7
    fakes = [FakeBackend(host, base_url=f"http://gpu-{host}:8000/v1") for host in "ab"]
    monkeypatch.setattr("agentsched.cli.profile.measure", measured_in_virtual_time(FakeFleet(fakes)))
    for program, *arguments in commands:
        assert program == "agentsched"
        assert run(*arguments)[0] == 0
    assert Path("latency.svg").exists()
    assert [one.name for one in load_profile("profile.json").backends] == [
        "gpu-a:8000",
        "gpu-b:8000",
        "fake-1",
        "fake-2",
    ]
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
    assert [name for name in METRICS if not re.search(rf"^\|.*`{name}`.*\|", text, re.MULTILINE)] == []
