"""`agentsched profile`: servers are measured, journals read, files kept, and what goes wrong is one line."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentsched import Backend, Scheduler
from agentsched.engine.profilejson import written
from agentsched.predict import Measured, Profile
from agentsched.runtime.profilefile import load_profile
from agentsched.sim import gpus
from agentsched.testing import FakeBackend, FakeFleet, faults
from tests.cli.conftest import Ran, measured_in_virtual_time

Run = Callable[..., Ran]

URLS = ("http://a.test/v1", "http://b.test/v1")


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> FakeFleet:
    """Return two servers, an A100 and an A6000, that are measured in virtual time."""
    fakes = [
        FakeBackend(name, base_url=url, spec=gpus.backend(card), models=["m", "n"])
        for name, url, card in zip("ab", URLS, ("A100", "A6000"), strict=True)
    ]
    found = FakeFleet(fakes)
    monkeypatch.setattr("agentsched.cli.profile.measure", measured_in_virtual_time(found))
    return found


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that the command is run in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "profile.json"


def test_servers_are_measured_one_after_the_other(run: Run, fleet: FakeFleet, output: Path) -> None:
    code, out, err = run("profile", *URLS, "--output", output)
    assert (code, err) == (0, "")
    _, heads, a, b = out.splitlines()
    assert heads.split() == ["backend", "tok/s", "tok/s", "per", "call,", "%", "s"]
    assert [line.split()[0] for line in (a, b)] == ["a.test", "b.test"]
    speed = gpus.backend("A100").speed
    prefill, decode, growth, calls, seconds = map(float, a.split()[1:])
    assert prefill == pytest.approx(1 / speed.prefill_s, rel=0.15)
    assert decode == pytest.approx(1 / speed.step_s, rel=0.15)
    assert growth == pytest.approx(100 * speed.batch_slope, rel=0.15)
    assert calls == len(fleet["a"].calls) - 1
    assert 0 < seconds <= 60.5
    profile = load_profile(output)
    assert [one.base_url for one in profile.backends] == list(URLS)
    assert all(one.at is not None and one.source == "calibration" for one in profile.backends)
    assert profile.steps == profile.prompts == (), "made-up calls say nothing of the app's"
    view = Scheduler([Backend(URLS[0])], profile=output).snapshot().backends[0]
    assert view.decode_s_per_token == pytest.approx(speed.step_s, rel=0.15)


def test_the_figures_as_json_and_a_model_by_its_name(run: Run, fleet: FakeFleet, output: Path) -> None:
    code, out, _ = run(
        "profile", URLS[0], "--output", output, "--json", "--model", "n", "--max-calls", 10, "--max-seconds", 20
    )  # fmt: skip
    (one,) = json.loads(out)["backends"]
    assert code == 0
    assert (one["name"], one["calls"]) == ("a.test", 10)
    assert one["decode_per_s"] > 0
    assert {row.body["model"] for row in fleet["a"].calls} == {"n"}


def test_what_is_there_is_kept_but_for_what_is_newer(run: Run, fleet: FakeFleet, output: Path) -> None:
    run("profile", *URLS, "--output", output, "--max-calls", 10)
    before = load_profile(output)
    run("profile", URLS[0], "--output", output, "--max-calls", 20)
    after = load_profile(output)
    assert [one.base_url for one in after.backends] == [URLS[1], URLS[0]]
    assert after.backends[0] == before.backends[1]
    assert (before.backends[0].calls, after.backends[1].calls) == (10, 20)


def test_a_server_that_cannot_be_measured_is_a_line_and_the_others_are_saved(
    run: Run, fleet: FakeFleet, output: Path
) -> None:
    fleet["a"].fail(faults.Refuse())
    code, out, err = run("profile", *URLS, "--output", output, "--max-calls", 10)
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("agentsched: http://a.test/v1: a.test does not list its models: ConnectError")
    assert "b.test" in out
    assert [one.name for one in load_profile(output).backends] == ["b.test"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"api_key": "right"},
            "a.test does not list its models: GET http://a.test/v1/models answers HTTP 401",
        ),
        ({"models": ()}, "a.test does not list its models: it lists no model; name one that it serves"),
    ],
)
def test_nothing_is_written_where_nothing_was_learned(
    run: Run, fleet: FakeFleet, output: Path, wrong: dict[str, Any], said: str
) -> None:
    for name, value in wrong.items():
        setattr(fleet["a"], name, value)
    code, out, err = run("profile", URLS[0], "--output", output)
    assert (code, out, err) == (1, "", f"agentsched: http://a.test/v1: {said}\n")
    assert not output.exists()


def test_the_key_is_read_from_the_environment(
    run: Run, fleet: FakeFleet, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet["a"].api_key = "right"
    monkeypatch.setenv("THE_KEY", "right")
    code, _, _ = run("profile", URLS[0], "--output", output, "--api-key-env", "THE_KEY", "--max-calls", 10)
    assert code == 0
    assert "right" not in output.read_text()
    code, _, err = run("profile", URLS[0], "--output", output, "--api-key-env", "NO_KEY")
    assert (code, err) == (2, "agentsched: --api-key-env: there is no environment variable NO_KEY\n")


def test_an_interruption_keeps_what_was_saved_before_and_nothing_half(
    run: Run, fleet: FakeFleet, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentsched.cli import profile

    measure = profile.measure

    async def stopped(backend: Backend, **options: Any) -> Measured:
        if backend.base_url == URLS[1]:
            raise KeyboardInterrupt
        return await measure(backend, **options)

    monkeypatch.setattr(profile, "measure", stopped)
    code, out, err = run("profile", *URLS, "--output", output, "--max-calls", 10)
    assert (code, out, err) == (130, "", "agentsched: interrupted\n")
    assert [one.name for one in load_profile(output).backends] == ["a.test"]
    assert [one.name for one in output.parent.iterdir()] == ["profile.json"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "profile: give the address of a server, such as http://gpu-a:8000/v1, or --journal"),
        (("nothing",), "Backend: 'nothing' is not an http(s) URL such as 'http://gpu-a:8000/v1'"),
        ((URLS[0], URLS[0] + "/"), "profile: http://a.test/v1 is given twice"),
        ((URLS[0], "--max-seconds", 0), "--max-seconds is 0.0; it must be from 1 to 86400"),
        ((URLS[0], "--output", "no/p.json"), "profile: no/p.json cannot be written: No such file or directory"),
        (("--journal", "missing"), "cannot read missing: No such file or directory"),
    ],
)  # fmt: skip
def test_what_was_asked_for_wrongly_sends_nothing(
    run: Run, fleet: FakeFleet, arguments: tuple[object, ...], said: str, empty: Path
) -> None:
    assert run("profile", *arguments) == (2, "", f"agentsched: {said}\n")
    assert not fleet.calls
    assert not list(empty.iterdir())


def test_a_file_that_is_no_profile_stays_as_it_is(run: Run, fleet: FakeFleet, output: Path) -> None:
    output.write_text('{"my": "notes"}')
    code, _, err = run("profile", URLS[0], "--output", output)
    assert code == 2
    assert err == (
        f"agentsched: profile: {output} is not a profile that can be used: it does not say 'agentsched profile'\n"
    )
    assert output.read_text() == '{"my": "notes"}'
    assert not fleet.calls


# -- journals ----------------------------------------------------------------------------------------------


def test_a_journal_teaches_speeds_and_steps(run: Run, journal: Path, output: Path) -> None:
    code, out, err = run("profile", "--journal", journal, "--output", output)
    assert (code, err) == (0, "")
    backends, steps = out.split("\n\n")
    assert [line.split()[0] for line in backends.splitlines()[2:]] == ["fake-1", "fake-2"]
    rows = {line.split()[4]: line.split()[5:] for line in steps.splitlines()[2:]}
    assert set(rows) == {"plan", "draft"}
    assert rows["plan"][0] == rows["draft"][0] == "6"
    profile = load_profile(output)
    assert {row.key for row in profile.steps} == {
        ("fake-model", "support", name) for name in ("plan", "draft")
    }
    for row in profile.steps:
        assert row.output_tokens.mean == pytest.approx(22.5)
        assert row.service_s.mean == pytest.approx(22.5 * 0.005, rel=0.5)
    assert {(one.name, one.base_url, one.source) for one in profile.backends} == {
        ("fake-1", None, "journal"),
        ("fake-2", None, "journal"),
    }
    known = Scheduler([Backend("http://anywhere/v1", name="fake-1")], profile=output)
    assert known.snapshot().backends[0].decode_s_per_token == pytest.approx(0.005, rel=0.3)


def test_a_journal_and_servers_together(run: Run, fleet: FakeFleet, journal: Path, output: Path) -> None:
    code, _, _ = run("profile", URLS[0], "--journal", journal, "--output", output, "--max-calls", 10)
    assert code == 0
    assert [one.name for one in load_profile(output).backends] == ["fake-1", "fake-2", "a.test"]
    assert len(load_profile(output).steps) == 2


def test_a_journal_that_was_cut_off_is_read_and_one_that_is_none_is_a_line(
    run: Run, journal: Path, output: Path
) -> None:
    text = journal.read_bytes()
    journal.write_bytes(text + b'{"event":"Wo')
    code, _, err = run("profile", "--journal", journal, "--output", output)
    assert code == 0
    assert err.startswith("note: line ")
    journal.write_bytes(b"x\n")
    output.unlink()
    code, out, err = run("profile", "--journal", journal, "--output", output)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"agentsched: {journal}: line 1 is not the head of a journal")
    assert not output.exists()


def test_names_cannot_play_with_the_terminal(run: Run, journal: Path, output: Path) -> None:
    text = journal.read_text().replace('"fake-1"', '"[red]x"').replace('"plan"', '"\\u001b[2J"')
    journal.write_text(text)
    code, out, _ = run("profile", "--journal", journal, "--output", output)
    assert code == 0
    assert "[red]x" in out
    assert "'\\x1b[2J'" in out


# -- a real wire -------------------------------------------------------------------------------------------


@pytest.fixture
def served() -> Iterator[str]:
    """Serve a quick fake on loopback, from a thread of its own, and return its address."""
    fleet, ready, over = FakeFleet.fast(1), threading.Event(), list[Callable[[], None]]()

    async def serve() -> None:
        end = asyncio.Event()
        over.append(partial(asyncio.get_running_loop().call_soon_threadsafe, end.set))
        async with fleet.serve():
            ready.set()
            await end.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(10)
    yield fleet["fake-1"].base_url
    over[0]()
    thread.join(10)


def test_over_a_real_wire(run: Run, served: str, output: Path) -> None:
    code, out, err = run("profile", served, "--output", output, "--max-calls", 8, "--max-seconds", 10)
    assert (code, err) == (0, "")
    (one,) = load_profile(output).backends
    assert (one.base_url, one.calls) == (served, 8)
    assert one.learned.decode is not None
    assert 0.001 < one.learned.decode.coefficients[0] < 0.02
    assert out.count("\n") == 3


def test_nobody_there(run: Run, output: Path) -> None:
    code, out, err = run("profile", "http://127.0.0.1:1/v1", "--output", output)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(
        "agentsched: http://127.0.0.1:1/v1: 127.0.0.1:1 does not list its models: ConnectError"
    )


def test_an_empty_file_of_ours_is_a_beginning(run: Run, fleet: FakeFleet, output: Path) -> None:
    output.write_text(written(Profile()))
    assert run("profile", URLS[0], "--output", output, "--max-calls", 10)[0] == 0
