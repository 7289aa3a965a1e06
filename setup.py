"""What pyproject.toml cannot say: a wheel holds what runs need of the repository, in `wattdock/packaged`.

`wattdock.launch.runners` takes runners, proto and docker from there where there is no checkout.
"""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PACKAGED = (
    *("runners/*/*.py", "runners/*/requirements-*.*", "runners/common/wattdock_runner/*.py"),
    *("proto/wattdock_proto/*.py", "proto/wattdock_proto/v1/*.py"),
    *("docker/*.Dockerfile", "docker/install_missing.py", ".dockerignore"),
)
# The image of the coordinator is built from a whole checkout only.
NOT_PACKAGED = "docker/coordinator.Dockerfile"


class WithRunners(build_py):
    """Puts these files beside the package's own data, which an editable installation does not copy."""

    def _get_data_files(self) -> list[tuple[str, str, str, list[str]]]:
        files = {str(file) for pattern in PACKAGED for file in Path().glob(pattern)} - {NOT_PACKAGED}
        return [*super()._get_data_files(), ("wattdock", ".", f"{self.build_lib}/wattdock/packaged", sorted(files))]


setup(cmdclass={"build_py": WithRunners})
