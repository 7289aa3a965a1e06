"""What figures for papers share: the file that one is drawn into, error bars, and curves over a count."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from wattdock.errors import ConfigError, StoreError
from wattdock.reports.style import PAPER

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

    from wattdock.reports.style import Style
    from wattdock.reports.words import Figure

FORMATS = (".pdf", ".svg", ".png")
# Without an instant of writing, equal figures are equal files.
NO_DATE: dict[str, dict[str, Any]] = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {}}


@contextmanager
def drawn_into(file: Path, width_in: float, height_in: float, *, flag: str) -> Iterator[Drawing]:
    """Yield an empty figure with a publisher's defaults, and write what was drawn; replaces what is there.

    Args:
        flag: The one that the file was named with.

    Raises:
        ConfigError: The format is unknown.
        StoreError: The file cannot be written.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure as Drawing

    if file.suffix not in FORMATS:
        raise ConfigError(f"{file}: figures are written as {', '.join(FORMATS)}; name such a file with {flag}")
    with mpl.rc_context(cast("Any", PAPER)):
        drawing = Drawing(figsize=(width_in, height_in))
        yield drawing
        try:
            drawing.savefig(file, metadata=NO_DATE[file.suffix])
        except OSError as error:
            said = f"cannot write {file}: {error.strerror or error}; choose another file with {flag}"
            raise StoreError(said) from error


def bars(figures: Sequence[Figure]) -> list[list[float]]:
    """Return how far the intervals reach below and above the figures; 0 without an interval."""
    # The mean over restarts need not lie inside the interval of a sum over tokens.
    below = [0.0 if one.low is None else max(one.value - one.low, 0.0) for one in figures]
    above = [0.0 if one.high is None else max(one.high - one.value, 0.0) for one in figures]
    return [below, above]


def curve(
    axes: Axes,
    known: Sequence[tuple[int, Figure]],
    name: str,
    drawn_in: Style,
    *,
    hollow: Collection[int] = (),
) -> None:
    """Draw figures over a count as one line with their intervals; markers at the counts in `hollow` are not filled."""
    counts, figures = [count for count, _ in known], [one for _, one in known]
    colour, look = drawn_in
    style: dict[str, Any] = {"marker": look.paper_marker, "linestyle": look.paper_dash, "color": colour}
    values = [one.value for one in figures]
    axes.errorbar(counts, values, yerr=bars(figures), label=name, markerfacecolor="none", **style)
    filled = [(count, value) for count, value in zip(counts, values, strict=True) if count not in hollow]
    axes.plot([count for count, _ in filled], [value for _, value in filled], **(style | {"linestyle": "none"}))


def over_counts(axes: Axes, unit: str, counts: Collection[int]) -> None:
    """Make the horizontal axis one of doubling counts, with a tick at each that was measured."""
    axes.set_xlabel(unit)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(counts), [str(count) for count in sorted(counts)])
    axes.minorticks_off()
