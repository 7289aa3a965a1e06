"""Audit checks on the GPUs: what throttled them, whether their readings agree, whether the figure is possible. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from wattdock.analysis import Check
from wattdock.checks.audit_procedure import idle_missing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wattdock.analysis import Compute, EnergyResult, GpuConditions, GpuEvidence
    from wattdock.records import EnvironmentSnapshot

# The software power cap is how a GPU at its default limit is meant to work; the others are not.
FAULTS = ("thermal", "board_limit", "reliability")
MAX_FAULT_SHARE = 0.001
# Eight GPU-passes of 20 s on H200s agreed within 0.9 %: power is sampled every 50 ms, and passes hold bursts.
MAX_POWER_DISAGREEMENT = 0.03
MAX_ROOFLINE_SHARE = 0.9
# A CUDA context draws 41 W on an H200.
MAX_STRAY_W = 20.0
# Half of the smallest context (0.55 GB); an H200's driver holds 0.64 GB of an idle GPU, which older ones count as used.
# In twelve passes kept from H200s what was in use and what the runner was listed with differed by 0.009 GB.
MAX_FOREIGN_BYTES, MAX_WITH_RESERVE_BYTES, MAX_EMPTY_PERCENT = 0.3e9, 1.0e9, 1.0
LOST = ("counter_reset", "gpu_lost", "counter_frozen", "broke_off")


def gpu_checks(
    environment: EnvironmentSnapshot,
    energy: EnergyResult,
    compute: Compute | None,
    *,
    gpus: Mapping[str, GpuEvidence],
    declared_power_limit_w: float | None,
) -> list[Check]:
    """Return every check on the GPUs; one that cannot be made is unknown.

    Args:
        gpus: What was seen of each in the worst restart.
        declared_power_limit_w: The limit that was set on purpose; None for the default one.
    """
    used = [one for one in energy.conditions.values() if one.used]
    return [
        _throttling(used),
        _power_cap(used),
        _power_limit(environment, used, declared_power_limit_w),
        _clocks(used),
        _consistency(used),
        _events(environment, energy, gpus),
        _roofline(compute),
        _strays({uuid: gpu.above_idle_w for uuid, gpu in gpus.items() if uuid not in environment.gpu_uuids}),
        _empty(energy, environment),
        _memory(environment, gpus),
        _idle_loaded(energy),
    ]


def _throttling(used: Sequence[GpuConditions]) -> Check:
    shares = [
        (share, f"{reason} on {one.gpu_uuid}")
        for one in used
        for reason, share in (one.worst_pass_throttled_share or {}).items()
        if reason in FAULTS
    ]
    unknown = [
        f"{reason} on {one.gpu_uuid}"
        for one in used
        for reason in FAULTS
        if reason not in (one.worst_pass_throttled_share or {})
    ]
    worst, where = max(shares, default=(0.0, ""))
    passed: Literal["pass", "unknown"] = "unknown" if unknown or not used else "pass"
    seen = f"{worst:.2%} of the worst pass ({where})" if worst else "none" if shares else "no violation counters"
    return Check(
        name="throttling",
        status="fail" if worst > MAX_FAULT_SHARE else passed,
        figure=f"{seen}; not known throughout: {', '.join(unknown)}" if unknown else seen,
        threshold=f"thermal, board limit or reliability at most {MAX_FAULT_SHARE:.1%} of any pass",
        source="NVML's cumulative violation counters",
    )


def _power_cap(used: Sequence[GpuConditions]) -> Check:
    """How long the software power cap held clocks down, and what they were: information at the default limit."""
    shares = [one.throttled_share["power"] for one in used if one.throttled_share and "power" in one.throttled_share]
    clocks = [one.mean_sm_clock_mhz for one in used if one.mean_sm_clock_mhz is not None]
    at = f", mean SM clock {min(clocks):,.0f} to {max(clocks):,.0f} MHz" if clocks else ""
    return Check(
        name="software power cap",
        status="info" if shares else "unknown" if used else "info",
        figure=f"up to {max(shares):.1%} of the time{at}" if shares else "not known" if used else "no GPU was used",
        source="NVML's cumulative violation counters; expected at the default power limit",
    )


def _power_limit(
    environment: EnvironmentSnapshot, conditions: Sequence[GpuConditions], declared_w: float | None
) -> Check:
    """Whether the limit was the wanted one before the last runner, and all through the passes of every one."""
    used = environment.used_gpus
    wanted = {gpu.uuid: gpu.power_limit_default_w if declared_w is None else declared_w for gpu in used}
    meanwhile = {one.gpu_uuid: one.power_limits_w for one in conditions}
    told_w = {gpu.uuid: (gpu.power_limit_w, *(meanwhile.get(gpu.uuid) or ())) for gpu in used}
    seen = [(wanted[uuid], limit) for uuid, limits in told_w.items() for limit in limits]
    odd = [limit for want, limit in seen if None not in (want, limit) and limit != want]
    known = bool(used) and all(None not in pair for pair in seen) and all(meanwhile.get(gpu.uuid) for gpu in used)
    limits = sorted({limit for _, limit in seen if limit is not None})
    told = ", ".join(f"{limit:g} W" for limit in limits) or "not known"
    return Check(
        name="power limit at its default or declared",
        status="fail" if odd else "pass" if known else "unknown",
        figure=told if known or odd else f"{told}; not read throughout every pass",
        threshold=f"{declared_w:g} W as declared" if declared_w is not None else "the default limit, or power_limit_w",
        source="NVML, before the runner and once a second in the passes",
    )


def _clocks(used: Sequence[GpuConditions]) -> Check:
    """Whether anybody had set the clocks: a GPU that is held below what it can do has another energy per token."""
    limited = {one.gpu_uuid: one.clocks_limited_share for one in used if one.clocks_limited_share}
    known = bool(used) and all(one.clocks_limited_share is not None for one in used)
    told = [f"held down by a setting in {share:.0%} of a pass ({uuid})" for uuid, share in limited.items()]
    return Check(
        name="clocks at their defaults",
        status="fail" if limited else "pass" if known else "unknown",
        figure=", ".join(told) or ("no setting held them down" if known else "not told throughout every pass"),
        threshold="neither application nor locked clocks; nvidia-smi -rgc and -rac as root take them back",
        source="NVML's reasons for clocks, once a second in the passes",
    )


def _consistency(used: Sequence[GpuConditions]) -> Check:
    known = [(abs(one.power_over_counter), one) for one in used if one.power_over_counter is not None]
    worst = max((size for size, _ in known), default=0.0)
    status = "unknown" if not known or len(known) < len(used) else "pass" if worst <= MAX_POWER_DISAGREEMENT else "fail"
    figures = ", ".join(f"{one.power_over_counter:+.2%}" for _, one in known)
    return Check(
        name="counter and instant power consistent",
        status=status,
        figure=figures or "no counter and instant power throughout 5 s and more of every pass",
        threshold=f"within {MAX_POWER_DISAGREEMENT:.0%}; consistency of two readings, not accuracy",
        source="mean instant power in the worst pass, less a second or more at each end",
    )


def _events(environment: EnvironmentSnapshot, energy: EnergyResult, gpus: Mapping[str, GpuEvidence]) -> Check:
    facts = {uuid: energy.meter.get(uuid) for uuid in environment.gpu_uuids}
    unread = [
        uuid
        for uuid, fact in facts.items()
        if not fact or not ((uuid in gpus and gpus[uuid].counter_changes) or fact.source == "integrated_power")
    ]
    events = [event for fact in facts.values() if fact for event in fact.events]
    bad = [event for event in events if event.startswith(LOST)]
    gaps = f"{sum(event.startswith('gap') for event in events)} gaps between counter changes"
    return Check(
        name="meter without loss",
        status="fail" if bad else "unknown" if unread or not facts else "pass",
        figure="; ".join(bad) or (gaps if facts and not unread else " ".join(["no counter was read", *unread])),
        threshold="no reset, standstill or lost GPU, and no reading that broke off",
        source="the meter's own findings",
    )


def _roofline(compute: Compute | None) -> Check:
    """A figure that needs nearly all arithmetic and all bandwidth at once is too good to be true."""
    shares = (compute.peak_flops_share, compute.peak_memory_share_least) if compute else (None, None)
    if compute is None or shares[0] is None or shares[1] is None:
        why = (compute.reason or compute.peak_reason or "the weights' size is not known") if compute else "not computed"
        return Check(name="roofline", status="unknown", figure=why, threshold=f"{MAX_ROOFLINE_SHARE:.0%}")
    total = shares[0] + shares[1]
    return Check(
        name="roofline",
        status="pass" if total <= MAX_ROOFLINE_SHARE else "fail",
        figure=f"{shares[0]:.1%} of peak arithmetic + at least {shares[1]:.1%} of peak bandwidth = {total:.1%}",
        threshold=f"at most {MAX_ROOFLINE_SHARE:.0%} together",
        source=f"FLOPs from token counts; {compute.peak_source}",
    )


def _strays(above_w: Mapping[str, float | None]) -> Check:
    """An unused GPU that draws more in the passes than when everything was idle holds somebody's context."""
    known = {uuid: watts for uuid, watts in above_w.items() if watts is not None}
    worst_w = max(known.values(), default=0.0)
    figures = [f"{uuid} {watts:+.0f} W" for uuid, watts in known.items()]
    figures += [f"{uuid}: no idle baseline of each restart to compare with" for uuid in above_w if uuid not in known]
    return Check(
        name="unused GPUs at idle power",
        status="fail" if worst_w > MAX_STRAY_W else "pass" if len(known) == len(above_w) else "unknown",
        figure=", ".join(figures) or "no other GPU",
        threshold=f"at most {MAX_STRAY_W:g} W above idle in each pass",
        source="energy counter in the passes and before their runner started; set idle.duration_s",
    )


