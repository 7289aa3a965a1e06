"""Start runners in containers of the local engine.

Knows nothing of gRPC. What a container may do is `container`'s matter, how it ends `running_container`'s.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattdock.errors import LaunchError
from wattdock.launch.container import (
    CACHE_FOLDER,
    FOLDER_LABEL,
    MODEL_FOLDER,
    SOCKET_FOLDER,
    Bind,
    User,
    create_arguments,
    ulimit_arguments,
)
from wattdock.launch.engine import new_client
from wattdock.launch.orphans import marks
from wattdock.launch.running_container import RunnerContainer, explained
from wattdock.launch.socket_folder import make_socket_folder

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

    from wattdock.config import ContainerSpec
    from wattdock.launch.engine import Containers, Engine
    from wattdock.launch.protocol import LaunchSpec

KEEPER = Path(__file__).with_name("container_keeper.py")


class DockerLauncher:
    """Starts runners in containers of one image.

    Args:
        containers: The engine and the image.
        cache: Folder of the caller's for what engines compile; made where it is not there.
    """

    name = "docker"

    def __init__(self, containers: Containers, *, cache: Path, limits: ContainerSpec) -> None:
        self._containers, self._cache, self._limits = containers, cache, limits

    def launch(self, spec: LaunchSpec) -> RunnerContainer:
        """Start one container and return before its runner answers.

        Raises:
            PreflightError: Its socket's path would be too long, or the folder for it cannot be made.
            LaunchError: The engine cannot create or start it, or its log cannot be written.
        """
        from docker.errors import DockerException

        folder = make_socket_folder(os.environ)
        try:
            return self._launched(spec, folder)
        except (DockerException, OSError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise LaunchError(f"no container could be started: {explained(error)}") from error

    def _launched(self, spec: LaunchSpec, folder: Path) -> RunnerContainer:
        spec = dataclasses.replace(spec, labels={**spec.labels, **marks(spec), FOLDER_LABEL: str(folder)})
        binds = self._binds(spec, folder)
        client = new_client(self._containers.engine.address)
        with contextlib.ExitStack() as undo:
            undo.callback(client.close)
            container = self._started(client, spec, binds, name=f"wattdock-{folder.name.removeprefix('wattdock-')}")
            undo.callback(container.remove, force=True, v=True)
            keeper = keep(self._containers.engine, container, folder, lease_fds=spec.lease_fds)
            undo.pop_all()
        return RunnerContainer(client, container, keeper, folder, spec.log_path)

    def _binds(self, spec: LaunchSpec, folder: Path) -> tuple[Bind, ...]:
        """Make and gather everything of the host that the container is given."""
        (self._cache / "home").mkdir(mode=0o700, parents=True, exist_ok=True)
        spec.log_path.touch()
        inside = User(os.getuid(), os.getgid()).inside(self._containers.engine)
        passwd, group = (spec.log_path.with_suffix(suffix) for suffix in (".passwd", ".group"))
        passwd.write_text(inside.passwd)
        group.write_text(inside.group)
        return (
            Bind(folder, SOCKET_FOLDER, read_only=False),
            Bind(self._cache, CACHE_FOLDER, read_only=False),
            Bind(passwd, "/etc/passwd"),
            Bind(group, "/etc/group"),
            *(model_binds(spec.model_path) if spec.model_path else ()),
        )

    def _started(
        self, client: docker.DockerClient, spec: LaunchSpec, binds: tuple[Bind, ...], *, name: str
    ) -> Container:
        from docker.errors import APIError

        arguments = create_arguments(
            spec,
            self._containers.image,
            self._containers.engine,
            user=User(os.getuid(), os.getgid()),
            binds=binds,
            limits=self._limits,
            environ=os.environ,
        )
        try:
            return create_and_start(client, name=name, **arguments, **ulimit_arguments())
        except APIError as error:
            if not refuses_limits(error):
                raise
        note = "wattdock: the engine may not raise memlock and stack limits; started with its own\n"
        with spec.log_path.open("a", encoding="utf-8") as log:
            log.write(note)
        return create_and_start(client, name=name, **arguments)


def create_and_start(client: docker.DockerClient, **arguments: Any) -> Container:
    """Return a container that was started; one that cannot be started is removed again.

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


def keep(engine: Engine, container: Container, folder: Path, *, lease_fds: tuple[int, ...]) -> subprocess.Popen[bytes]:
    """Start the process that removes the container and its socket's folder should this one be killed.

    It holds the leases too, so that nobody else is given the GPUs before the container is gone.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", KEEPER, engine.address.removeprefix("unix://"), str(container.id), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={},
        pass_fds=lease_fds,
        start_new_session=True,
    )


def refuses_limits(error: Exception) -> bool:
    """Whether an engine that could not start a container lacks the right to raise resource limits."""
    return "rlimit" in str(error).lower()


def model_binds(folder: Path) -> tuple[Bind, ...]:
    """Return how a model's folder gets into a container: whole, or piece by piece where there are links in it.

    A download of the Hugging Face hub is a folder of links to files that lie beside it, and a link by full path leads
    nowhere inside.
    """
    pieces = list(folder.rglob("*"))
    if not any(piece.is_symlink() for piece in pieces):
        return (Bind(folder.resolve(), MODEL_FOLDER),)
    files = [piece for piece in pieces if piece.is_symlink() or not piece.is_dir()]
    return tuple(Bind(file.resolve(), f"{MODEL_FOLDER}/{file.relative_to(folder)}") for file in files)
