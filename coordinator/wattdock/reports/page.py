"""One self-contained page of stored results: everything that it shows and runs is inside the file."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from datetime import UTC, datetime
from functools import cache, partial
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from wattdock.analysis import ExperimentResult, conditions
from wattdock.errors import Cause, ConfigError
from wattdock.files import write_output
from wattdock.reports.boards import pools
from wattdock.reports.cells import cell_text, excerpts_at_difference, figure_text, row_cells
from wattdock.reports.chart_data import are_numbers, disturbed_note, headings, points_of, timelines
from wattdock.reports.wording import (
    STATUSES,
    boards_text,
    boundaries,
    fallback_text,
    power_profile_text,
    token_cost_texts,
)
from wattdock.store import Row
from wattdock.text import COMPACT, json_text
from wattdock.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from wattdock.reports.chart_data import Point
    from wattdock.reports.encodings import Chart
    from wattdock.store import StoredResult

ASSETS = "page_assets"
# Differences that the page folds away.
WITHIN = (conditions.ENGINE, conditions.PACKAGE)
MOST_POINTS_PER_RESULT = 6_000
# The palette's colours on a dark ground, where some of them would be dim.
ON_DARK = {"#0072B2": "#4FA8E0", "#D55E00": "#FF8A3D", "#009E73": "#2BC49A", "#555555": "#D0D0D0", "#777777": "#A0A0A0"}
# Names that the page's script replaces by the ends of a timeline's axis.
ENDS = ("begin", "end")
# How many outcomes of a check and names of results a page lists; it counts the others.
MOST_FIGURES, MOST_NAMES = 60, 12


class Extent(NamedTuple):
    """How much a page holds of its results; what it leaves out, it says.

    Attributes:
        timelines: Results whose timelines it holds.
        points: Points of all lines over time together.
        reasons: Reasons against publishing, of each result.
        has_tables: Whether charts have tables below them.
    """

    timelines: int
    points: int
    reasons: int
    has_tables: bool


WHOLE = Extent(timelines=100, points=150_000, reasons=20, has_tables=True)
BRIEF = Extent(timelines=20, points=30_000, reasons=3, has_tables=False)


def write_report(rows: Sequence[StoredResult], file: Path, *, title: str) -> None:
    """Write the page; replaces what is there.

    Raises:
        ConfigError: There is nothing to show.
        StoreError: A timeline cannot be read, or the file cannot be written.
    """
    if not rows:
        raise ConfigError("no results to report", "name a result folder, a study or a bundle", cause=Cause.EMPTY)
    write_output(file, page(rows, title=title, written=datetime.now(UTC)).encode(), "-o")


def page(rows: Sequence[StoredResult], *, title: str, written: datetime) -> str:
    """Return the page as HTML.

    Raises:
        StoreError: A timeline cannot be read.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from wattdock.reports.charts import MOST_ROWS

    points, extent = points_of(rows), WHOLE if len(rows) <= MOST_ROWS else BRIEF
    # Joules always have a column: where they are unknown, the page says so.
    first, *others = Row.columns("on_page")
    columns = [first, *(name for name in others if any(getattr(point.row, name) is not None for point in points))]
    script, loader = _script(), PackageLoader("wattdock.reports", ASSETS)
    how: dict[str, Any] = {"autoescape": True, "undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    return (
        Environment(loader=loader, **how)
        .get_template("page.html")
        .render(
            title=title,
            written=f"{written:%Y-%m-%d %H:%M} UTC",
            version=__version__,
            policy=_policy(script),
            style=_asset("page.css"),
            script=script,
            extent=extent,
            most_names=MOST_NAMES,
            points=points,
            publishable_count=sum(point.row.publishable is True for point in points),
            commonest_reasons=_commonest_reasons(points),
            columns=list(zip(headings(columns), are_numbers(columns), strict=True)),
            cells=partial(_cells, columns=columns),
            fallback_text=fallback_text,
            power_profile_text=power_profile_text,
            missing=_missing(points),
            pools=pools(rows).values(),
            budgets=[(point.label, budget) for point in points if (budget := point.result.budget)],
            token_costs=[(point.label, texts) for point in points if (texts := token_cost_texts(point.result))],
            checks=_checks(points),
            boundaries=boundaries(point.result for point in points),
            net_meaning=ExperimentResult.NET_MEANING,
            **_drawings(points, extent),
            **_measured_with(points),
            **_methods(points),
        )
    )


