"""Results for a terminal: a few whole, several as a table."""

from __future__ import annotations

import shlex
from collections import Counter
from math import inf
from typing import TYPE_CHECKING

from rich.text import Text

from wattdock.analysis import Audit, statistics
from wattdock.console.views.machine import check_view
from wattdock.console.views.terminal import Listing, pairs
from wattdock.reports import point_cells, points_of, pools
from wattdock.reports.cells import NOTHING, number, seconds_text
from wattdock.reports.wording import STATUSES, cut_text, no_joules_text, power_profile_text, quantity_text, work_text
from wattdock.store import COLUMNS, TABLES
from wattdock.text import amount, listed, pluralize, significant, singular

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wattdock.analysis import ExperimentResult
    from wattdock.config import CommandSection
    from wattdock.console.views.terminal import View
    from wattdock.store import StoredResult

VARIABLE_CHARACTERS = 60
# What a headline's window is of.
PARTS = {"drained": "whole passes", "steady_state": "the steady state", "marked": "the spans that count"}
# How many checks a verdict names that failed, and that could not be decided; `show --checks` has all.
NAMES_SHOWN = 5
# Lines of a failed command's output that are shown; result.json has more.
LAST_LINES = 5


def results_view(stored: Sequence[StoredResult], *, checks: bool = False, errors: bool = True, more: str = "") -> View:
    """Yield one result whole, or several as a table with what keeps them from being published.

    Args:
        checks: Whether each result's audit is shown instead: why it may not be published, then every check, the worst
            first.
        errors: Whether failures are shown; False where the caller prints them elsewhere.
        more: The command that shows the checks, if not one with the results' folders.
    """
    if checks:
        for result in stored:
            yield Text(result.folder.name, style="bold")
            if (audit := result.result.audit) is None:
                yield "no audit: nothing was measured"
                continue
            yield result.verdict
            yield from (f"{place}. {reason}" for place, reason in enumerate(audit.reasons, 1))
            for check in sorted(audit.checks, key=lambda check: STATUSES.index(check.status)):
                yield from check_view(check)
    elif len(stored) == 1:
        shown = stored[0].result
        if shown.audit and not shown.error:
            yield Text(stored[0].verdict, style="bold")
        yield Text.assemble((shown.config.label, "bold"), f"  {shown.started_utc}  {shown.status}")
        # A failure's verdict would repeat its error.
        verdict = _verdict_rows(stored, more) if errors or not shown.error else ()
        yield pairs([*_rows(shown, errors=errors), *verdict])
        yield f"stored in {shlex.quote(stored[0].place)}"
    else:
        columns = TABLES["show"]
        rows = [point_cells(point, columns) for point in points_of(stored)]
        known = [name for name in columns if any(row[name] not in (NOTHING, "0") for row in rows)]
        for result in stored:
            reasons = result.result.audit.reasons if result.result.audit else ()
            wrong = (reason for reason in reasons if reason.question == "wrong" and reason.name != Audit.COMPLETION)
            lines = *map(str, wrong), power_profile_text(result.result), cut_text(result.result)
            yield from (f"{result.result.config.label}: {line}" for line in filter(None, lines))
        yield Listing([COLUMNS[name].heading for name in known], [[row[name] for name in known] for row in rows])
        yield from map(str, pools(stored).values())
        yield pairs(_verdict_rows(stored, more))


