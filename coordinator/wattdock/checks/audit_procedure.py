"""Audit checks on how the figure was come by: warm-up, drift, idle, repeats, caches, arrivals. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.analysis import Check, by_restart
from wattdock.config import IdleSpec, WarmUpSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.analysis import EnergyResult, ExperimentResult, Performance, Procedure, Statistics
    from wattdock.config import ExperimentConfig

MIN_RESTARTS = 3
# Half of the 95 % interval's width over the mean; differences that are published are seldom smaller than twice this.
MAX_CI95_RELATIVE = 0.02
# Two halves of a steady pass differ by their prompts and by a GPU's temperature; more is a warm-up that went on.
MAX_DRIFT = 0.01
# An open loop's drift is known as well as its arrivals let it be: within two standard errors, if these are not more.
DEVIATIONS, MAX_BLUR = 2.0, 0.05
# The name of a check that says more than that a figure may not be published: its latencies are of a queue.
KEPT_UP = "arrivals kept up with"
ENOUGH = "arrivals enough"
# A difference that two figures told apart by the interval above may have; passes of one restart scatter as well.
MAX_STEP = 0.02
# What may be published, whatever a study sets: the defaults.
WARM_UP_LIMITS, IDLE_LIMITS = WarmUpSpec(), IdleSpec()
MIN_IDLE_S = 30.0
IDLE_STATES = ("empty", "loaded_before", "loaded_after")
MIN_ARRIVALS = 500
# Quarters of fewer are medians of a handful.
MIN_TELLING_ARRIVALS = 30
# An engine this far behind at the end served that much less than was offered: its latencies grow with the pass.
MAX_SCHEDULE_LAG_SHARE = 0.05
MAX_BACKLOG_SLOPE = 0.02


def procedure_checks(
    result: ExperimentResult, energy: EnergyResult, procedure: Procedure, config: ExperimentConfig
) -> list[Check]:
    """Return every check on the procedure; one that cannot be made is unknown.

    Args:
        config: As the study has it: settings looser than those for publication fail.
    """
    # All engines have this setting under one name; one that calls it otherwise has its cached tokens fail.
    cache_declared = config.section.engine_args().get("enable_prefix_caching") is True
    used = result.environment.gpu_uuids if result.environment else []
    return [
        _warm_up(procedure, config.warmup),
        _drift(procedure),
        _between_passes(energy),
        _idle(energy, used, config.idle),
        _restarts(energy),
        _interval(result.statistics),
        _outliers(result.statistics),
        _cached(result.performance, declared=cache_declared),
        _prompts(energy, result.performance),
        _definitions(energy),
        *arrivals_checks(result.performance),
    ]


def _warm_up(procedure: Procedure, limits: WarmUpSpec) -> Check:
    seen = procedure.warm_up
    quick = [one for one in seen if one.converged is None]
    bad = [f"restart {one.restart + 1}: {'; '.join(one.drifting)}" for one in seen if one.converged is False]
    bad += _looser("warmup", limits, WARM_UP_LIMITS)
    longest = max((one.duration_s for one in seen), default=0.0)
    figure = f"the {quick[0].profile} profile does not look" if quick else "; ".join(bad) or f"up to {longest:.0f} s"
    return Check(
        name="warm-up converged",
        status="unknown" if not seen else "fail" if quick or bad else "pass",
        figure=figure if seen else "no restart",
        threshold=f"{WARM_UP_LIMITS.slope_per_min:.1%} and {WARM_UP_LIMITS.temperature_c:g} °C over the last "
        f"{WARM_UP_LIMITS.window_s:g} s, after {WARM_UP_LIMITS.min_s:g} s at least, before cap_s",
        source="tokens/s, joules per token and temperatures of the warm-up's last window",
    )


def _looser(section: str, given: WarmUpSpec | IdleSpec, limits: WarmUpSpec | IdleSpec) -> list[str]:
    """Return which settings let pass more than is published: a study's file must not set its own bar."""
    most = ("slope_per_min", "temperature_c", "settled")
    least = ("window_s", "min_s")
    values = given.model_dump()
    wanted = limits.model_dump()
    loose = [name for name in most if name in values and values[name] > wanted[name]]
    loose += [name for name in least if name in values and values[name] < wanted[name]]
    return [f"{section}.{name} {values[name]:g} is looser than {wanted[name]:g}" for name in loose]


