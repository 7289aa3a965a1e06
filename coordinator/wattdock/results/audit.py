"""Checks on a finished experiment, each with the figure behind it, and one verdict. Pure.

Unknown never passes, so what this version does not check yet keeps a figure from being publishable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.results.result import Audit, Check
from wattdock.results.sharing import sharing_checks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.results.environment import EnvironmentSnapshot
    from wattdock.results.result import EnergyResult, Failure, Performance

# What a defensible figure needs beyond what is checked below.
NOT_CHECKED = ("warm-up converged", "idle baselines", "throttling", "roofline", "image pinned")
MIN_RESTARTS = 3
# Windows under 2 s vary widely, 5 s and more are stable, 20 s is a publication floor (arXiv 2312.02741 and peers).
MIN_WINDOW_S = 20.0
# An engine this far behind at the end served that much less than was offered: its latencies grow with the pass.
MAX_SCHEDULE_LAG_SHARE = 0.05


def audit(
    environment: EnvironmentSnapshot,
    energy: EnergyResult,
    performance: Performance | None,
    *,
    token_disagreements: Sequence[str],
    failure: Failure | None,
) -> Audit:
    """Return every check and the verdict.

    Args:
        token_disagreements: Passes whose token counts contradict each other.
        failure: Why the experiment did not finish; None where it did.
    """
    clock, model = environment.clock, environment.model
    slowest = "unknown" if clock.round_trip_max_s is None else f"{clock.round_trip_max_s * 1e3:.1f} ms"
    counts = "; ".join(token_disagreements) or f"{sum(one.output_tokens for one in energy.passes)} output tokens"
    checks = [
        _check("finished", failure is None, failure.message if failure else "no failure"),
        _check("energy measured", energy.total_j is not None, energy.reason or f"source {energy.source}"),
        _check("counter, not integrated power", energy.source == "counter", f"source {energy.source}"),
        _check("clock trusted", clock.trusted, f"{clock.checks} checks, offset at most {slowest}"),
        _check("weights real", model.weights == "real", model.weights),
        _check("model pinned", model.revision is not None, str(model.revision)),
        _window_check(energy),
        _restarts_check(energy),
        _check("token counts consistent", bool(energy.passes) and not token_disagreements, counts),
        _prompts_check(energy),
        *_cache_checks(performance),
        *sharing_checks(environment, energy),
        *_schedule_checks(performance),
        *_meters_checks(energy),
        *(Check(name=name, status="unknown", figure="not checked by this version") for name in NOT_CHECKED),
    ]
    reasons = [f"{check.name}: {check.figure}" for check in checks if check.status in ("fail", "unknown")]
    return Audit(publishable=not reasons, reasons=reasons, checks=checks)


def _check(name: str, passed: bool, figure: str) -> Check:
    return Check(name=name, status="pass" if passed else "fail", figure=figure)


def _window_check(energy: EnergyResult) -> Check:
    shortest = min((one.duration_s for one in energy.passes), default=0.0)
    return _check(
        "window long enough", shortest >= MIN_WINDOW_S, f"shortest pass {shortest:.1f} s of {MIN_WINDOW_S:g} s"
    )


def _restarts_check(energy: EnergyResult) -> Check:
    restarts = len({one.restart for one in energy.passes})
    return _check("repeats enough", restarts >= MIN_RESTARTS, f"{restarts} of {MIN_RESTARTS} restarts")


def _prompts_check(energy: EnergyResult) -> Check:
    """A prompt seen before may be served from an engine's cache; that hid a fifth of the energy in a first probe."""
    repeated = sum(one.prompt_repeats for one in energy.passes)
    reused = sum(one.prompts_reused for one in energy.passes)
    figure = f"{repeated} repeats within passes, {reused} passes with prompts of earlier ones"
    return _check("prompts fresh", not repeated and not reused, figure)


def _cache_checks(performance: Performance | None) -> list[Check]:
    """Return whether all prompts were computed; nothing where the engine does not tell."""
    cached = performance.cached_prompt_tokens if performance else None
    if performance is None or cached is None:
        return []
    figure = f"{cached} of {performance.prompt_tokens} prompt tokens came from the engine's cache"
    return [Check(name="prompts computed", status="warn" if cached else "pass", figure=figure)]


def _schedule_checks(performance: Performance | None) -> list[Check]:
    """Return whether an open loop was kept up with; nothing for a closed one."""
    share = performance.schedule_lag_share if performance else None
    if performance is None or share is None:
        return []
    rates = f"{performance.offered_rate_per_s:g} requests/s offered, {performance.requests_per_s:.3g} achieved"
    figure = f"{rates}, {share:.1%} of the pass behind at its end"
    return [_check("arrivals kept up with", share <= MAX_SCHEDULE_LAG_SHARE, figure)]


def _meters_checks(energy: EnergyResult) -> list[Check]:
    """Return whether a second meter's windows are as near to ours as the counter's steps let them be."""
    if energy.cross_check is None:
        return []
    windows = energy.cross_check.windows
    unknown = next((one.reason for one in windows if one.reason), None)
    if unknown:
        return [Check(name="meters agree", status="unknown", figure=unknown)]
    known = [(abs(one.difference_j or 0.0), one.bound_j or 0.0) for one in windows]
    off_j, bound_j = max(known, key=lambda one: one[0] - one[1])
    figure = f"{energy.cross_check.source} differs by {off_j:.1f} J where counter steps allow {bound_j:.1f} J"
    return [_check("meters agree", all(off <= bound for off, bound in known), figure)]
