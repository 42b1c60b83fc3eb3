"""The picture of `agentsched simulate --plot`: whole, legible, and never wrong without a word."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

from agentsched.cli import simulate
from agentsched.cli.plot import check_plot, drawn, latency_plot
from agentsched.errors import UsageError
from tests.cli.conftest import Ran

Run = Callable[..., Ran]
TITLES = {"x_title": "rate", "y_title": "P95, s", "title": "two"}


def test_a_picture_is_drawn(run: Run, trace: Path, fleet: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    code, out, err = run("simulate", trace, fleet, "--plot", path)
    assert (code, err, out.count("40/40")) == (0, "", 1)
    assert "P95 latency of a query" in path.read_text()
    assert "fcfs = default" in path.read_text()


def test_a_picture_is_the_same_every_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        lines = {"fcfs": [(1.0, 2.0), (2.0, 9.0)], "default": [(1.0, 1.5), (2.0, 4.0)]}
        latency_plot(tmp_path / f"{name}.svg", lines, **TITLES)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_picture_of_nothing_and_one_that_cannot_be_written(tmp_path: Path) -> None:
    latency_plot(tmp_path / "empty.png", {}, **TITLES)
    assert (tmp_path / "empty.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="cannot write"):
        latency_plot(tmp_path / "missing" / "a.svg", {"fcfs": [(1.0, 2.0)]}, **TITLES)


@pytest.mark.parametrize(
    "title", ["$\\frac{", "x\udcff.csv", "\x1b[2J\x00\x07", "￾￿", "日本語 表.csv", "<&>\n\t"]
)
def test_any_title_can_be_drawn(tmp_path: Path, title: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in ("svg", "png"):
            latency_plot(tmp_path / f"a.{kind}", {"fcfs": [(1.0, 2.0)]}, **{**TITLES, "title": title})
    text = "".join(ET.parse(tmp_path / "a.svg").getroot().itertext())
    assert (title if title.isprintable() else repr(title)) in text


def test_other_warnings_are_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def warned(*_given: object, **_options: object) -> None:
        warnings.warn("something else", UserWarning, stacklevel=1)

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", warned)
    with pytest.warns(UserWarning, match="something else"):
        latency_plot(tmp_path / "a.svg", {}, **TITLES)


@pytest.mark.parametrize("height", [0.0, 1e-6, 5.0, 1e9])
def test_a_flat_line_is_within_the_picture_and_under_no_legend(height: float) -> None:
    figure = drawn({"fcfs": [(1.0, height), (2.0, height)]}, **TITLES)
    (axes,) = figure.axes
    bottom, top = axes.get_ylim()
    assert bottom == 0
    assert height < 0.95 * top
    figure.draw_without_rendering()
    assert axes.get_legend() is None
    (legend,) = figure.legends
    assert not legend.get_window_extent().overlaps(axes.get_window_extent())


def test_lines_that_are_equal_are_all_seen() -> None:
    points = [(1.0, 2.0), (2.0, 3.0), (3.0, 9.0)]
    figure = drawn(dict.fromkeys("abc", points), **TITLES)
    lines = figure.axes[0].get_lines()
    for what in ("get_linestyle", "get_marker", "get_linewidth", "get_markersize", "get_color"):
        assert len({getattr(line, what)() for line in lines}) == 3
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    seen = set(map(tuple, np.asarray(canvas.buffer_rgba())[..., :3].reshape(-1, 3).tolist()))
    for line in lines:
        wanted = [int(to_hex(line.get_color())[at : at + 2], 16) for at in (1, 3, 5)]
        assert any(all(abs(a - b) < 70 for a, b in zip(pixel, wanted, strict=True)) for pixel in seen)


def test_points_that_are_infinite_are_told(run: Run, fleet: Path, tmp_path: Path) -> None:
    trace, path = tmp_path / "calls.csv", tmp_path / "a.svg"
    trace.write_text("time_s,input_tokens,output_tokens\n0,90000,5\n1,90000,5\n")
    code, _, err = run("simulate", trace, fleet, "--plot", path)
    assert code == 0
    assert err.splitlines()[-1] == (
        f"note: plot: P95 is infinite everywhere, so there is nothing to draw; {path} is not written"
    )
    assert not path.exists()


def test_a_single_point_that_is_infinite_is_told(
    run: Run, trace: Path, fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace.write_text("time_s,input_tokens,output_tokens\n" + "".join(f"{at},20,5\n" for at in range(9)))
    play = simulate._play

    def failing(*given: object, speed: float, **options: object) -> simulate.Played:
        found = play(*given, speed=speed, **options)  # type: ignore[arg-type]
        return simulate.Played(
            queries=found.queries,
            lost={},
            figures={**found.figures, "p95_s": float("inf")} if speed > 1 else found.figures,
        )

    monkeypatch.setattr(simulate, "_play", failing)
    code, _, err = run("simulate", trace, fleet, "--plot", tmp_path / "a.png")
    assert code == 0
    assert err == (
        "note: plot: P95 of fcfs = default is infinite at 1.25, 1.5 queries/s, where there is no point\n"
    )


def test_whether_it_can_be_written_is_seen_before(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    check_plot(path)
    assert not path.exists()
    path.write_text("as it was")
    check_plot(path)
    assert path.read_text() == "as it was"
    (tmp_path / "b.svg").mkdir()
    with pytest.raises(UsageError, match=r"cannot write .*b\.svg: Is a directory"):
        check_plot(tmp_path / "b.svg")


def test_logarithmic_heights_are_told_in_plain_numbers(tmp_path: Path) -> None:
    path = tmp_path / "x.svg"
    series = {"a": [(0.0, 60.0), (1.0, 700.0)]}
    latency_plot(path, series, **TITLES, logarithmic=True)
    text = path.read_text()
    assert {f">{height}<" for height in (100, 200, 500)} <= set(re.findall(r">\d+<", text))
    assert "math" not in text
