"""Audit checks on the procedure: warm-up, drift, idle, repeats, caches, arrivals. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from wattdock.analysis import Audit, statistics, trend
from wattdock.audit.check import AuditInput, Checklist, Outcome, verdict
from wattdock.config import ExperimentConfig, WarmUpSpec
from wattdock.text import pluralize

if TYPE_CHECKING:
    from wattdock.config import IdleSpec


MIN_RESTARTS: int = ExperimentConfig.PUBLICATION["repeats.restarts"]
# Largest half width of the 95 % interval over the mean; published differences are seldom smaller than twice this.
MAX_CI95_RELATIVE = 0.02
# Largest drift at equal work: halves of a steady pass differ by a GPU's temperature; more is a warm-up that went on.
MAX_DRIFT = 0.01
# Largest step between the passes of a restart: two figures told apart by the interval above may differ as much.
MAX_STEP = 0.02
# Limits of publication, whatever a study sets: the defaults.
WARM_UP_LIMITS = WarmUpSpec()
# Largest spread of J/token over window definitions: as much as passes of one restart may scatter.
MAX_WINDOW_SPREAD = 0.02
# Largest difference in cached tokens: caches hold whole blocks, and first turns that enter together may miss them.
MAX_CACHED_DIFFERENCE = 0.05
# Largest difference of the mix; it moves a figure by less than itself, so by less than half of the interval's limit.
MAX_MIX_DIFFERENCE = 0.01
MIN_ARRIVALS = 500
# Fewest arrivals that show a lag: quarters of fewer are medians of a handful.
MIN_TELLING_ARRIVALS = 30
# An engine this far behind at the end served that much less than was offered: its latencies grow with the pass. The
# share sees requests that never finish and a jam near the end, the slope a slow growth long before it is 5 % of a pass.
MAX_SCHEDULE_LAG_SHARE = 0.05
MAX_CLIENT_SHARE, MAX_CLIENT_LATE_S = 0.8, 0.02
MAX_BACKLOG_SLOPE = 0.02
UNKNOWN_ARRIVALS = "the intended arrivals of some pass are not known"

# Largest idle share of a fed GPU, our own judgement: fed H200s were busy 86 % of a pass and more, others 31 and 67 %.
MAX_STARVED_SHARE = 0.2
FEED = "give each step more work: more requests in flight, longer prompts; or use a faster host"

CHECKS = Checklist[AuditInput]()


@CHECKS.check(
    "work for the GPUs",
    threshold=f"none of them computes in at most {MAX_STARVED_SHARE:.0%} of any pass",
    source="NVML's samples of the time in which a kernel ran, of the busiest GPU; the limit is our own judgement",
    remedy=FEED,
)
def gpus_fed(inputs: AuditInput) -> Outcome | None:
    """Whether GPUs wait for their host, whose speed and neighbours the figure then depends on; not in an open loop."""
    if (starved := _starved(inputs)) is None:
        return None
    share, watts = starved
    return Outcome("warn" if share > MAX_STARVED_SHARE else "info", f"idle in {share:.0%} of the worst pass{watts}")


def _starved(inputs: AuditInput) -> tuple[float, str] | None:
    """Return the share of a pass in which the busiest GPU waits, and its watts; None where that is not known."""
    gpus = [gpu for gpu in inputs.result.used_gpus.values() if gpu.worst_pass_busy_share is not None]
    if not gpus or inputs.config.workload.loop == "open":
        return None
    busiest = max(gpus, key=lambda gpu: gpu.worst_pass_busy_share or 0.0)
    limit = f" of {busiest.power_limits_w[1]:.0f}" if busiest.power_limits_w else ""
    watts = "" if busiest.mean_power_w is None else f", mean {busiest.mean_power_w:.0f}{limit} W"
    return 1 - (busiest.worst_pass_busy_share or 0.0), watts


def _remedy_of_unrest(inputs: AuditInput) -> str | None:
    """Return what steadies an engine that waits for its host; None where it does not."""
    starved = _starved(inputs)
    return f"the GPUs wait for their host: {FEED}" if starved and starved[0] > MAX_STARVED_SHARE else None


@CHECKS.check(
    "warm-up",
    setting="warmup.profile",
    threshold=f"{WARM_UP_LIMITS.slope_per_min:.1%} and {WARM_UP_LIMITS.temperature_c:g} °C over the last "
    f"{WARM_UP_LIMITS.window_s:g} s, after {WARM_UP_LIMITS.min_s:g} s at least, before cap_s",
    source="tokens/s, joules per token and temperatures of the warm-up's last window",
    remedy="set warmup.profile=steady, and a larger warmup.cap_s where it does not converge",
)
def warm_up_converged(inputs: AuditInput) -> Outcome:
    """Whether each restart's warm-up ended in a steady state, by limits not looser than the default."""
    if not (warm_ups := inputs.procedure.warm_up):
        return Outcome("unknown", "no restart")
    if quick := next((warm_up for warm_up in warm_ups if warm_up.converged is None), None):
        return Outcome("fail", f"the {quick.profile} profile does not check for a steady state")
    drifting = [
        f"restart {warm_up.restart + 1}: {'; '.join(warm_up.drifting)}"
        for warm_up in warm_ups
        if warm_up.converged is False
    ]
    bad = [*drifting, *looser("warmup", inputs.config.warmup, WARM_UP_LIMITS)]
    longest = max(warm_up.duration_s for warm_up in warm_ups)
    figure = "; ".join(bad) or f"up to {longest:.0f} s"
    return Outcome(verdict(failed=bool(bad)), figure, remedy=_remedy_of_unrest(inputs) if drifting else None)


