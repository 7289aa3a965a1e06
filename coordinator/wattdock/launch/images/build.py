"""Build an image from this checkout, and write on it what it was built from; its base is pulled where it is absent."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock import __version__
from wattdock.errors import ConfigError, PreflightError
from wattdock.launch.engine import BASE_DIGEST_LABEL, BASE_NAME_LABEL, NoImageError, find_containers
from wattdock.launch.images.registry import engine_address, local_name, pull
from wattdock.launch.runners import REPO

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from wattdock.launch.images.lock import ImagesLock

DOCKER = REPO / "docker"
CPU_BASE = "docker.io/library/python:3.12-bookworm"
DEFAULT_BASE = re.compile(r"^ARG BASE=(\S+)$", re.MULTILINE)
# What decides the content or what is said of it, and so is not for a build's options.
OURS = frozenset("--build-arg --build-context --builder --file -f --label --pull --tag -t --target".split())
# What engines leave out of names.
IMPLIED = ("docker.io/library/", "docker.io/")


@dataclass(frozen=True)
class Base:
    """A base image that is on the engine.

    Attributes:
        name: With its tag, as people call it.
        digest: "sha256:…" by which the registry in its name has it; None where it was made here.
    """

    name: str
    digest: str | None

    @property
    def reference(self) -> str:
        """By what the engine finds it: its digest where there is one, since names move."""
        return self.name if self.digest is None or "@" in self.name else f"{self.name}@{self.digest}"


def image_names() -> tuple[str, ...]:
    """Return the names of all images that have a Dockerfile, sorted."""
    return tuple(sorted(file.name.removesuffix(".Dockerfile") for file in DOCKER.glob("*.Dockerfile")))


def default_base(name: str, variant: str) -> str:
    """Return the base image that is taken where none is named.

    Raises:
        ConfigError: There is no image of this name.
    """
    if name not in image_names():
        raise ConfigError(f"unknown image {name!r}; there are {', '.join(image_names())}")
    found = DEFAULT_BASE.search((DOCKER / f"{name}.Dockerfile").read_text(encoding="utf-8"))
    return CPU_BASE if variant == "cpu" or found is None else found[1]


def get_base(name: str, base: str, lock: ImagesLock) -> Base:
    """Return the base of an image, pulled where it is not here.

    Raises:
        PreflightError: No engine answers, or the registry does not give the base.
    """
    reference = base_reference(name, base, lock)
    try:
        found = find_containers(reference, backend=name).image
    except NoImageError:
        pull(reference)
        found = find_containers(reference, backend=name).image
    return Base(base, own_digest(base, found.digests))


def base_reference(name: str, base: str, lock: ImagesLock) -> str:
    """Return by what to look for a base: its digest where the lock has one for it, else its name."""
    entry = lock.images.get(name)
    if entry is None or entry.base != base or entry.base_digest is None:
        return base
    return f"{repository_of(base)}@{entry.base_digest}"


def own_digest(base: str, digests: Sequence[str]) -> str | None:
    """Return the digest by which the registry in an image's own name has it; others' are left aside. Pure."""
    own = familiar(repository_of(base))
    pairs = (digest.partition("@") for digest in digests)
    return next((digest for repository, _, digest in pairs if familiar(repository) == own), None)


def repository_of(reference: str) -> str:
    """Return a reference without its tag or digest. Pure."""
    from docker.utils import parse_repository_tag

    return str(parse_repository_tag(reference)[0])


def familiar(repository: str) -> str:
    """Return a name as engines write it: without what they leave out. Pure."""
    return next((repository.removeprefix(prefix) for prefix in IMPLIED if repository.startswith(prefix)), repository)


def build_image(
    name: str,
    lock: ImagesLock,
    *,
    variant: str,
    base: str | None = None,
    client: str = "docker",
    pip_conf: Path | None = None,
    options: str = "",
) -> None:
    """Build `wattdock-<name>` on its base, which is pulled where it is not here.

    Args:
        variant: "cpu" or "cuda": which of the backend's requirement files.
        base: The base image; None is the Dockerfile's own.
        client: The command that builds.
        pip_conf: A pip configuration, passed as a secret.
        options: More words for the client's `build`.

    Raises:
        PreflightError: The base cannot be had, the client is not there, or the build failed.
        ConfigError: There is no such image, or an option would make it another than it says it is.
    """
    require_harmless(shlex.split(options))
    found = get_base(name, base or default_base(name, variant), lock)
    # Mounted by the Dockerfile also where no wheel was fetched.
    (REPO / "build" / "wheels" / name).mkdir(parents=True, exist_ok=True)
    secret = ["--secret", f"id=pip.conf,src={pip_conf}"] if pip_conf else []
    command = [client, *build_words(name, variant, found), *secret, *shlex.split(options), str(REPO)]
    try:
        code = subprocess.run(command, env=build_environment(os.environ, engine_address()), check=False).returncode
    except OSError as error:
        raise PreflightError(f"cannot run {client}: {error.strerror}; name another with --client") from error
    if code:
        raise PreflightError(f"{client} build of {local_name(name)} failed with code {code}; see its output above")


def build_words(name: str, variant: str, base: Base) -> list[str]:
    """Return what a client's `build` is told of one image, but for the folder."""
    arguments = {"BASE": base.reference, "VARIANT": variant, "VERSION": __version__, "REVISION": revision()}
    # Written even where it is empty: an image inherits the labels of its base.
    labels = {BASE_NAME_LABEL: base.name, BASE_DIGEST_LABEL: base.digest or ""}
    words = ["build", "--file", str(DOCKER / f"{name}.Dockerfile"), "--tag", local_name(name)]
    for argument, value in arguments.items():
        words += ["--build-arg", f"{argument}={value}"]
    for label, value in labels.items():
        words += ["--label", f"{label}={value}"]
    return words


