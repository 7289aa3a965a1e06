"""How charts look, on a page and on paper: no two series of a chart alike in both colour and shape.

Draws nothing and imports no plotting library, so that both of them take the same looks from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

Name = TypeVar("Name")

# Told apart with every common colour-vision deficiency; without its black and its yellow, which vanish on a dark or a
# light page. Source: Okabe and Ito, Color Universal Design, 2008.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")

# The same hues on a dark ground, where some of them would be dim.
ON_DARK = {
    "#0072B2": "#4FA8E0",
    "#D55E00": "#FF8A3D",
    "#009E73": "#2BC49A",
    "#555555": "#D0D0D0",
    "#777777": "#A0A0A0",
    "#888888": "#A0A0A0",
}

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
    """One series' marker and dash, as plotly and as matplotlib name them."""

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


# What a series is drawn in: its colour, its marker and dash.
Style = tuple[str, Look]
# Of dots: backend, number of GPUs used, model.
Series = tuple[str, int, str]


def colours(names: Iterable[Name]) -> dict[Name, str]:
    """Return a colour for each name, in their order; past the palette's end they repeat."""
    return {name: PALETTE[at % len(PALETTE)] for at, name in enumerate(dict.fromkeys(names))}


def line_styles(names: Iterable[str]) -> dict[str, Style]:
    """Return a style for each name, in their order; where colours repeat, looks move on, so that 36 lines differ."""
    ordered = list(dict.fromkeys(names))
    shade = colours(ordered)
    return {name: (shade[name], LOOKS[(at + at // len(PALETTE)) % len(LOOKS)]) for at, name in enumerate(ordered)}


def dot_styles(series: Iterable[Series]) -> dict[Series, Style]:
    """Return a style for each series: a colour per backend, a look per number of GPUs and model.

    Where looks repeat, the backend takes another colour.
    """
    known = set(series)
    shapes = sorted({(count, model) for _, count, model in known})
    turns = {shape: divmod(at, len(LOOKS)) for at, shape in enumerate(shapes)}
    shade = colours(sorted((turns[count, model][0], backend) for backend, count, model in known))

    def style(backend: str, count: int, model: str) -> Style:
        turn, at = turns[count, model]
        return shade[turn, backend], LOOKS[at]

    return {one: style(*one) for one in known}


def front_looks(models: Iterable[str]) -> dict[str, Look]:
    """Return the look of each model's Pareto front, in alphabetical order; the first is dotted."""
    return {model: LOOKS[(at + 2) % len(LOOKS)] for at, model in enumerate(sorted(set(models)))}