def looser(section: str, spec: WarmUpSpec | IdleSpec, limits: WarmUpSpec | IdleSpec) -> list[str]:
    """Return which settings are looser than those for publication: a study's file must not set its own bar."""
    values, wanted = spec.model_dump(), limits.model_dump()
    maxima, minima = ("slope_per_min", "temperature_c", "settled"), ("window_s", "min_s")
    loose = [name for name in maxima if name in values and values[name] > wanted[name]]
    loose += [name for name in minima if name in values and values[name] < wanted[name]]
    return [f"{section}.{name} {values[name]:g} is looser than {wanted[name]:g}" for name in loose]


@CHECKS.check(
    "J/token drift within passes",
    group="wrong",
    causes=(Audit.CPUS_ALONE, "warm-up"),
    needs=("pass length",),
    threshold=f"95 % interval within ± {MAX_DRIFT:.0%} between the middles of the halves, over all passes; no pass "
    "beyond",
    source="blocks of each pass while the engine was full, at equal work; in an open loop, power at equal work",
    remedy="set a longer workload.min_duration_s",
)
def drift_within_passes(inputs: AuditInput) -> Outcome:
    """Whether all passes together are shown to have cost the same throughout, and none is shown not to have."""
    if not (drifts := inputs.procedure.drift):
        return Outcome("unknown", "no pass")
    changes = [(drift, drift.change) for drift in drifts if drift.change]
    for drift, change in changes:
        if change.is_within(MAX_DRIFT) is False:
            figure = f"{change} in pass {drift.pass_index + 1} of restart {drift.restart + 1}"
            return Outcome("fail", figure, remedy=_remedy_of_unrest(inputs))
    if len(changes) < len(drifts):
        return Outcome("unknown", next(drift.reason or "unknown" for drift in drifts if not drift.change))
    mean = trend.pooled([change for _, change in changes])
    within = mean.is_within(MAX_DRIFT)
    if within is not None:
        return Outcome(verdict(failed=not within), str(mean))
    longest_s = max(drift.duration_s or 0.0 for drift in drifts) * mean.duration_factor(MAX_DRIFT)
    longer = f"set workload.min_duration_s to {longest_s:.0f}"
    return Outcome("unknown", f"{mean}: not decided", remedy=_remedy_of_unrest(inputs) or longer)


