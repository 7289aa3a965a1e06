"""The TensorRT-LLM image on a stand-in base: the real recipe, a real Python 3.12, a stand-in for the engine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from command import on_gpus
from containers.conftest import InContainers
from containers.engines import BASE, build_on, home_and_folder, image_there, tagged
from fake_nvml import FakeGpu
from runners.tensorrt.make_standin import make_standin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from docker import DockerClient
    from seams.launch import Image

REPO = Path(__file__).resolve().parents[2]
# The Python of NVIDIA's image.
PYTHON = "3.12"
PLACE = f"/opt/python{PYTHON}"
RUNNERS_OWN = ("grpcio>=1.62", "protobuf>=4.25")


def python_prefix() -> Path:
    """Return where a Python 3.12 of this machine lies; skips the test where there is none."""
    candidates: list[Path | str | None] = [
        *sorted(Path.home().glob(f".pyenv/versions/{PYTHON}.*/bin/python3")),
        shutil.which(f"python{PYTHON}"),
    ]
    for python in (each for each in candidates if each):
        done = subprocess.run(
            [python, "-c", "import sys; print(sys.base_prefix)"], capture_output=True, text=True, check=False
        )
        prefix = Path(done.stdout.strip() or "/")
        if (prefix / f"lib/python{PYTHON}/site-packages/pip").is_dir():
            return prefix
    pytest.skip(f"no Python {PYTHON} with pip of its own on this machine")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """Debian, Python 3.12 and the stand-in package, with nothing of gRPC."""
    image_there(BASE)
    prefix, standin = python_prefix(), make_standin(tmp_path_factory.mktemp("standin"))
    # It becomes the folder of packages, which is for all users.
    standin.chmod(0o755)
    names = ("bin/python3.12", "lib/python3.12", "lib/libpython3.12.so.1.0")
    files = {f"{PLACE}/{name}": prefix / name for name in names if (prefix / name).exists()}
    files |= {f"{PLACE}/bin/python3": prefix / "bin/python3.12", f"{PLACE}/lib/python3.12/site-packages": standin}
    with tagged("tensorrt-base") as name:
        yield build_on(BASE, name, files, f"ENV PATH={PLACE}/bin:/usr/bin:/bin LD_LIBRARY_PATH={PLACE}/lib")


@pytest.fixture(scope="module")
def image(base: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The image as `make image-tensorrt` builds it, without a network."""
    context = tmp_path_factory.mktemp("context")
    for folder in ("docker", "proto", "runners/common", "runners/tensorrt"):
        shutil.copytree(REPO / folder, context / folder, ignore=shutil.ignore_patterns(".venv", "__pycache__"))
    wheels = context / "build/wheels/tensorrt"
    what = ("--only-binary=:all:", "--python-version", PYTHON, "--dest", wheels, *RUNNERS_OWN)
    fetch: list[Path | str] = [sys.executable, "-m", "pip", "--quiet", "download", *what]
    subprocess.run(fetch, check=True, stderr=subprocess.DEVNULL)
    with tagged("tensorrt") as name:
        # Debian's client has BuildKit; one that lies before it on the path may not.
        docker = next(filter(os.path.exists, ("/usr/bin/docker", "/usr/local/bin/docker")), "docker")
        base_is = ("--build-arg", f"BASE={base.name}")
        built: list[Path | str] = ["--file", context / "docker/tensorrt.Dockerfile", "--tag", name, *base_is, context]
        done = subprocess.run(
            [docker, "build", "--network=none", "--progress=plain", *built],
            env={**os.environ, "DOCKER_BUILDKIT": "1", "DOCKER_HOST": base.engine.address},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        # grpcio, protobuf and what the former needs; the engine's package is in the base.
        assert "3 to install" in done.stderr
        yield image_there(name)


def test_its_image_is_built_beside_the_base_and_the_doctor_says_that_it_has_never_been_run(
    image: Image, client: DockerClient, tmp_path: Path
) -> None:
    """In a container as of a measurement: unprivileged, read-only, without a network."""
    command = InContainers(*home_and_folder(tmp_path), image=image, client=client)
    what = ("--backend", "tensorrt", "--launcher", "docker", "--set", f"container.image={image.name}", "--json")
    done = command("doctor", *what, env=on_gpus(command, FakeGpu()), timeout=300)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["tensorrt"]["figure"] == "tensorrt-llm 1.2.1+standin", checks
    assert checks["engine arguments"]["status"] == "pass"
    assert checks["tensorrt runner"]["status"] == "warn"
    assert command.containers() == []
