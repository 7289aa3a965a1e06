"""Audit checks on the GPUs: what throttled them, whether their readings agree, whether the figure is possible. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock.analysis import Audit
from wattdock.audit.check import AuditInput, Checklist, Outcome, verdict
from wattdock.audit.procedure import looser
from wattdock.config import ExperimentConfig, IdleSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

# Throttling reasons that are faults; a GPU at its default limit is meant to run into the software power cap.
FAULTS = ("thermal", "board_limit", "reliability")
MAX_FAULT_SHARE = 0.001
# Largest difference of sampled power and counter; eight GPU-passes of 20 s with bursts agreed within 0.9 % on H200s.
MAX_POWER_DISAGREEMENT = 0.03
# Largest share of a published peak; pulses of copies reach 0.89 of an H200's bandwidth, kept runs 0.62.
MAX_PEAK_SHARE = 0.9
# Most power above idle of an unused GPU: half of what a CUDA context draws on an H200 (41 W).
MAX_STRAY_W = 20.0
# Half of the smallest context (0.55 GB); an H200's driver holds 0.64 GB of an idle GPU, which older ones count as used.
# In twelve passes kept from H200s what was in use and what the runner was listed with differed by 0.009 GB.
MAX_FOREIGN_BYTES, MAX_WITH_RESERVE_BYTES, MAX_EMPTY_PERCENT = 0.3e9, 1.0e9, 1.0
LOST = ("counter_reset", "gpu_lost", "counter_frozen", "broke_off")

# Limits of publication, whatever a study sets: the defaults.
IDLE_LIMITS = IdleSpec()
MIN_IDLE_S: float = ExperimentConfig.PUBLICATION["idle.duration_s"]
IDLE_STATES = ("empty", "loaded_before", "loaded_after")

CHECKS = Checklist[AuditInput]()


def idle_missing(inputs: AuditInput, states: Sequence[str] = IDLE_STATES) -> list[str]:
    """Return which idle spans are missing: of each GPU used, in each restart with passes."""
    energy = inputs.energy
    recorded_spans = {(idle.restart, idle.gpu_uuid, idle.state) for idle in energy.idle_baselines or ()}
    return [
        f"restart {restart + 1}: no {', '.join(missing)} of {uuid}"
        for restart in sorted({run_pass.restart for run_pass in energy.passes})
        for uuid in inputs.environment.gpu_uuids
        if (missing := [state for state in states if (restart, uuid, state) not in recorded_spans])
    ]


@CHECKS.check(
    "idle baselines",
    needs=("GPUs",),
    setting="idle.duration_s",
    threshold=f"empty and loaded before and after in each restart, {MIN_IDLE_S:g} s each, settled within "
    f"{IDLE_LIMITS.settled:.0%} and {IDLE_LIMITS.temperature_c:g} °C",
    source="energy counter",
    remedy="set idle.duration_s=30",
)
def idle_baselines(inputs: AuditInput) -> Outcome:
    """Whether idle power was measured before and around each restart's passes, with the GPUs settled."""
    energy = inputs.energy
    used = [idle for idle in energy.idle_baselines or () if idle.used]
    unsettled = [f"{idle.gpu_uuid} {idle.state}: {idle.unsettled}" for idle in used if idle.unsettled]
    unsettled += looser("idle", inputs.config.idle, IDLE_LIMITS)
    shortest = min((idle.duration_s for idle in used), default=0.0)
    watts = [idle.mean_power_w for idle in used if idle.mean_power_w is not None]
    missing = idle_missing(inputs)
    # A runner that was cut off lacks the span after its passes, though another runner continued its restart.
    if energy.total_j is not None and energy.net_j is None and not missing:
        missing = [energy.net_reason or "above idle unknown"]
    cold = sorted({idle.gpu_uuid for idle in used if idle.temperature_c is None and not idle.unsettled})
    figures = [f"{min(watts):.1f} to {max(watts):.1f} W over {shortest:.0f} s"] if watts else ["none taken"]
    figures = [*unsettled, *missing] or figures if watts else figures
    figures += [f"without a temperature, which {', '.join(cold)} does not have"] if cold else []
    complete = bool(used) and not missing and len(watts) == len(used)
    failed = complete and (bool(unsettled) or shortest < MIN_IDLE_S)
    return Outcome(verdict(failed=failed, known=complete), "; ".join(figures))


