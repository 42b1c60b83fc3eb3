"""Everybody gets the dials that do best on the queries set aside for it, at the loads that rows have."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from benchmarks.policy import tuned, tuning
from benchmarks.policy.contender import Dials
from benchmarks.policy.peers import FACTORS
from benchmarks.policy.pool import Figures
from benchmarks.policy.task import Saturation, Task

SITE = ("chat", "tight")
BEST = FACTORS[2]


class Oracle:
    """Plays nothing: says of each setting how good it is."""

    def __init__(self) -> None:
        self.asked: dict[str, Task | Saturation] = {}

    def play(self, tasks: Iterable[Task | Saturation]) -> list[Figures]:
        wanted = list(tasks)
        self.asked |= {task.key: task for task in wanted}
        return [self.figures(task) for task in wanted]

    def figures(self, task: Task | Saturation) -> Figures:
        if isinstance(task, Saturation):
            return {"throughput": 2.0 if task.dials == BEST else 1.0}
        worse = 0.0 if task.dials[: len(BEST)] == BEST else 1.0
        shortest = 0.0 if task.dials[0] == "SRPT" else 1.0
        return {"mean_s": 1.0 + worse + shortest, "p95_s": 2.0 + worse - shortest, "slo_share": shortest}


def test_a_site_is_measured_and_set_once_and_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "FILE", tmp_path / "tuned.json")
    oracle = Oracle()
    found = tuning.tune(SITE, oracle)  # type: ignore[arg-type]
    assert found.rate == 2.0
    assert found.dials["FIFO + limit"] == {"0.85": BEST}
    assert found.ceilings["clairvoyant"]["0.85"]["mean_s"][0] == "SRPT"
    assert found.ceilings["clairvoyant"]["0.85"]["p95_s"][0] != "SRPT"
    assert found.ceilings["clairvoyant"]["0.85"]["slo_share"][0] != "SRPT"
    assert {task.rate for task in oracle.asked.values() if isinstance(task, Task)} == {0.85 * 2.0}
    assert list(json.loads((tmp_path / "tuned.json").read_text())) == ["chat/tight"]


@pytest.mark.parametrize(
    ("site", "loads"),
    [(("chat", "hetero1"), [0.85, 1.3]), (("mixed", "pair"), [0.85]), (("tenants", "pair"), [0.85, 1.3])],
)
def test_dials_are_set_at_the_loads_that_rows_of_the_site_have(
    site: tuple[str, str], loads: list[float]
) -> None:
    assert tuning.loads_of(site) == loads


def test_dials_are_settings_of_the_contender() -> None:
    settings: set[Dials] = {dials for one in (*tuning.PEERS, *tuning.OURS) for dials in one.dials}
    for kept in map(tuned.tuned, [("rag", "hetero1"), ("mixed", "hetero2")]):
        assert {dials for by_load in kept.dials.values() for dials in by_load.values()} <= settings
