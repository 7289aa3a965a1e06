"""Engines that lack something, and what a container was given, down to what its runtime was told."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from containers.engines import engine_address

from wattdock.errors import LaunchError
from wattdock.launch.container import Limits
from wattdock.launch.docker import DockerLauncher
from wattdock.launch.engine import Containers, connect, find_containers
from wattdock.launch.protocol import LaunchSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

ENGINE = Path(__file__).with_name("engine.sh")
DISK_MB = 48


@pytest.fixture(scope="module")
def plain_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A second engine, with no NVIDIA hook, on a small disk; its folder and address."""
    engine_address()
    if os.getuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("needs root and dockerd for an engine of its own")
    folder = tmp_path_factory.mktemp("engine")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", folder], check=True)
    try:
        started = subprocess.run([ENGINE, "start", folder, "plain"], stdout=subprocess.PIPE, text=True, check=True)
        yield folder, started.stdout.strip()
        subprocess.run([ENGINE, "stop", folder], check=True)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture(scope="module")
def plain_image(plain_engine: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Containers:
    """An image with nothing in it: what is tried here fails before anything would run."""
    _, address = plain_engine
    root = tmp_path_factory.mktemp("root")
    tar = root.with_suffix(".tar")
    subprocess.run(["tar", "-C", root, "-cf", tar, "."], check=True)
    with connect(address) as client:
        client.api.import_image_from_file(str(tar), repository="empty", changes=["CMD /nothing"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", address)
        return find_containers("empty", backend="empty")


def spec_in(folder: Path, **fields: object) -> LaunchSpec:
    return LaunchSpec(backend="good", runner_dir=folder, log_path=folder / "runner.log", **fields)  # type: ignore[arg-type]


def test_an_engine_without_nvidias_toolkit_is_named_as_such(plain_image: Containers, tmp_path: Path) -> None:
    """Its own words would send nobody to the right place; no container is left."""
    launcher = DockerLauncher(plain_image, cache=tmp_path / "cache", limits=Limits())
    with pytest.raises(LaunchError, match=r"install nvidia-container-toolkit .* or use --launcher process"):
        launcher.launch(spec_in(tmp_path, gpu_uuids=("GPU-a",)))
    with connect(plain_image.engine.address) as client:
        assert client.containers.list(all=True) == []


def test_a_full_disk_is_named_as_such(plain_image: Containers, plain_engine: tuple[Path, str], tmp_path: Path) -> None:
    """The engine writes each container's description under its data folder."""
    folder, _ = plain_engine
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    launcher = DockerLauncher(plain_image, cache=tmp_path / "cache", limits=Limits())
    try:
        with pytest.raises(LaunchError, match="no space left on device; make room under the engine's data folder"):
            launcher.launch(spec_in(tmp_path))
    finally:
        ballast.unlink()


def test_the_gpus_asked_for_reach_the_runtime_by_uuid_and_in_order(standin_image: Containers, tmp_path: Path) -> None:
    """Read from what the runtime was told, at the place where NVIDIA's hook would add the devices."""
    noted = Path(standin_image.engine.address.removeprefix("unix://")).parent / "hook" / "config.json"
    if not noted.parent.is_dir():
        pytest.skip("this engine has no stand-in for NVIDIA's hook; tests/containers/engine.sh starts one that has")
    noted.unlink(missing_ok=True)
    launcher = DockerLauncher(standin_image, cache=tmp_path / "cache", limits=Limits())
    with launcher.launch(spec_in(tmp_path, gpu_uuids=("GPU-bbbb", "GPU-aaaa"))) as runner:
        told = json.loads(noted.read_text())
        runner.kill()
    environment = dict(one.split("=", 1) for one in told["process"]["env"])
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "GPU-bbbb,GPU-aaaa"
    assert set(environment["NVIDIA_DRIVER_CAPABILITIES"].split(",")) == {"compute", "utility"}
    assert told["process"]["noNewPrivileges"] is True
    assert told["process"]["capabilities"] == {} or not any(told["process"]["capabilities"].values())
    assert told["root"]["readonly"] is True
