"""Latency against rate as a picture; the same data give the same file."""

import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentsched.engine.words import shown
from agentsched.errors import UsageError

FORMATS = (".svg", ".png")
STYLE: Mapping[str, object] = {
    "svg.hashsalt": "agentsched",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
}
MARKERS = "osD^vPX*"
DASHES = ("-", "--", "-.", ":")
WIDTHS = (4.0, 2.5, 1.75, 1.25)
"""Later lines are thinner and have gaps, so that those that they cover are seen."""
HEAD_ROOM = 1.1

Series = Mapping[str, Sequence[tuple[float, float]]]


def check_plot(path: Path) -> None:
    """Refuse a picture that could not be drawn, before hours go into its data.

    Raises:
        UsageError: for an unknown kind of picture, a file that cannot be written or a missing matplotlib.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"plot: {str(path)!r} must end in {' or '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise UsageError(f"plot: there is no folder {str(path.parent)!r}")
    if find_spec("matplotlib") is None:
        raise UsageError(
            "plot: matplotlib is missing: pip install 'agentsched[plot]', or '.[plot]' in a checkout"
        )
    was_there = path.exists()
    try:
        path.open("ab").close()
        if not was_there:
            path.unlink()
    except OSError as error:
        raise _unwritable(path, error) from None


def latency_plot(
    path: str | Path, series: Series, *, x_title: str, y_title: str, title: str, logarithmic: bool = False
) -> None:
    """Draw one line per series to a file, SVG or PNG by its name.

    Args:
        logarithmic: whether the heights are; all of them must be above 0.

    Raises:
        UsageError: if it cannot be written.
    """
    mpl: Any = import_module("matplotlib")  # its annotations are not complete
    path = Path(path)
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        # letters that the font lacks are boxes in a PNG, and as they should be in an SVG
        warnings.filterwarnings("ignore", message=r"Glyph \d+ ", category=UserWarning)
        figure = drawn(series, x_title=x_title, y_title=y_title, title=shown(title), logarithmic=logarithmic)
        undated = {"Date": None} if path.suffix.lower() == ".svg" else {"Software": None}
        try:
            figure.savefig(path, metadata=undated)
        except OSError as error:
            raise _unwritable(path, error) from None


def drawn(series: Series, *, x_title: str, y_title: str, title: str, logarithmic: bool = False) -> Any:
    """Return the picture."""
    figures: Any = import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(7.0, 4.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for index, (name, points) in enumerate(series.items()):
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            label=name,
            marker=MARKERS[index % len(MARKERS)],
            markersize=max(9 - 2 * index, 4),
            linestyle=DASHES[index % len(DASHES)],
            linewidth=WIDTHS[min(index, len(WIDTHS) - 1)],
            alpha=0.8,
        )
    axes.set_xlabel(x_title)
    axes.set_ylabel(y_title)
    axes.set_title(title)
    if logarithmic:
        ticker: Any = import_module("matplotlib.ticker")
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    else:
        highest = max((y for points in series.values() for _, y in points), default=0.0)
        axes.set_ylim(0, HEAD_ROOM * highest or 1.0)
    if series:
        figure.legend(loc="outside lower center", ncols=min(len(series), 4), frameon=False)
    return figure


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"plot: cannot write {shown(str(path))}: {error.strerror}")
