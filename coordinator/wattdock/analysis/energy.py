"""The energy of an experiment's measured passes, and what stands beside it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wattdock.analysis.cross_check import cross_check, host_energy, host_joules
from wattdock.analysis.energy_schema import CpuEstimate, EnergyResult, MeterFact, PassEnergy, Uncertainty
from wattdock.analysis.joules import SpanJoules, combined_timing_j
from wattdock.analysis.processes import processes_seen
from wattdock.metering import COUNTER_LAG
from wattdock.values import all_known, known_sum

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wattdock.analysis.joules import Joules
    from wattdock.analysis.result_schema import Performance
    from wattdock.metering import GpuTimeline, Timeline
    from wattdock.records import PassRecord, RestartRecord


@dataclass(frozen=True)
class Gpus:
    """Which GPUs an experiment used, which it held, and which were only on the same host; UUIDs."""

    used: tuple[str, ...]
    leased: tuple[str, ...]
    bystanders: tuple[str, ...]


def measured_energy(
    restarts: Sequence[RestartRecord],
    gpus: Gpus,
    performance: Performance | None,
    *,
    cpu_tdp_w: float,
    joules_in: SpanJoules | None = None,
) -> EnergyResult:
    """Return the energy of all measured passes of all restarts.

    Args:
        joules_in: Where others ask for the same spans too, so that these are computed once.
    """
    joules_in = joules_in or SpanJoules()
    passes = list(_passes(restarts))

    def per_pass(uuids: Sequence[str]) -> list[Joules]:
        return [joules_in.of(timeline, one.span, uuids) for _, timeline, one in passes]

    used = per_pass(gpus.used)
    reason = next((joules.reason for joules in used if joules.reason), None)
    if not passes:
        reason = "no pass was measured"
    total_j = None if reason else known_sum(joules.total_j for joules in used)
    host_j, host = host_energy(restarts)
    sources = sorted(frozenset[str]().union(*(joules.sources for joules in used)))
    return EnergyResult(
        total_j=total_j,
        reason=reason,
        uncertainty=Uncertainty(
            timing_j=None if reason else combined_timing_j(used),
            counter_lag_s=COUNTER_LAG.mean_s,
            counter_lag_std_s=COUNTER_LAG.std_s,
        ),
        per_gpu_j=_summed(joules.per_gpu_j for joules in used),
        allocation_j=known_sum(joules.total_j for joules in per_pass(gpus.leased)) if passes else None,
        bystander_j=_summed(joules.per_gpu_j for joules in per_pass(gpus.bystanders)),
        load_j=_load_j(restarts, gpus.used, joules_in),
        source="+".join(sources) or None,
        **_per_unit(total_j, performance),
        passes=[_pass_energy(*seen, joules) for seen, joules in zip(passes, used, strict=True)],
        cross_check=cross_check(restarts, gpus.used, joules_in),
        host_j=host_j,
        host=host,
        meter=_meter_facts(restarts),
        gpu_processes=processes_seen(restarts),
        cpu_estimate=_cpu_estimate([one for _, _, one in passes], cpu_tdp_w),
    )


def _passes(restarts: Sequence[RestartRecord]) -> Iterator[tuple[int, Timeline | None, PassRecord]]:
    return ((one.restart, one.timeline, measured) for one in restarts for measured in one.passes)


def _summed(parts: Iterable[dict[str, float | None]]) -> dict[str, float | None]:
    """Add up per GPU; one unknown part makes the GPU's sum unknown."""
    sums: dict[str, float | None] = {}
    for part in parts:
        for uuid, value in part.items():
            so_far = sums.get(uuid, 0.0)
            sums[uuid] = None if value is None or so_far is None else so_far + value
    return sums


def _load_j(restarts: Sequence[RestartRecord], uuids: Sequence[str], joules_in: SpanJoules) -> float | None:
    """Return the mean over restarts of the energy of loading."""
    loads = all_known(
        joules_in.of(one.timeline, span, uuids).total_j for one in restarts for span in one.spans if span.name == "load"
    )
    return float(np.mean(loads)) if loads else None


def _per_unit(total_j: float | None, done: Performance | None) -> dict[str, Any]:
    if total_j is None or done is None:
        return {}
    all_tokens = None if done.prompt_tokens is None else done.prompt_tokens + done.output_tokens
    return {
        "energy_per_output_token_j": _ratio(total_j, done.output_tokens),
        "energy_per_input_token_j": _ratio(total_j, done.prompt_tokens),
        "energy_per_token_j": _ratio(total_j, all_tokens),
        "energy_per_request_j": _ratio(total_j, done.requests),
        "mean_power_w": _ratio(total_j, done.duration_s),
    }


def _ratio(total_j: float | None, count: float | None) -> float | None:
    return total_j / count if total_j is not None and count else None


def _pass_energy(restart: int, timeline: Timeline | None, one: PassRecord, joules: Joules) -> PassEnergy:
    host = host_joules(timeline, one.span)
    return PassEnergy(
        restart=restart,
        pass_index=one.index,
        duration_s=one.span.duration_s,
        output_tokens=one.output_tokens,
        total_j=joules.total_j,
        timing_j=joules.timing_j,
        per_gpu_j=joules.per_gpu_j,
        energy_per_output_token_j=_ratio(joules.total_j, one.output_tokens),
        reason=joules.reason,
        prompt_repeats=one.prompt_repeats,
        prompts_reused=one.prompts_reused,
        host_j={name: found[0] if found else None for name, found in host.items()},
        cpu_others_share=one.cpu_others_share,
    )


def _meter_facts(restarts: Sequence[RestartRecord]) -> dict[str, MeterFact]:
    """Return, per GPU of the host, how well it was read over all restarts."""
    seen: dict[str, list[GpuTimeline]] = {}
    for one in restarts:
        for uuid, gpu in one.gpus.items():
            seen.setdefault(uuid, []).append(gpu)
    return {uuid: _meter_fact(timelines) for uuid, timelines in seen.items()}


def _meter_fact(timelines: list[GpuTimeline]) -> MeterFact:
    periods = [gpu.period_s for gpu in timelines if gpu.period_s is not None]
    busy = [gpu.busy_fraction for gpu in timelines if gpu.busy_fraction is not None]
    counted = timelines[-1].energy_source == "counter"
    lag = timelines[-1].lag or (COUNTER_LAG if counted else None)
    return MeterFact(
        source=timelines[-1].energy_source,
        counter_period_s=float(np.median(periods)) if periods else None,
        nvml_busy_fraction=max(busy, default=None),
        ticks=sum(len(gpu.ticks.energy_mj) for gpu in timelines),
        process_lists=sum(len(gpu.processes) for gpu in timelines),
        events=[f"{event.kind}: {event.message}" for gpu in timelines for event in gpu.events],
        counter_lag_s=lag.mean_s if lag else None,
        counter_lag_std_s=lag.std_s if lag else None,
        card=timelines[-1].card,
    )


def _cpu_estimate(passes: list[PassRecord], tdp_w: float) -> CpuEstimate | None:
    durations_s = [one.span.duration_s for one in passes]
    if not (shares := all_known(one.cpu_busy for one in passes)):
        return None
    busy_s = sum(share * duration_s for share, duration_s in zip(shares, durations_s, strict=True))
    return CpuEstimate(
        energy_j=busy_s * tdp_w,
        method="busy share of all CPUs of this machine × assumed power; an estimate, not a measurement",
        assumed_tdp_w=tdp_w,
        cpu_busy=busy_s / sum(durations_s),
    )