@CHECKS.check(
    "throttling",
    group="wrong",
    needs=("GPUs",),
    threshold=f"thermal, board limit or reliability at most {MAX_FAULT_SHARE:.1%} of any pass",
    source="NVML's cumulative violation counters",
)
def throttling(inputs: AuditInput) -> Outcome:
    """Whether anything but the software power cap held the GPUs' clocks down."""
    share_by_gpu = [(uuid, gpu.worst_pass_throttled_share or {}) for uuid, gpu in inputs.result.used_gpus.items()]
    shares = [
        (share[reason], f"{reason} on {uuid}") for uuid, share in share_by_gpu for reason in FAULTS if reason in share
    ]
    unknown = [f"{reason} on {uuid}" for uuid, share in share_by_gpu for reason in FAULTS if reason not in share]
    worst, where = max(shares, default=(0.0, ""))
    figure = f"{worst:.2%} of the worst pass ({where})" if worst else "none" if shares else "no violation counters"
    missing = f"; not known throughout: {', '.join(unknown)}" if unknown else ""
    return Outcome(verdict(failed=worst > MAX_FAULT_SHARE, known=bool(share_by_gpu) and not unknown), figure + missing)


@CHECKS.check(
    "software power cap",
    source="NVML's cumulative violation counters; expected at the default power limit",
)
def software_power_cap(inputs: AuditInput) -> Outcome:
    """How long the software power cap held clocks down, and what they were: information at the default limit."""
    if not (used := inputs.result.used_gpus.values()):
        return Outcome("info", "no GPU was used")
    shares = [gpu.throttled_share["power"] for gpu in used if gpu.throttled_share and "power" in gpu.throttled_share]
    clocks = [gpu.mean_sm_clock_mhz for gpu in used if gpu.mean_sm_clock_mhz is not None]
    at = f", mean SM clock {min(clocks):,.0f} to {max(clocks):,.0f} MHz" if clocks else ""
    return Outcome("info", f"up to {max(shares):.1%} of the time{at}") if shares else Outcome("info", "not known")


@CHECKS.check(
    "power limit",
    group="wrong",
    needs=("GPUs",),
    source="NVML, before the runner and once a second in the passes",
)
def power_limit(inputs: AuditInput) -> Outcome:
    """Whether the power limit was the intended one before the last runner started and in every pass."""
    declared_w = inputs.config.power_limit_w
    threshold = f"{declared_w:g} W as declared" if declared_w is not None else "the default limit, or power_limit_w"
    used = inputs.environment.used_gpus
    in_passes_w = {uuid: gpu.power_limits_w or () for uuid, gpu in inputs.result.used_gpus.items()}
    pairs_w = [
        (gpu.power_limit_default_w if declared_w is None else declared_w, limit_w)
        for gpu in used
        for limit_w in (gpu.power_limit_w, *in_passes_w.get(gpu.uuid, ()))
    ]
    odd = any(None not in pair and pair[0] != pair[1] for pair in pairs_w)
    known = bool(used) and all(None not in pair for pair in pairs_w) and all(in_passes_w.get(gpu.uuid) for gpu in used)
    limits_w = sorted({limit_w for _, limit_w in pairs_w if limit_w is not None})
    figure = ", ".join(f"{limit_w:g} W" for limit_w in limits_w) or "not known"
    missing = "" if known or odd else "; not read throughout every pass"
    remedy = "set power_limit_w to the limit that is meant" if odd else None
    return Outcome(verdict(failed=odd, known=known), figure + missing, threshold, remedy=remedy)


@CHECKS.check(
    "clock limits",
    group="wrong",
    needs=("GPUs",),
    threshold="neither application nor locked clocks",
    source="NVML's reasons for clocks, once a second in the passes",
)
def clocks(inputs: AuditInput) -> Outcome:
    """Whether a setting held clocks down: such a GPU has another energy per token."""
    shares = {uuid: gpu.clocks_limited_share for uuid, gpu in inputs.result.used_gpus.items()}
    limited = {uuid: share for uuid, share in shares.items() if share}
    known = bool(shares) and None not in shares.values()
    figures = [f"held down by a setting in {share:.0%} of a pass ({uuid})" for uuid, share in limited.items()]
    otherwise = "no setting held them down" if known else "not reported throughout every pass"
    remedy = "as root: nvidia-smi -rgc; nvidia-smi -rac" if limited else None
    return Outcome(verdict(failed=bool(limited), known=known), ", ".join(figures) or otherwise, remedy=remedy)


