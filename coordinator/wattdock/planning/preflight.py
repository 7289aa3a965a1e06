"""Decide how experiments are run, and refuse what cannot run, before anything is made, downloaded or started."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from wattdock.errors import Cause, ConfigError, PreflightError, WattdockError
from wattdock.host import GpuInventory, Machine, folders, leases
from wattdock.host.jobs import job_here
from wattdock.inputs import ModelFolder, PromptSet, ServedModels, check_model, check_prompts
from wattdock.launch import LaunchSpec, NoContainersError, choose_launcher, find_runner, reap
from wattdock.launch.images import read_lock
from wattdock.metering import MeterChoice, choose_meter
from wattdock.planning.gpu_choice import GpuChoice
from wattdock.planning.room import model_memory, require_room_to_answer
from wattdock.planning.running_server import find_server
from wattdock.quality import tasks_of
from wattdock.text import json_text
from wattdock_proto.asking import VARIABLES, Unanswered, wait_loaded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from wattdock.config import CommandSection, ExperimentConfig, Study
    from wattdock.host import Gpu
    from wattdock.host.jobs import Job
    from wattdock.launch import Launcher, LauncherChoice
    from wattdock.launch.images import ImagesLock
    from wattdock.metering import Meter
    from wattdock.planning.other_node import OtherNode
    from wattdock.planning.running_server import RunningServer

# Variable that names the folder into which a command's processes write their marks (`wattdock_spans`).
SPANS_FOLDER = "WATTDOCK_SPANS"
# Longest wait, in seconds, for a running server to list its models before anything is started.
LONGEST_ANSWER_S = 5.0


@dataclass(frozen=True)
class _Host:
    """This machine before anything is started: its GPUs, who holds a lease on what, and the lock file of images."""

    inventory: GpuInventory
    holders: Mapping[str, leases.Holder]
    lock_path: Path | None = None
    # WATTDOCK_HOME where a hub is asked for models.
    hub_home: Path | None = None

    # By address, what each server lists, or why it does not.
    _listed: dict[str, ServedModels | PreflightError] = field(default_factory=dict)

    def models_at(self, url: str) -> ServedModels:
        """Return what a server lists, asked once for all experiments: one that hangs is waited for once.

        Raises:
            PreflightError: As `ServedModels.at`.
        """
        if url not in self._listed:
            try:
                self._listed[url] = ServedModels.at(url, wait_s=LONGEST_ANSWER_S)
            except PreflightError as error:
                self._listed[url] = error
        listed = self._listed[url]
        if isinstance(listed, PreflightError):
            raise listed
        return listed

    @cached_property
    def lock(self) -> ImagesLock:
        """The lock of images, read once, so that all experiments of a study start what it said then.

        Raises:
            ConfigError: The lock is missing or malformed.
        """
        return read_lock(self.lock_path)


@dataclass(frozen=True)
class ExecutionPlan:
    """How this machine runs an experiment.

    Attributes:
        inventory: Every GPU of the host, and the driver's versions.
        gpus: The GPUs it runs on; empty for the CPU.
        launch: How its runners are started, and why so.
        meter: Which meter, and why.
        variables: Engine settings that reach its runner from the environment here; "set" for what may be secret.
        memory: Whether the model fits, in words; None on the CPU.
        server: The server that runs already; None where wattdock starts the engine.
        job: Job of a cluster's scheduler, where one gave the machine.
        prompts: What it will send, in words; empty before that is known.
        dataset_format, dataset_ignored: As in its result's environment.
        nodes: The other nodes that hold a part of the model.
    """

    config: ExperimentConfig
    machine: Machine
    inventory: GpuInventory
    gpus: tuple[Gpu, ...]
    launch: LauncherChoice
    meter: MeterChoice
    variables: Mapping[str, str] = field(default_factory=dict)
    memory: str | None = None
    server: RunningServer | None = None
    job: Job | None = None
    prompts: str = ""
    dataset_format: str | None = None
    dataset_ignored: tuple[str, ...] = ()
    nodes: tuple[OtherNode, ...] = ()

    def on(self, host_gpus: GpuInventory) -> ExecutionPlan:
        """Return the plan with the GPUs in their present state; unchanged where one is gone: its runner will fail."""
        now = {gpu.uuid: gpu for gpu in host_gpus.gpus}
        if any(gpu.uuid not in now for gpu in self.inventory.gpus):
            return self
        return replace(self, inventory=host_gpus, gpus=tuple(now[gpu.uuid] for gpu in self.gpus))

    @property
    def gpu_uuids(self) -> list[str]:
        """UUIDs of the GPUs that it runs on, those of other nodes included."""
        return [gpu.uuid for gpu in (*self.gpus, *(gpu for node in self.nodes for gpu in node.gpus))]

    @property
    def host_gpus(self) -> list[Gpu]:
        """Every GPU of this host and of the other nodes."""
        return [*self.inventory.gpus, *(gpu for node in self.nodes for gpu in node.host_gpus)]

    @property
    def decisions(self) -> str:
        """Which launcher and meter, and which image or what gives another; for a locked one, the variables it gets."""
        # Why it is a process, and what else was looked for, stands in the result.
        how = self.launch.reason if self.launch.image else self.launch.change
        passing = " ".join(f"{name}={value}" for name, value in self.variables.items())
        # A pinned image is half of what decides how an engine runs.
        reaching = f"; variables that reach the runner: {passing}" if passing and self.launch.pin else ""
        return f"launcher: {self.launch.name} ({how}); meter: {self.meter.name} ({self.meter.reason}){reaching}"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons against splitting a model over its GPUs."""
        return self.inventory.warnings(self.gpus)

    @property
    def lease_names(self) -> tuple[str, ...]:
        """Names of its leases: its GPUs' UUIDs, or the CPU."""
        return tuple(gpu.uuid for gpu in self.gpus) or (leases.CPU,)

    def launcher(self, say: Callable[[str], None]) -> AbstractContextManager[Launcher]:
        """Return a context that yields the launcher; an environment that it needs is made first."""
        # A client of a server has one environment for all machines.
        return self.launch.launcher(on_gpu=bool(self.gpus) and not self.server, say=say)

    def runner(
        self, log: Path, held: leases.HeldLeases, *, model: ModelFolder | None = None, alive_lock: Path | None = None
    ) -> LaunchSpec:
        """Return what a launcher is to start for it; `held` are its leases' descriptors by name, see `LaunchSpec`."""
        return LaunchSpec(
            backend=self.config.backend,
            runner_dir=self.launch.runner_dir,
            log_path=log,
            gpu_indices=tuple(gpu.index for gpu in self.gpus),
            gpu_uuids=tuple(gpu.uuid for gpu in self.gpus),
            model_path=model.path if model and not self.server else None,
            draft_path=model.draft.path if model and model.draft else None,
            alive_lock=alive_lock,
            lease_fds=tuple(held.values()),
            variables={name: os.environ[name] for name in VARIABLES if self.server and name in os.environ},
        )

    def command(self, log: Path, held: leases.HeldLeases, *, writable: Path, alive_lock: Path) -> LaunchSpec:
        """Return what a launcher is to start for a command of the user's own.

        Args:
            writable: Folder for its marks, which WATTDOCK_SPANS names.
        """
        command = self.config.command
        assert command is not None
        words, variables = command.filled_in(len(self.gpus))
        return replace(
            self.runner(log, held, alive_lock=alive_lock),
            command=tuple(words),
            folder=command.working_folder,
            writable=writable,
            variables=variables | {SPANS_FOLDER: str(writable)},
        )

    def new_meter(self) -> Meter:
        """Return a meter that has not been started."""
        return self.meter.new_meter([gpu.uuid for gpu in self.gpus])


