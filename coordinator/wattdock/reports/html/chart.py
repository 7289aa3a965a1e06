"""What a chart of a page is, and what all of them share. Pure."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

Spec = dict[str, Any]

J_PER_TOKEN, TOKENS_PER_S = "J per output token (GPU boards)", "output tokens/s"
# Past these a bar or dot per result is a wall, and the tables say the same.
MOST_ROWS = 120
ROW_PX, FRAME_PX = 26, 150
SIGNIFICANT = 6


@dataclass(frozen=True)
class Chart:
    """One chart: what plotly.js draws, and a table of the same figures for those who read rather than see.

    Attributes:
        note: One sentence on how to read it.
        spec: `data` and `layout`; None where there is nothing to draw, which `note` then explains.
        logarithmic: Whether its axes begin logarithmic; None where they cannot be.
    """

    key: str
    title: str
    note: str
    spec: Spec | None
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    logarithmic: bool | None = None


def names(labels: Sequence[str]) -> Spec:
    """Return an axis with a name at each whole number, the first on top."""
    return {
        "tickvals": list(range(len(labels))),
        "ticktext": [plain(one) for one in labels],
        "autorange": "reversed",
        "automargin": True,
        "zeroline": False,
    }


def short(value: float) -> float:
    """Round to what a chart can show; a page of many results must stay small."""
    return float(f"{value:.{SIGNIFICANT}g}")


def plain(text: str) -> str:
    """Return a text as plotly.js shows it as it is; it would take some tags for markup."""
    return html.escape(text, quote=False)
