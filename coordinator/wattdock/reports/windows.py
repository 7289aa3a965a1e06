"""Window definitions side by side, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.reports.terminal import Sheet, console, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.analysis import WindowFigure, WindowSummary

COLUMNS = ("window", "restart", "pass", "seconds", "output tokens", "J/token", "blocks differ by", "why not")


def print_windows(summary: WindowSummary, figures: Sequence[WindowFigure]) -> None:
    """Print the chosen passes' figures, then every definition's total and how far they differ."""
    out = console(highlight=False)
    out.print(Sheet(COLUMNS, [_cells(one) for one in figures]))
    totals = (f"{name} {number(value, '.5g')}" for name, value in summary.energy_per_output_token_j.items())
    out.print(f"J/output token: {', '.join(totals)}")
    out.print(f"the definitions differ by {number(summary.relative_spread, '.2%')}")


def _cells(one: WindowFigure) -> tuple[str, ...]:
    """Return one pass under one definition; restarts and passes count from 1, as everywhere that people read."""
    return (
        one.window,
        str(one.restart + 1),
        str(one.pass_index + 1),
        number(one.duration_s, ".2f"),
        number(one.output_tokens, ","),
        number(one.energy_per_output_token_j, ".5g"),
        number(one.block_spread, ".2%"),
        one.reason or "",
    )
