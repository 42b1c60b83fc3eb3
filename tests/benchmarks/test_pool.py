"""What has been played is kept, and is not played again; whatever decides the figures is part of the key."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from benchmarks.policy import capacity, pool
from benchmarks.policy.capacity import Probe, capacities
from benchmarks.policy.pool import Figures, Playable, Pool, Store
from benchmarks.policy.task import Task
from benchmarks.policy.tuned import Tuned


@dataclass(frozen=True)
class Square(Playable):
    number: int

    def play(self) -> Figures:
        if self.number < 0:
            raise ValueError("negative")
        return {"square": self.number**2}


def squares(store: Store, numbers: list[int]) -> tuple[list[float], list[tuple[int, int]]]:
    told: list[tuple[int, int]] = []
    with Pool(store, 2, lambda done, of: told.append((done, of))) as playing:
        found = playing.play([Square(number) for number in numbers])
    return [figures["square"] for figures in found], told


def test_a_run_is_resumed_where_it_ended(tmp_path: Path) -> None:
    file = tmp_path / "kept" / "figures.jsonl"
    assert squares(Store(file), [3, 1, 2]) == ([9, 1, 4], [(1, 3), (2, 3), (3, 3)])
    with file.open("a") as cut:
        cut.write('{"sources": "')
    again = Store(file)
    assert len(again) == 3
    assert squares(again, [2, 4, 3, 2]) == ([4, 16, 9, 4], [(1, 1)])


def test_a_store_survives_whatever_was_written_to_it(tmp_path: Path) -> None:
    file = tmp_path / "figures.jsonl"
    squares(Store(file), [3])
    bad = [b"3", b"null", b"[]", b"{}", b'{"sources": 1}', b"\xff\xfe", b"[" * 100_000, b'{"sources": "']
    with file.open("ab") as writing:
        writing.write(b"\n".join(bad))
    assert len(Store(file)) == 1
    squares(Store(file), [4])
    assert len(Store(file)) == 2, "what comes after a line that was cut off is a line of its own"


KILLED = """
import os, signal, sys
from benchmarks.policy.pool import Playable, Pool, Store
from dataclasses import dataclass
from pathlib import Path

@dataclass(frozen=True)
class Endless(Playable):
    def play(self):
        print(os.getpid(), flush=True)
        signal.alarm(60)
        signal.pause()
        return {}

Pool(Store(Path(sys.argv[1])), 1).play([Endless()])
"""


def test_who_plays_ends_with_who_asked_for_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "figures.jsonl")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) != process.pid
        process.kill()
        assert process.stdout.read() == "", "the worker held the other end too, and has let go of it"


def test_figures_of_other_sources_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "figures.jsonl"
    squares(Store(file), [3])
    monkeypatch.setattr(pool, "sources_digest", lambda: "another")
    assert len(Store(file)) == 0


def test_what_is_written_about_figures_does_not_decide_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "ROOT", tmp_path)
    files = [
        ("src/agentsched/engine/a.py", True),
        ("src/agentsched/runtime/a.py", False),
        ("benchmarks/policy/peers.py", True),
        ("benchmarks/policy/report/page.py", False),
        ("benchmarks/policy/tuned.json", False),
        ("benchmarks/data/a.csv.gz", True),
    ]
    for name, decides in files:
        before = pool.sources_digest()
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
        assert (pool.sources_digest() != before) is decides, name


def test_a_failure_is_told_and_the_rest_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "figures.jsonl"
    with pytest.raises(ValueError, match="negative"):
        squares(Store(file), [1, -1])
    assert squares(Store(file), [1])[0] == [1]


class Falling(Pool):
    """Queries are in time up to a load of 0.7, but for one seed up to 0.5 and for one up to 0.9."""

    def __init__(self) -> None:
        self.played = 0

    def play(self, tasks: object) -> list[Figures]:
        found: list[Figures] = []
        for task in tasks:  # type: ignore[attr-defined]
            assert isinstance(task, Task)
            self.played += 1
            knee = {0: 0.5, 1: 0.7, 2: 0.9}[task.seed]
            share = 1.0 if task.row.load <= knee else 0.94
            found.append({"slo_share": share if task.contender != "hopeless" else 0.0})
        return found


def test_the_capacity_is_where_the_seeds_together_fall_short(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Tuned(rate=2.0, dials={}, ceilings={})
    monkeypatch.setattr(capacity, "tuned", lambda site: kept)
    probes = [Probe(("w", "f"), "good", ()), Probe(("w", "f"), "hopeless", ())]
    found = capacities(probes, (0, 1, 2), Falling())
    # above 0.7 two seeds fall to 0.94, together 0.96; above 0.9 all three do, together 0.94
    assert found[probes[0]] == pytest.approx(2.0 * 0.9, rel=0.04)
    assert found[probes[0]] <= 2.0 * 0.9
    assert found[probes[1]] == 0.0


def test_playables_are_what_pools_play() -> None:
    square: Playable = Square(2)
    assert square.play() == {"square": 4}
