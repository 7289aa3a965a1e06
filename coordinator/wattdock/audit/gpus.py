"""Audit checks on the meter and the GPUs: what was read, whether readings agree, whether GPUs were as set. Pure."""

from __future__ import annotations

from math import inf

from wattdock.analysis import Audit
from wattdock.audit.check import AuditInput, Checklist, Outcome, verdict
from wattdock.text import pluralize

# Throttling reasons that are faults; a GPU at its default limit is meant to run into the software power cap.
FAULTS = ("thermal", "board_limit", "reliability")
MAX_FAULT_SHARE = 0.001
# Largest difference of sampled power and counter; eight GPU-passes of 20 s with bursts agreed within 0.9 % on H200s.
MAX_POWER_DISAGREEMENT = 0.03
# Shortest pass, in seconds, of which power can be held against the counter: 5 s, and a second at each end.
SHORT_S = 7.0
# Largest share of a published peak; pulses of copies reach 0.89 of an H200's bandwidth, kept runs 0.62.
MAX_PEAK_SHARE = 0.9
LOST = ("counter_reset", "gpu_lost", "counter_frozen", "broke_off")

CHECKS = Checklist[AuditInput]()


@CHECKS.check(
    Audit.METER,
    question="wrong",
    threshold="joules of every GPU used from its energy counter, without reset, freeze, loss or abort",
    source="the meter's own events",
    remedy="measure on a machine with an NVIDIA GPU (wattdock doctor)",
)
def metered(inputs: AuditInput) -> Outcome:
    """Whether there is a total over the GPUs used, by their counters, and the meter lost nothing.

    What the host's own counters lost is told, and is in no verdict: they are in no figure but their own.
    """
    energy, used = inputs.energy, inputs.result.used_gpus
    recorded = ((each.restart, each.timeline.host) for each in inputs.restarts if each.timeline and each.timeline.host)
    lost_by_host = [f"RAPL, restart {at + 1}: {event.message}" for at, host in recorded for event in host.events]
    if not inputs.environment.gpu_count:
        return Outcome("fail", "; ".join([f"no GPU was used: {energy.reason}", *lost_by_host]))
    events = [event for gpu in used.values() for event in gpu.events]
    lost = [f"{event.kind}: {event.message}" for event in events if event.kind in LOST]
    figure = "; ".join([*([f"not measured: {energy.reason}"] if energy.reason else []), *lost, *lost_by_host])
    if energy.total_j is None or lost:
        return Outcome("fail", figure or "no joules", remedy="see wattdock doctor")
    if unread := [uuid for uuid, gpu in used.items() if not gpu.counter_changes]:
        return Outcome("unknown", f"no counter was read of {', '.join(unread)}")
    gaps = sum(event.kind in ("gap", "sample_gap") for event in events)
    return Outcome("pass", "; ".join([f"counter, {gaps} gaps between its changes", *lost_by_host]))


@CHECKS.check("clock", question="wrong")
def clock_trusted(inputs: AuditInput) -> Outcome:
    """Whether the runner's clock was the host's after every pass; unknown where a runner died before the check."""
    clock = inputs.environment.clock
    slowest = "unknown" if clock.round_trip_max_s is None else f"{clock.round_trip_max_s * 1e3:.1f} ms"
    unchecked = clock.unchecked_passes
    missing = f"; not checked after {pluralize(unchecked, 'pass', 'passes')}" if unchecked else ""
    status = verdict(failed=not clock.trusted, known=not unchecked)
    return Outcome(status, f"{clock.checks} checks, round trip at most {slowest}{missing}")


@CHECKS.check(
    "two readings",
    question="wrong",
    threshold=f"power within {MAX_POWER_DISAGREEMENT:.0%}; consistency of two readings, not accuracy",
    source="counter against mean instant power in the worst pass, less a second or more at each end; a second meter",
)
def readings_agree(inputs: AuditInput) -> Outcome | None:
    """Whether the energy counter agrees with the power reading, and with a second meter where there is one.

    Readings of one GPU that disagree are wrong though those of another are unknown.
    """
    if not inputs.environment.gpu_count:
        return None
    every = [gpu.power_over_counter for gpu in inputs.result.used_gpus.values()]
    ratios = [ratio for ratio in every if ratio is not None]
    known = bool(ratios) and len(ratios) == len(every)
    failed = max(map(abs, ratios), default=0.0) > MAX_POWER_DISAGREEMENT
    figures = [f"{ratio:+.2%}" for ratio in ratios] or ["no counter and power throughout 5 s and more of every pass"]
    if crossed := inputs.energy.cross_check:
        differences = [(abs(window.difference_j or 0.0), window.bound_j or 0.0) for window in crossed.windows]
        off_j, bound_j = max(differences, key=lambda window: window[0] - window[1])
        reason = next((window.reason for window in crossed.windows if window.reason), None)
        known, differ = known and not reason, off_j > bound_j
        differs = f"{crossed.source} differs by {off_j:.1f} J where counter steps allow {bound_j:.1f} J"
        figures += [text for text in (differs if differ or not reason else None, reason) if text]
        failed = failed or differ
    short = min((run_pass.duration_s for run_pass in inputs.energy.passes), default=inf) < SHORT_S
    longer = "let the command run longer" if inputs.config.command else "make passes longer: workload.min_duration_s"
    remedy = longer if short and not ratios else None
    return Outcome(verdict(failed=failed, known=known), "; ".join(figures), remedy=remedy)


