"""The commands in the docs do what the docs say: each page's blocks are run in order, in a clone."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from docs.blocks import blocks

from wattdock.host import GpuInventory

if TYPE_CHECKING:
    from collections.abc import Callable

    from docs.blocks import Block

REPO = Path(__file__).resolve().parents[2]
PAGES = sorted(page for folder in ("", "how-to") for page in (REPO / "docs" / folder).glob("*.md"))
# Its own test runs it on two machines, with a registry: tests/containers/test_publication.py.
ELSEWHERE = {"publication.md"}
LIMIT_S = 540


def no_gpu() -> str | None:
    found = GpuInventory.here()
    return None if found.gpus else f"no NVIDIA GPU ({found.reason})"


def no_pytorch() -> str | None:
    there = (REPO / "runners/pytorch/.venv/bin/python").exists()
    return None if there else "runners/pytorch/.venv is not there: `make test` makes it"


def no_engine() -> str | None:
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
    with socket.socket(socket.AF_UNIX) as asked:
        try:
            asked.connect(address)
        except OSError as error:
            return f"no container engine at {address} ({error.strerror})"
    return None


NEEDS: dict[str, Callable[[], str | None]] = {"gpu": no_gpu, "pytorch": no_pytorch, "docker": no_engine}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder that looks like a clone that was set up, and takes what commands write."""
    for entry in REPO.iterdir():
        if entry.name not in ("results", "build", ".git"):
            (tmp_path / entry.name).symlink_to(entry)
    # An older pyproject.toml: else `make` could install this folder into the checkout's own environment.
    project = tmp_path / "pyproject.toml"
    project.unlink()
    shutil.copyfile(REPO / project.name, project)
    os.utime(project, (0, 0))
    return tmp_path


def run(block: Block, clone: Path) -> subprocess.CompletedProcess[str]:
    # A block that needs no engine sees none, so that pages can be run beside tests that look at what is on it.
    engine = {} if "docker" in (block.needs or ()) else {"DOCKER_HOST": f"unix://{clone}/absent.sock"}
    env = {
        **os.environ,
        **engine,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "WATTDOCK_HOME": str(clone / "build" / "home"),
        "WATTDOCK_LEASES": str(clone / "build" / "leases"),
    }
    words = ["bash", "-euo", "pipefail", "-c", block.text]
    return subprocess.run(words, cwd=clone, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_succeeds(
    page: Path, clone: Path, subtests: pytest.Subtests, request: pytest.FixtureRequest
) -> None:
    """Blocks that this machine cannot run are skipped by name."""
    if page.name in ELSEWHERE:
        pytest.skip("has a test of its own, in tests/containers")
    if not no_pytorch() and any("pytorch" in (block.needs or ()) for block in blocks(page)):
        (clone / "build/home").mkdir(parents=True)
        (clone / "build/home/models").symlink_to(request.getfixturevalue("models"))
    for block in blocks(page):
        if block.file:
            (clone / block.file).parent.mkdir(parents=True, exist_ok=True)
            (clone / block.file).write_text(block.text)
            continue
        with subtests.test(msg=f"{page.name}:{block.line}"):
            if block.needs is None:
                pytest.skip(str(block.not_run))
            if lacking := [why for need in block.needs if (why := NEEDS[need]())]:
                pytest.skip("; ".join(lacking))
            done = run(block, clone)
            assert done.returncode == 0, f"{block.text}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def test_a_block_that_does_not_say_whether_it_is_run_is_refused(tmp_path: Path) -> None:
    """Else a command could go untested without anybody deciding so."""
    page = tmp_path / "page.md"
    page.write_text("```sh\nfalse\n```\n")
    with pytest.raises(ValueError, match=r"page\.md:1"):
        blocks(page)
    page.write_text("```\nfalse\n```\n")
    with pytest.raises(ValueError, match="which language"):
        blocks(page)
    shell = "```sh run needs-gpu\ntrue\n```\n\n```sh not-run: a reason\nfalse\n```\n"
    page.write_text(f"{shell}\n```yaml file=a.yaml\na: 1\n```\n")
    first, second, third = blocks(page)
    assert (first.needs, second.not_run, third.file, third.text) == (("gpu",), "a reason", "a.yaml", "a: 1\n")
