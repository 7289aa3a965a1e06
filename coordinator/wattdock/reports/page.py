"""One self-contained page of stored results: everything that it shows and runs is inside the file."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from wattdock.analysis import ExperimentResult, conditions
from wattdock.errors import Cause, ConfigError
from wattdock.files import write_output
from wattdock.reports.boards import pools
from wattdock.reports.cells import NOTHING
from wattdock.reports.chart_data import ENERGY_AND_SPEED, are_numbers, notes, point_cells, points_of, timelines
from wattdock.reports.wording import STATUSES, boundaries, cut_text, no_joules_text, power_profile_text
from wattdock.store import COLUMNS, TABLES, Row
from wattdock.text import COMPACT, excerpts_at_difference, json_text, significant, singular
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
ON_DARK = {
    "#0072B2": "#4FA8E0",
    "#D55E00": "#FF8A3D",
    "#009E73": "#2BC49A",
    "#555555": "#D0D0D0",
    "#777777": "#A0A0A0",
    "#882255": "#E07AB0",
}
# Names that the page's script replaces by the ends of a timeline's axis.
ENDS = ("begin", "end")
# How many outcomes of a check and names of results a page lists, and characters of these; it counts the others.
MOST_FIGURES, MOST_NAMES, MOST_CHARACTERS = 60, 12, 400
# How many checks an answer names before it counts, as a terminal does.
MOST_REASONS = 5
# The verdict's questions, as readers ask them, by the name that checks have for them.
QUESTIONS = {
    "wrong": "Was nothing seen wrong?",
    "known": "Is the figure known well enough?",
    "repeat": "Can it be repeated?",
}
# Outcomes of checks in words that no pass of a measurement has.
WORDS = {"fail": "failed", "unknown": "unknown", "warn": "warning", "info": "noted", "pass": "passed"}
CODE = re.compile("`([^`]+)`")


class Extent(NamedTuple):
    """How many results' timelines a page holds, points of all lines over time together, and reasons of each result."""

    timelines: int
    points: int
    reasons: int


