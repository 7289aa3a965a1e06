"""Engines that lack something, and what a container was given, down to what its runtime was told."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command import WATTDOCK, Command, on_gpus
from containers.engines import engine_address, home_and_folder
from fake_nvml import FakeGpu
from seams.launch import Image, connect, docker
from unprivileged import popen_as_user

from wattdock.config import ContainerSpec
from wattdock.launch import LaunchSpec, reap
from wattdock.launch.images import find_image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from containers.conftest import InContainers
    from docker import DockerClient

ENGINE = Path(__file__).with_name("engine.sh")
PROXY = Path(__file__).with_name("proxy.py")
DISK_MB = 48
TWO = """
order: written
defaults: {backend: fake, model: 'shape:tiny-llama', repeats: {passes: 1}, meter: none}
experiments: [{name: a, accelerator: cuda}, {name: b, accelerator: cpu}]
"""
SHORT = """
order: written
defaults:
  {backend: fake, model: 'shape:tiny-llama', repeats: {passes: 1}, workload: {batch_size: 2, max_output_tokens: 20}}
experiments: [{name: one, fake: {step_s: 0.05}}, {name: two}]
"""


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
def plain_image(plain_engine: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Image:
    """An image with nothing in it: what is tried here fails before anything would run."""
    _, address = plain_engine
    root = tmp_path_factory.mktemp("root")
    tar = root.with_suffix(".tar")
    subprocess.run(["tar", "-C", root, "-cf", tar, "."], check=True)
    with closing(connect(address)) as client:
        client.api.import_image_from_file(str(tar), repository="empty", changes=["CMD /nothing"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", address)
        return find_image("empty", backend="empty")


def spec_in(folder: Path, **fields: object) -> LaunchSpec:
    return LaunchSpec(backend="good", runner_dir=folder, log_path=folder / "runner.log", **fields)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class OnPlainEngine(Command):
    """The command, as a user who may use the plain engine, with runners in containers of the empty image."""

    image: Image
    engine_folder: Path

    def measure(self) -> tuple[int, list[dict[str, Any]]]:
        """Measure two experiments; return the exit code and their rows."""
        (self.folder / "x.yaml").write_text(TWO)
        more = {"DOCKER_HOST": self.image.engine.address, **on_gpus(self, FakeGpu())}
        command: list[str | Path] = [WATTDOCK, *"run x.yaml --launcher docker --set container.image=empty".split()]
        env, reach = self.env(more), [self.engine_folder]
        with popen_as_user(command, env=env, cwd=self.folder, reach=reach, stdout=subprocess.DEVNULL) as running:
            code = running.wait(60)
        with closing(connect(self.image.engine.address)) as client:
            assert client.containers.list(all=True) == []
        return code, sorted(self.results(), key=lambda row: str(row["config"]["name"]))


@pytest.fixture
def on_plain_engine(plain_image: Image, plain_engine: tuple[Path, str], tmp_path: Path) -> OnPlainEngine:
    """The command in a folder of its own."""
    return OnPlainEngine(*home_and_folder(tmp_path), image=plain_image, engine_folder=plain_engine[0])


def test_an_engine_without_nvidias_toolkit_is_named_as_such(on_plain_engine: OnPlainEngine) -> None:
    """Its own words would send nobody to the right place; what needs no GPU gets as far as its image."""
    code, (on_gpu, on_cpu) = on_plain_engine.measure()
    assert (code, on_gpu["status"]) == (4, "failed")
    assert "nvidia-container-toolkit" in on_gpu["error"]["message"]
    assert "toolkit" not in on_cpu["error"]["message"]


def test_a_full_disk_is_named_as_such(on_plain_engine: OnPlainEngine) -> None:
    """The engine writes each container's description under its data folder."""
    ballast = on_plain_engine.engine_folder / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    try:
        code, rows = on_plain_engine.measure()
    finally:
        ballast.unlink()
    assert (code, len(rows)) == (4, 2)
    for row in rows:
        assert "data folder" in row["error"]["message"]


