"""An installed wattdock needs no checkout: a wheel holds what a run needs of the repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from seams.console import EXTRAS

REPO = Path(__file__).resolve().parents[1]
UV = (sys.executable, "-I", str(REPO / "coordinator/wattdock/launch/uv.py"))
FOLDERS = ("coordinator", "docker", "proto", "runners")
FILES = ("pyproject.toml", "README.md", "LICENSE")
BACKENDS = tuple(sorted(file.stem for file in (REPO / "docker").glob("*.Dockerfile") if file.stem != "coordinator"))
NEITHER = shutil.ignore_patterns(".venv*", "__pycache__", "*.egg-info")
WHERE = """
from wattdock.launch import find_runner
from wattdock.launch.environment import Environment
from wattdock.launch.images.build import _sources, image_names
from wattdock.launch.images.lock import lock_path
print(find_runner("pytorch"), Environment(find_runner("pytorch"), "cpu", print).venv, lock_path(), image_names())
with _sources() as folder:
    print(sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()))
"""

pytestmark = pytest.mark.slow


def ran(*words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"WATTDOCK_HOME": str(folder / "home"), "WATTDOCK_RUNNERS": str(REPO / "tests/runners")}
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment: the wheel of a source distribution, other packages without the extras."""
    folder = tmp_path_factory.mktemp("installed")
    for name in FOLDERS:
        shutil.copytree(REPO / name, folder / "source" / name, ignore=NEITHER)
    for name in FILES:
        shutil.copy(REPO / name, folder / "source")
    built = ran(*UV, "build", "--out-dir", folder / "built", folder / "source", folder=folder)
    if "package index" in built.stderr:
        pytest.skip(f"hatchling cannot be had: {built.stderr.splitlines()[-1]}")
    assert built.returncode == 0, built.stderr
    python = folder / "venv/bin/python"
    [wheel] = (folder / "built").glob("*.whl")
    for words in (("venv", folder / "venv", "--python", sys.executable), ("pip", "install", "--no-deps", wheel)):
        into = ("--python", python) if words[0] == "pip" else ()
        done = ran(*UV, *words, *into, folder=folder)
        assert done.returncode == 0, done.stderr
    # A folder that such a file names is not searched for others of its kind, as the checkout's own is.
    [packages] = (folder / "venv").glob("lib/python3*/site-packages")
    without = f"import sys; sys.modules.update(dict.fromkeys({list(EXTRAS)}))"
    (packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n{without}\n")
    return python


def test_a_plain_wheel_measures_without_a_checkout_and_says_which_extra_a_page_needs(
    installed: Path, tmp_path: Path
) -> None:
    """The runner's own half comes with it."""
    command = installed.with_name("wattdock")
    options = ("--backend", "fake", "--model", "shape:tiny-llama", "--passes", "1", "--runner-python", installed)
    done = ran(command, "run", *options, "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    [result] = json.loads(done.stdout)
    assert result["status"] == "ok"
    for words in ("plan --accelerator cpu", "show results", "compare results results"):
        assert ran(command, *words.split(), folder=tmp_path).returncode == 0
    needing = {"report results": "report", "plot pareto -o figure.pdf results": "report", "serve": "serve"}
    for words, extra in needing.items():
        done = ran(command, *words.split(), folder=tmp_path)
        line = f"wattdock: this command needs the extra `{extra}`: pip install 'wattdock[{extra}]'\n"
        assert (done.returncode, done.stderr) == (3, line), words


def test_what_it_makes_lies_in_its_home_and_images_are_built_from_a_copy(installed: Path, tmp_path: Path) -> None:
    """The package itself may be read-only; all that a Dockerfile names is there."""
    done = ran(installed, "-c", WHERE, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    places, files = done.stdout.splitlines()
    packaged = next(installed.parents[1].glob("lib/python3*/site-packages/wattdock/packaged"))
    environment = f"home/environments/pytorch-python3.{sys.version_info.minor}/.venv"
    expected = (packaged / "runners/pytorch", tmp_path / environment, tmp_path / "home/images.lock")
    assert places == f"{' '.join(map(str, expected))} {BACKENDS}"
    named = [
        *("docker/install_missing.py", "docker/vllm.Dockerfile"),
        "proto/wattdock_proto/v1/runner_pb2.py",
        *("runners/tensorrt/requirements-cuda.txt", "runners/common/wattdock_runner/servicer.py"),
    ]
    assert [name for name in named if repr(name) not in files] == []