def require_harmless(options: Sequence[str]) -> None:
    """Refuse options of a build that would win over what the image says it was made from. Pure.

    Raises:
        ConfigError: One of them would.
    """
    names = (word.partition("=")[0] if word.startswith("--") else word[:2] for word in options)
    if taken := next((name for name in names if name in OURS), None):
        raise ConfigError(f"build option {taken} is not for --build-options: the image would not be what it says it is")


def build_environment(environ: Mapping[str, str], engine: str) -> dict[str, str]:
    """Return the environment of the client's build. Pure.

    The engine that was asked for the base builds on it, whatever builder or context the client would choose: another
    has other images under the same names, or gets them from a registry.

    Source: Docker's documentation, "Build variables" (BUILDX_BUILDER) and "Docker contexts": the builder "default" is
    the engine's own, and DOCKER_HOST wins over contexts but for one that is named.
    """
    kept = {name: value for name, value in environ.items() if name != "DOCKER_CONTEXT"}
    return kept | {"DOCKER_HOST": engine, "DOCKER_BUILDKIT": "1", "BUILDX_BUILDER": "default"}


def revision() -> str:
    """Return the commit that is checked out, with "-dirty" where files differ from it.

    WATTDOCK_REVISION says it instead where it is set; without either it is "unknown".
    """
    return os.environ.get("WATTDOCK_REVISION") or git("describe", "--always", "--dirty") or "unknown"


def changes_since(name: str, commit: str) -> list[str] | None:
    """Return which files of an image's sources differ from a commit; None where git does not know it."""
    own = ("coordinator", "runners") if name == "coordinator" else (f"runners/{name}", "runners/common")
    found = git(
        "diff", "--name-only", commit, "--", f"docker/{name}.Dockerfile", "docker/install_missing.py", "proto", *own
    )
    return None if found is None else found.split()


def git(*words: str) -> str | None:
    """Return what git says of this checkout; None where there is no git, or no checkout of it."""
    try:
        done = subprocess.run(["git", "-C", REPO, *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