def _empty(energy: EnergyResult, environment: EnvironmentSnapshot) -> Check:
    """Memory or work that nobody of ours explains: a witness beside the process lists, which can be empty or late."""
    empty = [one for one in energy.idle_baselines or () if one.used and one.state == "empty"]
    known = [
        (one.memory_used_bytes, one.utilization_percent)
        for one in empty
        if one.memory_used_bytes is not None and one.utilization_percent is not None
    ]
    limit_bytes = _foreign_limit(environment)
    without = idle_missing(energy, environment.gpu_uuids, ("empty",))
    most_bytes = max((held for held, _ in known), default=0.0)
    busiest = max((percent for _, percent in known), default=0.0)
    failed = most_bytes > limit_bytes or busiest > MAX_EMPTY_PERCENT
    seen = f"{most_bytes / 1e9:.2f} GB in use, {busiest:.1f} % busy" if known else "no empty idle span"
    return Check(
        name="GPUs empty before the runner",
        status="fail" if failed else "unknown" if not known or without or len(known) < len(empty) else "pass",
        figure="; ".join([seen, *without]) if known else seen,
        threshold=f"{limit_bytes / 1e9:g} GB, {MAX_EMPTY_PERCENT:g} %",
        source="memory and utilisation in the idle spans before the runner of each restart started",
    )


