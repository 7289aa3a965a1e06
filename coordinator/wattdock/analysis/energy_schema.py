"""Joules of an experiment, what they are of, how sure they are, and how they were shared out among GPUs.

Names carry units. Not measured is null, with a reason beside it, never 0.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from wattdock.analysis.conditions_schema import GpuConditions, Phases
from wattdock.analysis.procedure_schema import IdleBaseline
from wattdock.analysis.windows_schema import WindowSummary
from wattdock.values import Stored

ENERGY_BOUNDARY: Literal["gpu_boards"] = "gpu_boards"
BOUNDARY_STATEMENT = (
    "GPU boards as their own sensors see them: HBM and on-GPU NVLink included; NVSwitch, PCIe root, host CPU, "
    "DRAM, NIC, fans and power-supply loss not. The background literature puts what a sum over GPUs misses of the GPU "
    "fabric at 3-10 %; a whole server's share is tens of percent. No correction is applied."
)
HOST_STATEMENT = (
    "CPU packages and memory as RAPL's counters see them, of the whole host and not of the runner alone; never part of "
    "total_j nor of any joules per token, whose boundary is the GPU boards."
)
# Gross is the primary figure.
NET_MEANING = (
    "energy above idle with the model loaded; not avoidable energy: an idle GPU that is kept ready draws the rest"
)

# Standard deviations of a normal distribution on either side that hold 95 % of it.
NORMAL95 = 1.96


class Uncertainty(Stored):
    """The budget of `total_j`: parts that are never added into one vague number.

    Attributes:
        timing_j: Standard uncertainty from tick brackets, interpolation and lag, given the lag below.
        counter_lag_s, counter_lag_std_s: How far a counter without a card of its own was taken to trail its load;
            measured on H200 only. What was taken for each GPU stands in `meter`.
        statistical_j: From restarts; null with fewer than two.
        sensor_gain: Systematic; unknown unless the sensors were calibrated, never inside a confidence interval.
    """

    timing_j: float | None
    counter_lag_s: float
    counter_lag_std_s: float
    statistical_j: float | None = None
    sensor_gain: Literal["unknown"] | float = "unknown"

    @property
    def timing95_j(self) -> float | None:
        """Half the width of the 95 % interval from timing alone."""
        return None if self.timing_j is None else NORMAL95 * self.timing_j


class PassEnergy(Stored):
    """Energy of one measured pass over the GPUs used, and what makes its tokens comparable.

    Attributes:
        reason: Why `total_j` is null, where it is.
        prompt_repeats: How often the pass went through its prompts again.
        prompts_reused: Some of its prompts were in an earlier pass of the restart already.
        host_j: CPU packages and memory meanwhile, by domain; never part of `total_j`.
        cpu_others_share: Of the time of the CPUs that the runner may use, what neither it nor the coordinator used, 0
            to 1; on a virtual machine with what other machines got. Null where it is unknown.
    """

    restart: int
    pass_index: int = Field(alias="pass")
    duration_s: float
    output_tokens: int
    total_j: float | None
    timing_j: float | None
    per_gpu_j: dict[str, float | None]
    energy_per_output_token_j: float | None
    reason: str | None
    prompt_repeats: int
    prompts_reused: bool
    host_j: dict[str, float | None] = Field(default_factory=dict)
    cpu_others_share: float | None = None


class WindowCheck(Stored):
    """One pass's window as a second meter measured it, beside our figure of the same window.

    The window is longer than the pass: from before its request was sent until its results were here.

    Attributes:
        other_j, own_j: Joules by UUID, of every GPU of the host.
        difference_j: The other's less ours, over the GPUs used; null where one of them is unknown.
        difference_share: The same ÷ our figure.
        bound_j: What a difference of two counter readings can be off by: a counter step at each end, of each GPU.
        reason: Why `difference_j` is null, where it is.
    """

    restart: int
    pass_index: int = Field(alias="pass")
    start_ns: int
    end_ns: int
    other_j: dict[str, float]
    own_j: dict[str, float | None]
    difference_j: float | None
    difference_share: float | None
    bound_j: float | None
    reason: str | None = None


class CrossCheck(Stored):
    """What a second meter made of the measured passes.

    Attributes:
        source: "zeus": the joules of ZeusMonitor's windows.
        worst_difference_j, worst_difference_share: Of the window whose share is largest, with its sign.
    """

    source: str
    windows: list[WindowCheck]
    worst_difference_j: float | None
    worst_difference_share: float | None


class HostEnergy(Stored):
    """Uncertainty and meaning of `host_j`.

    Attributes:
        timing_j: Standard uncertainty from sampling, by domain; null where `host_j` is.
        events: Reads that failed.
    """

    source: Literal["rapl"] = "rapl"
    statement: str = HOST_STATEMENT
    timing_j: dict[str, float | None]
    events: list[str] = Field(default_factory=list)


class CpuEstimate(Stored):
    """An estimate, not a measurement: share of CPU time that was busy × an assumed power."""

    energy_j: float
    method: str
    assumed_tdp_w: float
    cpu_busy: float


class GpuProcessSeen(Stored):
    """A process that NVML listed on a GPU, with the instants of the first and last sample that held it.

    Attributes:
        own: It belonged to the runner.
        clock: Which of `environment.clock.identities` these instants are of.
        user, command: None where this host does not show the process.
    """

    gpu_uuid: str
    pid: int
    kind: str
    memory_bytes_max: int | None
    first_seen_ns: int
    last_seen_ns: int
    own: bool = False
    clock: int = 0
    user: str | None = None
    command: str | None = None


class MeterFact(Stored):
    """How well one GPU was read.

    Attributes:
        process_lists: How often its processes were listed.
        counter_lag_s, counter_lag_std_s: As taken for this GPU; measured on it where `card` says when, else assumed.
    """

    source: str | None
    counter_period_s: float | None
    nvml_busy_fraction: float | None
    ticks: int
    process_lists: int = 0
    events: list[str]
    counter_lag_s: float | None = None
    counter_lag_std_s: float | None = None
    card: str | None = None


class EnergyResult(Stored):
    """Joules of the measured passes, summed over the GPUs used.

    Attributes:
        reason: Why `total_j` is null, where it is.
        allocation_j: Over all GPUs that were leased for the experiment.
        bystander_j: GPUs of the host that the experiment did not use, by UUID.
        load_j: Loading the model, over the GPUs used.
        cross_check: A second meter's figures of the same passes; null without one.
        host_j: CPU packages and memory, by domain ("package-0", "package-0-dram"), of the whole host; beside and never
            in the figures here. Empty where they cannot be read, which `host` then is null for.
        net_j: Total less what the same GPUs draw idle with the model loaded, the mean of before and after the passes;
            `net_uncertainty_j` is the root of squares of half the difference between these two, of their timing and
            of the total's.
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
    energy_per_input_token_j: float | None = None
    energy_per_token_j: float | None = None
    energy_per_request_j: float | None = None
    mean_power_w: float | None = None
    passes: list[PassEnergy] = Field(default_factory=list)
    windows: WindowSummary | None = None
    idle_baselines: list[IdleBaseline] | None = None
    net_j: float | None = None
    net_uncertainty_j: float | None = None
    net_reason: str | None = None
    net_meaning: str = NET_MEANING
    prefill_j: float | None = None
    decode_j: float | None = None
    phases: Phases | None = None
    conditions: dict[str, GpuConditions] = Field(default_factory=dict)
    cross_check: CrossCheck | None = None
    host_j: dict[str, float | None] = Field(default_factory=dict)
    host: HostEnergy | None = None
    meter: dict[str, MeterFact] = Field(default_factory=dict)
    gpu_processes: list[GpuProcessSeen] = Field(default_factory=list)
    cpu_estimate: CpuEstimate | None = None