@CHECKS.check(
    "J/token drift between passes",
    group="wrong",
    causes=(Audit.CPUS_ALONE, "warm-up"),
    needs=("energy",),
    threshold=f"at most {MAX_STEP:.0%} from the first pass of a restart to its last, on average over restarts",
    source="energy.passes",
)
def drift_between_passes(inputs: AuditInput) -> Outcome:
    """Whether the first and the last pass of a restart cost the same J/token: an interval hides a common trend."""
    restarts = [(group[0], group[-1]) for group in statistics.by_restart(inputs.energy.passes) if len(group) > 1]
    if not restarts:
        return Outcome("info", "one pass per restart")
    ratios = [
        last.energy_per_output_token_j / first.energy_per_output_token_j - 1
        for first, last in restarts
        if first.energy_per_output_token_j and last.energy_per_output_token_j
    ]
    mean = sum(ratios) / len(ratios) if ratios else 0.0
    known = len(ratios) == len(restarts)
    status = verdict(failed=known and abs(mean) > MAX_STEP, known=known)
    return Outcome(status, f"{mean:+.2%} on average" if ratios else "joules per token unknown")


@CHECKS.check(
    "restarts",
    setting="repeats.restarts",
    threshold=f"{MIN_RESTARTS} fresh runners",
    source="an interval from two restarts has one degree of freedom and says nothing",
    remedy=f"set repeats.restarts={MIN_RESTARTS}",
)
def repeats_enough(inputs: AuditInput) -> Outcome:
    """Whether there are enough restarts for a confidence interval."""
    restarts = len({run_pass.restart for run_pass in inputs.energy.passes})
    return Outcome(verdict(failed=restarts < MIN_RESTARTS), f"{restarts} of {MIN_RESTARTS} restarts")


@CHECKS.check(
    "confidence interval",
    causes=("restarts",),
    threshold=f"at most ± {MAX_CI95_RELATIVE:.0%}",
    source="how restarts differ, Student's t",
    remedy="more restarts narrow it: repeats.restarts",
)
def interval_narrow_enough(inputs: AuditInput) -> Outcome:
    """Whether the 95 % interval of the mean is narrow enough to compare by."""
    spread = inputs.result.statistics
    if spread is None or (half := spread.ci95_relative) is None:
        return Outcome("unknown", spread.reason or "no mean" if spread else "no pass")
    return Outcome(verdict(failed=half > MAX_CI95_RELATIVE), f"± {half:.2%} (95 %)")


@CHECKS.check("outliers", threshold="modified z-score 3.5; shown, never dropped")
def outliers(inputs: AuditInput) -> Outcome:
    """Which passes are outliers."""
    passes = inputs.result.statistics.outliers if inputs.result.statistics else []
    return Outcome("warn" if passes else "info", "; ".join(passes) or "none")


@CHECKS.check(
    "cached prompt tokens",
    group="wrong",
    source="the engine's count per request; a warm cache once hid a fifth of a figure",
)
def cached_prompt_tokens(inputs: AuditInput) -> Outcome:
    """Whether a cache served what conversations declare, and nothing where the configuration does not switch it on."""
    # An engine that calls the setting otherwise has its cached tokens fail.
    declared = inputs.config.section.caches_prefixes
    threshold = "a prefix cache that was switched on" if declared else "none"
    speed = inputs.result.performance
    if speed is None or (cached := speed.cached_prompt_tokens) is None:
        return Outcome("unknown", "the engine does not tell", threshold)
    figure = f"{cached:,} prompt tokens from a cache"
    if (cacheable := speed.cacheable_prompt_tokens) is not None and (prompt_tokens := speed.prompt_tokens):
        share, declared_share = cached / prompt_tokens, cacheable / prompt_tokens
        threshold = f"{declared_share:.1%} as turns and shared prefix declare, ± {MAX_CACHED_DIFFERENCE:.0%} of all"
        failed = abs(share - declared_share) > MAX_CACHED_DIFFERENCE
        return Outcome(verdict(failed=failed), f"{figure}, {share:.1%} of all", threshold)
    return Outcome("pass" if not cached else "info" if declared else "fail", figure, threshold)