def _between_passes(energy: EnergyResult) -> Check:
    """Whether the last pass of a restart costs what its first does: no interval holds what all restarts have."""
    restarts = [(group[0], group[-1]) for group in by_restart(energy.passes) if len(group) > 1]
    ratios = [
        last.energy_per_output_token_j / first.energy_per_output_token_j - 1
        for first, last in restarts
        if first.energy_per_output_token_j and last.energy_per_output_token_j
    ]
    known = len(ratios) == len(restarts)
    mean = sum(ratios) / len(ratios) if ratios else 0.0
    told = f"{mean:+.2%} on average" if ratios else "joules per token unknown" if restarts else "one pass per restart"
    return Check(
        name="no drift between passes",
        status="unknown" if not known else "info" if not restarts else "pass" if abs(mean) <= MAX_STEP else "fail",
        figure=told,
        threshold=f"at most {MAX_STEP:.0%} from the first pass of a restart to its last, on average over restarts",
        source="energy.passes",
    )


def _drift(procedure: Procedure) -> Check:
    drifts = procedure.drift
    unknown = [one for one in drifts if one.relative is None]
    known = [(abs(one.relative), one.standard_error or 0.0) for one in drifts if one.relative is not None]
    blurred = [error for _, error in known if DEVIATIONS * error > MAX_BLUR]
    worst, error = max(known, key=lambda one: one[0] - DEVIATIONS * one[1], default=(0.0, 0.0))
    failed = worst > MAX_DRIFT + DEVIATIONS * error
    status = "fail" if failed else "unknown" if unknown or blurred or not drifts else "pass"
    told = f"{worst:.2%}" + (f" ± {DEVIATIONS * error:.2%}" if error else "")
    if status == "unknown":
        told = f"not known within {DEVIATIONS * max(blurred):.1%}" if blurred else "no pass"
        told = (unknown[0].reason or "unknown") if unknown else told
    return Check(
        name="no drift within passes",
        status=status,
        figure=told,
        threshold=f"halves differ by at most {MAX_DRIFT:.0%}; in an open loop not by more that could be told",
        source="second half of each pass against its first, less a lifetime at either end where requests overlap; in "
        "an open loop power at equal work",
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


def _idle(energy: EnergyResult, used_uuids: Sequence[str], limits: IdleSpec) -> Check:
    used = [one for one in energy.idle_baselines or () if one.used]
    restless = [f"{one.gpu_uuid} {one.state}: {one.unsettled}" for one in used if one.unsettled]
    restless += _looser("idle", limits, IDLE_LIMITS)
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
        threshold=f"empty and loaded before and after in each restart, {MIN_IDLE_S:g} s each, at rest within "
        f"{IDLE_LIMITS.settled:.0%} and {IDLE_LIMITS.temperature_c:g} °C",
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
    if performance is None or performance.offered_rate_per_s is None:
        return []
    if (share := performance.schedule_lag_share) is None:
        untold = "when each request was to arrive is not known of every pass"
        return [Check(name=name, status="unknown", figure=untold) for name in (KEPT_UP, ENOUGH)]
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
            source="submission and last token of each request against its intended arrival",
        ),
        Check(
            name=ENOUGH,
            status="pass" if arrivals >= MIN_ARRIVALS else "fail",
            figure=f"{arrivals} in the shortest pass",
            threshold=f"{MIN_ARRIVALS}",
            source="99th percentiles of fewer rest on a handful of requests",
        ),
    ]
