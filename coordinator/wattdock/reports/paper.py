"""Figures and tables for papers, as files: charts as PDF, SVG or PNG, results as Markdown or LaTeX."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from wattdock.files import require_ending, write_output
from wattdock.output import harmless
from wattdock.reports.boards import pools
from wattdock.reports.cells import MARK
from wattdock.reports.chart_data import are_numbers, notes, point_cells, points_of
from wattdock.reports.wording import boundaries
from wattdock.store import COLUMNS, TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from wattdock.imported import Imported
    from wattdock.reports.chart_data import Point
    from wattdock.store import StoredResult

# One and two columns of a journal's page, 89 and 183 mm, in points.
WIDTHS = {"column": 252, "page": 518}
FORMATS = (".pdf", ".svg", ".png")
ASPECT = 0.6
PIXELS_PER_INCH = 300
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
CONFIG: dict[str, Any] = {
    "font": FONT,
    "axis": {"labelFontSize": 7, "titleFontSize": 8, "titleFontWeight": "normal", "gridOpacity": 0.5, "gridWidth": 0.4},
    "legend": {
        "orient": "top",
        "direction": "vertical",
        "columns": 2,
        "labelFontSize": 7,
        "symbolSize": 40,
        "labelLimit": 0,
        "rowPadding": 1,
        "padding": 0,
        "offset": 4,
    },
    "text": {"fontSize": 6},
    "point": {"size": 25, "strokeWidth": 1},
    "view": {"stroke": None},
    "concat": {"spacing": 8},
}
# Columns of a printed table.
PRINTED = TABLES["paper"]
HEADINGS = [COLUMNS[name].heading for name in PRINTED]
NOTE = (
    "Intervals [low, high] are of 95 %: of J/output token and J/unit from the uncertainty budget, of others from how "
    "restarts differ; without one there were fewer than three restarts."
)
BOARDS_NOTE = "Each row is of 1 board (or set of boards); its interval says nothing of the model's other boards."
# Characters with a meaning in LaTeX.
ESCAPED = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "×": r"$\times$",
    "±": r"$\pm$",
    "–": "--",
    MARK: r"\dag{}",
}


def draw(
    kind: str, rows: Sequence[StoredResult], file: Path, *, width: str = "column", beside: Sequence[Imported] = ()
) -> str:
    """Write one kind of chart, or the table, of results into a file; replaces what is there.

    Returns:
        What its caption has to say of signs in it and of results left out; empty where it has none.

    Args:
        kind: One of `charts.CHARTS`, or "table".
        width: One of `WIDTHS`, columns of a journal's page.
        beside: Rows that others published, which `charts.chart` draws beside them.

    Raises:
        ConfigError: The kind or the format is unknown, or these results have nothing to draw of this kind.
        StoreError: The file cannot be written.
    """
    points = points_of(rows)
    require_ending(file, *(FORMS if kind == "table" else FORMATS))
    note = ""
    if kind == "table" and not beside:
        # A file of text is shown on a terminal as often as not.
        content = harmless(FORMS[file.suffix](points)).encode()
    else:
        import vl_convert as vlc
        from altair.utils.schemapi import debug_mode

        from wattdock.reports.charts import chart

        # Altair would hold every row of data against its schema at each step.
        with debug_mode(False):
            spec = _drawable(chart(kind, rows, beside).to_dict(validate=False))
        # Only this chart leaves out results that have figures.
        note = spec["description"] if kind == "scaling" else ""
        svg = _svg_of(spec, WIDTHS[width])
        if file.suffix == ".svg":
            content = svg.encode()
        elif file.suffix == ".pdf":
            content = vlc.svg_to_pdf(svg)
        else:
            content = vlc.svg_to_png(svg, scale=PIXELS_PER_INCH / 72)
    write_output(file, content, "-o")
    origins = ", ".join(dict.fromkeys(row.origin for row in beside))
    imported = origins and f"imported from {origins}, by others' account"
    return "; ".join(filter(None, (notes(points), note, imported)))


def _drawable(part: Any) -> Any:
    """Return a part of a chart's description with no text that XML cannot hold: the library ends the process at one."""
    if isinstance(part, dict):
        return {name: _drawable(value) for name, value in part.items()}
    if isinstance(part, list | tuple):
        return [_drawable(value) for value in part]
    return harmless(part) if isinstance(part, str) else part


def _svg_of(spec: dict[str, Any], width: float) -> str:
    """Return the SVG of a chart that is `width` points wide, with as many columns in its legend as that allows."""
    import altair as alt
    import vl_convert as vlc

    svg = ""
    height = min(width * 0.4, 150) if "vconcat" in spec else min(width * ASPECT, 220)
    for columns in (4, 2, 1):
        inner, before = width, 0.0
        # Labels take what they need; the next drawings give the rest to the axes.
        for _ in range(5):
            view = {"continuousWidth": inner, "continuousHeight": height, "stroke": None}
            spec["config"] = CONFIG | {"view": view, "legend": CONFIG["legend"] | {"columns": columns}}
            svg = vlc.vegalite_to_svg(spec, vl_version=alt.SCHEMA_VERSION.rpartition(".")[0])
            width_drawn = float(re.search(r'width="([\d.]+)"', svg)[1])  # type: ignore[index]
            if abs(width_drawn - width) < 1:
                return svg
            if width_drawn == before:
                # The legend takes that much whatever is left for the axes: with fewer columns, it may take less.
                break
            before = width_drawn
            inner = max(inner + (width - width_drawn), 20)
    return svg


def markdown(points: Sequence[Point]) -> str:
    """Return results as a pipe table."""
    rule = ["---:" if is_number else "---" for is_number in are_numbers(PRINTED)]
    rows = [HEADINGS, rule, *([cell.replace("|", r"\|") for cell in _cells(point)] for point in points)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows) + f"\n{_note(points)}\n"


def latex(points: Sequence[Point]) -> str:
    """Return results as a tabular with booktabs' rules."""
    kinds = "".join("r" if is_number else "l" for is_number in are_numbers(PRINTED))
    escaped = [
        ["".join(ESCAPED.get(sign, sign) for sign in cell) for cell in cells]
        for cells in (HEADINGS, *map(_cells, points))
    ]
    head, *rows = (" & ".join(cells) + r" \\" for cells in escaped)
    begin = [f"% {_note(points)}", rf"\begin{{tabular}}{{{kinds}}}"]
    return "\n".join([*begin, r"\toprule", head, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}", ""])


FORMS: Mapping[str, Callable[[Sequence[Point]], str]] = {".md": markdown, ".tex": latex}


def _cells(point: Point) -> list[str]:
    return [" ".join(cell.split()) for cell in point_cells(point, PRINTED).values()]


def _note(points: Sequence[Point]) -> str:
    said = [NOTE, f"Energy of {' and '.join(boundaries(point.result for point in points))}."]
    if any(point.row.gpu_count for point in points):
        said += [BOARDS_NOTE, *(f"{pool}." for pool in pools(point.stored for point in points).values())]
    return " ".join([*said, notes(points)]).rstrip()
