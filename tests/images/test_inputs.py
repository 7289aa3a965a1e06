"""What an image is made from: exactly the files its Dockerfile takes, and the same hash for the same files."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from wattdock.launch.images import build, inputs
from wattdock.launch.images.bases import Base
from wattdock.launch.images.build import new_recipe, staged
from wattdock.launch.images.inputs import image_names, input_differences, input_files, inputs_sha256, read_inputs
from wattdock.launch.runners import REPO

if TYPE_CHECKING:
    from pathlib import Path

BASE = f"sha256:{'b' * 64}"
NOON_S = 1_700_000_000


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of everything that images are made from, with two wheels, in place of this checkout."""
    root = tmp_path / "checkout"
    for path in {path for name in image_names() for path in input_files(name) if not path.startswith("build/")}:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPO / path, target)
    shutil.copy(REPO / ".dockerignore", root)
    (root / "docker/images.lock").write_text("images: {}")
    wheels = root / "build/wheels/pytorch"
    wheels.mkdir(parents=True)
    for name in ("a-1-py3-none-any.whl", "b-2-py3-none-any.whl", "pip.log"):
        (wheels / name).write_text(name)
    for module in (inputs, build):
        monkeypatch.setattr(module, "REPO", root)
    monkeypatch.setattr(inputs, "DOCKER", root / "docker")
    return root


def hashed() -> str:
    return inputs_sha256(read_inputs("pytorch", variant="cpu", base=BASE))


def test_the_same_inputs_have_the_same_hash_whatever_a_checkout_does_to_them(checkout: Path) -> None:
    """Times, modes, what is ignored and what another image is made from do not count."""
    before = hashed()
    os.utime(checkout / "runners/pytorch/wattdock_pytorch.py", (1, 1))
    (checkout / "runners/pytorch/wattdock_pytorch.py").chmod(0o755)
    (checkout / "runners/common/wattdock_runner/__pycache__").mkdir()
    (checkout / "runners/common/wattdock_runner/__pycache__/x.pyc").write_text("x")
    (checkout / "runners/pytorch/.venv").mkdir()
    (checkout / "runners/pytorch/.venv/x.py").write_text("x")
    (checkout / "runners/vllm/wattdock_vllm.py").write_text("x")
    (checkout / "build/wheels/pytorch/pip.log").write_text("more")
    (checkout / "docker/images.lock").write_text("images: {x: {}}")
    assert hashed() == before


@pytest.mark.parametrize(
    "path",
    [
        *("runners/pytorch/wattdock_pytorch.py", "runners/pytorch/requirements-cpu.txt", "docker/pytorch.Dockerfile"),
        *(
            "docker/install_missing.py",
            "proto/wattdock_proto/v1/runner_pb2.py",
            "runners/common/wattdock_runner/clock.py",
        ),
        "build/wheels/pytorch/a-1-py3-none-any.whl",
    ],
)
def test_any_input_that_changes_is_named(path: str, checkout: Path) -> None:
    """Sources, requirements, the recipe, wheels."""
    before = read_inputs("pytorch", variant="cpu", base=BASE)
    with (checkout / path).open("a") as file:
        file.write("# more\n")
    assert input_differences(before, read_inputs("pytorch", variant="cpu", base=BASE)) == [f"{path} differs"]


def test_variant_base_and_files_that_come_or_go_count_too(checkout: Path) -> None:
    """Each is named."""
    before = read_inputs("pytorch", variant="cpu", base=BASE)
    (checkout / "build/wheels/pytorch/b-2-py3-none-any.whl").rename(
        checkout / "build/wheels/pytorch/b-3-py3-none-any.whl"
    )
    after = read_inputs("pytorch", variant="cuda", base=f"sha256:{'c' * 64}")
    assert input_differences(before, after) == [
        *("ARG VARIANT differs", "FROM differs"),
        *("build/wheels/pytorch/b-2-py3-none-any.whl is missing", "build/wheels/pytorch/b-3-py3-none-any.whl is new"),
    ]


def test_a_build_can_reach_its_inputs_and_nothing_else(checkout: Path) -> None:
    """Least of all the lock, which would change with every image that it locks; all have the sources' time."""
    for name in image_names():
        with staged(name, NOON_S) as context:
            files = [path for path in context.rglob("*") if path.is_file()]
            assert sorted(path.relative_to(context).as_posix() for path in files) == list(input_files(name))
            assert not any(path.name == "images.lock" for path in files)
            sources = [path for path in context.rglob("*") if path.suffix != ".whl"]
            assert {path.stat().st_mtime for path in sources} == {NOON_S}
            assert (context / f"build/wheels/{name}").is_dir()
    assert list((checkout / "build").glob("context-*")) == []


def test_an_image_says_what_was_built_in_though_the_checkout_changed_meanwhile(checkout: Path) -> None:
    """A file that is saved between the copy and the hash, and one that comes."""
    base = Base("base", BASE, None)
    before = read_inputs("pytorch", variant="cpu", base=BASE)
    with staged("pytorch", NOON_S) as context:
        (checkout / "runners/pytorch/wattdock_pytorch.py").write_text("other")
        (checkout / "build/wheels/pytorch/c-3-py3-none-any.whl").write_text("new")
        recipe = new_recipe(context, NOON_S, variant="cpu", base=base)
    assert recipe.inputs == before
    assert recipe.inputs != read_inputs("pytorch", variant="cpu", base=BASE)


def test_a_plain_docker_build_cannot_reach_the_lock_either() -> None:
    """Whoever builds without wattdock sends the checkout, less what .dockerignore names."""
    from docker.utils.build import exclude_paths

    patterns = (REPO / ".dockerignore").read_text().splitlines()
    sent = exclude_paths(str(REPO), patterns, dockerfile="docker/pytorch.Dockerfile")
    assert "docker/install_missing.py" in sent
    assert "docker/images.lock" not in sent
