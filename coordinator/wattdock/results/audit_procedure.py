"""Audit checks on how the figure was come by: warm-up, drift, idle, repeats, caches, arrivals. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.results.result import Check

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.results.derived import Statistics
    from wattdock.results.energy import EnergyResult
    from wattdock.results.procedure import Procedure
    from wattdock.results.result import Performance

MIN_RESTARTS = 3
# Half of the 95 % interval's width over the mean; differences that are published are seldom smaller than twice this.
MAX_CI95_RELATIVE = 0.02
# Two halves of a steady pass differ by their prompts and by a GPU's temperature; more is a warm-up that went on.
MAX_DRIFT = 0.01
# The name of a check that says more than that a figure may not be published: its latencies are of a queue.
KEPT_UP = "arrivals kept up with"
MIN_IDLE_S = 30.0
IDLE_STATES = ("empty", "loaded_before", "loaded_after")
MIN_ARRIVALS = 500
# Quarters of fewer are medians of a handful.
MIN_TELLING_ARRIVALS = 30
# An engine this far behind at the end served that much less than was offered: its latencies grow with the pass.
MAX_SCHEDULE_LAG_SHARE = 0.05
MAX_BACKLOG_SLOPE = 0.02


def procedure_checks(
    procedure: Procedure | None,
    energy: EnergyResult,
    statistics: Statistics | None,
    performance: Performance | None,
    *,
    used: Sequence[str],
    cache_declared: bool,
) -> list[Check]:
    """Return every check on the procedure; one that cannot be made is unknown.

    Args:
        used: The GPUs that held a part of the model.
        cache_declared: The configuration switches a prefix cache on, so that cached tokens are no accident.
    """
    return [
        _warm_up(procedure),
        _drift(procedure),
        _idle(energy, used),
        _restarts(energy),
        _interval(statistics),
        _outliers(statistics),
        _cached(performance, declared=cache_declared),
        _prompts(energy, performance),
        _definitions(energy),
        *arrivals_checks(performance),
    ]


def _warm_up(procedure: Procedure | None) -> Check:
    seen = procedure.warm_up if procedure else []
    quick = [one for one in seen if one.converged is None]
    bad = [f"restart {one.restart + 1}: {'; '.join(one.drifting)}" for one in seen if one.converged is False]
    longest = max((one.duration_s for one in seen), default=0.0)
    figure = f"the {quick[0].profile} profile does not look" if quick else "; ".join(bad) or f"up to {longest:.0f} s"
    return Check(
        name="warm-up converged",
        status="unknown" if not seen else "fail" if quick or bad else "pass",
        figure=figure if seen else "no restart",
        threshold="warmup: {profile: steady} within its limits before cap_s",
        source="tokens/s, joules per token and temperatures of the warm-up's last window",
    )


def _drift(procedure: Procedure | None) -> Check:
    drifts = procedure.drift if procedure else []
    unknown = [one for one in drifts if one.relative is None]
    worst = max((abs(one.relative) for one in drifts if one.relative is not None), default=0.0)
    status = "fail" if worst > MAX_DRIFT else "unknown" if unknown or not drifts else "pass"
    figure = f"{worst:.2%}" if status != "unknown" else (unknown[0].reason or "unknown") if unknown else "no pass"
    return Check(
        name="no drift within passes",
        status=status,
        figure=figure,
        threshold=f"halves differ by at most {MAX_DRIFT:.0%}",
        source="second half of each pass against its first, less a lifetime at either end where requests overlap",
    )


def idle_missing(energy: EnergyResult, used: Sequence[str], states: Sequence[str] = IDLE_STATES) -> list[str]:
    """Return which idle spans are missing: each GPU's, in each restart with passes."""
    taken = {(one.restart, one.gpu_uuid, one.state) for one in energy.idle_baselines or ()}
    return [
        f"restart {restart + 1}: no {', '.join(without)} of {uuid}"
        for restart in sorted({one.restart for one in energy.passes})
        for uuid in used
        if (without := [state for state in states if (restart, uuid, state) not in taken])
    ]


def _idle(energy: EnergyResult, used_uuids: Sequence[str]) -> Check:
    used = [one for one in energy.idle_baselines or () if one.used]
    restless = [f"{one.gpu_uuid} {one.state}: {one.unsettled}" for one in used if one.unsettled]
    short = min((one.duration_s for one in used), default=0.0)
    watts = [one.mean_power_w for one in used if one.mean_power_w is not None]
    missing = idle_missing(energy, used_uuids)
    # A runner that was cut off leaves one side out, though another went on with its restart.
    if energy.total_j is not None and energy.net_j is None and not missing:
        missing = [energy.net_reason or "above idle unknown"]
    cold = sorted({one.gpu_uuid for one in used if one.temperature_c is None and not one.unsettled})
    figure = (
        f"{min(watts):.1f} to {max(watts):.1f} W over {short:.0f} s" if watts else "none taken; set idle.duration_s"
    )
    said = [*restless, *missing] if watts else []
    told = [f"without a temperature, which {', '.join(cold)} does not have"] if cold else []
    complete = bool(used) and not missing and len(watts) == len(used)
    failed = restless or short < MIN_IDLE_S
    return Check(
        name="idle baselines",
        status="unknown" if not complete else "fail" if failed else "pass",
        figure="; ".join([*(said or [figure]), *told]),
        threshold=f"empty and loaded before and after in each restart, {MIN_IDLE_S:g} s each, at rest",
        source="energy counter",
    )


