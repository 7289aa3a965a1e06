"""What a runner in a container can do and reach, tried from inside as an unprivileged user."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from containers.engines import build_on, engine_address, tagged
from unprivileged import UID, give_to_user, run_as_user, user_home

if TYPE_CHECKING:
    from collections.abc import Iterator

    from seams.launch import Image

LAUNCH = """
import os, sys, time
from pathlib import Path
from wattdock.config import ContainerSpec
from wattdock.launch.docker import launch
from wattdock.launch.engine import find_image
from wattdock.launch.protocol import LaunchSpec
image, what, home = sys.argv[1:]
log, model = Path(home, "runner.log"), Path(home, "model")
how = {"image": find_image(image, backend="probe"), "cache": Path(home, "cache"), "limits": ContainerSpec(pids=512)}
spec = LaunchSpec(backend=what, runner_dir=Path(home), log_path=log, model_path=model if model.is_dir() else None)
with launch(spec, **how) as runner:
    while runner.alive():
        time.sleep(0.05)
print(runner.exit_reason(), file=sys.stderr)
print(log.read_text())
"""


@pytest.fixture(scope="module")
def probe_image() -> Iterator[Image]:
    """The PyTorch image with the probe in its runner's place."""
    with tagged("probe") as name:
        files = {"/probe.py": Path(__file__).with_name("probe.py")}
        yield build_on("wattdock-pytorch", name, files, 'ENTRYPOINT ["python3", "/probe.py"]')


def probe(what: str, image: Image, home: Path) -> dict[str, Any]:
    done = run_as_user(
        [sys.executable, "-c", LAUNCH, image.name, what, home],
        env={"HOME": str(home), "DOCKER_HOST": engine_address()},
        cwd=home,
        timeout=120,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(lines[0])
    return answer


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A user's home with a model folder of links: to a file and a folder elsewhere, and by full path."""
    home = user_home(tmp_path)
    for folder in (home / "model", home / "blobs"):
        folder.mkdir()
        give_to_user(folder)
    (home / "blobs/abc").write_text('{"a": 1}')
    (home / "model/config.json").symlink_to("../blobs/abc")
    (home / "model/generation.json").symlink_to(home / "model/config.json")
    (home / "model/onnx").symlink_to("../blobs")
    return home


def test_a_runner_can_write_its_socket_its_cache_and_memory_and_nothing_else(probe_image: Image, home: Path) -> None:
    """All else is read-only; no network but loopback, no right to gain; a model whose files are links is whole."""
    answer = probe("walls", probe_image, home)
    assert answer["writable"] == ["/tmp", "/cache", "/run/wattdock", "/dev/shm"]
    assert answer["reachable"] == []
    assert answer["interfaces"] == ["lo"]
    assert answer["localhost"] == "127.0.0.1"
    assert answer["user"] == [UID, UID, "runner", "/cache/home"]
    assert answer["groups"] == []
    assert answer["capabilities"] == [0, 0, 0, 0]
    assert answer["no_new_privileges"] == "1"
    assert answer["processes"] == [1]
    assert answer["offline"] == ["1", "1"]
    assert answer["mounted"] == [
        *("/", "/cache", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf"),
        *("/model/config.json", "/model/generation.json", "/model/onnx", "/run/wattdock", "/tmp"),
    ]
    texts = {"config.json": '{"a": 1}', "generation.json": '{"a": 1}', "onnx/abc": '{"a": 1}'}
    assert answer["model"] == texts


def test_compiled_kernels_run_inside(probe_image: Image, home: Path) -> None:
    """They are written to the cache, which belongs to the user, and loaded from there."""
    assert probe("compile", probe_image, home) == {"equal": True, "kernels_in_cache": True}
    assert any((home / "cache/torchinductor").rglob("*.so"))
    assert (home / "cache").stat().st_uid == UID


def test_processes_without_end_are_refused_inside_and_cost_the_machine_nothing(probe_image: Image, home: Path) -> None:
    """Its limit is 512; those that could be started end with it."""
    assert 500 < probe("forks", probe_image, home)["started"] < 512


def test_two_processes_reduce_over_loopback_inside(probe_image: Image, home: Path) -> None:
    """gloo finds itself by the container's host name, with no network there."""
    assert probe("gloo", probe_image, home) == {"sums": ["3.0", "3.0"]}


def test_nothing_in_the_kept_cache_takes_the_place_of_a_package_of_the_image(probe_image: Image, home: Path) -> None:
    """The runner's home lies there, and Python looks below it for packages before it looks at the system's."""
    for minor in range(10, 16):
        package = home / f"cache/home/.local/lib/python3.{minor}/site-packages/pip/__init__.py"
        package.parent.mkdir(parents=True)
        package.touch()
    for path in (home / "cache", *(home / "cache").rglob("*")):
        give_to_user(path)
    assert probe("modules", probe_image, home)["pip"].startswith("/usr/")
