"""The wheels that an image was locked with, to fetch exactly these again."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from wattdock.errors import ConfigError
from wattdock.images.inputs import WHEELS
from wattdock.images.lock import lock_path, read_lock
from wattdock.launch.environment import PYTORCH_CPU_INDEX
from wattdock.launch.pip import Package

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


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
    wheels = {
        file.removeprefix(folder): sha256 for file, sha256 in (entry.inputs if entry else {}).items() if folder in file
    }
    if not wheels:
        raise ConfigError(f"{path} holds no wheels for {name}; without WHEELS=locked, pip chooses them")
    parsed = ((parse_wheel_filename(file)[:2], sha256) for file, sha256 in sorted(wheels.items()))
    return tuple(Package(package, str(version), "", sha256) for (package, version), sha256 in parsed)


def wheel_index(variant: str) -> tuple[str, ...]:
    """Return pip's options for an index that has a variant's wheels, beside the configured one."""
    return ("--extra-index-url", PYTORCH_CPU_INDEX) if variant == "cpu" else ()


def remove_others(folder: Path, packages: Sequence[Package]) -> None:
    """Remove wheels that are not these from a folder: the build would take them too."""
    wanted = {package.sha256 for package in packages}
    for wheel in folder.glob("*.whl"):
        if hashlib.sha256(wheel.read_bytes()).hexdigest() not in wanted:
            wheel.unlink()
