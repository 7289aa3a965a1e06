"""Start runners in containers of Apptainer, or of Singularity: programs of the user, without an engine that serves.

A runner is a process below its keeper, as in `process`; the image is a file, made once from what a registry has.

Source: Apptainer 1.3.6 and 1.4.0: cmd/internal/cli, action_flags.go and pull.go (options); internal/pkg/util/env,
create.go (a container's variables; HOME follows --home only); internal/pkg/runtime/engine/apptainer, prepare_linux.go
(signals reach a container without a terminal), container_linux.go (/tmp under --contain has 64 MB without --workdir).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock.errors import LaunchError, PreflightError, os_errors_as
from wattdock.files import expanded
from wattdock.host import folders, processes
from wattdock.launch import container
from wattdock.launch.engine import BASE_DIGEST_LABEL, REVISION_LABEL, Engine, Image, NoContainersError
from wattdock.launch.images.lock import Pin
from wattdock.launch.launcher_choice import LauncherChoice
from wattdock.launch.packages import sha256_of
from wattdock.launch.process import RunnerProcess, start
from wattdock.launch.runners import container_variables
from wattdock.secrets import withheld

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from wattdock.config import ExperimentConfig
    from wattdock.launch.container import Bind
    from wattdock.launch.images import ImagesLock
    from wattdock.launch.protocol import Launcher, LaunchSpec

PROGRAMS = ("apptainer", "singularity")
REGISTRY, ARCHIVE, DIGEST = "docker://", "oci-archive:", "@sha256:"
# Name of an image's file, in a folder that is named by the image's digest.
IMAGE_FILE = "image.sif"
# Where the program keeps its files; other variables of its own are options, or binds.
PLACES = r"(APPTAINER|SINGULARITY)_(CACHEDIR|TMPDIR|CONFIGDIR)"
# How it reaches a registry; not for `exec`, whose --cleanenv lets proxies' addresses in, with their logins.
REGISTRY_ACCESS = rf"{PLACES}|{processes.NETWORK}|(APPTAINER|SINGULARITY)_(DOCKER_\w+|AUTH_FILE|NO_?HTTPS)"


def choose(config: ExperimentConfig, *, home: Path, lock: Callable[[], ImagesLock], **_: object) -> LauncherChoice:
    """Return the choice of containers from the image that the experiment names, or that the lock names.

    Raises:
        NoContainersError: Neither program is on PATH.
        PreflightError: The file cannot be read, or the lock names no image that a registry has.
    """
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise NoContainersError(f"neither {' nor '.join(PROGRAMS)} is on PATH", "load its module or install it")
    name, pin, labels = config.container.image, None, dict[str, str]()
    if name is None:
        images = lock()
        pushed, name = images.pushed(config.backend)
        pin = Pin(name, images.sha256)
        labels = {REVISION_LABEL: pushed.revision or "", BASE_DIGEST_LABEL: pushed.base_digest or ""}
    image = find_image(_engine(str(Path(program).absolute())), name, labels)
    reason = f"locked image {name}" if pin else f"image {name}"
    cache = container.compile_cache(config, image, home)
    return LauncherChoice("apptainer", reason, image=image, pin=pin, cache=cache)


def find_image(engine: Engine, name: str, labels: Mapping[str, str]) -> Image:
    """Return an image by what an experiment names: a registry's digest, a file, or an archive of OCI.

    Raises:
        PreflightError: The file cannot be read.
    """
    name = name.removeprefix(REGISTRY)
    if DIGEST in name:
        return Image(engine, name, name.partition("@")[2], name, labels=labels)
    path, remedy = file_of(name), f"name FILE.sif, {ARCHIVE}FILE or REGISTRY/NAME{DIGEST}…"
    with os_errors_as(PreflightError, f"container.image: {path}", remedy):
        sha256 = sha256_of(path).hex()
    return Image(engine, name, f"sha256:{sha256}", None)


def file_of(name: str) -> Path:
    """Return the file that an experiment names as its image."""
    return expanded(name.removeprefix(ARCHIVE)).absolute()


@contextmanager
def launcher(choice: LauncherChoice, *, say: Callable[[str], None], **_: object) -> Iterator[Launcher]:
    """Yield a launcher of containers from the image of `choice`, whose file is made first."""
    assert choice.image is not None
    file = image_file(choice.image, folders.engine_cache(folders.wattdock_home()) / "images", say)
    with folders.scratch_folder() as scratch:
        yield partial(launch, engine=choice.image.engine, file=file, cache=choice.cache, scratch=scratch)


def image_file(image: Image, folder: Path, say: Callable[[str], None]) -> Path:
    """Return the file that containers of an image are started from; one that is not a file yet is made in `folder`.

    Raises:
        LaunchError: The registry has no such image or does not answer.
        PreflightError: There is no room, or another command takes too long to make it.
    """
    if not (image.digest or image.name.startswith(ARCHIVE)):
        return file_of(image.name)
    source = f"{REGISTRY}{image.digest}" if image.digest else f"{ARCHIVE}{file_of(image.name)}"
    target = folder / image.id.removeprefix("sha256:")

    def build(scratch: Path) -> None:
        say(f"making {target / IMAGE_FILE} of {image.name}, once")
        done = _run(image.engine.address, "pull", str(scratch / IMAGE_FILE), source)
        if done.returncode:
            last = done.stderr.strip().rpartition("\n")[2]
            raise LaunchError(f"cannot get {image.name}: {withheld(last) or f'code {done.returncode}'}")

    folders.build_once(target, build, progress=say)
    return target / IMAGE_FILE


def launch(spec: LaunchSpec, *, engine: Engine, file: Path, cache: Path, scratch: Path) -> ContainedRunner:
    """Start a container from the file of an image, and return before its runner answers.

    Args:
        cache: Folder for what engines compile; made where it is not there.
        scratch: Folder that each container gets a new folder of, for its /tmp.

    Raises:
        PreflightError: Its socket's path would be too long, or the folder for it cannot be made.
        LaunchError: The program or its log cannot be opened, or the model cannot be read.
    """
    (cache / "home").mkdir(mode=0o700, parents=True, exist_ok=True)
    models, folder = container.models_binds(spec), folders.make_socket_folder(os.environ)
    command = [
        *(engine.address, "exec", *(("--nv",) if spec.gpu_indices else ())),
        *("--containall", "--cleanenv", "--no-eval", "--no-home", "--home", f"{container.CACHE_FOLDER}/home"),
        *("--pwd", str(spec.folder or container.SOCKET_FOLDER), "--workdir", tempfile.mkdtemp(dir=scratch)),
        *(f"--mount={_mount(bind)}" for bind in (*container.own_binds(spec, folder.path, cache), *models)),
        *(str(file), *(() if spec.command else container.ENTRYPOINT), *container.runner_arguments(spec)),
    ]
    # --nv shows all GPUs of the host.
    own = dict(spec.variables) | {"CUDA_VISIBLE_DEVICES": ",".join(map(str, spec.gpu_indices))}
    inside = container_variables(spec.gpu_uuids, os.environ, cache=container.CACHE_FOLDER) | own
    prefix = f"{Path(engine.address).name.upper()}ENV_"
    passed = {f"{prefix}{name}": value for name, value in inside.items() if name != "HOME"}
    variables = processes.child_environment(os.environ, PLACES) | passed
    return ContainedRunner(start(command, spec, folder, variables), folder, spec)


class ContainedRunner(container.Contained, RunnerProcess):
    """A runner in a container that is a process of this user's."""


def _mount(bind: Bind) -> str:
    """Return a bind as an option, which is a row of CSV: unlike --bind, it takes paths with colons and commas."""
    fields = ("type=bind", f"source={bind.source}", f"destination={bind.target}", *(("ro",) if bind.read_only else ()))
    return ",".join('"' + field.replace('"', '""') + '"' for field in fields)


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    env = processes.child_environment(os.environ, REGISTRY_ACCESS)
    return subprocess.run(command, cwd=os.sep, env=env, capture_output=True, text=True, errors="replace", check=False)


@cache
def _engine(program: str) -> Engine:
    """Return the program; it ends its version's line with the number."""
    version = _run(program, "--version").stdout.strip().rpartition(" ")[2]
    return Engine(program, version, rootless=True, name="apptainer")