@CHECKS.check(
    "serving client",
    group="wrong",
    threshold=f"its thread busy at most {MAX_CLIENT_SHARE:.0%} of the time, and late by at most "
    f"{MAX_CLIENT_LATE_S * 1000:.0f} ms and half the median gap between tokens",
    source="the client's own CPU time, and how late its loop does what is due (99th percentile), in the worst pass",
    remedy="keep other work off its CPUs, or ask for fewer requests in flight: else the figure is the client's",
)
def client_keeps_up(inputs: AuditInput) -> Outcome | None:
    """Whether an engine behind its own server waited for the client, or tokens waited to be read."""
    speed = inputs.result.performance
    if speed is None or (serving := speed.serving) is None:
        return None
    gap_s = None if speed.itl is None else speed.itl.p50_s
    most_late_s = MAX_CLIENT_LATE_S if gap_s is None else min(MAX_CLIENT_LATE_S, gap_s / 2)
    failed = serving.client_cpu_share > MAX_CLIENT_SHARE or serving.client_late_s > most_late_s
    figure = f"{serving.client_cpu_share:.0%} busy, {serving.client_late_s * 1000:.1f} ms late"
    return Outcome(verdict(failed=failed), figure)


@CHECKS.check("repeated prompts", group="wrong", threshold="no repeats, unless no cache served them")
def prompts_fresh(inputs: AuditInput) -> Outcome:
    """Whether prompts repeat, which is harmless where the engine says that no cache served them."""
    reused = sum(run_pass.prompts_reused for run_pass in inputs.energy.passes)
    repeated = sum(run_pass.repeated_prompts for run_pass in inputs.procedure.mix)
    speed = inputs.result.performance
    uncached = speed is not None and speed.cached_prompt_tokens == 0
    within = f"{pluralize(repeated, 'request')} with a prompt that the pass had sent before"
    figure = f"{within}, {pluralize(reused, 'pass', 'passes')} with prompts of earlier ones"
    if not repeated and not reused:
        return Outcome("pass", figure)
    # Experiments of one runner may share their draws, so that they can be compared in pairs.
    return Outcome("fail" if not uncached else "warn" if repeated else "info", figure)


@CHECKS.check(
    Audit.WORK_SENT,
    group="wrong",
    threshold=f"every request as it was to be sent; answers within {MAX_MIX_DIFFERENCE:.0%} of their declared lengths",
    source="each request's prompt (by a hash of its ids), limit and instant; answers begun in the headline's window",
)
def work_as_declared(inputs: AuditInput) -> Outcome:
    """Whether the engine was given what was declared, and gave the answers that were declared."""
    if not (passes := inputs.procedure.mix):
        return Outcome("unknown", "no pass")
    mismatches = sum((Counter(run_pass.mismatches) for run_pass in passes), Counter[str]())
    if mismatches:
        found = ", ".join(f"{pluralize(count, 'request')} with another {name}" for name, count in mismatches.items())
        return Outcome("fail", found, remedy="this is a fault of wattdock or of the engine: please report it")
    sent = "each text has the same ids at each repeat" if passes[0].texts else "prompts, limits and order as declared"
    if (difference := inputs.procedure.answers_difference) is None:
        early = sum(run_pass.ended_early for run_pass in passes)
        return Outcome("pass", f"{sent}; no lengths of answers are declared, {early:,} ended before their limit")
    figure = f"{sent}; answers have {difference:+.2%} tokens against those declared"
    if abs(difference) > MAX_MIX_DIFFERENCE:
        cause, remedy = _cause_of_mix(inputs)
        return Outcome("fail", f"{figure}{cause}", remedy=remedy)
    draw = inputs.procedure.draw_difference
    if draw is None:
        return Outcome("pass", figure)
    figure += f"; prompt tokens per output token are {draw:+.2%} off the long run of what was declared"
    if abs(draw) > MAX_MIX_DIFFERENCE:
        return Outcome("warn", figure, remedy="longer passes, or more restarts where each draws its own")
    return Outcome("pass", figure)


