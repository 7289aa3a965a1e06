"""Window definitions side by side, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.results.windows import WindowFigure, WindowSummary

NOTHING = "–"


def print_windows(summary: WindowSummary, figures: Sequence[WindowFigure]) -> None:
    """Print the chosen passes' figures, then every definition's total and how far they differ."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    table = Table(box=None, pad_edge=False)
    for name in ("window", "restart", "pass", "seconds", "output tokens", "J/token", "blocks differ by", "why not"):
        table.add_column(name, justify="left" if name in ("window", "why not") else "right")
    for one in figures:
        table.add_row(
            one.window,
            str(one.restart),
            str(one.pass_index),
            _or_nothing(one.duration_s, ".2f"),
            _or_nothing(one.output_tokens, ","),
            _or_nothing(one.energy_per_output_token_j, ".5g"),
            _or_nothing(one.block_spread, ".2%"),
            one.reason or "",
        )
    console.print(table)
    totals = (f"{name} {_or_nothing(value, '.5g')}" for name, value in summary.energy_per_output_token_j.items())
    console.print(f"J/output token: {', '.join(totals)}", highlight=False)
    console.print(f"the definitions differ by {_or_nothing(summary.relative_spread, '.2%')}", highlight=False)


def _or_nothing(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)
