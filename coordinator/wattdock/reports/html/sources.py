"""What a page says joules and drawn power were made of: energy counters, the driver's power readings, or both. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from wattdock.reports.points import Point
    from wattdock.reports.timelines import RestartTimeline


def energy_method(found: Iterable[Point]) -> str:
    """Return what the results' joules are."""
    named = {one.result.energy.source for one in found if one.result.energy and one.result.energy.source}
    return _said(
        {source for names in named for source in names.split("+")},
        "the GPUs' own energy counters, interpolated between their changes",
        "the driver's power readings, integrated from one to the next",
    )


def power_method(drawn: Iterable[RestartTimeline]) -> str:
    """Return what the drawn lines of GPUs are."""
    return _said(
        {trace.source for one in drawn for trace in one.power_w},
        "energy between two changes of a GPU's counter ÷ the time between them",
        "the driver's power readings",
    )


def _said(sources: Collection[str], counted: str, read: str) -> str:
    """Return what holds of counters, of readings, or each of its GPUs; of counters where nothing was measured."""
    if "counter" not in (sources or ("counter",)):
        return read
    return f"{counted}; of a GPU without an energy counter, {read}" if len(sources) > 1 else counted
