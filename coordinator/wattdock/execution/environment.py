"""The snapshot of what a restart ran on and with: the host's facts, the plan's, the runner's. Pure."""

from __future__ import annotations

import dataclasses
import platform
from typing import TYPE_CHECKING

from wattdock.config import ModelSpec
from wattdock.records import EnvironmentSnapshot, RestartRecord, RunnerEnvironment, snapshot
from wattdock.version import __version__

if TYPE_CHECKING:
    from datetime import datetime

    from wattdock.host import Gpu
    from wattdock.inputs import ModelFolder
    from wattdock.planning import ExecutionPlan

BYTES_PER_GB = 1e9


def environment(
    plan: ExecutionPlan,
    record: RestartRecord,
    runner: RunnerEnvironment | None,
    model: ModelFolder | None,
    chat_time: datetime | None = None,
) -> EnvironmentSnapshot:
    """Return everything a reader needs to judge, compare or repeat what one runner measured.

    Args:
        plan: What was decided before the runner was started.
        record: What the runner measured.
        runner: What the runner reported of its own environment; None where it loaded nothing.
        model: The model as resolved; None where that failed.
        chat_time: The present that chat templates were told; None for that of the runner's machine.
    """
    config, gpus = plan.config, plan.inventory.gpus
    # Without a runner's answer: the GPUs planned for it.
    holding = runner.used_gpu_uuids if runner else [gpu.uuid for gpu in plan.gpus]
    used_gpus = [gpu for gpu in gpus if gpu.uuid in holding]
    return EnvironmentSnapshot(
        gpu_count=len(used_gpus),
        gpu_names=[gpu.name for gpu in used_gpus],
        gpu_vram_gb=[_gigabytes(gpu) for gpu in used_gpus],
        gpu_uuids=[gpu.uuid for gpu in used_gpus],
        host_gpus=list(gpus),
        driver_version=gpus[0].driver_version if gpus else None,
        topology=_topology(plan),
        leased=list(plan.lease_names),
        exclusive=config.exclusive,
        **dataclasses.asdict(plan.machine),
        job=plan.job,
        coordinator_python=platform.python_version(),
        wattdock_version=__version__,
        launcher=plan.launch.name,
        launcher_reason=plan.launch.reason,
        image_digest=plan.launch.image.digest if plan.launch.image else None,
        container=_container_facts(plan),
        variables=dict(plan.variables),
        backend=config.backend,
        runner=runner or RunnerEnvironment(),
        model=_model_facts(config.model, model, runner, _template_time(record, chat_time)),
        dataset=config.prompts.source,
        dataset_sha256=next((measured.prompts_sha256 for measured in record.passes), None),
        dataset_format=plan.dataset_format,
        dataset_ignored=list(plan.dataset_ignored),
        seed=config.workload.seed,
        clock=RestartRecord.clock_facts([record]),
        meter=plan.meter.name,
        meter_reason=plan.meter.reason,
    )


def _template_time(record: RestartRecord, chat_time: datetime | None) -> str | None:
    """Return the present that chat templates were told; None where none asked for it."""
    asked = any(measured.template_asked_time for measured in record.passes)
    return chat_time.isoformat() if asked and chat_time else None


def _gigabytes(gpu: Gpu) -> float | None:
    return None if gpu.vram_total_bytes is None else gpu.vram_total_bytes / BYTES_PER_GB


def _topology(plan: ExecutionPlan) -> snapshot.Topology | None:
    links = list(plan.inventory.links)
    return snapshot.Topology(links=links, warnings=list(plan.warnings)) if links else None


def _model_facts(
    spec: ModelSpec, model: ModelFolder | None, runner: RunnerEnvironment | None, template_time_utc: str | None
) -> snapshot.ModelFacts:
    low, high = ModelSpec.RANDOM_WEIGHTS
    random = f"random(uniform [{low:g}, {high:g}), seed {spec.weights_seed})"
    weights = "unknown" if model is None else random if model.random_weights else "real"
    quantized = runner and runner.engine_args.get("quantization")
    return snapshot.ModelFacts(
        kind=model.kind if model else "unknown",
        name=model.name if model else spec.label,
        revision=model.revision if model else spec.revision,
        weights=f"{weights}, {quantized}" if quantized else weights,
        trust_remote_code=spec.trust_remote_code,
        template_time_utc=template_time_utc,
        files=dict(model.files) if model else {},
    )


def _container_facts(plan: ExecutionPlan) -> snapshot.ContainerFacts | None:
    image, pin, limits = plan.launch.image, plan.launch.pin, plan.launch.limits
    if image is None:
        return None
    return snapshot.ContainerFacts(
        engine="docker",
        engine_version=image.engine.version,
        rootless=image.engine.rootless,
        image=image.name,
        image_id=image.id,
        revision=image.revision,
        base_digest=image.base_digest,
        locked=pin is not None,
        locked_digest=pin.repo_digest if pin else None,
        lock_sha256=pin.lock_sha256 if pin else None,
        memory_limit_gb=limits.memory_gb if limits else None,
        pids_limit=limits.pids if limits else None,
    )
