"""The energy of an experiment's measured passes, and its uncertainty. Pure.

Names carry units. Not measured is null, with a reason beside it, never 0.
"""

from __future__ import annotations

from math import hypot
from typing import TYPE_CHECKING, Any

from pydantic import Field

from wattdock.analysis.gpus import ListedProcess, listed_processes
from wattdock.analysis.idle import IdleBaseline, idle_baselines, idle_energy_j
from wattdock.analysis.joules import NORMAL95, Joules, ratio, summed
from wattdock.analysis.other_meters import CrossCheck, cross_check
from wattdock.analysis.pass_energy import MeasuredPerToken, PassEnergy
from wattdock.analysis.phases import Phases, phases
from wattdock.analysis.windows import WindowSummary
from wattdock.values import EnergyBoundary, Stored, all_known, known_sum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.analysis.measured import Measured
    from wattdock.analysis.pass_energy import WindowFigure
    from wattdock.records import PassRecord, RestartRecord

BOUNDARY_STATEMENTS: dict[EnergyBoundary, str] = {
    "gpu_boards": "GPU boards as their own sensors see them: HBM and on-GPU NVLink included; NVSwitch, PCIe root, host "
    "CPU, DRAM, NIC, fans and power-supply loss not. The background literature puts what a sum over GPUs misses of the "
    "GPU fabric at 3-10 %; a whole server's share is tens of percent. No correction is applied.",
    "module": "Modules of GPU and CPU as their own sensors see them: the GPU with its HBM, the CPU with its memory and "
    "the links between them included, whatever else the CPU ran; NVSwitch, NIC, fans and power-supply loss not. These "
    "joules do not compare with those of a GPU alone. No correction is applied.",
}
# Gross is the primary figure.
NET_MEANING = (
    "energy above idle with the model loaded, or before a command ran; not avoidable energy: an idle GPU that is kept "
    "ready draws the rest"
)
NO_IDLE_POWER = "no idle power of every GPU after each load; set idle.duration_s"


class EnergyResult(Stored):
    """Joules of the measured passes, summed over the GPUs used.

    Attributes:
        energy_boundary: What the joules cover: GPU boards, or a superchip's modules, CPU and memory included.
        reason: Why `total_j` is null, where it is.
        timing_j: Standard uncertainty of `total_j` from counter changes and their lag; `ExperimentResult.budget` has
            all that makes J/token uncertain.
        bystander_j: GPUs of the host that the experiment did not use, by UUID.
        measured_per_output_token_j, mean_power_w: Of the headline's window, see `windows.headline`.
        energy_per_request_j: All joules of that window ÷ the requests whose first token came in it. It has no interval:
            how long these requests are is a draw, for which the budget corrects joules per output token only.
        cross_check: A second meter's figures of the same passes; null without one.
        host_j: CPU packages and memory of the whole host by domain ("package-0", "package-0-dram"), never part of any
            other figure; empty where they cannot be read.
        net_j: Total less the energy of the same GPUs idle with the model loaded, at their mean power after each load;
            of a command's spans that count by name, where there are such.
        net_uncertainty_j: Root of squares of that power's uncertainty and the total's timing.
        hbm_j: Of the memory of the GPUs used: a part of `total_j`, never to be added to it. The driver's own figure,
            from means over one second, and for passes of 5 s and more only; its gain is unknown.
        hbm_timing_j: Its standard uncertainty from timing.
        hbm_reason: Why `hbm_j` is null, where it is.
    """

    energy_boundary: EnergyBoundary = "gpu_boards"
    boundary_statement: str = BOUNDARY_STATEMENTS["gpu_boards"]
    total_j: float | None
    reason: str | None = None
    timing_j: float | None = None
    per_gpu_j: dict[str, float | None]
    bystander_j: dict[str, float | None] = Field(default_factory=dict)
    source: str | None = None
    measured_per_output_token_j: MeasuredPerToken = None
    energy_per_request_j: float | None = None
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
    cross_check: CrossCheck | None = None
    host_j: dict[str, float | None] = Field(default_factory=dict)
    gpu_processes: list[ListedProcess] = Field(default_factory=list)

    @property
    def timing95_j(self) -> float | None:
        """Half the width of the 95 % interval of `total_j` from timing alone."""
        return None if self.timing_j is None else NORMAL95 * self.timing_j

    @property
    def hbm95_j(self) -> float | None:
        """Half the width of the 95 % interval of `hbm_j` from timing alone."""
        return None if self.hbm_timing_j is None else NORMAL95 * self.hbm_timing_j