def _verdict_rows(results: Sequence[StoredResult], more: str) -> Iterable[tuple[str, str]]:
    """Yield the verdict in three lines: what is in the way, what helps first, and where the rest is."""
    audits = [audit for stored in results if (audit := stored.result.audit)]
    reasons = [reason for audit in audits for reason in audit.reasons]
    parts, order = list[str](), list[str]()
    for status, said in (("fail", "failed"), ("unknown", "not decided")):
        counts = Counter(reason.name for reason in reasons if reason.status == status).most_common()
        names = [name if count == len(results) else f"{name} ({count})" for name, count in counts]
        parts += [f"{said}: {listed(names, NAMES_SHOWN)}"] if names else []
        order += [name for name, _ in counts]
    passed = sum(audit.publishable for audit in audits)
    of = f"{passed} of {len(results)}" if len(results) > 1 else "yes" if passed else "no"
    if audits:
        yield "publishable", "; ".join([of, *parts])
    # The check that is named first is the one whose remedy helps most results.
    if first := next((reason for reason in reasons if reason.name == order[0]), None):
        yield "", f"{first.name} → {first.remedy}" if first.remedy else f"{first.name}: {first.found}"
        yield "", f"all: {more or f'wattdock show {shlex.join(stored.place for stored in results)} --checks'}"


def _command_rows(result: ExperimentResult, command: CommandSection) -> Iterable[tuple[str, str]]:
    """Yield what a command of the user's own did, how fast, and what its marked spans cost."""
    yield "command", shlex.join(command.command)
    if (work := result.work) is None or (speed := result.performance) is None:
        return
    runs = pluralize(len(result.energy.passes) if result.energy else 0, "run")
    also = "".join(f"; {amount(count, unit)}" for unit, count in work.others.items())
    done = f"{amount(work.count, work.unit)} in {runs}" if work.unit != "runs" else runs
    yield "work", f"{done}{work.counted_by}, {speed.duration_s:.2f} s{also}"
    within = f" (within {command.work.within})" if command.work.within else ""
    yield "speed", f"{number(speed.output_tokens_per_s, ',.4g')} {work.unit}/s{within}"
    yield from (("warning", text) for text in (result.environment.runner.warnings if result.environment else ()))
    if result.energy and result.energy.windows and not work.count:
        yield f"J/{singular(work.unit)}", f"unknown: {no_joules_text(result)}"
    for part in work.marked:
        joules = f"{_joules(part.total_j)}, {number(part.energy_per_span_j)} J each"
        joules = f"joules unknown ({part.reason})" if part.reason else joules
        interval = f" {part.interval_j}" if part.interval_j else ""
        yield f"  {part.name}", f"{part.count:,}, {part.share:.1%} of the runs' time: {joules}{interval}"


def _rows(result: ExperimentResult, *, errors: bool) -> Iterable[tuple[str, str]]:
    """Yield what ran, how fast and at what cost."""
    if result.error:
        if errors:
            yield "error", f"{result.error.kind} in {result.error.stage}: {result.error.message}"
        if result.error.advice:
            yield "cause", f"{result.error.cause}; what helps: {result.error.advice}"
        words = result.error.log_tail.splitlines() if result.config.command else []
        yield from (("output", line) for line in words[-LAST_LINES:])
    if (environment := result.environment) and result.config.command:
        yield from _command_rows(result, result.config.command)
    elif environment:
        yield "model", f"{environment.model.name} ({environment.model.kind}, weights {environment.model.weights})"
        if environment.model.draft:
            yield "draft model", environment.model.draft
        runner = environment.runner
        dtype = f", {runner.engine_args['dtype']}" if runner.engine_args.get("dtype") else ""
        if quantized := runner.engine_args.get("quantization"):
            dtype = f", {quantized} weights{dtype and f'{dtype} elsewhere'}"
        version = f"{runner.framework or NOTHING} {runner.framework_version or ''}".strip()
        yield "backend", f"{environment.backend}: {version}{dtype}"
    if environment:
        gpus = f"{environment.gpu_count} × {environment.gpu_names[0]}" if environment.gpu_count else ""
        yield "ran on", gpus or f"CPU: {environment.cpu_model}"
        yield "launcher", f"{environment.launcher} ({environment.launcher_reason})"
        if inside := environment.container:
            unpublished = f"{inside.image} ({inside.image_id[:19]}, not in a registry)"
            yield "image", environment.image_digest or unpublished
        if variables := environment.variables:
            yield "variables", " ".join(f"{name}={value[:VARIABLE_CHARACTERS]}" for name, value in variables.items())
    if not result.config.command:
        yield from _speed_rows(result)
    yield from _energy_rows(result)
    yield from _quality_rows(result)
    yield from _derived_rows(result)


