"""One self-contained page of stored results: everything that it shows and runs is inside the file."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from datetime import UTC, datetime
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from wattdock import __version__
from wattdock.analysis import ExperimentResult, conditions
from wattdock.errors import ConfigError, StoreError
from wattdock.reports.chart_data import points, timelines
from wattdock.reports.terminal import NOTHING, figure_text, number, seconds_text, where_apart
from wattdock.text import COMPACT, json_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from wattdock.analysis import Fallback
    from wattdock.reports.chart_data import Point, RestartTimeline
    from wattdock.reports.charts import Chart
    from wattdock.store import StoredResult

ASSETS = "page_assets"
# Differences that the page folds away.
WITHIN = (conditions.ENGINE, conditions.PACKAGE)
# About 25 bytes each: a page of many results stays below 10 MB.
TIMELINE_POINTS, MOST_POINTS_PER_RESULT = 150_000, 6_000
# The timelines of further results are left out, which the page says.
MOST_TIMELINES = 100
# The palette's colours on a dark ground, where some of them would be dim.
ON_DARK = {"#0072B2": "#4FA8E0", "#D55E00": "#FF8A3D", "#009E73": "#2BC49A", "#555555": "#D0D0D0", "#777777": "#A0A0A0"}
COLUMNS = (
    *("J per output token", "output tokens/s", "mean W", "TTFT p50", "TPOT p50", "output tokens", "batch", "GPUs"),
    *("repeats", "backend", "model"),
)
STATUSES = ("fail", "unknown", "warn", "info", "pass")
# A page of many results must stay small; what is left out is counted.
MOST_FIGURES, MOST_NAMES, MOST_REASONS = 60, 12, 20


class PageChart(NamedTuple):
    """A chart of the page, and its data as a table."""

    key: str
    title: str
    note: str
    spec: dict[str, Any] | None
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


class Outcome(NamedTuple):
    """One outcome of a check, and the results that share it."""

    status: str
    figure: str
    limit: str
    source: str
    labels: str


class CheckSummary(NamedTuple):
    """A check over all results: how often each status, and its outcomes, the worst first."""

    name: str
    anchor: str
    counts: Sequence[tuple[str, int]]
    outcomes: Sequence[Outcome]
    left_out: int


def write_report(rows: Sequence[StoredResult], file: Path, *, title: str) -> None:
    """Write the page; replaces what is there.

    Raises:
        ConfigError: There is nothing to show.
        StoreError: A timeline cannot be read, or the file cannot be written.
    """
    if not rows:
        raise ConfigError("no results to report; name a result folder, a study or a bundle")
    text = page(rows, title=title, written=datetime.now(UTC))
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot write {file}: {error.strerror or error}; choose another file with -o") from error


def page(rows: Sequence[StoredResult], *, title: str, written: datetime) -> str:
    """Return the page as HTML.

    Raises:
        StoreError: A timeline cannot be read.
    """
    import vl_convert as vlc
    from jinja2 import Environment, PackageLoader, StrictUndefined

    shown = points(rows)
    charts, drawn = _charts(shown), _timelines(shown)
    same, differ = _measured_with(shown)
    script = vlc.javascript_bundle(_asset("page.js"))
    loader = PackageLoader("wattdock.reports", ASSETS)
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
            data=_embedded(_data(charts, drawn)),
            most_timelines=MOST_TIMELINES,
            has_timelines=bool(drawn),
            verdict=_verdict(shown),
            good=sum(point.publishable is True for point in shown),
            count=len(shown),
            reasons=_commonest_reasons(shown),
            columns=COLUMNS,
            points=shown,
            cells=_cells,
            reasons_of=_reasons,
            fallback_text=fallback_text,
            missing=_missing(shown),
            charts=charts,
            same=same,
            differ=[entry for entry in differ.items() if not entry[0].startswith(WITHIN)],
            differ_within=[entry for entry in differ.items() if entry[0].startswith(WITHIN)],
            checks=_checks(shown),
            boundary=ExperimentResult.BOUNDARY_STATEMENT,
            energy_method=_energy_method(shown),
            power_method=_power_method(restart for _, restart in drawn),
            net_meaning=ExperimentResult.NET_MEANING,
            covers=next((found.covers for p in shown if (found := p.result.statistics) and found.covers), None),
            lags=_lags(shown),
        )
    )


def fallback_text(found: Fallback) -> str:
    """Return what a fallback changed, and that it answers no other question than its own."""
    return f"{found.change}; {found.fallback_of[:8]} was asked for and failed, this does not stand for it"


def _charts(shown: Sequence[Point]) -> list[PageChart]:
    """Return every chart that has something to draw, or is too large to be drawn, which is then said."""
    from wattdock.reports.charts import CHARTS, MOST_ROWS

    found = []
    for key, (title, chart_of) in CHARTS.items():
        if key == "timeline":
            continue
        try:
            chart = chart_of(shown)
        except ConfigError as error:
            if len(shown) > MOST_ROWS and str(MOST_ROWS) in str(error):
                found.append(PageChart(key, title, f"{error}.", None))
            continue
        rows: list[dict[str, Any]] = chart.data.values
        columns = [name for name in rows[0] if name != "order"]
        cells = [[_text(row[name]) for name in columns] for row in rows]
        note = chart.description if isinstance(chart.description, str) else ""
        found.append(PageChart(key, title, note, _spec(chart), columns, cells))
    return found


def _spec(chart: Chart) -> dict[str, Any]:
    """Return a chart for the page, whose script sets sizes and colours by the window and the theme."""
    spec: dict[str, Any] = chart.to_dict()
    del spec["config"]
    return spec


def _text(value: Any) -> str:
    return number(value, ",.4g") if value is None or isinstance(value, float) else str(value)


def _timelines(shown: Sequence[Point]) -> list[tuple[Point, RestartTimeline]]:
    """Return the stored timelines, restart by restart, of as many results as a page holds."""
    part = shown[:MOST_TIMELINES]
    each = min(MOST_POINTS_PER_RESULT, TIMELINE_POINTS // len(part))
    return [(point, found) for point in part for found in timelines(point.row, points=each) if found.has_lines]


def _data(charts: Iterable[PageChart], drawn: Iterable[tuple[Point, RestartTimeline]]) -> dict[str, Any]:
    """Return what the page's script draws."""
    from wattdock.reports.charts import SPAN_COLUMNS, timeline_of

    return {
        "on_dark": ON_DARK,
        "charts": {chart.key: chart.spec for chart in charts if chart.spec},
        "timelines": [
            {
                "label": f"{point.label}, restart {restart.label}",
                "spec": _spec(timeline_of(restart, point)),
                "spans": [[row[name] for name in SPAN_COLUMNS] for row in restart.spans],
            }
            for point, restart in drawn
        ],
    }