@CHECKS.check(
    "throttling",
    question="wrong",
    threshold=f"thermal, board limit or reliability at most {MAX_FAULT_SHARE:.1%} of any pass",
    source="NVML's cumulative violation counters",
)
def throttling(inputs: AuditInput) -> Outcome | None:
    """Whether anything but the software power cap held the GPUs' clocks down."""
    if not inputs.environment.gpu_count:
        return None
    by_gpu = {uuid: gpu.worst_pass_throttled_share or {} for uuid, gpu in inputs.result.used_gpus.items()}
    every = {f"{reason} on {uuid}": share.get(reason) for uuid, share in by_gpu.items() for reason in FAULTS}
    shares = [(share, where) for where, share in every.items() if share is not None]
    unknown = [where for where, share in every.items() if share is None]
    worst, where = max(shares, default=(0.0, ""))
    figure = f"{worst:.2%} of the worst pass ({where})" if worst else "none" if shares else "no violation counters"
    missing = f"; not known throughout: {', '.join(unknown)}" if unknown else ""
    return Outcome(verdict(failed=worst > MAX_FAULT_SHARE, known=bool(every) and not unknown), figure + missing)


@CHECKS.check(
    "GPU settings",
    question="wrong",
    source="NVML, before the runner and once a second in the passes",
)
def as_set(inputs: AuditInput) -> Outcome | None:
    """Whether power limit and clocks were the intended ones, before the last runner started and in every pass.

    A workload power profile in force is named.
    """
    if not (used := inputs.environment.used_gpus):
        return None
    declared_w = inputs.config.power_limit_w
    limit = f"{declared_w:g} W as declared" if declared_w is not None else "the default power limit, or power_limit_w"
    results = inputs.result.used_gpus
    in_passes_w = {uuid: gpu.power_limits_w or () for uuid, gpu in results.items()}
    pairs_w = [
        (gpu.power_limit_default_w if declared_w is None else declared_w, limit_w)
        for gpu in used
        for limit_w in (gpu.power_limit_w, *in_passes_w.get(gpu.uuid, ()))
    ]
    odd = any(None not in pair and pair[0] != pair[1] for pair in pairs_w)
    shares = {uuid: gpu.clocks_limited_share for uuid, gpu in results.items()}
    limited = {uuid: share for uuid, share in shares.items() if share}
    known = all(None not in pair for pair in pairs_w) and all(in_passes_w.get(gpu.uuid) for gpu in used)
    limits_w = sorted({limit_w for _, limit_w in pairs_w if limit_w is not None})
    figures = [", ".join(f"{limit_w:g} W" for limit_w in limits_w) or "power limit not known"]
    figures += [f"power profile {name}" for name in inputs.environment.power_profiles]
    figures += [f"clocks held down by a setting in {share:.0%} of a pass ({uuid})" for uuid, share in limited.items()]
    if known and None not in shares.values():
        return Outcome(
            verdict(failed=odd or bool(limited)),
            ", ".join(figures),
            f"{limit}; neither application nor locked clocks",
            remedy="set power_limit_w to the limit that is meant"
            if odd
            else "as root: nvidia-smi -rgc; nvidia-smi -rac",
        )
    figures += [] if odd else ["not read throughout every pass"]
    return Outcome(verdict(failed=odd or bool(limited), known=False), ", ".join(figures), limit)


@CHECKS.check("possible speed", question="wrong", threshold=f"each at most {MAX_PEAK_SHARE:.0%} of its peak")
def possible_speed(inputs: AuditInput) -> Outcome | None:
    """Whether the speed is possible: no workload uses nearly all arithmetic, or nearly all bandwidth."""
    if not inputs.environment.gpu_count or (compute := inputs.result.compute) is None:
        return None
    arithmetic, memory = compute.peak_flops_share, compute.peak_memory_share_least
    if arithmetic is None or memory is None:
        return Outcome("unknown", compute.reason or compute.peak_reason or "the weights' size is not known")
    bits = min(compute.arithmetic_bits or 16, 16)
    figure = f"{arithmetic:.1%} of peak {bits}-bit arithmetic, at least {memory:.1%} of bandwidth"
    energy = inputs.result.energy
    if energy and energy.mean_hbm_power_w is not None and compute.hbm_j_per_byte_most is not None:
        figure += f"; HBM {energy.mean_hbm_power_w:,.0f} W, at most {compute.hbm_j_per_byte_most * 1e12:.3g} pJ/byte"
    source = f"FLOPs from token counts; {compute.peak_source}"
    return Outcome(verdict(failed=max(arithmetic, memory) > MAX_PEAK_SHARE), figure, source=source)