def _speed_rows(result: ExperimentResult) -> Iterable[tuple[str, str]]:
    yield "work", work_text(result)
    if (performance := result.performance) is None:
        return
    passes = pluralize(len(result.energy.passes) if result.energy else 0, "pass", "passes")
    yield "requests", f"{performance.requests} in {passes}, {performance.duration_s:.2f} s"
    if performance.offered_rate_per_s and performance.schedule_lag_share is not None:
        rates = f"{performance.offered_rate_per_s:.3g} requests/s offered, {performance.requests_per_s:.3g} achieved"
        behind = result.audit and result.audit.failure(Audit.ARRIVALS_SERVED)
        saturated = ": saturated, so that latencies grow with the pass" if behind else ""
        left_out = f"; {performance.arrivals_left_out}" if performance.arrivals_left_out else ""
        lag = f"{performance.schedule_lag_share:.1%} of a pass behind at its end"
        yield "arrivals", f"{rates}{saturated}; {lag}{left_out}"
    prompt = number(performance.prompt_tokens, ",")
    share = performance.cached_prompt_share
    cached = f", {performance.cached_prompt_tokens:,} of them from a cache ({share:.1%})" if share else ""
    yield "tokens", f"{performance.output_tokens:,} output, {prompt} prompt{cached}"
    if performance.drafts:
        yield "drafts", performance.drafts.text
    windows, whole = result.energy.windows if result.energy else None, _if_whole_passes(result)
    counted = f"tokens ÷ seconds of {PARTS[windows.headline]}" if windows else "tokens ÷ seconds"
    yield "speed", f"{number(performance.output_tokens_per_s, ',.1f')} output tokens/s ({counted})"
    if shared := result.audit and result.audit.failure(Audit.CPUS_ALONE):
        yield "disturbed", f"other programs used the CPUs: {shared.figure}"
    of = {"TTFT": performance.ttft, "TPOT": performance.tpot, "ITL": performance.itl, "end to end": performance.e2e}
    for name, quantiles in of.items():
        if quantiles is None:
            yield name, NOTHING
            continue
        tail = {"p95": quantiles.p95_s, "p99": quantiles.p99_s} if quantiles.p95_s else {"largest": quantiles.max_s}
        at = {"p50": quantiles.p50_s, **{part: value_s for part, value_s in tail.items() if value_s is not None}}
        yield name, ", ".join(f"{part} {seconds_text(value_s)}" for part, value_s in at.items()) + whole
    if serving := performance.serving:
        late = f"reads {seconds_text(serving.client_late_s)} late (p99)"
        yield "served", f"client {serving.client_cpu_share:.0%} busy, {late}"