def preflight(
    experiments: Sequence[ExperimentConfig],
    *,
    output_dir: Path,
    home: Path,
    lock: Path | None = None,
    online: bool = False,
) -> list[ExecutionPlan | WattdockError]:
    """Check every experiment; experiments that load the same model the same way are checked once.

    Args:
        lock: Lock file of images; None is the one in use.
        online: Ask the hub once for each of its models: whether it can be had, and how large it is.

    Returns:
        For each experiment its plan, or why it cannot run here.

    Raises:
        PreflightError: The driver cannot be talked to, or there is no folder for leases.
    """
    host = _Host(GpuInventory.here(), leases.holders(), lock, home if online else None)
    checked: dict[tuple[object, ...], ExecutionPlan | WattdockError] = {}
    plans: list[ExecutionPlan | WattdockError] = []
    for config in experiments:
        work = config.workload if config.workload.loop == "open" else config.workload.prompts
        # Equal for experiments that pass or fail together.
        key = config.load_key, json_text(work), config.wait_s
        try:
            plan = checked.get(key) or _plan(config, host, output_dir=output_dir, home=home)
            checked[key] = plan
            plans.append(plan if isinstance(plan, WattdockError) else _for_workload(config, plan, host))
        except WattdockError as error:
            checked.setdefault(key, error)
            plans.append(error)
    return plans


def require_inputs(config: ExperimentConfig) -> None:
    """Check what an experiment names, as far as that needs neither the machine that measures it nor a network.

    Raises:
        ConfigError, PreflightError: There is no such backend, model or prompts file, or they do not go together.
    """
    if config.command:
        _require_program(config.command, in_image=config.container.image is not None)
        return
    find_runner(config.backend)
    check_model(config.model, config)
    if config.draft:
        check_model(config.draft, config)
        if config.draft.shape:
            what = f"vllm.speculative_config.model: {config.draft.label} has no weights to read"
            raise ConfigError(what, "give a draft model with weights")
    if config.model.shape is not None:
        config.section.require_drawable()
    check_prompts(config, has_tokenizer=ModelFolder.takes_text(config.model))


def _require_program(command: CommandSection, *, in_image: bool) -> None:
    """Check that a command's folder is here, and its program, unless that lies in an image.

    Raises:
        ConfigError: One of them is not.
    """
    folder, (program, *_) = command.working_folder, command.filled_in(1)[0]
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder", "measure.folder is where the command runs")
    if not in_image and not shutil.which(program) and not (folder / program).is_file():
        raise ConfigError(f"{program}: no such program", "write its path, or see PATH; a pipeline needs sh -c '…'")