class MultiGPUMetrics(Stored):
    """Distribution of energy over the GPUs used, with the boundary of `energy.per_gpu_j`.

    Attributes:
        load_imbalance: Largest ÷ mean energy over the GPUs used; 1 is even.
    """

    gpu_count: int
    load_imbalance: float


def multi_gpu(energy: EnergyResult) -> MultiGPUMetrics | None:
    """Return the GPUs' shares of all measured passes; None without joules or without output tokens."""
    shares_j = all_known(energy.per_gpu_j.values())
    if not energy.total_j or not shares_j or not any(run_pass.output_tokens for run_pass in energy.passes):
        return None
    return MultiGPUMetrics(gpu_count=len(shares_j), load_imbalance=max(shares_j) / (energy.total_j / len(shares_j)))


def measured_energy(measured: Measured) -> EnergyResult:
    """Return the energy of all measured passes of all restarts."""
    passes = measured.passes
    used = [measured.energy_of(restart, run_pass.span) for restart, run_pass in passes]
    bystanders = [measured.energy_of(restart, run_pass.span, measured.bystanders) for restart, run_pass in passes]
    total = Joules.of_all(used) if passes else Joules(None, {}, reason="no pass was measured")
    counted = measured.headline
    in_passes = [_pass_energy(*of, joules, figure) for of, joules, figure in zip(passes, used, counted, strict=True)]
    baselines = idle_baselines(measured)
    counted_j = None if total.reason else known_sum(part.total_j for part in counted)
    return EnergyResult(
        energy_boundary=measured.boundary,
        boundary_statement=BOUNDARY_STATEMENTS[measured.boundary],
        **vars(total),
        bystander_j=Joules.of_all(bystanders).per_gpu_j,
        source=None if total.total_j is None else "counter",
        measured_per_output_token_j=ratio(counted_j, sum(part.output_tokens or 0 for part in counted)),
        energy_per_request_j=ratio(counted_j, len(measured.requests_with(lambda request: request.first_token_ns))),
        mean_power_w=ratio(counted_j, sum(part.duration_s or 0.0 for part in counted)),
        **_hbm(measured),
        passes=in_passes,
        windows=measured.windows if passes else None,
        idle_baselines=baselines or None,
        **_net(measured, baselines),
        phases=phases(measured),
        cross_check=cross_check(measured),
        host_j=summed([run_pass.host_j for run_pass in in_passes]),
        gpu_processes=listed_processes(measured.restarts),
    )


def _net(measured: Measured, baselines: Sequence[IdleBaseline]) -> dict[str, Any]:
    """Return the energy above idle, and its uncertainty."""
    spans = measured.counted_spans
    parts = [measured.energy_of(restart, span) for (restart, _), span in zip(measured.passes, spans, strict=True)]
    total, idle = Joules.of_all(parts), idle_energy_j(measured, baselines, spans)
    if total.total_j is None or total.timing_j is None or idle is None:
        return {"net_reason": NO_IDLE_POWER}
    idle_j, idle_uncertainty_j = idle
    return {"net_j": total.total_j - idle_j, "net_uncertainty_j": hypot(total.timing_j, idle_uncertainty_j)}


def _hbm(measured: Measured) -> dict[str, Any]:
    """Return the energy of the memory, or why there is none."""
    if not measured.passes:
        return {"hbm_reason": "no pass was measured"}
    hbm = Joules.of_all([measured.energy_of(restart, each.span, hbm=True) for restart, each in measured.passes])
    mean_w = ratio(hbm.total_j, measured.passes_s)
    return {"hbm_j": hbm.total_j, "hbm_timing_j": hbm.timing_j, "mean_hbm_power_w": mean_w, "hbm_reason": hbm.reason}


def _pass_energy(restart: RestartRecord, run_pass: PassRecord, joules: Joules, figure: WindowFigure) -> PassEnergy:
    timeline = restart.timeline
    return PassEnergy(
        restart=restart.restart,
        pass_index=run_pass.index,
        duration_s=run_pass.span.duration_s,
        output_tokens=run_pass.output_tokens,
        total_j=joules.total_j,
        timing_j=joules.timing_j,
        per_gpu_j=joules.per_gpu_j,
        measured_per_output_token_j=figure.measured_per_output_token_j,
        reason=joules.reason,
        prompt_repeats=run_pass.prompt_repeats,
        prompts_reused=run_pass.prompts_reused,
        host_j=timeline.host.joules(run_pass.span) if timeline and timeline.host else {},
        cpu_others_share=run_pass.cpu_others_share,
        lease_fault=run_pass.lease_fault,
    )
