"""The environment of an experiment: hardware, software, model, prompts, clocks and meter."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, ValidationInfo, field_validator

from wattdock.host import Gpu, Link
from wattdock.host.jobs import Job
from wattdock.text import excerpts_at_difference
from wattdock.values import Said, Settings, Stored

# Name of the lease of an experiment without a GPU.
CPU = "cpu"


class RunnerEnvironment(Stored):
    """The runner's part of the snapshot, read inside its own environment; all null or empty where it loaded nothing.

    Attributes:
        visible_gpu_uuids: GPUs that the runner sees.
        used_gpu_uuids: GPUs that hold a part of the model.
        parallelism: In effect, for instance {"kind": "device_map", …}.
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
    package_versions: dict[str, Said] = Field(default_factory=dict)
    parallelism: Settings = Field(default_factory=dict)
    engine_args: Settings = Field(default_factory=dict)
    parameter_count: int | None = None
    weight_bytes: int | None = None
    warnings: list[Said] = Field(default_factory=list)


class Topology(Stored):
    """Links between the host's GPUs, and warnings about those that the experiment used."""

    links: list[Link]
    warnings: list[str]


class ModelFacts(Stored):
    """The model that ran.

    Attributes:
        weights: Their origin, and how they are quantised: "real", "real, Q4_1", "random(…)", "unknown"; of the embedded
            model, whose file is Q4_1, "real, unpacked from 4 bits (Q4_1)" where an engine reads them unpacked.
        rendered_sha256: Of the first pass's texts as the tokenizer and its chat template made ids of them; null without
            texts, and in the snapshot of a single restart.
        template_time_utc: The present that the chat template was told, which is when the study began; null where it
            did not ask.
        draft: Name and revision of the draft model of speculative decoding, whose files begin with "draft/"; null
            without one.
        files: By name, the SHA-256 of every file in its folder that decides the work. Earlier versions kept 16 digits,
            for weights of their size and first and last MiB.
    """

    UNPACKED: ClassVar = "unpacked from 4 bits (Q4_1)"

    kind: str
    name: str
    revision: str | None
    weights: str
    trust_remote_code: bool
    rendered_sha256: str | None = None
    template_time_utc: str | None = None
    draft: str | None = None
    files: dict[str, str] = Field(default_factory=dict)

    @field_validator("weights")
    @classmethod
    def _unpacked(cls, weights: str, others: ValidationInfo) -> str:
        # Results of earlier versions said "real".
        is_unpacked = others.data.get("kind") == "embedded" and "Q4_1" not in weights
        return weights.replace("real", f"real, {cls.UNPACKED}", 1) if is_unpacked else weights


class ClockFacts(Stored):
    """Evidence that runner and host share a clock.

    Attributes:
        round_trip_max_s: Round trip of the slowest check; None where no runner answered.
        identities: The clocks of all instants; several where the host was rebooted before a study was resumed.
        unchecked_passes: Measured passes after which the runner's clock was not checked, because the runner had died.
    """

    trusted: bool
    checks: int
    round_trip_max_s: float | None = None
    identities: list[str] = Field(default_factory=list)
    unchecked_passes: int | None = None

    def number(self, clock: str) -> int:
        """Return which of `identities` a restart's clock is; 0 where its record does not say."""
        return self.identities.index(clock) if clock else 0


class ConditionChange(Stored):
    """A condition that differed between measured passes, with the restarts' numbers, from 0, by value."""

    name: str
    restarts: dict[str, list[int]]

    def __str__(self) -> str:
        """Return "driver: 580 (restart 1, 2), 590 (restart 3)"; long values are cut around their first difference."""
        excerpts = excerpts_at_difference(list(self.restarts))
        numbers = (", ".join(str(restart + 1) for restart in found) for found in self.restarts.values())
        told = (f"{value} (restart {text})" for value, text in zip(excerpts, numbers, strict=True))
        return f"{self.name}: {', '.join(told)}"


