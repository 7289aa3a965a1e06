"""The energy of an experiment's measured passes, and its uncertainty. Pure.

Names carry units. Not measured is null, with a reason beside it, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from wattdock.analysis.gpus import ListedProcess, listed_processes
from wattdock.analysis.joules import (
    NORMAL95,
    CrossCheck,
    HostEnergy,
    combined_timing_j,
    cross_check,
    host_energy,
    host_joules,
)
from wattdock.analysis.pass_energy import PassEnergy, SteadyState, Uncertainty
from wattdock.analysis.statistics import statistical_j
from wattdock.analysis.steadiness import IdleBaseline, idle_baselines, idle_energy_j
from wattdock.analysis.token_costs import TokenCosts, token_costs
from wattdock.analysis.waterfall import Waterfall, waterfall
from wattdock.analysis.windows import Phases, WindowSummary, phases, windows
from wattdock.metering import EnergyCurve
from wattdock.values import Stored, all_known, known_sum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.analysis.joules import Joules, SpanJoules
    from wattdock.analysis.windows import WindowFigure
    from wattdock.config import ExperimentConfig
    from wattdock.metering import Span
    from wattdock.records import PassRecord, RestartRecord

ENERGY_BOUNDARY: Literal["gpu_boards"] = "gpu_boards"
BOUNDARY_STATEMENT = (
    "GPU boards as their own sensors see them: HBM and on-GPU NVLink included; NVSwitch, PCIe root, host CPU, "
    "DRAM, NIC, fans and power-supply loss not. The background literature puts what a sum over GPUs misses of the GPU "
    "fabric at 3-10 %; a whole server's share is tens of percent. No correction is applied."
)
# Gross is the primary figure.
NET_MEANING = (
    "energy above idle with the model loaded; not avoidable energy: an idle GPU that is kept ready draws the rest"
)
NO_IDLE_POWER = "no idle power of every GPU before and after the passes of each runner; set idle.duration_s"


class EnergyResult(Stored):
    """Joules of the measured passes, summed over the GPUs used.

    Attributes:
        reason: Why `total_j` is null, where it is.
        allocation_j: Over all GPUs that were leased for the experiment.
        bystander_j: GPUs of the host that the experiment did not use, by UUID.
        load_j: Loading the model, over the GPUs used.
        energy_per_output_token_j, mean_power_w: Of the headline's window, see `windows.headline`.
        energy_per_request_j, energy_per_input_token_j, energy_per_total_token_j: *All* joules of the whole passes ÷
            their requests, their prompt tokens (cached ones, too), their prompt and output tokens: the same joules
            shared out in several ways, never to be added. What one prompt token costs stands in `token_costs`.
        cross_check: A second meter's figures of the same passes; null without one.
        host_j: CPU packages and memory of the whole host by domain ("package-0", "package-0-dram"), never part of any
            other figure; empty, with `host` null, where they cannot be read.
        net_j: Total less the energy of the same GPUs idle with the model loaded, at their mean power before and after
            the passes.
        net_uncertainty_j: Root of squares of half the difference of the powers before and after, of their timing and of
            the total's timing.
        waterfall: Null where `net_j` is.
        hbm_j: Of the memory of the GPUs used: a part of `total_j`, never to be added to it. The driver's own figure,
            from means over one second, and for passes of 5 s and more only; its gain is unknown.
        hbm_timing_j: Its standard uncertainty from timing.
        hbm_reason: Why `hbm_j` is null, where it is.
    """

    energy_boundary: Literal["gpu_boards"] = ENERGY_BOUNDARY
    boundary_statement: str = BOUNDARY_STATEMENT
    total_j: float | None
    reason: str | None = None
    uncertainty: Uncertainty
    per_gpu_j: dict[str, float | None]
    allocation_j: float | None = None
    bystander_j: dict[str, float | None] = Field(default_factory=dict)
    load_j: float | None = None
    source: str | None = None
    energy_per_output_token_j: float | None = None
    energy_per_request_j: float | None = None
    energy_per_input_token_j: float | None = None
    energy_per_total_token_j: float | None = None
    mean_power_w: float | None = None
    hbm_j: float | None = None
    hbm_timing_j: float | None = None
    hbm_reason: str | None = None
    mean_hbm_power_w: float | None = None
    passes: list[PassEnergy] = Field(default_factory=list)
    windows: WindowSummary | None = None
    idle_baselines: list[IdleBaseline] | None = None
    net_j: float | None = None
    net_uncertainty_j: float | None = None
    net_reason: str | None = None
    net_meaning: str = NET_MEANING
    phases: Phases | None = None
    waterfall: Waterfall | None = None
    token_costs: TokenCosts | None = None
    cross_check: CrossCheck | None = None
    host_j: dict[str, float | None] = Field(default_factory=dict)
    host: HostEnergy | None = None
    gpu_processes: list[ListedProcess] = Field(default_factory=list)

    @property
    def hbm95_j(self) -> float | None:
        """Half the width of the 95 % interval of `hbm_j` from timing alone."""
        return None if self.hbm_timing_j is None else NORMAL95 * self.hbm_timing_j


@dataclass(frozen=True)
class Gpus:
    """UUIDs of the GPUs that an experiment used, leased, and did not use on its host."""

    used: tuple[str, ...]
    leased: tuple[str, ...]
    bystanders: tuple[str, ...]


def measured_energy(
    restarts: Sequence[RestartRecord],
    gpus: Gpus,
    config: ExperimentConfig,
    joules_in: SpanJoules,
) -> EnergyResult:
    """Return the energy of all measured passes of all restarts."""
    passes = [(restart, measured) for restart in restarts for measured in restart.passes]

    def per_pass(uuids: Sequence[str]) -> list[Joules]:
        return [joules_in.of(restart.timeline, measured.span, uuids) for restart, measured in passes]

    def joules_of(restart: RestartRecord, span: Span) -> float | None:
        return joules_in.of(restart.timeline, span, gpus.used).total_j

    used = per_pass(gpus.used)
    reason = next((joules.reason for joules in used if joules.reason), None) if passes else "no pass was measured"
    total_j = None if reason else known_sum(joules.total_j for joules in used)
    timing_j = None if reason else combined_timing_j(used)
    summary = windows(restarts, gpus.used, joules_in, config.total_workload)
    in_passes = [
        _pass_energy(*measured, joules, figure)
        for measured, joules, figure in zip(passes, used, summary.of_headline(), strict=True)
    ]
    host_j, host = host_energy(restarts)
    baselines = idle_baselines(restarts, gpus.used, config.idle, joules_in)
    idle, split = idle_energy_j(restarts, baselines, gpus.used), phases(restarts, gpus.used, joules_in)
    counted = [measured.counted for measured in in_passes]
    input_tokens = known_sum(measured.prompt_tokens for _, measured in passes)
    output_tokens = sum(measured.output_tokens for _, measured in passes)
    counted_j = None if reason else known_sum(part.total_j for part in counted)
    return EnergyResult(
        total_j=total_j,
        reason=reason,
        uncertainty=Uncertainty(
            timing_j=timing_j,
            counter_lag_s=EnergyCurve.COUNTER_LAG.mean_s,
            counter_lag_std_s=EnergyCurve.COUNTER_LAG.std_s,
            statistical_j=statistical_j(total_j, in_passes),
        ),
        per_gpu_j=_summed([joules.per_gpu_j for joules in used]),
        allocation_j=known_sum(joules.total_j for joules in per_pass(gpus.leased)) if passes else None,
        bystander_j=_summed([joules.per_gpu_j for joules in per_pass(gpus.bystanders)]),
        load_j=_load_j(restarts, gpus.used, joules_in),
        source="+".join(sorted(frozenset[str]().union(*(joules.sources for joules in used)))) or None,
        energy_per_output_token_j=_ratio(counted_j, sum(part.output_tokens for part in counted)),
        energy_per_request_j=_ratio(total_j, sum(len(measured.requests) for _, measured in passes)),
        energy_per_input_token_j=_ratio(total_j, input_tokens),
        energy_per_total_token_j=_ratio(total_j, None if input_tokens is None else input_tokens + output_tokens),
        mean_power_w=_ratio(counted_j, sum(part.duration_s for part in counted)),
        **_hbm(passes, gpus.used, joules_in),
        passes=in_passes,
        windows=summary if passes else None,
        idle_baselines=baselines or None,
        **_net(total_j, timing_j, idle),
        phases=split,
        waterfall=waterfall(total_j, idle and idle[0], passes, windows=summary, phases=split, joules_of=joules_of),
        token_costs=token_costs(restarts, gpus.used, joules_in),
        cross_check=cross_check(restarts, gpus.used, joules_in),
        host_j=host_j,
        host=host,
        gpu_processes=listed_processes(restarts),
    )


def _net(total_j: float | None, timing_j: float | None, idle: tuple[float, float] | None) -> dict[str, Any]:
    """Return the energy above idle, from the energy that the GPUs would have used idle and its uncertainty."""
    if total_j is None or timing_j is None or idle is None:
        return {"net_reason": NO_IDLE_POWER}
    idle_j, idle_uncertainty_j = idle
    return {"net_j": total_j - idle_j, "net_uncertainty_j": hypot(timing_j, idle_uncertainty_j)}


def _hbm(
    passes: Sequence[tuple[RestartRecord, PassRecord]], uuids: Sequence[str], joules_in: SpanJoules
) -> dict[str, Any]:
    """Return the energy of the memory, or why there is none."""
    parts = [joules_in.of(restart.timeline, measured.span, uuids, hbm=True) for restart, measured in passes]
    hbm_j = known_sum(part.total_j for part in parts)
    if not parts or hbm_j is None:
        return {"hbm_reason": next((part.reason for part in parts if part.reason), "no pass was measured")}
    seconds = sum(measured.span.duration_s for _, measured in passes)
    return {"hbm_j": hbm_j, "hbm_timing_j": combined_timing_j(parts), "mean_hbm_power_w": hbm_j / seconds}


def _summed(parts: Sequence[dict[str, float | None]]) -> dict[str, float | None]:
    """Return the sums by GPU; None for a GPU with an unknown part."""
    uuids = dict.fromkeys(uuid for part in parts for uuid in part)
    return {uuid: known_sum(part.get(uuid) for part in parts) for uuid in uuids}


def _load_j(restarts: Sequence[RestartRecord], uuids: Sequence[str], joules_in: SpanJoules) -> float | None:
    """Return the mean over restarts of the energy of loading."""
    loads = all_known(
        joules_in.of(restart.timeline, span, uuids).total_j
        for restart in restarts
        for span in restart.spans
        if span.name == "load"
    )
    return float(np.mean(loads)) if loads else None


def _ratio(total_j: float | None, count: float | None) -> float | None:
    return total_j / count if total_j is not None and count else None


def _pass_energy(restart: RestartRecord, measured: PassRecord, joules: Joules, figure: WindowFigure) -> PassEnergy:
    host = host_joules(restart.timeline, measured.span)
    return PassEnergy(
        restart=restart.restart,
        pass_index=measured.index,
        duration_s=measured.span.duration_s,
        output_tokens=measured.output_tokens,
        total_j=joules.total_j,
        timing_j=joules.timing_j,
        per_gpu_j=joules.per_gpu_j,
        energy_per_output_token_j=figure.energy_per_output_token_j,
        reason=joules.reason,
        prompt_repeats=measured.prompt_repeats,
        prompts_reused=measured.prompts_reused,
        host_j={name: energy[0] if energy else None for name, energy in host.items()},
        cpu_others_share=measured.cpu_others_share,
        lease_fault=measured.lease_fault,
        steady=None
        if figure.window == "drained"
        else SteadyState(
            duration_s=figure.duration_s or 0.0,
            output_tokens=figure.output_tokens or 0,
            total_j=figure.total_j,
            timing_j=figure.timing_j,
        ),
    )
