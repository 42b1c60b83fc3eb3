"""`Scheduler(profile=...)`: files that can be used and such that cannot, backends that are known, their journals."""

import asyncio
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from agentsched import Backend, Policy, Scheduler, UsageError
from agentsched.engine import replay
from agentsched.engine.commands import Command
from agentsched.engine.events import Event
from agentsched.predict import Profile
from agentsched.runtime.profilefile import check_place, load_profile, save_profile
from tests.doubles import Rig, begun


def learned_of(rig: Rig) -> Profile:
    async def main() -> None:
        ask = [{"role": "user", "content": "word " * 200}]
        await asyncio.gather(*(rig.say(20 + number, messages=ask) for number in range(12)))

    rig.run(main)
    return rig.scheduler.fleet.profile()


@pytest.fixture(scope="module")
def profile() -> Profile:
    found = learned_of(Rig(3))
    assert len(found.backends) == 3
    assert all(one.learned.decode is not None for one in found.backends)
    return found


def test_a_file_begins_a_scheduler_and_so_does_the_value(profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    save_profile(profile, path)
    assert load_profile(path) == profile
    for given in (path, str(path), profile):
        view = Rig(2, profile=given).scheduler.snapshot().backends[0]
        assert view.decode_s_per_token == profile.backends[0].learned.decode.coefficients[0]  # type: ignore[union-attr]
        assert view.prefill_s_per_token is not None


def test_who_is_not_in_it_begins_with_nothing_and_whoever_is_not_there_does_not_matter(
    profile: Profile,
) -> None:
    known = Profile(backends=profile.backends[1:])
    views = Rig(2, profile=known).scheduler.snapshot().backends
    assert views[0].decode_s_per_token is None
    assert views[1].decode_s_per_token is not None


def test_who_joins_or_takes_a_place_begins_with_it_and_the_journal_tells(
    profile: Profile, tmp_path: Path
) -> None:
    path = tmp_path / "journal"
    rig = Rig(3, journal=path, profile=profile)
    steps: list[tuple[Event, list[Command]]] = []
    handle = rig.scheduler._driver.engine.handle

    def noted(event: Event) -> list[Command]:
        steps.append((event, handle(event)))
        return steps[-1][1]

    rig.scheduler._driver.engine.handle = noted  # type: ignore[method-assign]
    fleet = rig.scheduler.fleet

    def speeds() -> dict[str, float | None]:
        return {view.name: view.decode_s_per_token for view in rig.scheduler.snapshot().backends}

    async def main() -> None:
        before = speeds()
        fleet.remove("fake-2")
        await rig.say(5)
        fleet.add(Backend("http://fake-2.test/v1", name="again", models=["fake-model"]))
        assert speeds()["again"] == before["fake-2"]
        calls = [rig.begun(20) for _ in range(6)]
        await begun()
        fleet.replace(
            Backend("http://fake-3.test/v1", name="fake-3", models=["fake-model"], max_concurrency=2)
        )
        assert speeds()["fake-3"] == before["fake-3"]
        fleet.replace(
            Backend("http://fake-2.test/v1/", name="again", models=["fake-model"], max_concurrency=1)
        )
        assert speeds()["again"] == before["fake-2"]
        await asyncio.gather(*calls)
        await rig.scheduler.aclose()

    rig.run(main)
    with path.open(encoding="utf-8") as lines:
        assert list(replay(lines, Policy.default())) == [(_bare(event), found) for event, found in steps]
    assert ".test" not in path.read_text()


def _bare(event: Event) -> Event:
    """Return an event as a journal tells it: backends have no addresses."""
    changes = {
        name: Backend(
            f"http://{one.name.encode().hex()}.invalid",
            name=one.name,
            models=list(one.models or ()),
            max_concurrency=one.max_concurrency,
        )
        for name in ("backend", "successor")
        if isinstance(one := getattr(event, name, None), Backend)
    }
    return replace(event, **changes) if changes else event


def test_what_is_no_profile_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    backends = [Backend("http://a/v1")]
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"^profile: .*profile\.json is not UTF-8 text$"):
        Scheduler(backends, profile=path)
    path.write_text("{}")
    with pytest.raises(UsageError, match=r"profile\.json is not a profile that can be used: it does not say"):
        Scheduler(backends, profile=path)
    with pytest.raises(UsageError, match="missing cannot be read: No such file or directory"):
        Scheduler(backends, profile=tmp_path / "missing")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        Scheduler(backends, profile=tmp_path)
    with pytest.raises(
        UsageError, match="profile must be a file that `agentsched profile` wrote, or None; got dict"
    ):
        Scheduler(backends, profile={})  # type: ignore[arg-type]


def test_a_profile_that_cannot_work_leaves_the_journal_as_it_was(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.write_text("an earlier run")
    with pytest.raises(UsageError):
        Scheduler([Backend("http://a/v1")], profile=tmp_path, journal=journal)
    assert journal.read_text() == "an earlier run"


def test_a_file_is_written_whole_or_not_at_all(
    profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "profile.json"
    save_profile(Profile(), path)
    before = path.read_text()

    def broken(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", broken)
        with pytest.raises(UsageError, match="cannot be written: No space left on device"):
            save_profile(profile, path)
    assert path.read_text() == before
    assert [one.name for one in tmp_path.iterdir()] == ["profile.json"]
    save_profile(profile, path)
    assert load_profile(path) == profile
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_place_is_checked_before_anything_is_done(tmp_path: Path) -> None:
    check_place(tmp_path / "new.json")
    assert [*tmp_path.iterdir()] == []
    with pytest.raises(UsageError, match="is a folder; name a file in it"):
        check_place(tmp_path)
    with pytest.raises(UsageError, match="cannot be written: No such file or directory"):
        check_place(tmp_path / "missing" / "new.json")