def _drawings(points: Sequence[Point], extent: Extent) -> dict[str, Any]:
    """Return the charts, and the data that the page's script draws them and the timelines from."""
    from altair.utils.schemapi import debug_mode

    from wattdock.reports.timeline_chart import SPAN_COLUMNS, TimelineDrawing, timeline_chart

    shown = points[: extent.timelines]
    each = min(MOST_POINTS_PER_RESULT, extent.points // len(shown))
    restarts = [(point, line) for point in shown for line in timelines(point.stored, points=each) if line.has_lines]
    drawings = [(f"{point.label}, restart {line.label}", TimelineDrawing.of(line, point)) for point, line in restarts]
    looks = list(dict.fromkeys(drawing.look for _, drawing in drawings))
    # Altair would hold every row of data against its schema at each step.
    with debug_mode(False):
        charts = _charts(points, has_tables=extent.has_tables)
        looks_drawn = [_spec(timeline_chart(look, ENDS)) for look in looks]
    data = {
        "on_dark": ON_DARK,
        "charts": {chart["key"]: chart["spec"] for chart in charts if chart["spec"]},
        "span_columns": list(SPAN_COLUMNS),
        "looks": looks_drawn,
        "timelines": [
            {"label": label, "look": looks.index(drawing.look), "ends": drawing.ends, "datasets": drawing.datasets}
            for label, drawing in drawings
        ],
    }
    embedded = json_text(data, separators=COMPACT)
    # The text must not end the element that it stands in.
    for sign in "&<>":
        embedded = embedded.replace(sign, f"\\u{ord(sign):04x}")
    return {
        "charts": charts,
        "data": embedded,
        "has_timelines": bool(restarts),
        "has_power": any(line.power_w or line.host_w for _, line in restarts),
        "power_method": _method(
            {trace.source for _, line in restarts for trace in line.power_w},
            "energy between two changes of a GPU's counter ÷ the time between them",
            "the driver's power readings",
        ),
    }


def _charts(points: Sequence[Point], *, has_tables: bool) -> list[dict[str, Any]]:
    """Return every chart with its data as a table; a chart of too many results is only a note."""
    from wattdock.reports.charts import CHARTS

    charts: list[dict[str, Any]] = []
    for key, kind in CHARTS.items():
        entry: dict[str, Any] = {"key": key, "title": kind.title, "spec": None, "rows": []}
        if not kind.on_page:
            continue
        try:
            chart = kind.draw(points)
        except ConfigError as error:
            if error.cause == Cause.TOO_LARGE:
                charts.append(entry | {"note": f"{error}."})
            continue
        rows: list[dict[str, Any]] = chart.data.values if has_tables else []
        columns = [name for row in rows[:1] for name in row if name != "order"]
        cells = [
            [cell_text(row[name], ",.4g" if isinstance(row[name], float) else "") for name in columns] for row in rows
        ]
        note = f"{chart.description} {disturbed_note(points)}" if isinstance(chart.description, str) else ""
        charts.append(entry | {"note": note, "spec": _spec(chart), "columns": columns, "rows": cells})
    return charts


def _spec(chart: Chart) -> dict[str, Any]:
    """Return a chart for the page, whose script sets sizes and colours by the window and the theme."""
    spec: dict[str, Any] = chart.to_dict(validate=False)
    del spec["config"]
    return spec


def _policy(script: str) -> str:
    """Return a policy under which nothing but this script runs and nothing is fetched.

    Source: Content Security Policy Level 3; vega-embed writes its own style sheet.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = ("default-src 'none'", f"script-src 'sha256-{digest}'", "style-src 'unsafe-inline'", "img-src data: blob:")
    return "; ".join([*parts, "base-uri 'none'", "form-action 'none'"])


def _asset(name: str) -> str:
    return resources.files("wattdock.reports").joinpath(ASSETS, name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    """Return the page's script and the libraries that it needs; bundling them takes a second."""
    import vl_convert as vlc

    bundle: str = vlc.javascript_bundle(_asset("page.js"))
    return bundle


def _commonest_reasons(points: Sequence[Point]) -> list[tuple[str, int, str]]:
    """Return what keeps results from being published, how many each, and each one's place in the page."""
    audits = [point.result.audit for point in points if point.result.audit]
    reasons = [reason for audit in audits for reason in audit.reasons]
    names = Counter(reason.name for reason in reasons)
    return [(name, count, _anchor(name)) for name, count in names.most_common()]


def _anchor(name: str) -> str:
    return "check-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _missing(points: Sequence[Point]) -> dict[str, list[str]]:
    """Return why results have no joules, each reason once, with the names of the results."""
    reasons: dict[str, list[str]] = {}
    for point in points:
        if point.j_per_token is None:
            energy = point.result.energy
            reason = energy.reason if energy and energy.passes else point.row.reason
            reasons.setdefault(reason or "no pass was measured", []).append(point.label)
    return reasons


def _cells(point: Point, columns: Sequence[str]) -> list[str]:
    """Return a result's line of the summary."""
    figure = point.j_per_token
    joules = figure_text(figure) + boards_text(point.result) if figure else "not measured"
    cells = row_cells(point.row, columns)
    figures = {"energy_per_output_token_j": joules, "output_tokens_per_s": figure_text(point.tokens_per_s, ",.1f")}
    return [figures.get(name, cell) for name, cell in cells.items()]


def _checks(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return every check of every result: how often each status, and each outcome with its results, the worst first."""
    labels: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for point in points:
        for check in point.result.audit.checks if point.result.audit else ():
            outcome = (check.status, check.figure, check.threshold or "", check.source or "")
            labels.setdefault(check.name, {}).setdefault(outcome, []).append(point.label)
    summaries = []
    for name, of_outcome in labels.items():
        outcomes = sorted(of_outcome.items(), key=lambda entry: STATUSES.index(entry[0][0]))
        counts = Counter(outcome[0] for outcome, results in outcomes for _ in results)
        summaries.append(
            {
                "name": name,
                "anchor": _anchor(name),
                "counts": list(counts.items()),
                "outcomes": outcomes[:MOST_FIGURES],
                "left_out": max(len(outcomes) - MOST_FIGURES, 0),
            }
        )
    return sorted(summaries, key=lambda summary: STATUSES.index(summary["counts"][0][0]))


def _measured_with(points: Sequence[Point]) -> dict[str, Any]:
    """Return what all results agree in; and by name what they differ in: each text, and the results that have it."""
    texts = {point.label: point.result.conditions for point in points if point.result.environment}
    differ: dict[bool, dict[str, list[tuple[str, list[str]]]]] = {False: {}, True: {}}
    for name in conditions.differing(list(texts.values())):
        labels: dict[str, list[str]] = {}
        for label, by_name in texts.items():
            labels.setdefault(by_name.get(name, conditions.ABSENT), []).append(label)
        excerpts = excerpts_at_difference(list(labels))
        differ[name.startswith(WITHIN)][name] = list(zip(excerpts, labels.values(), strict=True))
    return {"same": conditions.shared(list(texts.values())), "differ": differ[False], "differ_within": differ[True]}


def _methods(points: Sequence[Point]) -> dict[str, Any]:
    """Return what the joules are made of."""
    energies = [point.result.energy for point in points if point.result.energy]
    energy_method = _method(
        {source for energy in energies if energy.source for source in energy.source.split("+")},
        "the GPUs' own energy counters, interpolated between their changes",
        "the driver's power readings, integrated from one to the next",
    )
    return {"energy_method": energy_method}


def _method(sources: set[str], of_counters: str, of_readings: str) -> str:
    """Return the text for counters, for readings, or for both; for counters where nothing was measured."""
    if sources and "counter" not in sources:
        return of_readings
    return f"{of_counters}; of a GPU without an energy counter, {of_readings}" if len(sources) > 1 else of_counters
