"""What an experiment ran on and with: the runner's part, and the snapshot that holds it all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from wattdock.clock import NS_PER_S
from wattdock.errors import ClockError
from wattdock.host import Gpu, Link
from wattdock.values import Stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.records.restart import RestartRecord

# What an experiment without a GPU leases.
CPU = "cpu"


class RunnerEnvironment(Stored):
    """The runner's part of the snapshot, read inside its own environment; all null or empty where it loaded nothing.

    Attributes:
        visible_gpu_uuids: GPUs that the runner sees.
        used_gpu_uuids: GPUs that hold a part of the model.
        parallelism: As in effect, for instance {"kind": "device_map", …}.
        engine_args: Effective engine arguments, read back from the engine.
        weight_bytes: Size of the weights of one copy of the model, as loaded.
    """

    visible_gpu_uuids: list[str] = Field(default_factory=list)
    used_gpu_uuids: list[str] = Field(default_factory=list)
    cuda_version: str | None = None
    nccl_version: str | None = None
    framework: str | None = None
    framework_version: str | None = None
    python_version: str | None = None
    package_versions: dict[str, str] = Field(default_factory=dict)
    parallelism: dict[str, Any] = Field(default_factory=dict)
    engine_args: dict[str, Any] = Field(default_factory=dict)
    parameter_count: int | None = None
    weight_bytes: int | None = None
    warnings: list[str] = Field(default_factory=list)


class Topology(Stored):
    """How the host's GPUs are linked, and what of it the experiment had to pay for."""

    links: list[Link]
    warnings: list[str]


class ModelFacts(Stored):
    """Which model ran, and on what weights."""

    kind: str
    name: str
    revision: str | None
    weights: str
    trust_remote_code: bool


class ClockFacts(Stored):
    """Evidence that runner and host share a clock; None where no runner answered.

    Attributes:
        identities: The clocks that the instants are of, by number; several where the host was booted anew between a
            kill and its resumption.
        unchecked_passes: Measured passes after which the runner's clock could not be checked: the runner had died.
    """

    trusted: bool
    checks: int
    round_trip_max_s: float | None = None
    identities: list[str] = Field(default_factory=list)
    unchecked_passes: int | None = None

    @classmethod
    def of(cls, restarts: Sequence[RestartRecord]) -> ClockFacts:
        """Return the evidence from these restarts.

        A check that fails ends its restart, so that each check in a record has passed.
        """
        checks = [check for restart in restarts for check in restart.clock_checks]
        mistrusted = any(restart.failure and restart.failure.kind == ClockError.__name__ for restart in restarts)
        slowest_ns = max((check.round_trip_ns for check in checks), default=None)
        return cls(
            trusted=bool(checks) and not mistrusted,
            checks=len(checks),
            round_trip_max_s=None if slowest_ns is None else slowest_ns / NS_PER_S,
            unchecked_passes=sum(not measured.clock_checked for restart in restarts for measured in restart.passes),
            identities=list(dict.fromkeys(restart.clock for restart in restarts if restart.clock)),
        )

    def number(self, restart: RestartRecord) -> int:
        """Return which of `identities` the restart's instants are of; 0 where it does not say."""
        return self.identities.index(restart.clock) if restart.clock else 0


class ConditionChange(Stored):
    """A condition that differed between measured passes; `restarts` has their numbers, from 0, by the value seen."""

    name: str
    restarts: dict[str, list[int]]


class ContainerFacts(Stored):
    """What a runner in a container ran in.

    Attributes:
        image_id: Hash by which this machine's engine has the image; says exactly what ran, on this machine.
        revision: Commit of the image's sources, "-dirty" behind it where files differed; None where it does not say.
        base_digest: "sha256:…" by which a registry has the image's base.
        locked: The image is the one in `docker/images.lock`, held against it before anything was started.
        locked_digest: "repository@sha256:…" by which it was locked; None where it was locked by its id only.
        lock_sha256: Hash of that file.
    """

    engine: str
    engine_version: str
    rootless: bool
    image: str
    image_id: str
    revision: str | None = None
    base_digest: str | None = None
    locked: bool = False
    locked_digest: str | None = None
    lock_sha256: str | None = None


class EnvironmentSnapshot(Stored):
    """Everything a reader needs to judge, compare or repeat an experiment.

    Attributes:
        gpu_count, gpu_names, gpu_vram_gb, gpu_uuids: The GPUs *used*, in one order; bytes / 1e9. 0 and empty without.
        host_gpus: Every GPU of the host, before the run.
        topology: Null with fewer than two GPUs.
        leased: GPU UUIDs, or "cpu", that were held for the run.
        exclusive: "machine" where nobody else who uses wattdock could measure on this machine meanwhile.
        wattdock_commit, wattdock_dirty: Of wattdock's own checkout; null where it was installed without one.
        launcher, launcher_reason: How the runner was started and why so.
        image_digest: "repository@sha256:…", for anybody to get the same image; None for one that no registry has.
        container: None for a runner that is a plain process.
        variables: Engine settings that reached the runner from the coordinator's environment, by name; "set" in place
            of a value that may be a secret.
        dataset, dataset_sha256: The source of the prompts, and its hash.
        changes: In which conditions the runners that measured passes differed; all else is of the last of them. Null
            in a restart's own snapshot, and where one of several restarts has no snapshot.
    """

    gpu_count: int
    gpu_names: list[str]
    gpu_vram_gb: list[float | None]
    gpu_uuids: list[str]
    host_gpus: list[Gpu]
    driver_version: str | None
    topology: Topology | None = None
    leased: list[str] = Field(default_factory=list)
    exclusive: str = "unknown"
    cpu_model: str | None
    cpu_count: int
    memory_total_bytes: int | None
    kernel: str
    coordinator_python: str
    wattdock_version: str
    wattdock_commit: str | None = None
    wattdock_dirty: bool | None = None
    launcher: str
    launcher_reason: str
    image_digest: str | None = None
    container: ContainerFacts | None = None
    variables: dict[str, str] | None = None
    backend: str
    runner: RunnerEnvironment
    model: ModelFacts
    dataset: str | None
    dataset_sha256: str | None
    seed: int
    clock: ClockFacts
    meter: str
    meter_reason: str | None
    changes: list[ConditionChange] | None = None

    @property
    def leased_gpus(self) -> list[str]:
        """UUIDs of the GPUs that were held for the run."""
        return [name for name in self.leased if name != CPU]

    @property
    def used_gpus(self) -> list[Gpu]:
        """The GPUs that held a part of the model, in the host's order."""
        return [gpu for gpu in self.host_gpus if gpu.uuid in self.gpu_uuids]
