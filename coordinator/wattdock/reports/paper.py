"""Figures and tables for papers, as files: charts as PDF, SVG or PNG, results as Markdown, CSV or LaTeX."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING, Any

from wattdock.errors import ConfigError, StoreError
from wattdock.reports.chart_data import points
from wattdock.reports.terminal import NOTHING, interval_text, number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from wattdock.reports.chart_data import Point
    from wattdock.reports.charts import Chart
    from wattdock.reports.terminal import Figure
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
HEADINGS = ("experiment", "backend", "model", "GPUs", "batch", "J/output token", "output tokens/s", "publishable")
NUMBERS = {"GPUs", "batch", "J/output token", "output tokens/s"}
COLUMNS = (
    *("experiment", "backend", "model", "gpu_count", "batch_size", "energy_per_output_token_j"),
    *("energy_per_output_token_j_low", "energy_per_output_token_j_high", "interval_covers"),
    *("output_tokens_per_s", "output_tokens_per_s_low", "output_tokens_per_s_high", "publishable", "reason", "folder"),
    "fallback",
)
NOTE = "± is half of the 95 % interval: over restarts, or (marked *) of timing alone. Energy of GPU boards."
FALLBACK_NOTE = "A fallback was measured because what was asked for failed, and does not stand for it."
# What LaTeX would take for a command of its own.
ESCAPED = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "×": r"$\times$",
    "±": r"$\pm$",
    "–": "--",
}


def draw(kind: str, rows: Sequence[StoredResult], file: Path, *, width: str = "column") -> None:
    """Write one kind of chart, or the table, of results into a file; replaces what is there.

    Args:
        kind: One of `charts.CHARTS`, or "table".
        width: One of `WIDTHS`, columns of a journal's page.

    Raises:
        ConfigError: The format is unknown, or these results have nothing to draw of this kind.
        StoreError: The file cannot be written.
    """
    if kind == "table":
        _require_format(file, FORMS, "tables are written as")
        _write(file, FORMS[file.suffix](points(rows)).encode())
        return
    from wattdock.reports.charts import CHARTS

    _require_format(file, FORMATS, "figures are written as")
    save_chart(CHARTS[kind][1](points(rows)), file, width=WIDTHS[width])


def save_chart(chart: Chart, file: Path, *, width: float, flag: str = "-o") -> None:
    """Write a chart so that it is exactly `width` points wide.

    Args:
        flag: The one that the file was named with.

    Raises:
        ConfigError: The format is unknown.
        StoreError: The file cannot be written.
    """
    import vl_convert as vlc

    _require_format(file, FORMATS, "figures are written as", flag)
    spec = chart.to_dict()
    panels = max((len(part.get("hconcat", [part])) for part in spec.get("vconcat", [])), default=1)
    svg = _drawn(spec, width, panels)
    if file.suffix == ".pdf":
        _write(file, vlc.svg_to_pdf(svg), flag)
    elif file.suffix == ".png":
        _write(file, vlc.svg_to_png(svg, scale=PIXELS_PER_INCH / 72), flag)
    else:
        _write(file, svg.encode(), flag)


def _version(schema: str) -> str:
    """Return "6.4" for "v6.4.1"."""
    return ".".join(schema.removeprefix("v").split(".")[:2])


def _drawn(spec: dict[str, Any], width: float, panels: int) -> str:
    """Return the SVG of a chart that is `width` points wide, with as many columns in its legend as that allows."""
    import altair as alt
    import vl_convert as vlc

    svg = ""
    height = 110 if panels > 1 else min(width * 0.4, 150) if "vconcat" in spec else min(width * ASPECT, 220)
    for columns in (4, 2, 1):
        inner = width / panels
        # Labels take what they need; the next drawings give the rest to the axes.
        for _ in range(5):
            own = {"continuousWidth": inner, "continuousHeight": height, "stroke": None}
            spec["config"] = CONFIG | {"view": own, "legend": CONFIG["legend"] | {"columns": columns}}
            svg = vlc.vegalite_to_svg(spec, vl_version=_version(alt.SCHEMA_VERSION))
            drawn = float(re.search(r'width="([\d.]+)"', svg)[1])  # type: ignore[index]
            if abs(drawn - width) < 1:
                return svg
            inner = max(inner + (width - drawn) / panels, 20)
    return svg


def _require_format(file: Path, known: Sequence[str] | Mapping[str, Any], said: str, flag: str = "-o") -> None:
    if file.suffix not in known:
        raise ConfigError(f"{file}: {said} {', '.join(known)}; name such a file with {flag}")


def _write(file: Path, content: bytes, flag: str = "-o") -> None:
    try:
        file.write_bytes(content)
    except OSError as error:
        raise StoreError(f"cannot write {file}: {error.strerror or error}; choose another file with {flag}") from error


def markdown(shown: Sequence[Point]) -> str:
    """Return results as a pipe table."""
    rule = ["---:" if name in NUMBERS else "---" for name in HEADINGS]
    rows = [HEADINGS, rule, *([_one_line(cell).replace("|", r"\|") for cell in _cells(point)] for point in shown)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows) + f"\n{_note(shown)}\n"


def latex(shown: Sequence[Point]) -> str:
    """Return results as a tabular with booktabs' rules."""
    kinds = "".join("r" if name in NUMBERS else "l" for name in HEADINGS)
    head, *rows = (" & ".join(map(_tex, cells)) + r" \\" for cells in (HEADINGS, *map(_cells, shown)))
    begin = [f"% {_note(shown)}", rf"\begin{{tabular}}{{{kinds}}}"]
    return "\n".join([*begin, r"\toprule", head, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}", ""])


def comma_separated(shown: Sequence[Point]) -> str:
    """Return plain figures, with units in the columns' names; what was not measured is empty."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for point in shown:
        cost, speed = point.j_per_token, point.tokens_per_s
        own = (point.label, point.backend, point.model, point.gpu_count, point.batch_size)
        figures = (*_ends(cost), cost.covers if cost else None, *_ends(speed))
        judged = point.result.audit.reasons if point.result.audit else []
        about = (point.publishable, point.reason or "; ".join(judged), point.row.folder.name)
        writer.writerow([*own, *figures, *about, point.result.fallback.change if point.result.fallback else None])
    return out.getvalue()


FORMS: Mapping[str, Callable[[Sequence[Point]], str]] = {".md": markdown, ".csv": comma_separated, ".tex": latex}


def _cells(point: Point) -> list[str]:
    verdict = NOTHING if point.publishable is None else "yes" if point.publishable else "no"
    verdict += f" (fallback: {point.result.fallback.change})" if point.result.fallback else ""
    own = [point.label, point.backend, point.model, str(point.gpu_count), str(point.batch_size)]
    return [*own, _plus_minus(point.j_per_token, ".4g"), _plus_minus(point.tokens_per_s, ",.1f"), verdict]


def _note(shown: Sequence[Point]) -> str:
    return f"{NOTE} {FALLBACK_NOTE}" if any(point.result.fallback for point in shown) else NOTE


def _plus_minus(figure: Figure | None, form: str) -> str:
    if figure is None or figure.low is None or figure.high is None:
        return number(figure.value if figure else None, form)
    return interval_text(figure.value, (figure.low, figure.high), form) + ("*" if figure.covers == "timing" else "")


def _ends(figure: Figure | None) -> list[float | None]:
    return [figure.value, figure.low, figure.high] if figure else [None, None, None]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _tex(text: str) -> str:
    return "".join(ESCAPED.get(sign, sign) for sign in _one_line(text))
