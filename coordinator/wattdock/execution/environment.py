"""The snapshot of what a restart ran on and with: the host's facts, the plan's, the runner's. Pure."""

from __future__ import annotations

import dataclasses
import platform
from typing import TYPE_CHECKING, Any

from wattdock.config import ModelSpec
from wattdock.records import EnvironmentSnapshot, RestartRecord, RunnerEnvironment, snapshot
from wattdock.version import __version__

if TYPE_CHECKING:
    from datetime import datetime

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
        chat_time: The present that chat templates were given; None for that of the runner's machine.
    """
    config, host_gpus, links = plan.config, plan.host_gpus, list(plan.inventory.links)
    # Without a runner's answer: the GPUs planned for it.
    holding = runner.used_gpu_uuids if runner else plan.gpu_uuids
    gpus = [gpu for gpu in host_gpus if gpu.uuid in holding]
    asked_time = any(measured.template_asked_time for measured in record.passes)
    return EnvironmentSnapshot(
        gpu_count=len(gpus),
        gpu_names=[gpu.name for gpu in gpus],
        gpu_vram_gb=[gpu.vram_total_bytes and gpu.vram_total_bytes / BYTES_PER_GB for gpu in gpus],
        gpu_uuids=[gpu.uuid for gpu in gpus],
        host_gpus=host_gpus,
        driver_version=host_gpus[0].driver_version if host_gpus else None,
        topology=snapshot.Topology(links=links, warnings=list(plan.warnings)) if links else None,
        leased=list(plan.lease_names),
        exclusive=config.exclusive,
        **dataclasses.asdict(plan.machine),
        job=plan.job,
        coordinator_python=platform.python_version(),
        wattdock_version=__version__,
        **_launch_facts(plan),
        variables=dict(plan.variables),
        backend=config.backend,
        runner=runner or RunnerEnvironment(),
        model=_model_facts(config.model, model, runner, chat_time.isoformat() if asked_time and chat_time else None),
        dataset=config.prompts.source,
        dataset_sha256=next((measured.prompts_sha256 for measured in record.passes), None),
        dataset_format=plan.dataset_format,
        dataset_ignored=list(plan.dataset_ignored),
        seed=config.workload.seed,
        clock=RestartRecord.clock_facts([record]),
        meter=plan.meter.name,
        meter_reason=plan.meter.reason,
        nodes=[node.facts for node in plan.nodes],
    )


def _launch_facts(plan: ExecutionPlan) -> dict[str, Any]:
    """Return the fields of an environment that say how the runner was started, and from which image."""
    image, pin, limits = plan.launch.image, plan.launch.pin, plan.launch.limits
    launcher: dict[str, Any] = {"launcher": plan.launch.name, "launcher_reason": plan.launch.reason}
    if lock := plan.launch.packages:
        launcher["packages"] = snapshot.PackageFacts(
            lock=lock.path.name,
            lock_sha256=lock.sha256,
            packages=len(lock.versions),
            interpreter=lock.interpreter,
            foreign_code=tuple(lock.foreign_code()),
        )
    if image is None:
        return launcher
    container = snapshot.ContainerFacts(
        engine=image.engine.name,
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
    return {**launcher, "image_digest": image.digest, "container": container}


def _model_facts(
    spec: ModelSpec, model: ModelFolder | None, runner: RunnerEnvironment | None, template_time_utc: str | None
) -> snapshot.ModelFacts:
    low, high = ModelSpec.RANDOM_WEIGHTS
    random = f"random(uniform [{low:g}, {high:g}), seed {spec.weights_seed})"
    weights = "unknown" if model is None or model.kind == "served" else random if model.random_weights else "real"
    quantized = runner and runner.engine_args.get("quantization")
    return snapshot.ModelFacts(
        kind=model.kind if model else "unknown",
        name=model.name if model else spec.label,
        revision=model.revision if model else spec.revision,
        weights=f"{weights}, {quantized}" if quantized else weights,
        trust_remote_code=spec.trust_remote_code,
        template_time_utc=template_time_utc,
        draft=f"{model.draft.name} {model.draft.revision}" if model and model.draft else None,
        files=dict(model.files) if model else {},
    )