@CHECKS.check(
    "counter against power readings",
    group="wrong",
    needs=("energy",),
    threshold=f"within {MAX_POWER_DISAGREEMENT:.0%}; consistency of two readings, not accuracy",
    source="mean instant power in the worst pass, less a second or more at each end",
)
def power_consistent(inputs: AuditInput) -> Outcome:
    """Whether the energy counter and the power reading agree."""
    every = [gpu.power_over_counter for gpu in inputs.result.used_gpus.values()]
    ratios = [ratio for ratio in every if ratio is not None]
    if not ratios:
        return Outcome("unknown", "no counter and instant power throughout 5 s and more of every pass")
    complete = len(ratios) == len(every)
    failed = complete and max(map(abs, ratios)) > MAX_POWER_DISAGREEMENT
    return Outcome(verdict(failed=failed, known=complete), ", ".join(f"{ratio:+.2%}" for ratio in ratios))


@CHECKS.check(
    "meter losses",
    group="wrong",
    needs=("GPUs",),
    threshold="no counter reset, frozen counter, lost GPU or aborted recording",
    source="the meter's own events",
)
def meter_without_loss(inputs: AuditInput) -> Outcome:
    """Whether the meter read every GPU used in every restart, without a loss."""
    used = inputs.result.used_gpus
    unread = [uuid for uuid, gpu in used.items() if not (gpu.counter_changes or gpu.source == "integrated_power")]
    events = [event for gpu in used.values() for event in gpu.events]
    if bad := [f"{event.kind}: {event.message}" for event in events if event.kind in LOST]:
        return Outcome("fail", "; ".join(bad))
    if unread or not used:
        return Outcome("unknown", " ".join(["no counter was read", *unread]))
    return Outcome(
        "pass", f"{sum(event.kind in ('gap', 'sample_gap') for event in events)} gaps between counter changes"
    )


@CHECKS.check(
    "possible speed", group="wrong", needs=("GPUs",), threshold=f"each at most {MAX_PEAK_SHARE:.0%} of its peak"
)
def possible_speed(inputs: AuditInput) -> Outcome:
    """Whether the speed is possible: no workload uses nearly all arithmetic, or nearly all bandwidth."""
    if (compute := inputs.result.compute) is None:
        return Outcome("unknown", "not computed")
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


@CHECKS.check(
    "power of unused GPUs",
    group="wrong",
    needs=("idle baselines",),
    threshold=f"at most {MAX_STRAY_W:g} W above idle in each pass",
    source="energy counter in the passes and before their runner started",
    remedy="set idle.duration_s; end what runs on the host's other GPUs",
)
def unused_gpus_idle(inputs: AuditInput) -> Outcome:
    """Whether unused GPUs drew no more in the passes than when idle: a GPU that does holds somebody's CUDA context."""
    above_w = {uuid: gpu.above_idle_w for uuid, gpu in inputs.result.gpus.items() if not gpu.used}
    measured_w = {uuid: watts for uuid, watts in above_w.items() if watts is not None}
    figures = [f"{uuid} {watts:+.0f} W" for uuid, watts in measured_w.items()]
    figures += [
        f"{uuid}: no idle baseline of each restart to compare with" for uuid in above_w if uuid not in measured_w
    ]
    failed = max(measured_w.values(), default=0.0) > MAX_STRAY_W
    return Outcome(verdict(failed=failed, known=len(measured_w) == len(above_w)), ", ".join(figures) or "no other GPU")