WHOLE = Extent(timelines=100, points=150_000, reasons=20)
BRIEF = Extent(timelines=20, points=30_000, reasons=3)


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
    script, loader = _script(), PackageLoader("wattdock.reports", ASSETS)
    how: dict[str, Any] = {"autoescape": True, "undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=loader, **how)
    environment.filters |= {"coded": _coded, "significant": significant, "singular": singular}
    return environment.get_template("page.html").render(
        title=title,
        written=f"{written:%Y-%m-%d %H:%M} UTC",
        version=__version__,
        policy=_policy(script),
        style=_asset("page.css"),
        script=script,
        extent=extent,
        most_names=min(MOST_NAMES, MOST_CHARACTERS // max(len(point.label) for point in points) + 1),
        most_open=MOST_NAMES,
        most_reasons=MOST_REASONS,
        words=WORDS,
        points=points,
        publishable_count=sum(point.row.publishable is True for point in points),
        failed_count=sum(point.row.status == "failed" for point in points),
        questions=_questions(points),
        notes=notes(points),
        remarks=lambda result: [text for text in (power_profile_text(result), cut_text(result)) if text],
        missing=_missing(points),
        pools=pools(rows).values(),
        budgets=[(point, budget) for point in points if (budget := point.result.budget)],
        marked=[(point.label, work.marked) for point in points if (work := point.result.work) and work.marked],
        boundaries=boundaries(point.result for point in points),
        net_meaning=ExperimentResult.NET_MEANING,
        **_summary(points),
        **_drawings(points, extent),
        **_measured_with(points),
    )


def _coded(value: object) -> str:
    """Return a text as markup: escaped, and what stands between backticks as code."""
    from markupsafe import Markup, escape

    return Markup(CODE.sub(r"<code>\1</code>", str(escape(str(value)))))


def _drawings(points: Sequence[Point], extent: Extent) -> dict[str, Any]:
    """Return the charts, and the data that the page's script draws them and the timelines from."""
    from altair.utils.schemapi import debug_mode

    from wattdock.reports.timeline_chart import SPAN_COLUMNS, TimelineDrawing, timeline_chart

    shown = points[: extent.timelines]
    each = min(MOST_POINTS_PER_RESULT, extent.points // len(shown))
    drawings = [
        (f"{point.label}, restart {restart.label}", TimelineDrawing.of(restart, point))
        for point in shown
        for restart in timelines(point.stored, points=each)
        if any(restart.lines.values())
    ]
    looks = list(dict.fromkeys(drawing.look for _, drawing in drawings))
    # Altair would hold every row of data against its schema at each step.
    with debug_mode(False):
        charts = _charts(points)
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
        "has_timelines": bool(drawings),
        "has_power": any(drawing.look.lines for _, drawing in drawings),
    }


def _charts(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return every chart with its note; a chart of too many results is only a note."""
    from wattdock.reports.charts import CHARTS

    charts: list[dict[str, Any]] = []
    for key, kind in CHARTS.items():
        entry: dict[str, Any] = {"key": key, "title": kind.title, "spec": None}
        if not kind.on_page:
            continue
        try:
            chart = kind.draw(points)
        except ConfigError as error:
            if error.cause != Cause.EMPTY:
                charts.append(entry | {"note": f"{error}."})
            continue
        charts.append(entry | {"note": chart.description, "spec": _spec(chart)})
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


def _anchor(name: str) -> str:
    return "check-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _missing(points: Sequence[Point]) -> dict[str, list[str]]:
    """Return why results have no joules, each reason once, with the names of the results."""
    reasons: dict[str, list[str]] = {}
    for point in points:
        if point.j_per_token is None:
            energy = point.result.energy
            reason = no_joules_text(point.result) if energy and energy.passes else point.row.reason
            reasons.setdefault(reason or "no pass was measured", []).append(point.label)
    return reasons


def _summary(points: Sequence[Point]) -> dict[str, Any]:
    """Return the summary's columns and lines; what several results have in common leaves the table, and is said once.

    A cell is a text and, below it, an interval.
    """
    # Joules always have a column: where they are unknown, the page says so.
    first = ENERGY_AND_SPEED[all(point.row.unit for point in points)][0]
    others = [name for name in TABLES["page"] if name != first]
    names = [first, *(name for name in others if any(getattr(point.row, name) is not None for point in points))]
    lines = [(point, point_cells(point, names)) for point in points]
    alike = [name for name in names[1:] if len(points) > 1 and len({cells[name] for _, cells in lines}) == 1]
    names = [name for name in names if name not in alike]

    def cell(name: str, text: str) -> tuple[str, str]:
        if name == first and text == NOTHING:
            return "not measured", ""
        # Only a number has an interval behind it.
        value, bracket, ends = text.partition(" [") if Row.types()[name] is float else (text, "", "")
        return value, bracket.strip() + ends

    return {
        "columns": list(zip((COLUMNS[name].heading for name in names), are_numbers(names), strict=True)),
        "lines": [(point, [cell(name, cells[name]) for name in names]) for point, cells in lines],
        "shared": [(COLUMNS[name].heading, lines[0][1][name]) for name in alike],
    }


def _questions(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return the verdict's questions: each one's answer over all results, what stands against it, and its checks."""
    audits = [point.result.audit for point in points if point.result.audit]
    # Of a run that failed nothing is known.
    good = [point.result.audit for point in points if point.result.audit and point.result.status == "ok"]
    against = Counter((reason.question, reason.name) for audit in audits for reason in audit.reasons)
    checks, questions = _checks(points), []
    for key, text in QUESTIONS.items():
        asked = [check for check in checks if check["question"] == key]
        answered = sum(not any(reason.question == key for reason in audit.reasons) for audit in good)
        worst = asked[0]["status"] if asked else "unknown"
        # Nothing is known of a result without an audit.
        is_known = worst != "unknown" and len(audits) == len(points)
        status = "fail" if worst == "fail" else "pass" if is_known else "unknown"
        said = {"fail": "no", "unknown": "unknown", "pass": "yes"}[status]
        questions.append(
            {
                "text": text,
                "anchor": f"question-{key}",
                "status": status,
                "said": said if len(points) == 1 else f"yes for {answered or 'none'} of {len(points)}",
                "reasons": [(name, many, _anchor(name)) for (of, name), many in against.most_common() if of == key],
                "counts": _counts(Counter(check["status"] for check in asked)),
                "checks": asked,
            }
        )
    return questions


def _checks(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return every check of every result: how often each status, and each outcome with its results, the worst first."""
    labels: dict[tuple[str, str | None], dict[tuple[str, ...], list[str]]] = {}
    for point in points:
        for check in point.result.audit.checks if point.result.audit else ():
            outcome = (check.status, check.figure, check.threshold or "", check.source or "")
            labels.setdefault((check.name, check.question), {}).setdefault(outcome, []).append(point.label)
    summaries = []
    for (name, question), of_outcome in labels.items():
        outcomes = sorted(of_outcome.items(), key=lambda entry: STATUSES.index(entry[0][0]))
        summaries.append(
            {
                "name": name,
                "question": question or "wrong",
                "anchor": _anchor(name),
                "status": outcomes[0][0][0],
                "counts": _counts(Counter(outcome[0] for outcome, results in outcomes for _ in results)),
                "outcomes": outcomes[:MOST_FIGURES],
                "left_out": max(len(outcomes) - MOST_FIGURES, 0),
            }
        )
    return sorted(summaries, key=lambda summary: STATUSES.index(summary["status"]))


def _counts(statuses: Counter[str]) -> str:
    return ", ".join(f"{statuses[status]} {WORDS[status]}" for status in STATUSES if statuses[status])


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