def _plan(config: ExperimentConfig, host: _Host, *, output_dir: Path, home: Path) -> ExecutionPlan:
    """Check everything that needs no runner, and decide how the experiment is run.

    Raises:
        ConfigError: The configuration names something that does not exist.
        PreflightError: This machine cannot run it.
    """
    require_inputs(config)
    asked, host_gpus, server, weight_bytes = config, host.inventory, None, None
    free_gpus = host_gpus
    if config.section.server_url:
        host.models_at(config.section.server_url).meant_by(config)
        server, asked = find_server(config, host_gpus)
        free_gpus = host_gpus.without(server.pids())
    elif not config.command:
        weight_bytes, *_ = model_memory(config, host_gpus, hub_home=host.hub_home, weights_only=True)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = GpuChoice(asked, free_gpus, visible, host.holders, weight_bytes).gpus()
    if config.section.needs_gpu and not gpus:
        why = "accelerator: cpu is set" if config.accelerator == "cpu" else host_gpus.reason or "none was chosen"
        raise PreflightError(
            f"backend {config.backend} needs an NVIDIA GPU: {why}",
            "pytorch, vllm and llamacpp run on CPUs, too",
            cause=Cause.NO_GPU,
        )
    folders.require_writable(output_dir, setting="--output-dir")
    folders.require_writable(home, setting="WATTDOCK_HOME")
    folders.require_temporary()
    unmeasured = server.unmeasured if server and config.meter != "rapl" else ""
    launch = choose_launcher(config, on_gpu=bool(gpus) and not server, home=home, lock=lambda: host.lock)
    return ExecutionPlan(
        config=config,
        machine=Machine.here(),
        inventory=host_gpus,
        gpus=gpus,
        launch=launch,
        meter=MeterChoice("none", unmeasured, unmeasured) if unmeasured else choose_meter(config.meter, host_gpus),
        variables=launch.variables,
        server=server,
    )


def _for_workload(config: ExperimentConfig, checked: ExecutionPlan, host: _Host) -> ExecutionPlan:
    """Return the plan of one experiment of several that were checked together, with the memory its workload needs.

    Raises:
        ConfigError, PreflightError: Its workload cannot run here.
    """
    memory: str | None = None
    if config.command:
        return replace(checked, config=config)
    if not checked.server:
        on_cpus = None if checked.gpus else checked.launch
        _, line, verdict = model_memory(config, host.inventory, hub_home=host.hub_home, on_cpus=on_cpus)
        # On CPUs only a model that may not fit is worth a line.
        memory = line if checked.gpus or verdict == "uncertain" else None
    sent, asked = PromptSet.summary(config), ""
    if tasks := tasks_of(config, confined=checked.launch.name != "process"):
        if not ModelFolder.takes_text(config.model):
            raise ConfigError(f"quality: {config.model.label} has no tokenizer, and questions are text")
        assert config.quality
        limit = config.quality.max_output_tokens
        if not checked.server:
            require_room_to_answer(config, limit, hub_home=host.hub_home)
        items = sum(task.items for task in tasks)
        asked = f"; then {items:,} questions a restart, of at most {items * limit:,} output tokens together"
    return replace(
        checked,
        config=config,
        memory=memory,
        prompts=f"{config.prompts.source}: {sent.text}{asked}",
        dataset_format=sent.format,
        dataset_ignored=sent.ignored,
    )


def plan_study(
    study: Study, *, output_dir: Path, home: Path, say: Callable[[str], None], lock: Path | None = None
) -> list[ExecutionPlan]:
    """Check everything that needs no runner, and decide how each experiment runs here; to be run, not only shown.

    Args:
        say: Receives a line about each leftover of a killed command that was removed, and each server that is loading.
        lock: Lock file of images; None is the one in use.

    Raises:
        ConfigError, PreflightError: An experiment cannot run here; nothing was started.
        LaunchError: An engine will not remove the container of a coordinator that is gone.
    """
    removed = [
        f"removed {path}: the command that was filling it is gone"
        for path in folders.remove_leftovers(output_dir, home)
    ]
    with suppress(NoContainersError):
        # Preflight would find these containers on the GPUs.
        names = reap().removed
        removed += [f"removed container {name}: the coordinator that started it is gone" for name in names]
    plans, job = [], job_here()
    loads_s = {url: config.timeouts.load_s for config in study.experiments if (url := config.section.server_url)}
    for url, limit_s in loads_s.items():
        try:
            # A server that loads may not have reached its GPUs yet.
            wait_loaded(url, within_s=limit_s, say=say)
        except Unanswered as error:
            remedy = "see its log, and start it again; one that loads is waited for timeouts.load_s"
            raise PreflightError(str(error), remedy) from error
    for checked in preflight(study.experiments, output_dir=output_dir, home=home, lock=lock, online=True):
        if not isinstance(checked, ExecutionPlan):
            raise checked
        plans.append(replace(checked, job=job))
    # An error's line is the first.
    for line in removed:
        say(line)
    return plans
