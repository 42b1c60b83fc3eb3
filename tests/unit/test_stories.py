"""Stories: all of the living, some of the ended."""

from agentsched.engine.story import Entry, Stories


def told(stories: Stories, request_id: str) -> list[str]:
    return [entry.what for entry in stories.of(request_id)]


def test_a_story_is_told_in_order_and_outlives_its_call() -> None:
    stories = Stories(keep=2)
    stories.begin("r1", 0.0, "submitted", {})
    stories.note("r1", 1.0, "started", {})
    assert told(stories, "r1") == ["submitted", "started"]
    stories.end("r1", 2.0, "completed", {})
    assert told(stories, "r1") == ["submitted", "started", "completed"]
    assert told(stories, "r2") == []


def test_as_many_ended_ones_are_kept_as_were_asked_for() -> None:
    stories = Stories(keep=3)
    for number in range(10):
        stories.begin(f"r{number}", 0.0, "submitted", {})
    assert len(stories) == 10, "the living do not count"
    for number in range(9):
        stories.end(f"r{number}", 1.0, "completed", {})
    assert len(stories) == 4
    assert [number for number in range(10) if stories.of(f"r{number}")] == [6, 7, 8, 9]


def test_keeping_none_is_fine() -> None:
    stories = Stories(keep=0)
    stories.begin("r1", 0.0, "submitted", {})
    stories.end("r1", 0.0, "completed", {})
    assert len(stories) == 0
    assert stories.of("r1") == ()


def test_a_line_is_readable() -> None:
    assert str(Entry(1.5, "started", {"backend": "a", "ahead": 2})) == "1.500 started (backend=a, ahead=2)"
    assert str(Entry(0.0, "queued", {})) == "0.000 queued"


def test_a_line_is_short_and_leaves_out_what_is_not_known() -> None:
    facts = {"expected_cost_s": {"a": 1.23456, "b": 2.0}, "status": None, "tokens": 12_345}
    assert (
        str(Entry(0.0, "started", facts)) == "0.000 started (expected_cost_s={a: 1.23, b: 2}, tokens=12345)"
    )


def test_a_line_may_count_from_the_beginning_of_its_story() -> None:
    assert Entry(101.5, "started", {}).since(100.0) == "1.500 started"
