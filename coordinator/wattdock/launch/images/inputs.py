"""What decides an image's content: which files its Dockerfile takes, their hashes, and one hash over all of it.

Asks no engine. The Dockerfile itself is the list: what it copies or mounts is an input, and nothing else is in its
build's reach.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import TYPE_CHECKING

from wattdock.errors import ConfigError
from wattdock.launch.runners import REPO

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

DOCKER = REPO / "docker"
# An input that is no file: the base image, and what the requirements were chosen by.
BASE_INPUT, VARIANT_INPUT = "FROM", "ARG VARIANT"
WHEELS = "build/wheels"
CPU_BASE = "docker.io/library/python:3.12-bookworm"
COPIED = re.compile(r"^COPY\s+(?:--\S+\s+)*(.+)\s+\S+$", re.MULTILINE)
MOUNTED = re.compile(r"--mount=type=bind,source=([^,\s]+)")
DEFAULT_BASE = re.compile(r"^ARG BASE=(\S+)$", re.MULTILINE)
# How many differences a message names.
NAMED = 4


def image_names() -> tuple[str, ...]:
    """Return the names of all images that have a Dockerfile, sorted."""
    return tuple(sorted(file.name.removesuffix(".Dockerfile") for file in DOCKER.glob("*.Dockerfile")))


def dockerfile(name: str) -> Path:
    """Return an image's Dockerfile.

    Raises:
        ConfigError: There is none of this name.
    """
    file = DOCKER / f"{name}.Dockerfile"
    if not file.is_file():
        raise ConfigError(f"unknown image {name!r}; there are {', '.join(image_names())}")
    return file


def default_base(name: str, variant: str) -> str:
    """Return the base image that is taken where none is named."""
    found = DEFAULT_BASE.search(dockerfile(name).read_text(encoding="utf-8"))
    if variant == "cpu" or found is None:
        return CPU_BASE
    return found[1]


def input_files(name: str) -> tuple[str, ...]:
    """Return every file that an image is made from, as paths from the repository's root, sorted."""
    recipe = dockerfile(name)
    text = recipe.read_text(encoding="utf-8").replace("\\\n", " ")
    sources = [source for line in COPIED.findall(text) for source in line.split()] + MOUNTED.findall(text)
    found = {file for source in sources for file in _files_of(source.rstrip("/"))}
    return tuple(sorted({*found, recipe.relative_to(REPO).as_posix()}))


def _files_of(source: str) -> Iterator[str]:
    """Yield the files of one source in a Dockerfile, without what .dockerignore keeps away."""
    # Slow to import; only builders need it.
    from docker.utils.build import PatternMatcher

    ignored = PatternMatcher((REPO / ".dockerignore").read_text(encoding="utf-8").splitlines())
    for path in REPO.glob(source):
        if path.is_file():
            yield path.relative_to(REPO).as_posix()
        for folder, folders, files in os.walk(path):
            below = os.path.relpath(folder, REPO)
            folders[:] = [one for one in folders if not ignored.matches(f"{below}/{one}")]
            kept = (one for one in files if not ignored.matches(f"{below}/{one}"))
            # Of a wheels folder only wheels count: what fetched them leaves its notes there.
            yield from (f"{below}/{one}" for one in kept if one.endswith(".whl") or not below.startswith(WHEELS))


def read_inputs(name: str, *, variant: str, base: str) -> dict[str, str]:
    """Return each input of an image and its hash, as of now in this checkout.

    Args:
        base: What identifies the base image: its digest, or its id where no registry has it.
    """
    hashes = {path: _file_sha256(REPO / path) for path in input_files(name)}
    return {BASE_INPUT: base, VARIANT_INPUT: variant, **hashes}


def inputs_below(context: Path, *, variant: str, base: str) -> dict[str, str]:
    """Return the inputs of a build: every file below its context, whatever the checkout holds by now."""
    files = (path for path in context.rglob("*") if path.is_file())
    hashes = {path.relative_to(context).as_posix(): _file_sha256(path) for path in files}
    return {BASE_INPUT: base, VARIANT_INPUT: variant, **hashes}


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def inputs_text(inputs: Mapping[str, str]) -> str:
    """Return inputs as text, one a line, in the form of sha256sum and in the order of their names. Pure."""
    return "".join(f"{value}  {name}\n" for name, value in sorted(inputs.items()))


def inputs_from(text: str) -> dict[str, str]:
    """Return the inputs that `inputs_text` wrote. Pure."""
    lines = (line.partition("  ") for line in text.splitlines() if line)
    return {name: value for value, _, name in lines}


def inputs_sha256(inputs: Mapping[str, str]) -> str:
    """Return one hash over all inputs: equal inputs, equal hash. Pure."""
    return hashlib.sha256(inputs_text(inputs).encode()).hexdigest()


def input_differences(locked: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return what differs between two sets of inputs, in words. Pure."""
    changed = sorted(name for name in locked.keys() & found.keys() if locked[name] != found[name])
    return [
        *(f"{name} differs" for name in changed),
        *(f"{name} is missing" for name in sorted(locked.keys() - found.keys())),
        *(f"{name} is new" for name in sorted(found.keys() - locked.keys())),
    ]


def in_short(differences: Iterable[str]) -> str:
    """Return the first few, and how many more there are. Pure."""
    every = list(differences)
    more = f" and {len(every) - NAMED} more" if len(every) > NAMED else ""
    return ", ".join(every[:NAMED]) + more