def _restarts(energy: EnergyResult) -> Check:
    restarts = len({one.restart for one in energy.passes})
    return Check(
        name="repeats enough",
        status="pass" if restarts >= MIN_RESTARTS else "fail",
        figure=f"{restarts} of {MIN_RESTARTS} restarts",
        threshold=f"{MIN_RESTARTS} fresh runners",
        source="an interval from two restarts has one degree of freedom and says nothing",
    )


def _interval(statistics: Statistics | None) -> Check:
    half = statistics.ci95_relative if statistics else None
    status = "unknown" if half is None else "pass" if half <= MAX_CI95_RELATIVE else "fail"
    return Check(
        name="interval narrow enough",
        status=status,
        figure=(statistics.reason or "no mean" if statistics else "no pass")
        if half is None
        else f"± {half:.2%} (95 %)",
        threshold=f"at most ± {MAX_CI95_RELATIVE:.0%}",
        source="restart means, Student's t",
    )


def _outliers(statistics: Statistics | None) -> Check:
    found = statistics.outliers if statistics else []
    return Check(
        name="outliers",
        status="warn" if found else "info",
        figure="; ".join(found) or "none",
        threshold="modified z-score 3.5; shown, never dropped",
    )


def _cached(performance: Performance | None, *, declared: bool) -> Check:
    cached = performance.cached_prompt_tokens if performance else None
    expected = "a prefix cache that was switched on" if declared else "none"
    return Check(
        name="cached prompt tokens declared",
        status="unknown" if cached is None else "pass" if not cached else "info" if declared else "fail",
        figure="the engine does not tell" if cached is None else f"{cached:,} prompt tokens from a cache",
        threshold=expected,
        source="the engine's count per request; a warm cache once hid a fifth of a figure",
    )


def _prompts(energy: EnergyResult, performance: Performance | None) -> Check:
    """A prompt seen before is harmless where the engine says that no cache served it."""
    repeated = sum(one.prompt_repeats for one in energy.passes)
    reused = sum(one.prompts_reused for one in energy.passes)
    uncached = performance is not None and performance.cached_prompt_tokens == 0
    return Check(
        name="prompts fresh",
        status="pass" if not repeated and not reused else "warn" if uncached else "fail",
        figure=f"{repeated} repeats within passes, {reused} passes with prompts of earlier ones",
        threshold="none, or none of them served from a cache",
    )


def _definitions(energy: EnergyResult) -> Check:
    spread = energy.windows.relative_spread if energy.windows else None
    return Check(
        name="window definitions",
        status="info",
        figure="not comparable" if spread is None else f"differ by {spread:.2%}",
        source="energy.windows; the headline uses drained",
    )


def arrivals_checks(performance: Performance | None) -> list[Check]:
    """Return whether an open loop was long enough and kept up with; nothing for a closed one."""
    share = performance.schedule_lag_share if performance else None
    if performance is None or share is None:
        return []
    slope, arrivals = performance.backlog_slope, performance.arrivals_min or 0
    growing = f", delay grows by {slope:.3f} s/s" if slope is not None else ""
    left_out = f"; {performance.arrivals_left_out}" if performance.arrivals_left_out else ""
    rates = f"{performance.offered_rate_per_s:g} requests/s offered, {performance.requests_per_s:.3g} achieved"
    kept_up = share <= MAX_SCHEDULE_LAG_SHARE and slope is not None and slope <= MAX_BACKLOG_SLOPE
    # Of a few arrivals one long prompt near the end makes both; that most were never served, nothing but saturation.
    told = bool(left_out) or arrivals >= MIN_TELLING_ARRIVALS
    return [
        Check(
            name=KEPT_UP,
            status="pass" if kept_up and not left_out else "fail" if told else "unknown",
            figure=f"{rates}, {share:.1%} of the pass behind at its end{growing}{left_out}",
            threshold=f"at most {MAX_SCHEDULE_LAG_SHARE:.0%} behind, growing by at most {MAX_BACKLOG_SLOPE:g} s/s",
            source="submission against the intended arrival of each request",
        ),
        Check(
            name="arrivals enough",
            status="pass" if arrivals >= MIN_ARRIVALS else "fail",
            figure=f"{arrivals} in the shortest pass",
            threshold=f"{MIN_ARRIVALS}",
            source="99th percentiles of fewer rest on a handful of requests",
        ),
    ]