def _foreign_limit(environment: EnvironmentSnapshot) -> float:
    """How much memory nobody needs to explain: more where the driver counts its own reserve as used."""
    used = environment.used_gpus
    apart = all(gpu.vram_reserved_bytes is not None for gpu in used)
    return MAX_FOREIGN_BYTES if apart else MAX_WITH_RESERVE_BYTES


def _memory(environment: EnvironmentSnapshot, gpus: Mapping[str, GpuEvidence]) -> Check:
    """Memory in the passes that the runner does not hold: of a process that came and went, or that no list shows.

    Never more than unknown: what an engine takes and gives back between two lists looks the same.
    """
    held = {uuid: gpus[uuid].foreign_bytes if uuid in gpus else None for uuid in environment.gpu_uuids}
    known = [size for size in held.values() if size is not None]
    limit_bytes = _foreign_limit(environment)
    passed = bool(known) and len(known) == len(held) and max(known) <= limit_bytes
    seen = f"up to {max(0.0, *known) / 1e9:.2f} GB beyond the runner's" if known else ""
    missing = [f"not known of {uuid}" for uuid, size in held.items() if size is None]
    return Check(
        name="memory in the passes is the runner's",
        status="pass" if passed else "unknown",
        figure="; ".join([*([seen] if seen else []), *missing]) or "no GPU was used",
        threshold=f"{limit_bytes / 1e9:g} GB",
        source="memory in use once a second, less the runner's by the process lists at the pass's begin and end",
    )


def _idle_loaded(energy: EnergyResult) -> Check:
    """An engine at rest runs no kernel; whoever does while the model is loaded is somebody else."""
    spans = [one for one in energy.idle_baselines or () if one.used and one.state != "empty"]
    known = [one.utilization_percent for one in spans if one.utilization_percent is not None]
    busiest = max(known, default=0.0)
    return Check(
        name="GPUs at rest around the passes",
        status="fail" if busiest > MAX_EMPTY_PERCENT else "pass" if known and len(known) == len(spans) else "unknown",
        figure=f"{busiest:.1f} % busy" if known else "no utilisation in the idle spans with the model loaded",
        threshold=f"{MAX_EMPTY_PERCENT:g} %",
        source="utilisation in the idle spans before and after the passes",
    )