def _embedded(data: Any) -> str:
    """Return JSON that cannot end the element it stands in."""
    text = json_text(data, separators=COMPACT)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _policy(script: str) -> str:
    """Return a policy under which nothing but this script runs and nothing is fetched.

    Source: Content Security Policy Level 3; vega-embed writes its own style sheet.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = ("default-src 'none'", f"script-src 'sha256-{digest}'", "style-src 'unsafe-inline'", "img-src data: blob:")
    return "; ".join([*parts, "base-uri 'none'", "form-action 'none'"])


def _asset(name: str) -> str:
    return resources.files("wattdock.reports").joinpath(ASSETS, name).read_text(encoding="utf-8")


def _verdict(shown: Sequence[Point]) -> str:
    """Return in one line how many results may be published."""
    good, count = sum(point.publishable is True for point in shown), len(shown)
    if count == 1:
        return f"This result may {'' if good else 'not '}be published"
    how_many = f"All {good}" if good == count else f"{good} of {count}" if good else f"None of the {count}"
    return f"{how_many} results may be published"


def _commonest_reasons(shown: Sequence[Point]) -> list[tuple[str, int, str]]:
    """Return the checks that keep results from being published, how many each, and each one's place in the page."""
    audits = [point.result.audit for point in shown if point.result.audit]
    found = Counter(check.name for audit in audits for check in audit.checks if check.status in ("fail", "unknown"))
    return [(name, many, _anchor(name)) for name, many in found.most_common()]


def _anchor(name: str) -> str:
    return "check-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _missing(shown: Sequence[Point]) -> list[tuple[str, str]]:
    """Return why results have no joules, each reason once, with the results that it holds for."""
    found: dict[str, list[str]] = {}
    for point in shown:
        if point.j_per_token is None:
            found.setdefault(point.reason or "no pass was measured", []).append(point.label)
    return [(reason, _few(labels)) for reason, labels in found.items()]


def _reasons(point: Point) -> list[str]:
    reasons = list(point.result.audit.reasons) if point.result.audit else ["no audit"]
    more = len(reasons) - MOST_REASONS
    return [*reasons[:MOST_REASONS], *([f"and {more} more"] if more > 0 else [])]


