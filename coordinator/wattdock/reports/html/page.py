"""Make one self-contained page of stored results: everything it shows and runs is inside the file."""

from __future__ import annotations

import base64
import hashlib
import math
from datetime import UTC, datetime
from importlib import resources
from typing import TYPE_CHECKING, Any

from wattdock import __version__
from wattdock.analysis import BOUNDARY_STATEMENT, ENGINE, NET_MEANING, PACKAGE
from wattdock.errors import ConfigError, StoreError
from wattdock.reports.html.chart import plain
from wattdock.reports.html.charts import charts
from wattdock.reports.html.sources import energy_method, power_method
from wattdock.reports.html.tables import COLUMNS, checks, commonest_reasons, measured_with, missing, summary, verdict
from wattdock.reports.points import points
from wattdock.reports.style import ON_DARK, PALETTE
from wattdock.reports.timelines import timelines
from wattdock.text import COMPACT, json_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from wattdock.reports.points import Point
    from wattdock.reports.timelines import RestartTimeline, Trace
    from wattdock.store import StoredResult

# About 13 bytes each: a page keeps room for plotly.js, 5 MB, below 10 MB.
TIMELINE_POINTS, MOST_POINTS_PER_RUN = 200_000, 6_000
# Of more runs than these only the first have their timelines in the page, which says so.
MOST_TIMELINES = 100

WITHIN = (ENGINE, PACKAGE)


def write_page(rows: Sequence[StoredResult], file: Path, *, title: str) -> None:
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
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    found = points(rows)
    drawn, runs = charts(found), _runs(found)
    agreed, differ = measured_with(found)
    scripts = [get_plotlyjs(), _asset("page.js")]
    loader = PackageLoader("wattdock.reports", "html")
    template = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return template.get_template("page.html").render(
        title=title,
        written=f"{written:%Y-%m-%d %H:%M} UTC",
        version=__version__,
        policy=_policy(scripts),
        style=_asset("page.css"),
        scripts=scripts,
        data=_embedded(_data(runs, [one for one in drawn if one.spec])),
        most_timelines=MOST_TIMELINES,
        verdict=verdict(found),
        good=sum(one.publishable is True for one in found),
        count=len(found),
        reasons=commonest_reasons(found),
        columns=COLUMNS,
        summary=summary(found),
        missing=missing(found),
        charts=drawn,
        agreed=agreed,
        differ=[one for one in differ if not one.name.startswith(WITHIN)],
        differ_within=[one for one in differ if one.name.startswith(WITHIN)],
        checks=checks(found),
        boundary=BOUNDARY_STATEMENT,
        energy_method=energy_method(found),
        power_method=power_method(part for _, parts in runs for part in parts),
        net_meaning=NET_MEANING,
        covers=next((said for one in found if (said := _covers(one))), None),
        lags=_lags(found),
    )


def _covers(one: Point) -> str | None:
    return one.result.statistics.covers if one.result.statistics else None


def _lags(found: Iterable[Point]) -> list[str]:
    """Return what the counters' lag was taken for, in words, each once."""
    said = {
        f"{fact.counter_lag_s * 1e3:+.0f} ± {(fact.counter_lag_std_s or 0.0) * 1e3:.0f} ms, "
        + (f"measured on the GPU itself on {fact.card}" if fact.card else "assumed")
        for one in found
        if one.result.energy
        for fact in one.result.energy.meter.values()
        if fact.counter_lag_s is not None
    }
    return sorted(said)


def _runs(found: Sequence[Point]) -> list[tuple[Point, list[RestartTimeline]]]:
    """Return the results whose timelines are stored and drawn, with these."""
    chosen = found[:MOST_TIMELINES]
    each = min(MOST_POINTS_PER_RUN, TIMELINE_POINTS // len(chosen))
    return [(one, parts) for one in chosen if (parts := timelines(one.row, points=each))]


def _data(runs: Iterable[tuple[Point, Sequence[RestartTimeline]]], drawn: Sequence[Any]) -> dict[str, Any]:
    """Return what the page's script draws."""
    return {
        "palette": PALETTE,
        "on_dark": ON_DARK,
        "charts": {one.key: one.spec for one in drawn},
        "runs": [{"label": one.label, "restarts": [_restart(one, part) for part in parts]} for one, parts in runs],
    }


def _restart(one: Point, part: RestartTimeline) -> dict[str, Any]:
    used = set(one.result.environment.gpu_uuids) if one.result.environment else set()
    names = _gpu_names(one)
    return {
        "label": f"{part.restart + 1}{', after a reboot' if part.clock else ''}",
        "spans": [
            [span.name, span.pass_index, *(_rounded(one) for one in (span.start_s, span.end_s, span.energy_j))]
            for span in part.spans
        ],
        "power": [
            _line(trace, names.get(trace.name, trace.name)) | {"used": trace.name in used, "sum": trace.name == "sum"}
            for trace in part.power_w
        ],
        "host": [_line(trace, trace.name) for trace in part.host_w],
        "tokens": _line(part.tokens_per_s, "output tokens/s") if part.tokens_per_s else None,
    }


def _gpu_names(one: Point) -> dict[str, str]:
    seen = one.result.environment
    named = {gpu.uuid: f"GPU {gpu.index} ({gpu.uuid[:12]}…)" for gpu in seen.host_gpus} if seen else {}
    return named | {"sum": "sum over the GPUs used"}


def _line(trace: Trace, name: str) -> dict[str, Any]:
    # A thousandth of a second and a tenth of a watt are more than a screen shows.
    return {
        "name": plain(name),
        "source": trace.source,
        "x": [round(value, 3) for value in trace.at_s.tolist()],
        "y": [None if math.isnan(value) else round(value, 1) for value in trace.value.tolist()],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _embedded(data: Any) -> str:
    """Return JSON that cannot end the element it stands in."""
    text = json_text(data, separators=COMPACT)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _policy(scripts: Sequence[str]) -> str:
    """Return a policy under which nothing but these scripts runs and nothing is fetched.

    Source: Content Security Policy Level 3; plotly.js writes its own style sheet.
    """
    hashes = " ".join(f"'sha256-{_digest(one)}'" for one in scripts)
    parts = (
        "default-src 'none'",
        f"script-src {hashes}",
        "style-src 'unsafe-inline'",
        "img-src data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
    )
    return "; ".join(parts)


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
