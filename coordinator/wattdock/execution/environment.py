"""The coordinator's merged snapshot of what an experiment ran on and with. Pure."""

from __future__ import annotations

import dataclasses
import platform
from typing import TYPE_CHECKING

from wattdock import __version__
from wattdock.analysis import ABSENT, differing
from wattdock.clock import NS_PER_S
from wattdock.config import RANDOM_WEIGHTS
from wattdock.errors import ClockError
from wattdock.launch.images import inputs_sha256, recipe_of
from wattdock.records import (
    ClockFacts,
    ConditionChange,
    ContainerFacts,
    EnvironmentSnapshot,
    ModelFacts,
    Topology,
    clocks_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.checks import ExecutionPlan
    from wattdock.host import Gpu
    from wattdock.inputs import ModelFolder
    from wattdock.records import Loaded, RestartRecord, RunnerEnvironment

BYTES_PER_GB = 1e9
DIFFERENT_GPUS = "restarts used different GPUs"


def used_uuids(ready: ExecutionPlan, restarts: Sequence[RestartRecord]) -> tuple[str, ...]:
    """Return the GPUs that hold a part of the model, in the host's order; those asked for where no runner told."""
    loaded = _last_loaded(restarts)
    used = loaded.environment.used_gpu_uuids if loaded else [gpu.uuid for gpu in ready.gpus]
    return tuple(gpu.uuid for gpu in ready.inventory.gpus if gpu.uuid in used)


def why_no_sum(restarts: Sequence[RestartRecord]) -> str | None:
    """Return why no sum over the GPUs used can be told of the passes; None where there is no such reason.

    An engine that places a model by itself may take other GPUs in another restart.
    """
    placements = {frozenset(one.loaded.environment.used_gpu_uuids) for one in restarts if one.passes and one.loaded}
    return DIFFERENT_GPUS if len(placements) > 1 else None


def environment(
    ready: ExecutionPlan, restarts: Sequence[RestartRecord], model: ModelFolder | None
) -> EnvironmentSnapshot:
    """Return everything a reader needs to judge, compare or repeat the experiment."""
    config, gpus = ready.config, ready.inventory.gpus
    loaded = _last_loaded(restarts)
    runner = loaded.environment if loaded else None
    used = used_uuids(ready, restarts)
    used_gpus = [gpu for gpu in gpus if gpu.uuid in used]
    prompts = next((one.prompts_sha256 for restart in restarts for one in restart.passes), None)
    return EnvironmentSnapshot(
        gpu_count=len(used),
        gpu_names=[gpu.name for gpu in used_gpus],
        gpu_vram_gb=[_gigabytes(gpu) for gpu in used_gpus],
        gpu_uuids=list(used),
        host_gpus=list(gpus),
        driver_version=gpus[0].driver_version if gpus else None,
        cuda_version=runner.cuda_version if runner else None,
        nccl_version=runner.nccl_version if runner else None,
        topology=_topology(ready),
        leased=list(ready.lease_names),
        exclusive=config.exclusive,
        **dataclasses.asdict(ready.machine),
        coordinator_python=platform.python_version(),
        wattdock_version=__version__,
        launcher=ready.launch.name,
        launcher_reason=ready.launch.reason,
        image_digest=ready.launch.containers.image.digest if ready.launch.containers else None,
        container=_container_facts(ready),
        variables=dict(ready.variables),
        backend=config.backend,
        framework=runner.framework if runner else None,
        framework_version=runner.framework_version if runner else None,
        runner_python=runner.python_version if runner else None,
        package_versions=runner.package_versions if runner else {},
        parallelism=runner.parallelism if runner else {},
        engine_args=runner.engine_args if runner else {},
        runner_warnings=runner.warnings if runner else [],
        model=_model_facts(ready, model, runner),
        dataset=config.prompts.source,
        dataset_sha256=prompts,
        seed=config.workload.seed,
        clock=_clock_facts(restarts),
        meter=ready.meter.name,
        meter_reason=ready.meter.reason,
        changes=condition_changes(restarts),
    )


def condition_changes(restarts: Sequence[RestartRecord]) -> list[ConditionChange] | None:
    """Return in what the runners that measured differed; None where several did and one did not record it."""
    measured = [one for one in restarts if one.passes]
    if len(measured) > 1 and not all(one.conditions for one in measured):
        return None
    found = []
    for name in differing([one.conditions for one in measured]):
        seen: dict[str, list[int]] = {}
        for one in measured:
            numbers = seen.setdefault(one.conditions.get(name, ABSENT), [])
            if one.restart not in numbers:
                numbers.append(one.restart)
        found.append(ConditionChange(name=name, restarts=seen))
    return found


def _last_loaded(restarts: Sequence[RestartRecord]) -> Loaded | None:
    return next((one.loaded for one in reversed(restarts) if one.loaded), None)


def _gigabytes(gpu: Gpu) -> float | None:
    return None if gpu.vram_total_bytes is None else gpu.vram_total_bytes / BYTES_PER_GB


def _topology(ready: ExecutionPlan) -> Topology | None:
    links = list(ready.inventory.links)
    return Topology(links=links, warnings=list(ready.warnings)) if links else None


def _model_facts(ready: ExecutionPlan, model: ModelFolder | None, runner: RunnerEnvironment | None) -> ModelFacts:
    spec = ready.config.model
    low, high = RANDOM_WEIGHTS
    random = f"random(uniform [{low:g}, {high:g}), seed {spec.weights_seed})"
    return ModelFacts(
        kind=model.kind if model else "unknown",
        name=model.name if model else spec.label,
        revision=model.revision if model else spec.revision,
        weights="unknown" if model is None else random if model.random_weights else "real",
        trust_remote_code=spec.trust_remote_code,
        parameter_count=runner.parameter_count if runner else None,
        weight_bytes=runner.weight_bytes if runner else None,
    )


def _container_facts(ready: ExecutionPlan) -> ContainerFacts | None:
    if (containers := ready.launch.containers) is None:
        return None
    engine, image, pin = containers.engine, containers.image, ready.launch.pin
    recipe = recipe_of(image.labels)
    return ContainerFacts(
        engine=engine.name,
        engine_version=engine.version,
        rootless=engine.rootless,
        image=image.name,
        image_id=image.id,
        image_store=engine.image_store,
        inputs_sha256=inputs_sha256(recipe.inputs) if recipe else None,
        base_digest=recipe.base_digest if recipe else None,
        locked=pin is not None,
        locked_digest=pin.repo_digest if pin else None,
        lock_sha256=pin.lock_sha256 if pin else None,
    )


def _clock_facts(restarts: Sequence[RestartRecord]) -> ClockFacts:
    """Every check that was made passed; a clock that is not the host's fails the restart instead."""
    checks = [check for one in restarts for check in one.clock_checks]
    mistrusted = any(one.failure and one.failure.kind == ClockError.__name__ for one in restarts)
    slowest = max((check.round_trip_ns for check in checks), default=None)
    return ClockFacts(
        trusted=bool(checks) and not mistrusted,
        checks=len(checks),
        round_trip_max_s=None if slowest is None else slowest / NS_PER_S,
        unchecked_passes=sum(not done.clock_checked for one in restarts for done in one.passes),
        identities=[clock for clock in clocks_of(restarts) if clock],
    )
