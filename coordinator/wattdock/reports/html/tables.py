"""The tables of a page: summary with verdicts, audit findings, what results were measured with. Pure."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock.analysis import ABSENT, differing, everything, shared
from wattdock.reports.words import NOTHING, fallback_text, figure_text, number, seconds_text, where_apart

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wattdock.analysis import Check
    from wattdock.reports.points import Point

COLUMNS = (
    "J per output token",
    "output tokens/s",
    "mean W",
    "TTFT p50",
    "TPOT p50",
    "output tokens",
    "batch",
    "GPUs",
    "repeats",
    "backend",
    "model",
)
STATUSES = ("fail", "unknown", "warn", "info", "pass")
# A page of many results must stay small; what is left out is counted.
MOST_FIGURES, MOST_NAMES, MOST_REASONS = 60, 12, 20


@dataclass(frozen=True)
class SummaryRow:
    """One result in the summary.

    Attributes:
        verdict: "yes" or "no" to publishing, "failed" or "interrupted".
        reasons: Why not, all of them.
        fallback: Whose place it took, without standing for it; None of what was asked for itself.
        cells: In the order of `COLUMNS`.
    """

    label: str
    folder: str
    verdict: str
    reasons: tuple[str, ...]
    fallback: str | None
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Finding:
    """One outcome of a check and the results that share it."""

    status: str
    figure: str
    limit: str
    source: str
    labels: str


@dataclass(frozen=True)
class CheckView:
    """One check over all results: how often each outcome, and the findings, the worst first."""

    name: str
    anchor: str
    worst: str
    counts: tuple[tuple[str, int], ...]
    findings: tuple[Finding, ...]
    left_out: int


@dataclass(frozen=True)
class Fact:
    """Something that results differ in: each text and the results that have it."""

    name: str
    values: tuple[tuple[str, str], ...]


def summary(points: Sequence[Point]) -> list[SummaryRow]:
    """Return one row per result."""
    return [_summary_row(one) for one in points]


def missing(points: Sequence[Point]) -> list[tuple[str, str]]:
    """Return why results have no joules, each reason once, with the results that it holds for."""
    found: dict[str, list[str]] = {}
    for one in points:
        if one.j_per_token is None:
            found.setdefault(one.reason or "no pass was measured", []).append(one.label)
    return [(reason, _few(names)) for reason, names in found.items()]


def verdict(points: Sequence[Point]) -> str:
    """Return in one line how many results may be published."""
    good = sum(one.publishable is True for one in points)
    if good == len(points):
        return f"All {good} results may be published" if good > 1 else "This result may be published"
    if good:
        return f"{good} of {len(points)} results may be published"
    return (
        f"None of the {len(points)} results may be published" if len(points) > 1 else "This result may not be published"
    )


def commonest_reasons(points: Sequence[Point]) -> list[tuple[str, int, str]]:
    """Return the checks that keep results from being published, how many each, and each one's place in the page."""
    found = Counter(
        check.name
        for one in points
        if one.result.audit
        for check in one.result.audit.checks
        if check.status in ("fail", "unknown")
    )
    return [(name, many, anchor(name)) for name, many in found.most_common()]


def anchor(name: str) -> str:
    """Return what a check is called in a page's address."""
    return "check-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def checks(points: Sequence[Point]) -> list[CheckView]:
    """Return every check of every result, those that failed somewhere first."""
    groups: dict[str, dict[tuple[str, str, str, str], list[str]]] = {}
    for one in points:
        for check in one.result.audit.checks if one.result.audit else ():
            groups.setdefault(check.name, {}).setdefault(_outcome(check), []).append(one.label)
    views = [_check_view(name, outcomes) for name, outcomes in groups.items()]
    return sorted(views, key=lambda view: STATUSES.index(view.worst))


def measured_with(points: Sequence[Point]) -> tuple[dict[str, str], list[Fact]]:
    """Return what all results agree in, and what they differ in: conditions first, then settings."""
    known = [one for one in points if one.result.environment]
    found = [(one.label, everything(one.result)) for one in known]
    every = [facts for _, facts in found]
    differ = [Fact(name, _values(name, found)) for name in differing(every)]
    return shared(every), differ


def _values(name: str, found: Iterable[tuple[str, dict[str, str]]]) -> tuple[tuple[str, str], ...]:
    holders: dict[str, list[str]] = {}
    for label, facts in found:
        holders.setdefault(facts.get(name, ABSENT), []).append(label)
    return tuple(zip(where_apart(list(holders)), map(_few, holders.values()), strict=True))


def _check_view(name: str, outcomes: dict[tuple[str, str, str, str], list[str]]) -> CheckView:
    counts = Counter(dict.fromkeys(STATUSES, 0))
    for (status, *_), labels in outcomes.items():
        counts[status] += len(labels)
    ordered = sorted(outcomes.items(), key=lambda one: STATUSES.index(one[0][0]))
    findings = [Finding(*outcome, _few(labels)) for outcome, labels in ordered[:MOST_FIGURES]]
    worst = next(status for status in STATUSES if counts[status])
    seen = tuple((status, counts[status]) for status in STATUSES if counts[status])
    return CheckView(name, anchor(name), worst, seen, tuple(findings), max(len(ordered) - MOST_FIGURES, 0))


def _outcome(check: Check) -> tuple[str, str, str, str]:
    return check.status, check.figure, check.threshold or "", check.source or ""


def _few(labels: Sequence[str]) -> str:
    more = len(labels) - MOST_NAMES
    return "; ".join(labels[:MOST_NAMES]) + (f"; and {more} more" if more > 0 else "")


def _summary_row(one: Point) -> SummaryRow:
    result = one.result
    reasons = list(result.audit.reasons) if result.audit else ["no audit"]
    if len(reasons) > MOST_REASONS:
        reasons = [*reasons[:MOST_REASONS], f"and {len(reasons) - MOST_REASONS} more"]
    said = "yes" if one.publishable else "no"
    return SummaryRow(
        label=one.label,
        folder=one.row.folder.name,
        verdict=said if result.status == "ok" else result.status,
        reasons=tuple(reasons),
        fallback=f"fallback: {fallback_text(result.fallback)}" if result.fallback else None,
        cells=_cells(one),
    )


def _cells(one: Point) -> tuple[str, ...]:
    done, energy = one.result.performance, one.result.energy
    passes = energy.passes if energy else []
    repeats = f"{len({found.restart for found in passes})} × {len({found.pass_index for found in passes})}"
    return (
        figure_text(one.j_per_token) if one.j_per_token else "not measured",
        figure_text(one.tokens_per_s, ",.1f"),
        number(energy.mean_power_w if energy else None, ",.0f"),
        seconds_text(done.ttft.p50_s if done and done.ttft else None),
        seconds_text(done.tpot.p50_s if done and done.tpot else None),
        f"{one.output_tokens:,}" if done else NOTHING,
        str(one.batch_size),
        _gpus(one),
        repeats if passes else NOTHING,
        one.backend,
        one.model,
    )


def _gpus(one: Point) -> str:
    seen = one.result.environment
    if seen is None:
        return NOTHING
    return f"{seen.gpu_count} × {seen.gpu_names[0]}" if seen.gpu_count else "none (CPU)"