def _cause_of_mix(inputs: AuditInput) -> tuple[str, str | None]:
    """Return why a mix is not the declared one, as far as it can be seen, and what to do."""
    passes = inputs.procedure.mix
    aborted, early = (sum(getattr(run_pass, name) for run_pass in passes) for name in ("aborted", "ended_early"))
    whole = inputs.energy.windows is not None and inputs.energy.windows.headline == "drained"
    if aborted:
        return f": {aborted:,} aborted requests", "see runner.log"
    if early:
        return f": early end of sequence in {early:,} answers", "set workload.ignore_eos=true"
    if whole and inputs.config.workload.staggered_start:
        return ": the staggered start is in the figure", "make passes longer: workload.min_duration_s or min_requests"
    return "", None


@CHECKS.check(
    "headline window",
    causes=("pass length",),
    needs=("energy",),
    threshold=f"steady state; else definitions within {MAX_WINDOW_SPREAD:.0%} of each other",
    source="energy.windows: while the engine was full, or everything until it had drained",
    remedy="set a longer workload.min_duration_s: a pass needs 20 s and five mean lifetimes of a request while full",
)
def headline_window(inputs: AuditInput) -> Outcome:
    """Whether J/token is the steady state's, or hardly depends on how much of filling and draining it holds."""
    if (summary := inputs.energy.windows) is None:
        return Outcome("unknown", "no pass")
    spread = summary.relative_spread
    differ = "" if spread is None else f"; definitions differ by {spread:.1%}"
    if summary.headline == "steady_state" or inputs.config.workload.arrival in ("batch", "single"):
        return Outcome("pass", f"{summary.headline.replace('_', ' ')}{differ}")
    reasons = (figure.reason for figure in summary.passes if figure.window == "steady_state" and figure.reason)
    figure = f"drained, with filling and draining in it: {next(reasons, 'no steady state')}{differ}"
    return Outcome(verdict(failed=spread is not None and spread > MAX_WINDOW_SPREAD, known=spread is not None), figure)


@CHECKS.check(
    Audit.ARRIVALS_SERVED,
    group="wrong",
    threshold=f"at most {MAX_SCHEDULE_LAG_SHARE:.0%} behind, growing by at most {MAX_BACKLOG_SLOPE:g} s/s",
    source="submission and last token of each request against its intended arrival",
)
def arrivals_kept_up_with(inputs: AuditInput) -> Outcome | None:
    """Whether the engine served an open loop's arrivals as fast as they came."""
    speed = inputs.result.performance
    if speed is None or inputs.config.workload.loop != "open":
        return None
    if (share := speed.schedule_lag_share) is None or speed.offered_rate_per_s is None:
        return Outcome("unknown", UNKNOWN_ARRIVALS)
    slope, arrivals = speed.backlog_slope, speed.arrivals_min or 0
    growing = f", delay grows by {slope:.3f} s/s" if slope is not None else ""
    left_out = f"; {speed.arrivals_left_out}" if speed.arrivals_left_out else ""
    rates = f"{speed.offered_rate_per_s:.3g} requests/s offered, {speed.requests_per_s:.3g} achieved"
    figure = f"{rates}, {share:.1%} of the pass behind at its end{growing}{left_out}"
    on_time = share <= MAX_SCHEDULE_LAG_SHARE and slope is not None and slope <= MAX_BACKLOG_SLOPE
    if on_time and not left_out:
        return Outcome("pass", figure)
    # One long prompt near the end delays a few arrivals as much; most of them never served is saturation.
    return Outcome(verdict(failed=bool(left_out) or arrivals >= MIN_TELLING_ARRIVALS, known=False), figure)


@CHECKS.check(
    "arrivals",
    threshold=f"{MIN_ARRIVALS}",
    source="99th percentiles of fewer rest on a handful of requests",
    remedy=f"set workload.min_requests={MIN_ARRIVALS}",
)
def arrivals_enough(inputs: AuditInput) -> Outcome | None:
    """Whether an open loop's passes hold enough requests for a tail."""
    speed = inputs.result.performance
    if speed is None or inputs.config.workload.loop != "open":
        return None
    if speed.schedule_lag_share is None:
        return Outcome("unknown", UNKNOWN_ARRIVALS)
    arrivals = speed.arrivals_min or 0
    return Outcome(verdict(failed=arrivals < MIN_ARRIVALS), f"{arrivals} in the shortest pass")
