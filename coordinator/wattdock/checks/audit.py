"""Checks on a finished experiment, each with the figure behind it, and one verdict. Pure.

Unknown never passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.analysis import Audit, Check
from wattdock.checks.audit_gpus import gpu_checks
from wattdock.checks.audit_procedure import procedure_checks
from wattdock.checks.audit_sharing import sharing_checks
from wattdock.config import ExperimentConfig
from wattdock.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.analysis import EnergyResult, ExperimentResult, Procedure
    from wattdock.records import ClockFacts, ConditionChange, EnvironmentSnapshot

# Windows under 2 s vary widely, 5 s and more are stable, 20 s is a publication floor (arXiv 2312.02741 and peers).
MIN_WINDOW_S = 20.0
# They change no pass: the coordinator only waits meanwhile, and a cache has as many blocks as memory was left.
HARMLESS_CHANGES = ("Python of the coordinator", "warnings of the runner", "engine: num_gpu_blocks")


def audit(result: ExperimentResult) -> Audit:
    """Return every check on a result and the verdict; the result must hold an environment and energy.

    Raises:
        ValueError: The result has no environment or no energy, as one that was never measured.
    """
    environment, energy, procedure = result.environment, result.energy, result.procedure
    if environment is None or energy is None or procedure is None:
        raise ValueError("a result without environment, energy and procedure cannot be audited")
    config = ExperimentConfig.model_validate(result.config)
    source = f"source {energy.source}" if energy.source else "no source"
    checks = [
        _check("finished", result.error is None, result.error.message if result.error else "no failure"),
        _check("energy measured", energy.total_j is not None, energy.reason or source),
        _check("counter, not integrated power", energy.source == "counter", source),
        _runners_check(procedure),
        *_environment_checks(environment),
        _one_environment_check(environment, energy),
        _window_check(energy),
        _token_counts_check(energy, procedure),
        _drained_check(energy, procedure),
        *sharing_checks(environment, energy, procedure),
        *procedure_checks(result, energy, procedure, config),
        *gpu_checks(
            environment, energy, result.compute, gpus=procedure.gpus, declared_power_limit_w=config.power_limit_w
        ),
        *_meters_checks(energy),
    ]
    reasons = [f"{check.name}: {check.figure}" for check in checks if check.status in ("fail", "unknown")]
    return Audit(publishable=not reasons, reasons=reasons, checks=checks)


def _token_counts_check(energy: EnergyResult, procedure: Procedure) -> Check:
    wrong = procedure.token_disagreements
    figure = "; ".join(wrong) or f"{sum(measured.output_tokens for measured in energy.passes)} output tokens"
    return _check("token counts consistent", bool(energy.passes) and not wrong, figure)


def _drained_check(energy: EnergyResult, procedure: Procedure) -> Check:
    figure = "; ".join(procedure.undrained) or "all work inside"
    return _check("passes drained", bool(energy.passes) and not procedure.undrained, figure)


def _runners_check(procedure: Procedure) -> Check:
    """Say where a restart's passes are of several runners: its value then averages over what restarts differ by."""
    most = procedure.runners_per_restart
    return Check(
        name="one runner for each restart",
        status="pass" if most == 1 else "warn" if most else "unknown",
        figure=f"a restart's passes came from {most} runners" if most > 1 else "one each" if most else "no pass",
        threshold="one, as where a study is not interrupted within a restart",
    )


def _environment_checks(environment: EnvironmentSnapshot) -> list[Check]:
    model = environment.model
    return [
        _clock_check(environment.clock),
        _check("weights real", model.weights == "real", model.weights),
        _check("model pinned", model.revision is not None, str(model.revision)),
        _image_check(environment),
    ]


def _clock_check(clock: ClockFacts) -> Check:
    """Return whether every pass's clock was seen to be the host's; of one that nobody could ask after, none knows."""
    slowest = "unknown" if clock.round_trip_max_s is None else f"{clock.round_trip_max_s * 1e3:.1f} ms"
    unchecked = clock.unchecked_passes
    unasked = f"; not checked after {pluralize(unchecked, 'pass', 'passes')}" if unchecked else ""
    return Check(
        name="clock trusted",
        status="fail" if not clock.trusted else "unknown" if unasked else "pass",
        figure=f"{clock.checks} checks, offset at most {slowest}{unasked}",
    )


def _one_environment_check(environment: EnvironmentSnapshot, energy: EnergyResult) -> Check:
    """Return whether all passes were measured on and with the same: a killed study may go on under another driver."""
    changes = environment.changes
    matter = [one for one in changes or () if one.name not in HARMLESS_CHANGES]
    harmless = [one for one in changes or () if one.name in HARMLESS_CHANGES]
    known = bool(energy.passes) and changes is not None
    unknown = "not recorded for every restart" if energy.passes else "no pass"
    return Check(
        name="one environment in all restarts",
        status="unknown" if not known else "fail" if matter else "warn" if harmless else "pass",
        figure="; ".join(map(_changed, matter or harmless)) or ("nothing differs" if known else unknown),
        threshold="no difference in hardware, limits, versions, image, model or effective engine arguments",
        source="recorded with each restart's passes",
    )


def _changed(change: ConditionChange) -> str:
    told = [f"{text} (restart {_numbers(restarts)})" for text, restarts in change.restarts.items()]
    return f"{change.name}: {', '.join(told)}"


def _numbers(restarts: Sequence[int]) -> str:
    return ", ".join(str(one + 1) for one in restarts)


def _image_check(environment: EnvironmentSnapshot) -> Check:
    """Return whether anybody can get the image that ran; an id means something on one machine only."""
    inside = environment.container
    digest = inside.locked_digest if inside else None
    if inside is None:
        figure = "no image: the runner was a plain process"
    else:
        figure = digest or f"{inside.image_id[:19]}, {'locked, but in no registry' if inside.locked else 'not locked'}"
    return Check(
        name="image pinned",
        status="pass" if digest else "fail",
        figure=figure,
        threshold="a registry's digest in docker/images.lock, under --locked",
        source="the engine's image, held against the lock before the start",
    )


def _check(name: str, passed: bool, figure: str) -> Check:
    return Check(name=name, status="pass" if passed else "fail", figure=figure)


def _window_check(energy: EnergyResult) -> Check:
    shortest = min((one.duration_s for one in energy.passes), default=0.0)
    return Check(
        name="window long enough",
        status="pass" if shortest >= MIN_WINDOW_S else "fail",
        figure=f"shortest pass {shortest:.1f} s",
        threshold=f"{MIN_WINDOW_S:g} s",
        source="arXiv 2312.02741 and peers: below 5 s figures vary, 20 s is common for publication",
    )


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
