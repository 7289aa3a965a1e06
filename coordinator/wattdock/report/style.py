"""How charts look, on a page and on paper: a colour per backend, a marker and a dash per number of GPUs.

Draws nothing and imports no plotting library, so that both of them take the same looks from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

# Told apart with every common colour-vision deficiency; without its black and its yellow, which vanish on a dark or a
# light page. Source: Okabe and Ito, Color Universal Design, 2008.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")

# The same hues on a dark ground, where some of them would be dim.
ON_DARK = {"#0072B2": "#4FA8E0", "#D55E00": "#FF8A3D", "#009E73": "#2BC49A", "#777777": "#A0A0A0", "#888888": "#A0A0A0"}

# What a run does, in its order; greys for what is neither loading nor measured.
PHASES = {
    "launch": "#777777",
    "load": "#56B4E9",
    "idle": "#BBBBBB",
    "warm-up": "#E69F00",
    "prefill": "#CC79A7",
    "decode": "#0072B2",
    "between rounds": "#999999",
    "passes, not split": "#009E73",
}

# Widths of one and two columns of a journal's page, in inches (89 and 183 mm), and height ÷ width.
COLUMN_IN, TWO_COLUMNS_IN = 3.5, 7.2
ASPECT = 0.68

# Type 42 embeds TrueType fonts, which publishers ask for; SVG text as paths looks the same everywhere.
PAPER: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 8,
    "errorbar.capsize": 1.5,
    "figure.constrained_layout.use": True,
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.4,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.0,
    "lines.markersize": 4,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "savefig.dpi": 300,
    "svg.fonttype": "path",
    "svg.hashsalt": "wattdock",
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
}


@dataclass(frozen=True)
class Look:
    """One series' shape, as plotly and as matplotlib name it; told apart without any colour."""

    marker: str
    paper_marker: str
    dash: str
    paper_dash: str | tuple[int, tuple[int, ...]]


LOOKS = (
    Look("circle", "o", "solid", "-"),
    Look("square", "s", "dash", "--"),
    Look("diamond", "D", "dot", ":"),
    Look("triangle-up", "^", "dashdot", "-."),
    Look("cross", "P", "longdash", (0, (8, 3))),
    Look("x", "X", "longdashdot", (0, (8, 3, 2, 3))),
)


def colours(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each name, in their alphabetical order; past the palette's end they repeat."""
    return {name: PALETTE[at % len(PALETTE)] for at, name in enumerate(sorted(set(names)))}


def looks(counts: Iterable[int]) -> dict[int, Look]:
    """Return a marker and a dash for each number of GPUs, in rising order; past the last they repeat."""
    return {count: LOOKS[at % len(LOOKS)] for at, count in enumerate(sorted(set(counts)))}


def gpus_in_words(count: int) -> str:
    """Return "no GPU", "1 GPU", "2 GPUs", …."""
    return "no GPU" if count == 0 else f"{count} GPU" if count == 1 else f"{count} GPUs"
