"""Build an image from a checkout or an installed wattdock's copies, and label it with what it was built from."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

from wattdock.errors import Cause, ConfigError, PreflightError, os_errors_as
from wattdock.host import Machine, folders, processes
from wattdock.launch.engine import BASE_DIGEST_LABEL, BASE_NAME_LABEL, NoImageError, engine_address, find_image
from wattdock.launch.runners import PACKAGED, REPO
from wattdock.secrets import holds_secret
from wattdock.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wattdock.launch.engine import Image

DOCKER = REPO / "docker"
# Variables of Docker's command-line client and of its builder, an agent for private sources included.
CLIENT = rf"{processes.NETWORK}|(DOCKER|BUILDX|BUILDKIT)_\w+|SSH_AUTH_SOCK"
CPU_BASE = "docker.io/library/python:3.12-bookworm"
DEFAULT_BASE = re.compile(r"^ARG BASE=(\S+)$", re.MULTILINE)


def local_name(name: str) -> str:
    """Return the name of a backend's image on an engine that built it."""
    return f"wattdock-{name}"


def image_names() -> tuple[str, ...]:
    """Return the names of all images that have a Dockerfile, sorted."""
    return tuple(sorted(file.name.removesuffix(".Dockerfile") for file in DOCKER.glob("*.Dockerfile")))


def build_image(name: str, *, variant: str, base: str | None = None, options: str = "") -> None:
    """Build `wattdock-<name>`; its base is pulled first where the engine does not have it.

    Args:
        variant: "cpu" or "cuda": which of the backend's requirement files.
        base: The base image; None is the Dockerfile's own, or for "cpu" Debian's Python.
        options: More options for `docker build`, with absolute paths; they cannot change what the image is built from.

    Raises:
        ConfigError: There is no such image, or not for this hardware; or the options cannot be split into words.
        PreflightError: The base cannot be pulled, or the build failed.
    """
    try:
        more = shlex.split(options)
    except ValueError as error:
        raise ConfigError(f"--build-options {options}: {error}", "write them as in a shell") from error
    if any(holds_secret(word, os.environ) for word in more):
        raise ConfigError(
            "--build-options holds what looks like a key or password",
            "write --secret id=NAME,src=FILE",
            cause=Cause.SECRET,
        )
    if name not in image_names():
        raise ConfigError(f"unknown image {name!r}", f"there are {', '.join(image_names())}")
    if base is None:
        default = DEFAULT_BASE.search((DOCKER / f"{name}.Dockerfile").read_text(encoding="utf-8"))
        base = CPU_BASE if variant == "cpu" or default is None else default[1]
    runner = REPO / "runners" / name
    if runner.is_dir() and not (runner / f"requirements-{variant}.txt").exists():
        raise ConfigError(f"{name} has no packages for --variant {variant}", "take the other one of cpu and cuda")
    try:
        base_image = find_image(base, backend=name)
    except NoImageError:
        pull(base)
        base_image = find_image(base, backend=name)
    # Docker takes the last of several values, so ours stand behind the caller's.
    words = ["build", *more, *build_labels(base, base_image)]
    words += ["--build-arg", f"VARIANT={variant}", "--build-arg", f"VERSION={__version__}"]
    words += ["--file", str(DOCKER / f"{name}.Dockerfile"), "--tag", local_name(name)]
    with _sources() as sources:
        # The Dockerfile mounts this folder, which holds no wheel unless they were fetched.
        (sources / "build" / "wheels" / name).mkdir(parents=True, exist_ok=True)
        run_docker([*words, str(sources)], f"cannot build {local_name(name)}")


@contextmanager
def _sources() -> Iterator[Path]:
    """Yield the folder that an image is built from: the checkout, or a copy of what an installed wattdock holds."""
    if REPO != PACKAGED:
        yield REPO
        return
    with folders.scratch_folder() as scratch:
        yield shutil.copytree(REPO, scratch / "sources", ignore=shutil.ignore_patterns("__pycache__"))


def build_labels(base: str, image: Image) -> list[str]:
    """Return the options of a build that name its base, by digest where a registry has it, and its commit."""
    _, _, base_digest = (image.digest or "").partition("@")
    # An empty label is written too: an image inherits the labels of its base.
    labels = {BASE_NAME_LABEL: base, BASE_DIGEST_LABEL: base_digest}
    # A tag may move while the image is built; a digest does not.
    arguments = {"BASE": image.digest or base, "REVISION": Machine.checkout().revision or "unknown"}
    return [
        *(word for label, value in labels.items() for word in ("--label", f"{label}={value}")),
        *(word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")),
    ]


def pull(reference: str) -> None:
    """Get an image from its registry. Nothing else pulls.

    Raises:
        PreflightError: The engine or the registry refused.
    """
    run_docker(["pull", reference], f"cannot pull {reference}")


def run_docker(words: list[str], failure: str) -> None:
    """Run Docker's command-line client on the engine that runners are started on; the user sees what it prints.

    The client serves where the SDK does not: BuildKit, progress of transfers, and the user's logins.

    Source: Docker's documentation, "Docker contexts" (the context "default" is DOCKER_HOST) and "Build variables"
    (BUILDX_BUILDER; the builder "default" is the engine's own). Others have other images under the same names.

    Raises:
        PreflightError: The client is not there, or it failed; begins with `failure`.
    """
    builder = {"DOCKER_BUILDKIT": "1", "BUILDX_BUILDER": "default"}
    engine = {"DOCKER_HOST": engine_address(), "DOCKER_CONTEXT": "default", **builder}
    environ = processes.child_environment(os.environ, CLIENT) | engine
    with os_errors_as(PreflightError, f"{failure}: cannot run docker", "install Docker's command-line client"):
        code = subprocess.run(["docker", *words], cwd=os.sep, env=environ, check=False).returncode
    if code:
        raise PreflightError(f"{failure}: docker ended with code {code}", "its output above says why")
