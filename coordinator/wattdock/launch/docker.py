"""Start runners in containers of the local engine, watch them, and say how they ended.

Knows nothing of gRPC. `container` says what a container may do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal as size_text

from wattdock.clock import NS_PER_S
from wattdock.errors import LaunchError
from wattdock.host import Machine, folders, nvml
from wattdock.launch.container import BYTES_PER_GB, Contained, compile_cache, create_arguments, models_binds, own_binds
from wattdock.launch.engine import NoContainersError, connect, find_image, owner_labels
from wattdock.launch.images import find_locked
from wattdock.launch.keeper import KEEPER
from wattdock.launch.launcher_choice import LauncherChoice
from wattdock.launch.protocol import KILL_WAIT_S, STOP_GRACE_S, STOPPED, LaunchedRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import docker
    from docker.models.containers import Container

    from wattdock.config import ContainerSpec, ExperimentConfig
    from wattdock.files import NewFolder
    from wattdock.launch.engine import Image
    from wattdock.launch.images import ImagesLock
    from wattdock.launch.protocol import Launcher, LaunchSpec

SIGNAL_BASE = 128
KILLED = SIGNAL_BASE + signal.SIGKILL
# How late an engine tells at most that a container has ended; an instant further back is of another clock.
MOST_LATE_S = 10
# How long it may take to tell, apart from the end, that a container's memory was used up. Source: moby
# (daemon/monitor.go), two events; under cgroup 2 the first can be lost (containerd, issue 6323).
MEMORY_TOLD_S = 2.0
# Most of the memory that a container without a limit of its own leaves to the coordinator, the engine and logins.
MOST_RESERVED_BYTES = 4e9
# NCCL pins memory, and its threads have deep stacks. Source: NCCL user guide, "Sharing Data".
NCCL_ULIMITS = (("memlock", -1), ("stack", 67_108_864))
TOOLKIT = (
    "the engine does not know NVIDIA's GPUs: install nvidia-container-toolkit, run `nvidia-ctk runtime configure` and "
    "restart the engine, or use --launcher process"
)
# Remedies by words of an engine's error, in lower case. Source: moby (daemon/devices.go, daemon/runtime_unix.go),
# libnvidia-container (nvidia-container-cli), CDI (pkg/cdi).
REMEDIES = {
    **dict.fromkeys(("could not select device driver", "unknown or invalid runtime name: nvidia"), TOOLKIT),
    "unresolvable cdi devices": "as root: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    "driver/library version mismatch": nvml.DRIVER_REPLACED,
    "nvml error: gpu is lost": "restart the machine; dmesg names the Xid",
    "no such image": "the image went away meanwhile; make it again with `make images`",
    "no space left on device": "make room under the engine's data folder (`docker system df` shows what fills it)",
}


def choose(
    config: ExperimentConfig, *, on_gpu: bool, home: Path, lock: Callable[[], ImagesLock], **_: object
) -> LauncherChoice:
    """Return the choice of containers: their image, what they may use, where engines in them compile.

    Raises:
        NoContainersError: No engine answers, it lacks the image, or the experiment names an interpreter.
        PreflightError: The locked image is not here.
    """
    pin = None
    if config.container.locked:
        image, pin = find_locked(config.backend, lock(), needs_gpu=on_gpu)
        reason = f"locked image {image.name}"
    elif config.runner_python and config.launcher == "auto":
        raise NoContainersError("runner_python names an interpreter", "leave it out")
    else:
        name = config.container.image or f"wattdock-{config.backend}"
        remedy = f"pull or build it: docker pull {name}" if config.command else None
        image = find_image(name, backend=config.backend, needs_gpu=on_gpu, remedy=remedy)
        found = f"docker {image.engine.version} has image {image.name}"
        reason = found if config.launcher == "auto" else "asked for"
    limits = config.container
    if not limits.memory_gb and (total_bytes := Machine.total_memory_bytes()):
        # A share of the whole, not of what is free just now, or the conditions of two runs would differ.
        left_bytes = total_bytes - min(total_bytes / 10, MOST_RESERVED_BYTES)
        limits = limits.model_copy(update={"memory_gb": left_bytes / BYTES_PER_GB})
    cache = compile_cache(config, image, home)
    return LauncherChoice("docker", reason, image=image, pin=pin, cache=cache, limits=limits)


@contextlib.contextmanager
def launcher(choice: LauncherChoice, **_: object) -> Iterator[Launcher]:
    """Yield a launcher of containers from the image of `choice`."""
    assert choice.image is not None
    assert choice.limits is not None
    yield partial(launch, image=choice.image, cache=choice.cache, limits=choice.limits)


def launch(spec: LaunchSpec, *, image: Image, cache: Path, limits: ContainerSpec) -> RunnerContainer:
    """Start a container of an image, on the engine that has it, and return before its runner answers.

    Args:
        cache: Folder for what engines compile; made where it is not there.

    Raises:
        PreflightError: Its socket's path would be too long, or the folder for it cannot be made.
        LaunchError: The engine cannot create or start it, or its log cannot be written.
    """
    from docker.errors import DockerException

    models, folder = models_binds(spec), folders.make_socket_folder(os.environ)
    try:
        with contextlib.ExitStack() as undo:
            (cache / "home").mkdir(mode=0o700, parents=True, exist_ok=True)
            spec.log_path.touch()
            client = connect(image.engine.address)
            undo.callback(client.close)
            arguments = {"name": f"wattdock-{folder.path.name.removeprefix('wattdock-')}"} | create_arguments(
                spec,
                image,
                user=(os.getuid(), os.getgid()),
                binds=[*own_binds(spec, folder.path, cache), *models],
                labels=owner_labels(spec.alive_lock, folder.path) if spec.alive_lock else {},
                limits=limits,
                environ=os.environ,
            )
            container = _start(client, spec, arguments)
            undo.callback(container.remove, force=True, v=True)
            # Removes the container and its socket's folder if this process is killed, and holds the leases until
            # then, so that nobody else gets the GPUs before the container is gone.
            socket = image.engine.address.removeprefix("unix://")
            keeper = subprocess.Popen(
                [*KEEPER, "container", socket, str(container.id), str(folder.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                pass_fds=(*spec.lease_fds, folder.descriptor),
                start_new_session=True,
            )
            undo.pop_all()
    except (DockerException, OSError) as error:
        folder.remove()
        raise LaunchError(f"no container could be started: {explained(error)}") from error
    return RunnerContainer(client, container, keeper, folder, spec)


def _start(client: docker.DockerClient, spec: LaunchSpec, arguments: Mapping[str, Any]) -> Container:
    from docker.errors import APIError
    from docker.types import Ulimit

    ulimits = [Ulimit(name=name, soft=value, hard=value) for name, value in NCCL_ULIMITS]
    try:
        return create_and_start(client, **arguments, ulimits=ulimits)
    except APIError as error:
        # An engine without the right to raise them refuses.
        if "rlimit" not in str(error).lower():
            raise
    with spec.log_path.open("a", encoding="utf-8") as log:
        log.write("wattdock: the engine may not raise memlock and stack limits; started with its own\n")
    return create_and_start(client, **arguments)


def create_and_start(client: docker.DockerClient, **arguments: Any) -> Container:
    """Create and start a container; remove it again where it cannot be started.

    Raises:
        docker.errors.DockerException: The engine refused or did not answer.
    """
    container = client.containers.create(**arguments)
    try:
        container.start()
    except OSError:
        with contextlib.suppress(OSError):
            container.remove(force=True, v=True)
        raise
    return container


class RunnerContainer(Contained, LaunchedRunner):
    """A runner that was started in a container.

    Attributes:
        id: The container's id; signals go to it, never to a name.
    """

    def __init__(
        self,
        client: docker.DockerClient,
        container: Container,
        keeper: subprocess.Popen[bytes],
        folder: NewFolder,
        spec: LaunchSpec,
    ) -> None:
        self._client, self._container, self._keeper = client, container, keeper
        self._folder, self._spec = folder, spec
        self._exit_reason: str | None = None
        self._forced = self._asked = False
        self.id = str(container.id)
        self.address = f"unix:{folder.path / folders.SOCKET_NAME}"

    def pids(self) -> frozenset[int]:
        """Return all processes that belong to it, as this host numbers them; empty if the engine does not answer.

        Source: Docker Engine API, GET /containers/{id}/top, whose process ids are the host's.
        """
        from docker.errors import DockerException

        with contextlib.suppress(DockerException, OSError):
            # null where all of them have just ended.
            return frozenset(int(row[0]) for row in self._container.top(ps_args="-eo pid")["Processes"] or ())
        return frozenset()

    def exit_reason(self) -> str | None:
        """How it ended, such as "exited with code 1"; None while it runs, and while the engine does not answer."""
        from docker.errors import DockerException, NotFound

        if self._exit_reason is not None:
            return self._exit_reason
        try:
            self._container.reload()
            state: Mapping[str, Any] = self._container.attrs["State"]
        except NotFound:
            state = {"Removed": True}
        except (DockerException, OSError):
            return None
        if state.get("Running"):
            return None
        state = self._awaited(state)
        self.ended_ns, reason = _ended_ns(state), self._ending(state)
        with contextlib.suppress(DockerException, OSError), self._spec.log_path.open("ab") as log:
            # In chunks: a log may have tens of megabytes.
            for chunk in self._container.logs(stream=True):
                log.write(chunk)
        with contextlib.suppress(DockerException, OSError):
            self._container.remove(force=True, v=True)
        self._folder.remove()
        with contextlib.suppress(BrokenPipeError):
            self._keeper.communicate(b"done\n")
        self._client.close()
        self._exit_reason = reason
        return reason

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Ask it to stop, kill it after `grace_s` seconds, and return when nothing of it is left.

        Raises:
            LaunchError: It survives SIGKILL, or the engine does not answer.
        """
        from docker.errors import DockerException

        if not self.alive():
            return
        self._asked = True
        try:
            if grace_s > 0:
                self._signal(signal.SIGTERM)
                # A paused process gets no signal before it continues.
                self._signal(signal.SIGCONT)
            if not self._ended_within(grace_s):
                self._forced = True
                self._signal(signal.SIGKILL)
                self._ended_within(KILL_WAIT_S)
        except (DockerException, OSError) as error:
            raise LaunchError(
                f"container {self.id[:12]} cannot be stopped: {explained(error)}", "see `wattdock reap`"
            ) from error
        if self.alive():
            raise LaunchError(
                f"container {self.id[:12]} does not end, even by SIGKILL (waited {KILL_WAIT_S:.0f} s): "
                "a driver may hold it, or the engine does not answer",
                "see `wattdock reap`",
            )

    def _awaited(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an ended container's state once the engine has told why somebody else killed it, if it ever does."""
        from docker.errors import DockerException

        until_s = time.monotonic() + MEMORY_TOLD_S
        killed = state.get("ExitCode") == KILLED and not (self._forced or self._asked)
        with contextlib.suppress(DockerException, OSError):
            while killed and not state.get("OOMKilled") and time.monotonic() < until_s:
                time.sleep(0.1)
                self._container.reload()
                state = self._container.attrs["State"]
        return state

    def _ending(self, state: Mapping[str, Any]) -> str:
        if self._forced:
            return "did not stop in time and was killed"
        if state.get("Removed"):
            return "lost its container, which somebody else removed"
        code = int(state.get("ExitCode", 0))
        limit = f"at most {size_text(self._container.attrs['HostConfig']['Memory'])}; raise container.memory_gb"
        if state.get("OOMKilled"):
            self.lacked_memory = True
            return f"ran out of memory and was killed by the kernel (exit code {code}), {limit}"
        if self._asked:
            return STOPPED
        if code == KILLED:
            return f"was killed by SIGKILL (out of memory? {limit} if so)"
        if code - SIGNAL_BASE in set(signal.Signals):
            return f"was killed by {signal.Signals(code - SIGNAL_BASE).name}"
        return f"exited with code {code}"

    def _signal(self, number: signal.Signals) -> None:
        from docker.errors import APIError

        # An engine refuses to signal a container that has just ended.
        with contextlib.suppress(APIError):
            self._container.kill(signal=int(number))

    def _ended_within(self, seconds: float) -> bool:
        try:
            self._container.wait(timeout=max(seconds, 0.01))
        except OSError:
            # A timeout, or the engine is gone; the caller looks at the container's state.
            return False
        return True


def _ended_ns(state: Mapping[str, Any]) -> int:
    """Return when a container's process ended, CLOCK_MONOTONIC; now where the engine does not tell.

    The engine tells seconds later that a container has ended where that was writing much, or where the machine is busy.
    """
    now_ns, wall_ns = time.monotonic_ns(), time.time_ns()
    with contextlib.suppress(KeyError, TypeError, ValueError):
        since_ns = wall_ns - round(datetime.fromisoformat(state["FinishedAt"]).timestamp() * NS_PER_S)
        # Only a wall clock that is set in these seconds misleads: an engine shares this kernel's clocks, as marks do.
        return now_ns - since_ns if 0 <= since_ns < MOST_LATE_S * NS_PER_S else now_ns
    return now_ns


def explained(error: Exception) -> str:
    """Return an engine's error in one line, with what to do about it where that is known."""
    message = " ".join(str(getattr(error, "explanation", None) or error).split())
    return next((f"{message}; {remedy}" for words, remedy in REMEDIES.items() if words in message.lower()), message)