class MultiGPUMetrics(Stored):
    """How energy was shared out among the GPUs used.

    Boundary: GPU boards (HBM and on-GPU NVLink included); NVSwitch, PCIe root, host CPU, DRAM, NIC, fans and
    power-supply loss are not in it. The background documents put what a sum over GPUs misses of the GPU fabric at
    3-10 %; a whole server's share is tens of percent; no correction is applied.

    Attributes:
        per_gpu_mean_power_w: Over the measured passes, by the energy counter.
        per_gpu_mean_utilization_percent: Mean of NVML's samples in the passes: the share of time in which any kernel
            ran, not how much of the GPU it used. None for a GPU that does not tell; empty in results of older versions.
        per_gpu_max_memory_used_bytes: Largest sample of what NVML says is in use on the GPU, by all processes.
        load_imbalance: Largest ÷ mean energy over the GPUs used; 1 is even.
        energy_per_output_token_allocated_j: Over all GPUs leased, used or not.
    """

    gpu_count: int
    per_gpu_energy_j: dict[str, float]
    per_gpu_mean_power_w: dict[str, float]
    per_gpu_mean_utilization_percent: dict[str, float | None] = Field(default_factory=dict)
    per_gpu_max_memory_used_bytes: dict[str, float | None] = Field(default_factory=dict)
    load_imbalance: float
    energy_per_output_token_j: float
    energy_per_output_token_allocated_j: float | None
    energy_boundary: Literal["gpu_boards"] = ENERGY_BOUNDARY
    boundary_statement: str = BOUNDARY_STATEMENT
