"""Latency against rate as a picture; the same data give the same file."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

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


def check_plot(path: Path) -> None:
    """Refuse a picture that could not be drawn, before hours go into its data.

    Raises:
        UsageError: for an unknown kind of picture, a missing folder or a missing matplotlib.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"plot: {str(path)!r} must end in {' or '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise UsageError(f"plot: there is no folder {str(path.parent)!r}")
    if find_spec("matplotlib") is None:
        raise UsageError("plot: matplotlib is missing: pip install 'agentsched[plot]'")


def latency_plot(
    path: str | Path,
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x_title: str,
    y_title: str,
    title: str,
) -> None:
    """Draw one line per series to a file, SVG or PNG by its name.

    Raises:
        UsageError: if it cannot be written.
    """
    mpl: Any = import_module("matplotlib")  # its annotations are not complete
    figures: Any = import_module("matplotlib.figure")
    path = Path(path)
    with mpl.rc_context(STYLE):
        figure = figures.Figure(figsize=(7.0, 4.2), dpi=150, layout="constrained")
        axes = figure.add_subplot()
        for index, (name, points) in enumerate(series.items()):
            x, y = [one for one, _ in points], [one for _, one in points]
            axes.plot(x, y, marker=MARKERS[index % len(MARKERS)], label=name)
        axes.set_xlabel(x_title)
        axes.set_ylabel(y_title)
        axes.set_title(title)
        axes.set_ylim(bottom=0)
        if series:
            axes.legend()
        undated = {"Date": None} if path.suffix.lower() == ".svg" else {"Software": None}
        try:
            figure.savefig(path, metadata=undated)
        except OSError as error:
            raise UsageError(f"plot: cannot write {path}: {error.strerror}") from None
