"""Build an image from exactly the files that its inputs name, and write on it what they were.

Pulls nothing: its base must be on the engine, and it is that engine that builds.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock import __version__
from wattdock.errors import ConfigError, PreflightError
from wattdock.launch.images.bases import steady_name
from wattdock.launch.images.inputs import WHEELS, input_files, inputs_below
from wattdock.launch.images.labels import Recipe, labels_from
from wattdock.launch.images.registry import engine_address
from wattdock.launch.runners import REPO

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wattdock.launch.images.bases import Base

SOURCE_DATE_EPOCH = "SOURCE_DATE_EPOCH"
# What decides the content or what is said of it, and so is not for a build's options.
OURS = frozenset("--build-arg --build-context --builder --file -f --label --pull --tag -t --target".split())
FILE_MODE, FOLDER_MODE = 0o644, 0o755


@dataclass(frozen=True)
class Builder:
    """The client that builds, and what it is told besides.

    Attributes:
        client: "docker", or Podman's.
        pip_conf: A pip configuration, passed as a secret.
        options: More words for its `build`.
    """

    client: str = "docker"
    pip_conf: Path | None = None
    options: str = ""


def build(name: str, *, variant: str, base: Base, builder: Builder) -> None:
    """Build `wattdock-<name>` on a base that is on the engine.

    Raises:
        PreflightError: The client is not there, or its build failed.
        ConfigError: There is no such image, or an option would make it another than it says it is.
    """
    require_harmless(shlex.split(builder.options))
    source_date_s = source_date()
    with staged(name, source_date_s) as context, steady_name(base) as base_name:
        recipe = new_recipe(context, source_date_s, variant=variant, base=base)
        command = build_command(name, recipe, context, builder, base_name=base_name)
        env = build_environment(os.environ, source_date_s, engine=engine_address())
        try:
            code = subprocess.run(command, env=env, check=False).returncode
        except OSError as error:
            raise PreflightError(
                f"cannot run {builder.client}: {error.strerror}; name another with --client"
            ) from error
    if code:
        raise PreflightError(f"{builder.client} build of wattdock-{name} failed with code {code}; see its output above")


def require_harmless(options: Sequence[str]) -> None:
    """Refuse options of a build that would win over what the image says it was made from. Pure.

    Raises:
        ConfigError: One of them would.
    """
    names = (word.partition("=")[0] if word.startswith("--") else word[:2] for word in options)
    if taken := next((name for name in names if name in OURS), None):
        raise ConfigError(f"build option {taken} is not for --build-options: the image would not be what it says it is")


def new_recipe(context: Path, source_date_s: int, *, variant: str, base: Base) -> Recipe:
    """Return what an image is made from: what its context holds, which a checkout that is edited meanwhile does not.

    Args:
        source_date_s: The sources' time, in seconds since 1970.
    """
    return Recipe(
        inputs=inputs_below(context, variant=variant, base=base.digest or base.id),
        build_args={"BASE": base.argument, "VARIANT": variant, "VERSION": __version__, "REVISION": revision()},
        base_digest=base.digest,
        source_date=datetime.fromtimestamp(source_date_s, UTC).isoformat(),
    )


def build_environment(environ: Mapping[str, str], source_date_s: int, *, engine: str) -> dict[str, str]:
    """Return the environment of the client's build. Pure.

    The engine that was asked for the base builds on it, whatever builder or context the client would choose: another
    has other images under the same names, or gets them from a registry.

    Source: Docker's documentation, "Build variables" (BUILDX_BUILDER) and "Docker contexts": the builder "default" is
    the engine's own, and DOCKER_HOST wins over contexts but for one that is named.
    """
    kept = {name: value for name, value in environ.items() if name != "DOCKER_CONTEXT"}
    ours = {"DOCKER_HOST": engine, "DOCKER_BUILDKIT": "1", "BUILDX_BUILDER": "default"}
    return kept | ours | {SOURCE_DATE_EPOCH: str(source_date_s)}


def build_command(name: str, recipe: Recipe, context: Path, builder: Builder, *, base_name: str) -> list[str]:
    """Return the words of the client's build. Pure.

    Args:
        base_name: By which the engine finds the base; what people call it is in the recipe.
    """
    words = [builder.client, "build", "--file", str(context / "docker" / f"{name}.Dockerfile")]
    words += ["--tag", f"wattdock-{name}"]
    for argument, value in {**recipe.build_args, "BASE": base_name}.items():
        words += ["--build-arg", f"{argument}={value}"]
    for label, value in labels_from(recipe).items():
        words += ["--label", f"{label}={value}"]
    if builder.pip_conf:
        words += ["--secret", f"id=pip.conf,src={builder.pip_conf}"]
    return [*words, *shlex.split(builder.options), str(context)]


@contextmanager
def staged(name: str, source_date_s: int) -> Iterator[Path]:
    """Yield a folder that holds an image's inputs and nothing else, with times and modes that no checkout changes."""
    parent = REPO / "build"
    parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="context-", dir=parent) as scratch:
        context = Path(scratch)
        # Mounted by the Dockerfile also where no wheel was fetched.
        (context / WHEELS / name).mkdir(parents=True)
        for path in input_files(name):
            _stage(REPO / path, context / path, source_date_s)
        for folder, _, _ in os.walk(context, topdown=False):
            Path(folder).chmod(FOLDER_MODE)
            os.utime(folder, (source_date_s, source_date_s))
        yield context


def _stage(source: Path, target: Path, source_date_s: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix == ".whl":
        # Hundreds of megabytes, which are installed from and not copied into a layer.
        with contextlib.suppress(OSError):
            os.link(source, target)
            return
    shutil.copyfile(source, target)
    target.chmod(FILE_MODE)
    os.utime(target, (source_date_s, source_date_s))


def source_date() -> int:
    """Return the time of the sources, in seconds since 1970: SOURCE_DATE_EPOCH, else that of the checked-out commit.

    Raises:
        PreflightError: Neither is known.
    """
    given = os.environ.get(SOURCE_DATE_EPOCH, "")
    text = given or _git("log", "-1", "--format=%ct")
    if text is None or not text.isdigit():
        seen = f"{SOURCE_DATE_EPOCH} is {given!r}" if given else "this is no git checkout"
        raise PreflightError(f"{seen}: set {SOURCE_DATE_EPOCH} to the sources' time, in seconds since 1970")
    return int(text)


def revision() -> str:
    """Return the commit that is checked out, marked where files differ from it.

    WATTDOCK_REVISION says it instead where it is set; without either it is "unknown".
    """
    return os.environ.get("WATTDOCK_REVISION") or _git("describe", "--always", "--dirty") or "unknown"


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", REPO, *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