@pytest.fixture
def proxy(in_containers: InContainers) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Start something that stands before the engine, at `e.sock` in the user's home."""
    at = in_containers.home / "e.sock"
    behind = in_containers.image.engine.address.removeprefix("unix://")
    started = []

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, PROXY, at, behind], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_an_engine_that_dies_costs_no_measured_pass_and_nothing_falls_back(
    in_containers: InContainers, proxy: Callable[[], subprocess.Popen[str]]
) -> None:
    """The runner answers on its own socket; its container goes when the engine is back, later ones are refused."""
    engine = proxy()
    (in_containers.folder / "x.yaml").write_text(SHORT)
    address = {"DOCKER_HOST": f"unix://{in_containers.home / 'e.sock'}"}
    running = in_containers.start("run", "x.yaml", "--set", "launcher=auto", env=address, stderr=subprocess.PIPE)
    container = in_containers.wait_for_container()
    engine.kill()
    _, errors = running.communicate(timeout=240)
    rows = in_containers.by_name()
    assert (running.returncode, rows["one"]["status"], rows["two"]["status"]) == (4, "ok", "failed"), errors
    assert container.id[:12] in errors
    assert rows["two"]["error"]["exit_code"] == 4
    assert rows["two"]["environment"]["launcher"] == "docker"
    assert in_containers.containers() == [container]
    proxy()
    assert in_containers.none_within(20)


def test_the_gpus_asked_for_reach_the_runtime_by_uuid_and_in_order(standin_image: Image, tmp_path: Path) -> None:
    """Read from the runtime's configuration, at the place where NVIDIA's hook would add the devices."""
    noted = Path(standin_image.engine.address.removeprefix("unix://")).parent / "hook" / "config.json"
    if not noted.parent.is_dir():
        pytest.skip("this engine has no stand-in for NVIDIA's hook; tests/containers/engine.sh starts one that has")
    noted.unlink(missing_ok=True)
    spec = spec_in(tmp_path, gpu_uuids=("GPU-bbbb", "GPU-aaaa"))
    with docker.launch(spec, image=standin_image, cache=tmp_path / "cache", limits=ContainerSpec()) as runner:
        runtime_config = json.loads(noted.read_text())
        runner.stop(0)
    environment = dict(entry.split("=", 1) for entry in runtime_config["process"]["env"])
    # The image asks for all by itself, and a container's environment may hold a name twice.
    requests = [entry for entry in runtime_config["process"]["env"] if entry.startswith("NVIDIA_VISIBLE_DEVICES=")]
    assert set(requests) == {"NVIDIA_VISIBLE_DEVICES=GPU-bbbb,GPU-aaaa"}
    assert set(environment["NVIDIA_DRIVER_CAPABILITIES"].split(",")) == {"compute", "utility"}
    assert runtime_config["process"]["noNewPrivileges"] is True
    assert runtime_config["process"]["capabilities"] == {} or not any(
        runtime_config["process"]["capabilities"].values()
    )
    assert runtime_config["root"]["readonly"] is True


def test_all_who_clean_up_at_once_return_when_the_orphan_is_gone(
    standin_image: Image, client: DockerClient, tmp_path: Path
) -> None:
    """A new start may meet a killed one's keeper, or another new start; the engine refuses whoever is second."""
    lock = tmp_path / "absent" / "lock"
    spec = LaunchSpec(backend="deaf", runner_dir=tmp_path, log_path=tmp_path / "deaf.log", alive_lock=lock)
    cleaners = 4
    together = threading.Barrier(cleaners)

    def clean() -> bool:
        together.wait()
        reap()
        return not client.containers.list(all=True, filters={"id": runner.id})

    with docker.launch(spec, image=standin_image, cache=tmp_path / "cache", limits=ContainerSpec()) as runner:
        with ThreadPoolExecutor(cleaners) as pool:
            assert all(cleaned.result() for cleaned in [pool.submit(clean) for _ in range(cleaners)])
        assert runner.exit_reason() == "lost its container, which somebody else removed"