def _energy_rows(result: ExperimentResult) -> Iterable[tuple[str, str]]:
    if (energy := result.energy) is None:
        return
    if energy.total_j is None:
        yield "energy", f"not measured: {energy.reason}"
        return
    yield "energy", f"{_around(energy.total_j, energy.timing95_j)} (95 %, timing only)"
    for uuid, joules in energy.per_gpu_j.items():
        yield "", f"{uuid}: {_joules(joules)}"
    if energy.hbm_j is not None:
        part = f"{_around(energy.hbm_j, energy.hbm95_j)} of these, by the driver's own figure"
        yield "HBM", f"{part}, mean {number(energy.mean_hbm_power_w, ',.0f')} W"
    if energy.measured_per_output_token_j is not None and energy.windows:
        yield from _budget_rows(result)
        unit = result.config.unit
        of = f"joules ÷ {unit.removeprefix('output ')} of {PARTS[energy.windows.headline]}, {energy.energy_boundary}"
        drawn = ", ".join(filter(None, (f"mean {number(energy.mean_power_w, ',.0f')} W", power_profile_text(result))))
        yield "as measured", f"{significant(energy.measured_per_output_token_j)} J/{singular(unit)} ({of}), {drawn}"
    if not result.config.command:
        yield from _token_rows(result)
    if (shared := result.multi_gpu) and shared.gpu_count > 1:
        yield "imbalance", f"{shared.load_imbalance:.3f} (largest ÷ mean energy of the GPUs used)"
    if energy.net_j is not None:
        command = result.config.command
        within = f" within {command.work.within}" if command and command.work.within else ""
        uncertainty = f"standard uncertainty {_joules(energy.net_uncertainty_j)}"
        yield "above idle", f"{energy.net_j:,.1f} J{within}, {uncertainty}; not avoidable energy"
    for uuid, joules in energy.bystander_j.items():
        yield "not used", f"{uuid}: " + ("unknown" if joules is None else f"{joules:,.1f} J")
    if check := energy.cross_check:
        reason = next((window.reason for window in check.windows if window.reason), "no figure")
        worst = f"unknown: {reason}"
        if check.worst_difference_j is not None and check.worst_difference_share is not None:
            difference = f"{check.worst_difference_j:+,.1f} J ({check.worst_difference_share:+.2%})"
            worst = f"{difference} in the worst of {len(check.windows)} windows"
        yield "cross-check", f"{check.source}: {worst}"


def _if_whole_passes(result: ExperimentResult) -> str:
    """Return a remark on figures of requests: they are of whole passes, where no window was found."""
    windows = result.energy.windows if result.energy else None
    return f" ({PARTS['drained']})" if windows and windows.headline == "drained" else ""


def _token_rows(result: ExperimentResult) -> Iterable[tuple[str, str]]:
    """Yield what an engine's joules are per request, and by other windows."""
    if (energy := result.energy) is None:
        return
    yield "J/request", number(energy.energy_per_request_j) + _if_whole_passes(result)
    values = energy.windows.measured_per_output_token_j.items() if energy.windows else ()
    yield "by window", ", ".join(f"{name} {significant(value)}" for name, value in values if value is not None)
    if (rounds := energy.phases) and rounds.prefill_ci95_j and rounds.decode_ci95_j:
        parts = {
            "prefill": (rounds.prefill_j, rounds.prefill_ci95_j),
            "decode": (rounds.decode_j, rounds.decode_ci95_j),
        }
        yield from ((name, f"{_joules(joules)} {interval:,.1f}") for name, (joules, interval) in parts.items())


def _budget_rows(result: ExperimentResult) -> Iterable[tuple[str, str]]:
    """Yield the corrected figure, and what makes it uncertain, a line each."""
    if (budget := result.budget) is None:
        return
    known = f" ± {budget.expanded:.2%}" if budget.expanded is not None else ""
    behind = f"(95 %, {budget.degrees_of_freedom or inf:.3g} degrees of freedom)" if known else f"({budget.reason})"
    yield f"J/{singular(budget.unit)}", f"{significant(budget.energy_per_unit_j)}{known} of the declared work {behind}"
    for entry in budget.entries:
        corrected = f", corrected by {entry.correction:+.2%}" if entry.correction else ""
        yield f"  {entry.name}", f"{entry.standard_uncertainty:.2%}, {entry.share:.0%}{corrected}: {entry.found}"
    for outside in budget.not_included:
        size = "unknown" if outside.standard_uncertainty is None else f"{outside.standard_uncertainty:.1%}"
        yield f"  not in it: {outside.name}", f"{size} ({outside.found})"