@CHECKS.check(
    "GPU use before the runner",
    group="wrong",
    needs=("GPUs", "idle baselines"),
    source="memory and utilisation in the idle spans before the runner of each restart started",
    remedy="set idle.duration_s; wattdock gpus shows who uses a GPU",
)
def gpus_empty(inputs: AuditInput) -> Outcome:
    """Whether the GPUs were empty before the runner started; process lists alone can be empty or late."""
    limit_bytes = _foreign_limit(inputs)
    threshold = f"{limit_bytes / 1e9:g} GB, {MAX_EMPTY_PERCENT:g} %"
    empty = [idle for idle in inputs.energy.idle_baselines or () if idle.used and idle.state == "empty"]
    readings = [
        (idle.memory_used_bytes, idle.utilization_percent)
        for idle in empty
        if idle.memory_used_bytes is not None and idle.utilization_percent is not None
    ]
    if not readings:
        return Outcome("unknown", "no empty idle span", threshold)
    missing = idle_missing(inputs, ("empty",))
    most_bytes, busiest = max(size_bytes for size_bytes, _ in readings), max(percent for _, percent in readings)
    failed = most_bytes > limit_bytes or busiest > MAX_EMPTY_PERCENT
    figure = f"{most_bytes / 1e9:.2f} GB in use, {busiest:.1f} % busy"
    status = verdict(failed=failed, known=not missing and len(readings) == len(empty))
    return Outcome(status, "; ".join([figure, *missing]), threshold)


def _foreign_limit(inputs: AuditInput) -> float:
    """Return how many bytes in use need no explanation: more where the driver counts its own reserve as used."""
    used = inputs.environment.used_gpus
    apart = all(gpu.vram_reserved_bytes is not None for gpu in used)
    return MAX_FOREIGN_BYTES if apart else MAX_WITH_RESERVE_BYTES


@CHECKS.check(
    Audit.MEMORY_ALONE,
    needs=("GPUs",),
    source="memory in use once a second, less the runner's by the process lists at the pass's begin and end",
)
def memory_in_passes(inputs: AuditInput) -> Outcome:
    """Whether memory in the passes is the runner's, not that of a process that came and went unlisted.

    Never worse than unknown: what an engine allocates and frees between two lists looks the same.
    """
    foreign_bytes = {uuid: gpu.foreign_bytes for uuid, gpu in inputs.result.used_gpus.items()}
    sizes_bytes = [size for size in foreign_bytes.values() if size is not None]
    limit_bytes = _foreign_limit(inputs)
    passed = bool(sizes_bytes) and len(sizes_bytes) == len(foreign_bytes) and max(sizes_bytes) <= limit_bytes
    figures = [f"up to {max(0.0, *sizes_bytes) / 1e9:.2f} GB beyond the runner's"] if sizes_bytes else []
    figures += [f"not known of {uuid}" for uuid, size in foreign_bytes.items() if size is None]
    figure = "; ".join(figures) or "no GPU was used"
    return Outcome(verdict(failed=False, known=passed), figure, f"{limit_bytes / 1e9:g} GB")


@CHECKS.check(
    "GPU use around the passes",
    group="wrong",
    needs=("GPUs", "idle baselines"),
    threshold=f"{MAX_EMPTY_PERCENT:g} %",
    source="utilisation in the idle spans before and after the passes",
)
def used_gpus_idle(inputs: AuditInput) -> Outcome:
    """Whether no kernel ran while the loaded engine was idle: any kernel then was somebody else's."""
    spans = [idle for idle in inputs.energy.idle_baselines or () if idle.used and idle.state != "empty"]
    percents = [idle.utilization_percent for idle in spans if idle.utilization_percent is not None]
    if not percents:
        return Outcome("unknown", "no utilisation in the idle spans with the model loaded")
    status = verdict(failed=max(percents) > MAX_EMPTY_PERCENT, known=len(percents) == len(spans))
    return Outcome(status, f"{max(percents):.1f} % busy")


@CHECKS.check("second meter", group="wrong")
def meters_agree(inputs: AuditInput) -> Outcome | None:
    """Whether a second meter's windows differ from ours by no more than the counters' steps."""
    if (crossed := inputs.energy.cross_check) is None:
        return None
    if reason := next((window.reason for window in crossed.windows if window.reason), None):
        return Outcome("unknown", reason)
    differences = [(abs(window.difference_j or 0.0), window.bound_j or 0.0) for window in crossed.windows]
    off_j, bound_j = max(differences, key=lambda window: window[0] - window[1])
    figure = f"{crossed.source} differs by {off_j:.1f} J where counter steps allow {bound_j:.1f} J"
    return Outcome(verdict(failed=any(off > bound for off, bound in differences)), figure)
