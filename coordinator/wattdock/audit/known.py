"""Audit checks on the third question: is the figure known well enough? Pure."""

from __future__ import annotations

from wattdock.analysis import Audit, Budget
from wattdock.audit.check import AuditInput, Checklist, Outcome, verdict
from wattdock.audit.work import MORE_WORK, gpus_fed
from wattdock.text import joules_per

# Largest change of J/token per minute: in 5 minutes it makes the 2 % by which a figure may be uncertain.
MAX_DRIFT_PER_MIN = 0.004
# Largest standard uncertainty from an engine's first seconds: a lead-in of 15 s, their time constant, leaves 0.37 %.
MAX_START_EXCESS = 0.0037

CHECKS = Checklist[AuditInput]()


@CHECKS.check(
    "measured window",
    question="known",
    threshold="steady state after a lead-in, in every restart; in it J/token changes by at most "
    f"{MAX_DRIFT_PER_MIN:.1%} a minute, or by what chance makes if that is more",
    source="energy.windows: while the engine was full, or whole rounds; budget.drift_per_min, drift_chance_per_min",
    remedy="set warmup.profile=lead-in and workload.min_duration_s (wattdock run --publishable FILE does)",
)
def window_steady(inputs: AuditInput) -> Outcome:
    """Whether the figures are those of a window in steady state, not of filling, warming up and draining."""
    if (summary := inputs.energy.windows) is None:
        return Outcome("unknown", "no pass")
    figures = summary.of_headline()
    if inputs.config.command:
        reason = next((figure.reason for figure in figures if figure.start_ns is None), None)
        of = "whole runs" if summary.headline == "drained" else "from the first marked span that counts to the last"
        return Outcome("fail", reason, remedy="see docs/how-to/measure.md") if reason else _without_drift(inputs, of)
    shortest_s = min((figure.duration_s or 0.0 for figure in figures), default=0.0)
    figure = f"{summary.headline.replace('_', ' ')}, windows of {shortest_s:.1f} s and more"
    if inputs.config.warmup.profile != "lead-in":
        return Outcome("fail", f"{figure}, without a lead-in")
    if summary.headline == "steady_state":
        if inputs.result.budget and inputs.result.budget.part(Budget.START) > MAX_START_EXCESS:
            return Outcome("fail", f"{figure}, after less than 15 s of work", remedy="set a longer warmup.lead_in_s")
        return _without_drift(inputs, figure)
    reasons = (window.reason for window in summary.passes if window.window == "steady_state" and window.reason)
    return Outcome("fail", f"the whole run, its beginning included: {next(reasons, 'no steady state')}")


def _without_drift(inputs: AuditInput, figure: str) -> Outcome:
    """Return whether J/token still changes as the engine runs, beyond mix and temperature: it does not stay."""
    budget, command = inputs.result.budget, inputs.config.command
    # Another check misses the joules. A command's whole runs have their own figure, and seldom counts tell nothing.
    if budget is None or (command and budget.drift_per_min is None):
        return Outcome("pass", figure)
    if (drift := budget.drift_per_min) is None or (chance := budget.drift_chance_per_min) is None:
        told = f"{figure}; fewer than three blocks (rounds, or 2 s) do not tell whether J/token still changes"
        return Outcome("unknown", told, remedy="set a longer workload.min_duration_s, of three rounds at least")
    per = joules_per(budget.unit)
    remedy = "let the spans that count (--within) begin later" if command else "set a longer warmup.lead_in_s"
    failed = abs(drift) > max(MAX_DRIFT_PER_MIN, chance)
    told = f"{figure}; {per} changes by {drift:+.2%} a minute; less than {chance:.2%} is not seen"
    return Outcome(verdict(failed=failed), told, remedy=f"{remedy}: {per} has not settled")


@CHECKS.check(
    Audit.UNCERTAINTY,
    question="known",
    source="budget: Welch and Satterthwaite's degrees of freedom, Student's t, 95 %",
)
def uncertainty_small(inputs: AuditInput) -> Outcome | None:
    """Whether the expanded uncertainty of J/token is within the declared limit."""
    if not inputs.environment.gpu_count:
        return None
    limit, budget, command = inputs.config.repeats.MOST_UNCERTAIN, inputs.result.budget, inputs.config.command
    threshold = f"± {limit * 100:g} %"
    if budget is None:
        return Outcome("unknown", "no joules per output token", threshold)
    if budget.expanded is None:
        publishable = "measure --publishable" if command else "run --publishable FILE"
        # Fewer than were asked for: the study was interrupted.
        is_cut = len(budget.per_restart) < inputs.config.repeats.LEAST_FOR_INTERVAL <= inputs.config.repeats.restarts
        set_three = f"set repeats.restarts=3 (wattdock {publishable} does)"
        remedy = "finish the study with --resume" if is_cut else set_three
        return Outcome("unknown", budget.reason or "unknown", threshold, remedy=remedy)
    largest = max(budget.entries, key=lambda entry: entry.share)
    part = f"{largest.share:.0%} of the variance from {largest.name} ({largest.found})"
    figure = f"U = ± {budget.expanded * 100:.2f} %; {part}"
    remedy = f"more restarts, or longer {'runs' if command else 'windows (workload.min_duration_s)'}"
    if inputs.config.workload.arrival == "closed" and not inputs.config.workload.staggered_start:
        # Blocks of two seconds hold parts of the rounds of requests in lock-step.
        remedy += ", or workload.staggered_start with lengths that differ"
    if largest.name == Budget.RESTARTS and (fed := gpus_fed(inputs)) and fed.status == "warn":
        remedy = f"the GPUs are {fed.figure}: {MORE_WORK}"
    if largest.name == Budget.ANSWERS:
        remedy = "longer windows (workload.min_duration_s), or workload.ignore_eos=true, which declares the lengths"
    return Outcome(verdict(failed=not budget.expanded <= limit), figure, threshold, remedy=remedy)