class ContainerFacts(Stored):
    """The container engine and image of a runner.

    Attributes:
        image_id: The image's id in this machine's engine; identifies the image exactly, on this machine only.
        revision: Commit of the image's sources, with "-dirty" where files differed; None where the image has no label.
        base_digest: "sha256:…" of the image's base in a registry.
        locked: The image was checked against `docker/images.lock` before the start.
        locked_digest: "repository@sha256:…" in the lock; None where the lock holds the image's id only.
        lock_sha256: Hash of the lock file.
        memory_limit_gb: Most memory, in 10^9 bytes.
        pids_limit: Most processes and threads.
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
    memory_limit_gb: float | None = None
    pids_limit: int | None = None


class PackageFacts(Stored):
    """What a runner's packages were locked by; every file of theirs was checked before the runner was started.

    Attributes:
        lock: Name of the lock file.
        lock_sha256: Of its content.
        packages: How many packages of the lock this machine needs.
        interpreter: The build of Python that runs them, and its C library.
        foreign_code: Files of the runner that are not wattdock's own.
    """

    lock: str
    lock_sha256: str
    packages: int
    interpreter: str
    foreign_code: tuple[str, ...] = ()


class NodeFacts(Stored):
    """Another node that held a part of the model.

    Attributes:
        name: As its agent was named, "host:port".
        gpu_uuids: All GPUs of the node.
        runner: As the node's own runner reported it; null where it loaded nothing.
        round_trip_s, clock_uncertainty_s: Of the shortest ways there and back between the head and the node, and the
            standard uncertainty of the node's instants that this leaves, which `timing_j` of its GPUs holds.
        drift: By how much a second of the node is longer than one of the head.
    """

    name: str
    host_name: str
    boot_id: str
    gpu_uuids: list[str]
    driver_version: str | None = None
    cpu_model: str | None = None
    cpu_count: int = 0
    memory_total_bytes: int | None = None
    kernel: str = ""
    wattdock_commit: str | None = None
    wattdock_dirty: bool | None = None
    job: Job | None = None
    launcher: str = ""
    launcher_reason: Said = ""
    meter: str = ""
    variables: dict[str, Said] = Field(default_factory=dict)
    runner: RunnerEnvironment | None = None
    round_trip_s: float | None = None
    clock_uncertainty_s: float | None = None
    drift: float | None = None


class EnvironmentSnapshot(Stored):
    """Everything a reader needs to judge, compare or repeat an experiment.

    Attributes:
        gpu_count, gpu_names, gpu_vram_gb, gpu_uuids: The GPUs *used*, all in the same order; bytes / 1e9.
        host_gpus: Every GPU of the host and of the other nodes, before the run.
        nodes: The other nodes that held a part of the model; empty for a model on one. All other fields but GPUs are of
            the head, which ran the study.
        topology: Null with fewer than two GPUs.
        leased: GPU UUIDs, or "cpu", that were leased for the run.
        exclusive: "machine" where no other user of wattdock could measure on this machine at the same time.
        wattdock_commit, wattdock_dirty: Of wattdock's checkout; null where wattdock was installed without one.
        job: Null where no scheduler gave the machine.
        launcher, launcher_reason: How the runner was started, and why.
        image_digest: "repository@sha256:…", to pull the same image; null for an image that is in no registry.
        container: Null for a runner that is a plain process.
        packages: Null for a container, and for a process whose packages were not held against a lock.
        variables: Engine settings that reached the runner from the coordinator's environment, by name, as
            `wattdock.secrets` lets them through.
        runner: As the runner reported it.
        dataset, dataset_sha256: The source of the prompts, and its hash.
        dataset_format, dataset_ignored: Of a prompts file: the format that its keys told, and the keys or records that
            do not change the work.
        changes: Conditions that differed between the runners that measured passes; all other fields are of the last
            runner. Null in the snapshot of a single restart, and where one of several restarts has no snapshot.
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
    job: Job | None = None
    launcher: str
    launcher_reason: Said
    image_digest: str | None = None
    container: ContainerFacts | None = None
    packages: PackageFacts | None = None
    variables: dict[str, Said] | None = None
    backend: str
    runner: RunnerEnvironment
    model: ModelFacts
    dataset: str | None
    dataset_sha256: str | None
    dataset_format: str | None = None
    dataset_ignored: list[str] = Field(default_factory=list)
    seed: int
    clock: ClockFacts
    meter: str
    meter_reason: Said | None
    nodes: list[NodeFacts] = Field(default_factory=list)
    changes: list[ConditionChange] | None = None

    @property
    def leased_gpus(self) -> list[str]:
        """UUIDs of the GPUs that were leased for the run."""
        return [name for name in self.leased if name != CPU]

    @property
    def used_gpus(self) -> list[Gpu]:
        """The GPUs that held a part of the model, in the host's order."""
        return [gpu for gpu in self.host_gpus if gpu.uuid in self.gpu_uuids]

    @property
    def power_profiles(self) -> tuple[str, ...]:
        """Names of the workload power profiles in force on any GPU used; none is the default."""
        return tuple(dict.fromkeys(name for gpu in self.used_gpus for name in gpu.power_profiles or ()))
