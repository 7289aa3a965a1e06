"""The whole result from everything that was seen. Pure."""

from __future__ import annotations

from math import hypot
from typing import TYPE_CHECKING, Any

from wattdock.analysis import (
    ExperimentResult,
    Gpus,
    SpanJoules,
    StoredSpan,
    compute,
    data_parallel,
    gpu_conditions,
    idle_baselines,
    idle_energy_j,
    measured_energy,
    multi_gpu,
    performance,
    phases,
    procedure,
    statistical_j,
    statistics,
    windows,
)
from wattdock.checks import audit
from wattdock.execution.environment import environment, used_uuids, why_no_sum
from wattdock.records import INTERRUPTED, clocks_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from typing import Literal

    from wattdock.analysis import EnergyResult
    from wattdock.checks import ExecutionPlan
    from wattdock.config import ExperimentConfig
    from wattdock.inputs import ModelFolder
    from wattdock.metering import Span
    from wattdock.records import Failure, RestartRecord

PARTS = ("environment", "energy", "performance", "compute", "statistics", "procedure", "multi_gpu", "audit")
EMPTY: dict[str, Any] = {**dict.fromkeys(PARTS), "spans": []}


def merge(
    config: ExperimentConfig,
    restarts: Sequence[RestartRecord],
    ready: ExecutionPlan,
    model: ModelFolder | None,
    *,
    started_utc: datetime,
) -> ExperimentResult:
    """Return one experiment's row, finished or failed.

    Args:
        restarts: What was measured, one record per restart that was begun.
        ready: What was decided before it started.
        model: The model as resolved; None where that failed.
    """
    passes = [measured for one in restarts for measured in one.passes]
    used = used_uuids(ready, restarts)
    gpus = Gpus(
        used=used,
        leased=tuple(gpu.uuid for gpu in ready.gpus),
        bystanders=tuple(gpu.uuid for gpu in ready.inventory.gpus if gpu.uuid not in used),
    )
    speed = performance(passes, offered_rate_per_s=config.served.rate_per_s)
    joules_in = SpanJoules(why_no_sum(restarts))
    energy = measured_energy(restarts, gpus, speed, cpu_tdp_w=config.cpu_tdp_w, joules_in=joules_in)
    energy = _completed(energy, restarts, used, config, joules_in)
    snapshot = environment(ready, restarts, model)
    failure = next((one.failure for one in restarts if one.failure), None)
    clocks = clocks_of(restarts)
    result = result_row(
        config,
        failure,
        started_utc=started_utc,
        environment=snapshot,
        energy=energy,
        performance=speed,
        compute=compute(
            model.config if model else None,
            passes,
            snapshot,
            energy,
            in_flight=config.served.batch_size // config.section.replicas,
        ),
        statistics=statistics(energy.passes),
        procedure=procedure(restarts, used, config.warmup, joules_in, gpus.bystanders),
        multi_gpu=multi_gpu(energy, speed, restarts),
        data_parallel=data_parallel(config, restarts, energy, joules_in),
        spans=[stored for one in restarts for stored in _stored_spans(one, clocks[one.clock], used, joules_in)],
    )
    return result.model_copy(update={"audit": audit(result)})


def _completed(
    energy: EnergyResult,
    restarts: Sequence[RestartRecord],
    used: Sequence[str],
    config: ExperimentConfig,
    joules_in: SpanJoules,
) -> EnergyResult:
    """Return `energy` with the idle baselines, what is above them, and the other window definitions' figures."""
    baselines = idle_baselines(restarts, used, config.idle, joules_in)
    idle = idle_energy_j(restarts, baselines, used)
    reason = "no idle power of every GPU before and after the passes of each runner; set idle.duration_s"
    split = phases(restarts, used, joules_in)
    by_window = windows(restarts, used, in_flight=config.served.batch_size, joules_in=joules_in) if used else None
    seen = {
        "prefill_j": split.prefill_j,
        "decode_j": split.decode_j,
        "idle_baselines": baselines or None,
        "conditions": gpu_conditions(restarts, used, joules_in),
        "phases": split,
        "uncertainty": energy.uncertainty.model_copy(update={"statistical_j": statistical_j(energy)}),
        "windows": by_window,
    }
    if energy.total_j is None or idle is None:
        return energy.model_copy(update={**seen, "net_reason": reason})
    idle_j, idle_uncertainty_j = idle
    net = {
        "net_j": energy.total_j - idle_j,
        "net_uncertainty_j": hypot(energy.uncertainty.timing_j or 0.0, idle_uncertainty_j),
    }
    return energy.model_copy(update={**seen, **net})


def result_row(
    config: ExperimentConfig, failure: Failure | None, *, started_utc: datetime, **parts: Any
) -> ExperimentResult:
    """Return an experiment's row with all keys; those that are not among `parts` stay empty."""
    return ExperimentResult(
        experiment_id=config.experiment_id,
        started_utc=started_utc.isoformat(timespec="milliseconds"),
        config=config.model_dump(mode="json"),
        status=_status(failure),
        error=failure,
        **EMPTY | parts,
    )


def _status(failure: Failure | None) -> Literal["ok", "failed", "interrupted"]:
    if failure is None:
        return "ok"
    return "interrupted" if failure.kind == INTERRUPTED else "failed"


def _stored_spans(restart: RestartRecord, clock: int, used: Sequence[str], joules_in: SpanJoules) -> list[StoredSpan]:
    spans: list[tuple[Span, int | None]] = [(span, None) for span in restart.spans]
    spans += [(one.generated.span, one.index) for one in restart.passes]
    energies = [joules_in.of(restart.timeline, span, used) for span, _ in spans]
    return [
        StoredSpan(
            **vars(span),
            restart=restart.restart,
            pass_index=pass_index,
            clock=clock,
            energy_j=joules.total_j,
            timing_j=joules.timing_j,
            reason=joules.reason,
        )
        for (span, pass_index), joules in zip(spans, energies, strict=True)
    ]