def _cells(point: Point) -> tuple[str, ...]:
    """Return a result's line of the summary, in the order of `COLUMNS`."""
    result = point.result
    performance, energy, environment = result.performance, result.energy, result.environment
    passes = energy.passes if energy else []
    repeats = f"{len({measured.restart for measured in passes})} × {len({measured.pass_index for measured in passes})}"
    ran_on = f"{point.gpu_count} × {environment.gpu_names[0]}" if environment and point.gpu_count else "none (CPU)"
    return (
        figure_text(point.j_per_token) if point.j_per_token else "not measured",
        figure_text(point.tokens_per_s, ",.1f"),
        number(energy.mean_power_w if energy else None, ",.0f"),
        seconds_text(performance.ttft.p50_s if performance and performance.ttft else None),
        seconds_text(performance.tpot.p50_s if performance and performance.tpot else None),
        f"{point.output_tokens:,}" if performance else NOTHING,
        str(point.batch_size),
        ran_on if environment else NOTHING,
        repeats if passes else NOTHING,
        point.backend,
        point.model,
    )


def _checks(shown: Sequence[Point]) -> list[CheckSummary]:
    """Return every check of every result, those that failed somewhere first."""
    found: dict[str, dict[tuple[str, str, str, str], list[str]]] = {}
    for point in shown:
        for check in point.result.audit.checks if point.result.audit else ():
            outcome = (check.status, check.figure, check.threshold or "", check.source or "")
            found.setdefault(check.name, {}).setdefault(outcome, []).append(point.label)
    summaries = [_check_summary(name, outcomes) for name, outcomes in found.items()]
    return sorted(summaries, key=lambda summary: STATUSES.index(summary.outcomes[0].status))


def _check_summary(name: str, found: dict[tuple[str, str, str, str], list[str]]) -> CheckSummary:
    ordered = sorted(found.items(), key=lambda entry: STATUSES.index(entry[0][0]))
    counts = {status: sum(len(labels) for outcome, labels in ordered if outcome[0] == status) for status in STATUSES}
    outcomes = [Outcome(*outcome, _few(labels)) for outcome, labels in ordered[:MOST_FIGURES]]
    seen = [(status, count) for status, count in counts.items() if count]
    return CheckSummary(name, _anchor(name), seen, outcomes, max(len(ordered) - MOST_FIGURES, 0))


def _measured_with(shown: Sequence[Point]) -> tuple[dict[str, str], dict[str, list[tuple[str, str]]]]:
    """Return what all results agree in; and by name what they differ in: each text, and the results that have it."""
    known = {point.label: conditions.everything(point.result) for point in shown if point.result.environment}
    differ = {}
    for name in conditions.differing(list(known.values())):
        holders: dict[str, list[str]] = {}
        for label, held in known.items():
            holders.setdefault(held.get(name, conditions.ABSENT), []).append(label)
        differ[name] = list(zip(where_apart(list(holders)), map(_few, holders.values()), strict=True))
    return conditions.shared(list(known.values())), differ


def _few(labels: Sequence[str]) -> str:
    more = len(labels) - MOST_NAMES
    return "; ".join(labels[:MOST_NAMES]) + (f"; and {more} more" if more > 0 else "")


def _lags(shown: Iterable[Point]) -> list[str]:
    """Return what the counters' lag was taken for, each once."""
    return sorted(
        {
            f"{gpu.counter_lag_s * 1e3:+.0f} ± {(gpu.counter_lag_std_s or 0.0) * 1e3:.0f} ms, "
            + (f"measured on the GPU itself on {gpu.card}" if gpu.card else "assumed")
            for point in shown
            for gpu in point.result.gpus.values()
            if gpu.counter_lag_s is not None
        }
    )


def _energy_method(shown: Iterable[Point]) -> str:
    """Return what the results' joules are made of."""
    named = {point.result.energy.source for point in shown if point.result.energy and point.result.energy.source}
    return _method(
        {source for names in named for source in names.split("+")},
        "the GPUs' own energy counters, interpolated between their changes",
        "the driver's power readings, integrated from one to the next",
    )


def _power_method(drawn: Iterable[RestartTimeline]) -> str:
    """Return what the drawn lines of GPUs are."""
    return _method(
        {trace.source for restart in drawn for trace in restart.power_w},
        "energy between two changes of a GPU's counter ÷ the time between them",
        "the driver's power readings",
    )


def _method(sources: Collection[str], counted: str, read: str) -> str:
    """Return what holds of counters, of power readings, or of each; of counters where nothing was measured."""
    if "counter" not in (sources or ("counter",)):
        return read
    return f"{counted}; of a GPU without an energy counter, {read}" if len(sources) > 1 else counted
