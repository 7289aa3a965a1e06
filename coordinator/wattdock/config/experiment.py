"""One experiment as a person writes it.

Knows the names and limits of every setting, nothing of files, machines or runners.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PrivateAttr,
    SerializeAsAny,
    model_serializer,
    model_validator,
)

from wattdock.config.lengths import Settings, StrictSettings
from wattdock.config.nodes import GpuCount, Gpus, NodesSpec
from wattdock.config.procedure import IdleSpec, QualitySpec, RepeatsSpec, WarmUpSpec
from wattdock.config.sections import BackendSection, section_class
from wattdock.config.sections.measure import Section as CommandSection
from wattdock.config.workload import PromptSpec, Seed, SloSpec, WorkloadSpec

WrittenPath = Annotated[Path, Field(strict=False)]


def model_mapping(value: Any) -> Any:
    """Return the mapping that a plain string stands for under `model:`; anything else as it is."""
    if not isinstance(value, str):
        return value
    if value.startswith("shape:"):
        return {"shape": value.removeprefix("shape:")}
    is_path = value.startswith(("/", "./", "../", "~")) or (value != ModelSpec.EMBEDDED and Path(value).is_dir())
    return {"path": value} if is_path else {"id": value}


class ModelSpec(StrictSettings):
    """Which model: exactly one of a Hugging Face `id`, a local folder, or a synthetic `shape` with random weights.

    A plain string stands for an id, for a folder where there is one of that name or it starts with `/`, `./`, `../` or
    `~`, and for a shape where it starts with `shape:`. For llama.cpp, a folder may be given by one of its GGUF files.
    With `url`, the default `served` is the model that the server has; a name is held against it.
    """

    EMBEDDED: ClassVar = "smollm2-135m-instruct"
    # Stands for whichever model the server at `url` has.
    SERVED: ClassVar = "served"
    # Stands where there is none: a command of the user's own is measured.
    NONE: ClassVar = "none"
    # Every backend draws random weights uniformly from this range; it is the one that vLLM's dummy loader uses.
    RANDOM_WEIGHTS: ClassVar = (-1e-3, 1e-3)

    id: str | None = None
    path: WrittenPath | None = None
    shape: str | None = None
    revision: str | None = None
    weights_seed: Seed = 0
    trust_remote_code: bool = False

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: Any) -> Any:
        return model_mapping(value)

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        names = [name for name in ("id", "path", "shape") if getattr(self, name) is not None]
        if len(names) != 1:
            raise ValueError(f"give exactly one of id, path and shape, not {' and '.join(names) or 'none'}")
        return self

    @property
    def on_hub(self) -> bool:
        """Whether the model comes from a hub."""
        return self.id is not None and self.id not in (self.EMBEDDED, self.SERVED, self.NONE)

    @property
    def label(self) -> str:
        """The model in one short word or path."""
        return self.id or (f"shape:{self.shape}" if self.shape else str(self.path))


class TimeoutsSpec(StrictSettings):
    """How long each stage may take; a runner past its limit is killed.

    Attributes:
        launch_s: From the start of a runner to its first answer.
        load_s: For loading, compiling and capturing.
        heartbeat_s: Longest silence of the runner in a pass.
        stall_s: Longest time in a pass without a new token or a finished request.
        stop_s: From being asked to stop to being killed.
    """

    WITHDRAWN: ClassVar = {"experiment_s": None}

    launch_s: PositiveFloat = 120
    load_s: PositiveFloat = 1800
    heartbeat_s: PositiveFloat = 60
    stall_s: PositiveFloat = 600
    stop_s: PositiveFloat = 20


class ContainerSpec(StrictSettings):
    """The container that a runner gets under `launcher: docker`; a plain process knows `locked`, Apptainer `image`.

    Attributes:
        image: Name, or `name@sha256:…` to pin it; None is `wattdock-<backend>`. For Apptainer `FILE.sif`,
            `oci-archive:FILE` or `registry/name@sha256:…`; None is the image in `docker/images.lock`.
        locked: Start only what a lock names by content: the image in `docker/images.lock`, or under `launcher: process`
            an environment of the packages in the backend's lock, each file checked; refused where it is not that.
        memory_gb: Most memory, in 10^9 bytes and without swap; None is what the machine has, less a tenth or 4 GB,
            so that a runner is ended before the machine is.
        pids: Most processes and threads, several times what an engine with eight workers has.
        cpus: Most CPU time per time; None is no limit.
        shm_gb, tmp_gb: Sizes of /dev/shm and /tmp, in 10^9 bytes.
    """

    image: str | None = None
    locked: bool = False
    memory_gb: PositiveFloat | None = None
    pids: Annotated[int, Field(gt=0)] = 16_384
    cpus: PositiveFloat | None = None
    shm_gb: PositiveFloat = 16
    tmp_gb: PositiveFloat = 16


# What decides how a runner is started and what it loads, beside the backend's section.
LOAD_KEYS = {
    *("backend", "model", "accelerator", "gpus", "launcher", "container", "meter"),
    *("runner_python", "timeouts", "nodes"),
}


class ExperimentConfig(StrictSettings):
    """Everything that defines one experiment; its backend's settings stand under the backend's own name.

    Attributes:
        accelerator: "auto" uses a GPU where one is visible; "cpu" uses none; "cuda" requires one.
        gpus: "auto" takes as many as the backend's section needs; or indices or UUIDs; or `{count: N}`.
        exclusive: "machine" keeps everybody else who uses wattdock from measuring on this machine meanwhile; "gpus"
            only from the same GPUs, which disturbs and is not publishable.
        wait_s: How long to wait for others who measure here.
        launcher: "auto" takes docker where an engine and the image are there, else a process; never apptainer.
        meter: "auto" is NVML where there is an NVIDIA GPU, else RAPL where that can be read, else none; "zeus" checks
            each pass with ZeusMonitor too. RAPL's series stand beside GPUs' wherever they can be read.
        isolation: "group" shares one runner among experiments with the same Load; "experiment" never does.
        on_failure: "continue" with the rest of the study, or "stop" it.
        runner_python: Interpreter that has the backend's packages, instead of an environment that wattdock makes.
        power_limit_w: The GPUs' power limit where it was set on purpose; it is checked, never set.
        quality: What the model is asked after the measured passes; None asks nothing.
        nodes: Over which nodes the model is spread; None keeps it on this one. `gpus` counts those of each.
    """

    # Settings of where, under which name and with which timeouts an experiment runs, and of what its requests are held
    # to afterwards; not of what is measured.
    NOT_IDENTITY: ClassVar = {"name", "runner_python", "timeouts", "on_failure", "wait_s", "slo"}
    # What publication needs at least. Passes below 2 s vary widely, those of 5 s are stable, 20 s are common
    # (arXiv 2312.02741 and peers). An interval from two restarts has one degree of freedom and says nothing.
    PUBLICATION: ClassVar[dict[str, Any]] = {
        "warmup.profile": "lead-in",
        "repeats.restarts": 3,
        "repeats.passes": 1,
        "workload.min_duration_s": 40,
        "exclusive": "machine",
        "accelerator": "cuda",
        "container.locked": True,
    }

    WITHDRAWN: ClassVar = {"package_lock": None}
    # Of these, what a command of the user's own has, too.
    PUBLICATION_OF_COMMANDS: ClassVar = ("repeats.restarts", "exclusive", "accelerator")

    name: str = ""
    backend: str = "pytorch"
    model: ModelSpec = ModelSpec(id=ModelSpec.EMBEDDED)
    workload: WorkloadSpec = WorkloadSpec()
    slo: SloSpec | None = None
    repeats: RepeatsSpec = RepeatsSpec()
    warmup: WarmUpSpec = WarmUpSpec()
    idle: IdleSpec = IdleSpec()
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    gpus: Gpus = "auto"
    exclusive: Literal["machine", "gpus"] = "machine"
    wait_s: NonNegativeFloat = 0.0
    launcher: Literal["auto", "docker", "process", "apptainer"] = "auto"
    container: ContainerSpec = ContainerSpec()
    meter: Literal["auto", "nvml", "zeus", "rapl", "none"] = "auto"
    isolation: Literal["group", "experiment"] = "group"
    on_failure: Literal["continue", "stop"] = "continue"
    timeouts: TimeoutsSpec = TimeoutsSpec()
    runner_python: WrittenPath | None = None
    power_limit_w: PositiveFloat | None = None
    quality: QualitySpec | None = None
    nodes: NodesSpec | None = None

    _section: SerializeAsAny[BackendSection] = PrivateAttr(default_factory=BackendSection)

    @property
    def section(self) -> BackendSection:
        """The settings of this experiment's backend."""
        return self._section

    @property
    def command(self) -> CommandSection | None:
        """The command of the user's own that stands in an engine's place; None for an engine."""
        return self._section if isinstance(self._section, CommandSection) else None

    @cached_property
    def draft(self) -> ModelSpec | None:
        """The draft model of speculative decoding; None without one."""
        # A section that does not declare this name passes anything on, for the runner to refuse.
        drafts: Any = getattr(self.section, "speculative_config", None)
        written = drafts.model_dump(exclude_unset=True) if isinstance(drafts, Settings) else {}
        if not written.get("model"):
            return None
        of_model = {"revision": written.get("revision"), "trust_remote_code": self.model.trust_remote_code}
        return ModelSpec.model_validate(model_mapping(written["model"]) | of_model)

    def with_draft(self, folder: Path) -> Self:
        """Return the experiment with its draft model in a folder."""
        fields = self.model_dump(mode="json")
        fields[self.backend]["speculative_config"]["model"] = str(folder)
        return self.model_validate(fields)

    @model_validator(mode="wrap")
    @classmethod
    def _take_section(cls, value: Any, build: Any) -> Self:
        if not isinstance(value, dict):
            built: Self = build(value)
            return built
        backend = value.get("backend", cls.model_fields["backend"].default)
        name = backend if isinstance(backend, str) and backend not in cls.model_fields else None
        default: dict[str, Any] = {"model": ModelSpec.SERVED} if backend == "url" else {}
        if backend == "measure":
            # One run in each restart, and the first one counts.
            default = {"model": ModelSpec.NONE, "warmup": {"passes": 0}}
            repeats = value.get("repeats", {})
            value = value | {"repeats": {"passes": 1} | repeats if isinstance(repeats, dict) else repeats}
        config: Self = build(default | {key: setting for key, setting in value.items() if key != name})
        if name is not None:
            section = value.get(name)
            config._section = section_class(name).model_validate({} if section is None else section)
            arrivals = config._section.arrivals
            if arrivals is not None and config.workload.loop not in arrivals:
                raise ValueError(
                    f"workload.arrival: {config.workload.arrival} is not among what {name} can serve "
                    f"({', '.join(arrivals)}); others serve it, such as vllm"
                )
            config._section.require_servable(config.workload)
        prompts, section = config.prompts, config._section
        if config.command:
            config._require_nothing_of_an_engine()
        if config.nodes and (why_not := config.nodes.why_not(config)):
            raise ValueError(f"nodes: {why_not}")
        config._require_gpus_for_split()
        if config.model.id == ModelSpec.SERVED and not section.server_url:
            raise ValueError(f"model: {ModelSpec.SERVED} is the model of a server that runs already; give its url, too")
        if prompts.repeats_tokens:
            setting = f"workload.prompts.{'turns' if prompts.turns > 1 else 'shared_prefix_tokens'}"
            if prompts.source != "synthetic":
                raise ValueError(f"{setting} needs source: synthetic, not {prompts.source}")
            if not section.caches_prefixes:
                raise ValueError(f"{setting} needs {config.backend}: {{{section.prefix_cache}}}")
        if prompts.chat_template_kwargs and prompts.source == "synthetic":
            raise ValueError("workload.prompts.chat_template_kwargs needs prompts of text, not source: synthetic")
        return config

    @model_validator(mode="after")
    def _locked_means_that_and_nothing_else(self) -> Self:
        locked = self.container.locked
        limited = self.container != ContainerSpec(image=self.container.image, locked=locked)
        conflicts = {
            "container.locked (--locked) and runner_python": locked and self.runner_python is not None,
            "container.locked (--locked) and container.image": locked and self.container.image is not None,
            "limits of container and launcher: apptainer": limited and self.launcher == "apptainer",
        }
        if both := next((name for name, is_set in conflicts.items() if is_set), None):
            raise ValueError(f"{both} exclude each other; leave one of them out (--publishable sets container.locked)")
        return self

    @model_serializer(mode="wrap")
    def _with_section(self, dump: Any) -> dict[str, Any]:
        fields: dict[str, Any] = dump(self)
        # An experiment that asks nothing is the one that it was before there were questions.
        fields = {name: each for name, each in fields.items() if each is not None or name not in ("quality", "nodes")}
        return fields | {self.backend: self._section.model_dump(mode="json")}

    def _require_gpus_for_split(self) -> None:
        asked, needed = self.gpus_asked * self.node_count, self.section.gpus_needed()
        if self.accelerator != "cpu" and asked < needed:
            raise ValueError(f"gpus: {asked} cannot hold a split over {needed}; leave gpus out, or ask for {needed}")

    def _require_nothing_of_an_engine(self) -> None:
        """Refuse settings that a command of the user's own cannot have."""
        engines = {
            "model": self.model.id != ModelSpec.NONE,
            "workload": self.workload != WorkloadSpec(),
            "slo": self.slo is not None,
            "warmup": self.warmup != WarmUpSpec(passes=0),
            "repeats.passes": self.repeats.passes != 1,
            "container.locked (--locked)": self.container.locked,
            "runner_python": self.runner_python is not None,
            "quality": self.quality is not None,
        }
        if wrong := next((name for name, is_set in engines.items() if is_set), None):
            raise ValueError(f"{wrong} is for engines; a command runs once in each restart, as it is; leave it out")

    @property
    def publication(self) -> dict[str, Any]:
        """What publication needs at least, by setting."""
        names = self.PUBLICATION_OF_COMMANDS if self.command else tuple(self.PUBLICATION)
        return {name: self.PUBLICATION[name] for name in names}

    def looser_than_published(self) -> dict[str, str]:
        """Return what publication needs and is not set, by setting: "repeats.restarts=1 instead of 3"."""
        loose = {}
        for name, wanted in self.publication.items():
            value: Any = attrgetter(name)(self)
            if value != wanted and not (isinstance(wanted, int | float) and value and value > wanted):
                loose[name] = f"{name}={'unset' if value is None else value} instead of {wanted}"
        return loose

    @property
    def gpus_asked(self) -> int:
        """How many GPUs the experiment takes of each node, where it runs on GPUs."""
        if isinstance(self.gpus, list):
            return len(self.gpus)
        return self.gpus.count if isinstance(self.gpus, GpuCount) else self.section.gpus_needed() // self.node_count

    @property
    def node_count(self) -> int:
        """Number of nodes that hold the model."""
        return self.nodes.count if self.nodes else 1

    @property
    def unit(self) -> str:
        """What its work is counted in, in the plural."""
        return self.command.work.unit if self.command else "output tokens"

    @property
    def prompts(self) -> PromptSpec:
        """The workload's prompts with their source decided."""
        spec = self.workload.prompts
        source = spec.source or ("synthetic" if self.model.shape else "bundled")
        return spec.model_copy(update={"source": source})

    def model_copy(self, **options: Any) -> Self:
        """Return a copy as pydantic does; its `load_key` and its `experiment_id` are those of its own settings."""
        copy = super().model_copy(**options)
        for name in ("draft", "load_key", "experiment_id"):
            copy.__dict__.pop(name, None)
        return copy

    @cached_property
    def load_key(self) -> str:
        """A text that is equal for experiments that can share a loaded runner (a load group)."""
        # A cache that one experiment's questions have filled would answer the next one's for less.
        alone = {"questions": self.experiment_id} if self.quality and self.section.caches_prefixes else {}
        return json.dumps(self.model_dump(mode="json", include=LOAD_KEYS) | alone, sort_keys=True)

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that tell experiments apart, JSON-ready; of nodes, how many they are and not which."""
        identity = {key: value for key, value in self.model_dump(mode="json").items() if key not in self.NOT_IDENTITY}
        return identity | ({"nodes": self.nodes.count} if self.nodes else {})

    @cached_property
    def experiment_id(self) -> str:
        """Hash of the canonical config: equal settings, equal id; 64 hexadecimal digits."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @property
    def label(self) -> str:
        """The experiment's name in tables."""
        work = self.workload
        if self.command:
            return self.name or self.command.label
        load = f"{work.arrival} {work.rate_per_s:g}/s" if work.rate_per_s else f"{work.arrival} {work.batch_size}"
        return self.name or f"{self.backend} {self.model.label} {load}"
