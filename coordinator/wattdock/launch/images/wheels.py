"""Fetch the very wheels that an image was locked with, by their hashes, and leave no others beside them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from wattdock.errors import ConfigError, LaunchError
from wattdock.launch.environment import PYTORCH_CPU_INDEX
from wattdock.launch.images.inputs import WHEELS
from wattdock.launch.images.lock import lock_path, read_lock
from wattdock.launch.pip import Package

if TYPE_CHECKING:
    from pathlib import Path

    from wattdock.launch.pip import Pip


def fetch_locked(pip: Pip, name: str, folder: Path) -> None:
    """Make a folder hold an image's locked wheels and no others; those that are there are not fetched again.

    Raises:
        ConfigError: The lock has no such image, or it was built without wheels.
        LaunchError: No index has one of them.
    """
    wanted = locked_wheels(name)
    kept = _kept(folder, wanted)
    missing = [package for package in wanted if package.sha256 not in kept]
    pip.progress(f"{len(wanted)} wheels locked, {len(missing)} to fetch")
    if not missing:
        return
    try:
        pip.download(missing, folder)
    except LaunchError:
        if not any(package.version.endswith("+cpu") for package in missing):
            raise
        pip.progress("the configured index lacks one; asking PyTorch's own for the CPU build")
        pip.download(missing, folder, "--extra-index-url", PYTORCH_CPU_INDEX)


def locked_wheels(name: str) -> tuple[Package, ...]:
    """Return the packages whose wheels went into a locked image, with their hashes.

    Raises:
        ConfigError: The lock has no such image, or it was built without wheels.
    """
    # Slow to import, and most commands fetch nothing.
    from packaging.utils import parse_wheel_filename

    path = lock_path()
    entry = read_lock(path).images.get(name)
    folder = f"{WHEELS}/{name}/"
    inputs = entry.inputs if entry else {}
    wheels = {file.removeprefix(folder): sha256 for file, sha256 in inputs.items() if file.startswith(folder)}
    if not wheels:
        raise ConfigError(f"{path} holds no wheels for {name}; without WHEELS=locked, pip chooses them")
    parsed = ((parse_wheel_filename(file)[:2], sha256) for file, sha256 in sorted(wheels.items()))
    return tuple(Package(package, str(version), "", sha256) for (package, version), sha256 in parsed)


def _kept(folder: Path, wanted: tuple[Package, ...]) -> set[str]:
    """Remove wheels that are not wanted: a build would take them too. Return the hashes of those that stay."""
    hashes, kept = {package.sha256 for package in wanted}, set()
    for wheel in folder.glob("*.whl"):
        with wheel.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if sha256 in hashes:
            kept.add(sha256)
        else:
            wheel.unlink()
    return kept
