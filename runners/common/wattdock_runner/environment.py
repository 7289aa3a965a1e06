"""Say which software this runner is made of, without importing any of it."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

OWN_PACKAGES = ("grpcio", "protobuf")


def package_version(name: str) -> str | None:
    """Return the installed version of a distribution, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of those distributions that are installed, with the runner's own among them."""
    found = {name: package_version(name) for name in (*names, *OWN_PACKAGES)}
    return {name: version for name, version in found.items() if version is not None}


def python_version() -> str:
    """Return the interpreter's version."""
    return platform.python_version()