def _quality_rows(result: ExperimentResult) -> Iterable[tuple[str, str]]:
    """Yield scores, also of categories, and what answers cost: of all questions, and of tasks."""
    if (found := result.quality) is None:
        return
    whole = [found.overall] if found.overall and len(found.tasks) > 1 else []
    for part in (*whole, *found.tasks, *found.categories):
        error = "" if part.score_error is None else f" ± {statistics.t_factor(inf) * part.score_error:.3f} (95 %)"
        known = f" {part.interval}" if part.interval else f" ({part.reason})" if part.reason else ""
        thoughts = f", {part.thought_tokens:,} of them thoughts" if part.thought_tokens else ""
        cost = f"; {number(part.energy_per_correct_j)} J/correct answer{known}, {number(part.energy_per_item_j)} J/item"
        if part in found.categories or part.energy_j is None:
            cost = "; joules not measured" * (part not in found.categories)
        yield f"quality: {part.name}", f"{part.score:.3f}{error} of {pluralize(part.items, 'item')}{cost}"
        if part in found.tasks:
            yield "", f"{part.output_tokens:,} tokens answered{thoughts}"
        if part.cut and part not in found.categories:
            yield "", part.cut_text
    yield from (("quality", f"no score: {failure}") for failure in found.failures)


def _derived_rows(result: ExperimentResult) -> Iterable[tuple[str, str]]:
    """Yield goodput, the host's energy, arithmetic, and how restarts differ."""
    if (good := result.goodput) and (slo := result.config.slo):
        if good.share_met is not None:
            limits = ", ".join(f"{name.upper()} {seconds_text(limit_s)}" for name, limit_s in slo.limits_s.items())
            share = f"{good.share_met:.1%} of {good.requests:,} requests within {limits}"
            yield "goodput", f"{good.requests_met_per_s:.3g} requests/s: {share}"
        per_request, per_token = number(good.energy_per_request_met_j), number(good.energy_per_output_token_met_j)
        cost = f"{per_request} J/request, {per_token} J/output token that met the limits, of all joules"
        yield "cost of goodput", f"unknown: {good.reason}" if good.reason else cost
    for name, host_j in (result.energy.host_j if result.energy else {}).items():
        yield f"  {name}", f"{_joules(host_j)} (RAPL, whole host; in no other figure)"
    if (compute := result.compute) and compute.flops_per_s is not None:
        per_joule = "" if compute.flops_per_j is None else f", {compute.flops_per_j / 1e9:,.3g} GFLOP/J"
        peak = (
            f"{compute.peak_flops_share:.1%} of peak" if compute.peak_flops_share is not None else compute.peak_reason
        )
        yield "arithmetic", f"{compute.flops_per_s / 1e12:,.3g} TFLOP/s{per_joule} ({peak}), of {PARTS['drained']}"
        if placed := compute.roofline:
            alone = ", ".join(f"{limit} {share:.0%}" for limit, share in placed.shares.items())
            over = f"{placed.time_ratio:.3g} × the least time of {PARTS['drained']}"
            yield "roofline", f"{over}; alone would take of the time: {alone}"
    figure, quantity = result.energy_figure, statistics.ENERGY
    if figure is None:
        figure, quantity = result.speed_figure, statistics.SPEED
    if figure and len(restarts := result.restarts(quantity).values) > 1:
        too_few = f"; {len(restarts)} are too few for an interval, {statistics.LEAST_RESTARTS} are the least"
        interval = f", 95 % {figure.interval}" if figure.interval else too_few
        behind = f"{' and '.join(map(significant, restarts))} {quantity_text(quantity, result.config.unit)}"
        boards = len(result.environment.gpu_uuids) if result.environment else 0
        on = "" if not boards else ", 1 board" if boards == 1 else f", 1 set of {boards} boards"
        yield "restarts", f"{behind}{interval}{on}"


def _around(joules: float, half_j: float | None) -> str:
    """Return "28,152.0 J [28,147.1, 28,156.9]": joules and the interval around them."""
    return f"{joules:,.1f} J {statistics.Interval(joules - (half_j or 0.0), joules + (half_j or 0.0)):,.1f}"


def _joules(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.1f} J"
