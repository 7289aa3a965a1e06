"""docs/publication.md, executed: every command that needs no GPU, on two empty engines and a registry."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from containers.engines import BASE, debian_client, engine_address, image_there

from wattdock.host import GpuInventory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from docker import DockerClient

REPO = Path(__file__).resolve().parents[2]
ENGINE = Path(__file__).with_name("engine.sh")
BLOCK = re.compile(r"```sh ([A-Za-z ]+)\n(.*?)```", re.DOTALL)
# In place of the page's own settings: the backend with the smallest image, without a GPU, on the base and with the
# wheels that the suite has.
STUDY = """
defaults:
  model: 'shape:tiny-llama'
  accelerator: cpu
  backend: llamacpp
  repeats: {restarts: 1, passes: 1}
  warmup: {passes: 0}
  workload: {batch_size: 2, max_output_tokens: 8}
experiments: [{name: published}]
"""
# The suite's images were built with these; pip finds them in place of choosing and fetching them again.
WHEELS = REPO / "build/wheels"
TIMEOUT_S = 1_800


def commands(machine: str) -> list[str]:
    """Return the page's commands for one machine, in order."""
    blocks = BLOCK.findall((REPO / "docs/publication.md").read_text())
    return [line for marked, text in blocks if marked == machine for line in text.splitlines()]


def test_every_block_of_the_page_is_for_somebody() -> None:
    """One with another mark would be executed by nobody."""
    marks = [mark for mark, _ in BLOCK.findall((REPO / "docs/publication.md").read_text())]
    assert set(marks) == {"settings", "first machine", "second machine", "with a GPU"}
    assert (REPO / "docs/publication.md").read_text().count("```") == 2 * len(marks)


@pytest.fixture
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Two engines with nothing on them; their addresses."""
    engine_address()
    if os.getuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("needs root and dockerd for engines of its own")
    with own_engine(tmp_path_factory.mktemp("first")) as first, own_engine(tmp_path_factory.mktemp("second")) as second:
        yield first, second


@contextmanager
def own_engine(folder: Path) -> Iterator[str]:
    """Yield the address of an engine with its data in this folder."""
    started = subprocess.run([ENGINE, "start", folder, "plain"], stdout=subprocess.PIPE, text=True, check=True)
    yield started.stdout.strip()
    subprocess.run([ENGINE, "stop", folder], check=True)
    # Gigabytes, which pytest would keep.
    shutil.rmtree(folder)


# What builds wattdock itself, in place: no lock names it.
BUILD_PACKAGES = ("hatchling", "editables")


def lent_wheels() -> dict[str, str]:
    """Return what lets pip and uv take the suite's wheels and ask no index.

    Where there is a GPU, `make setup` wants a package that none of them is, so that the index is asked too.
    """
    folders = [WHEELS / name for name in ("llamacpp", "coordinator", "pytorch")]
    if not all(list(folder.glob("*.whl")) for folder in folders):
        pytest.skip(f"{WHEELS} has no wheels; .ci/run fetches them")
    folders.append(WHEELS / "hatchling")
    fetch: list[Path | str] = [
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "download",
        "--dest",
        folders[-1],
        *BUILD_PACKAGES,
    ]
    subprocess.run(fetch, check=True)
    alone = {} if GpuInventory.here().gpus else {"PIP_NO_INDEX": "1"}
    return {"PIP_FIND_LINKS": " ".join(map(str, folders)), **alone}


def execute(lines: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
    """Execute commands in one shell, as a reader would."""
    folder.mkdir(exist_ok=True)
    script = "\n".join(["set -eux", *lines])
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_a_publication_run_gives_the_same_image_and_tokens_on_an_empty_second_machine(
    registry: str, client: DockerClient, engines: tuple[str, str], tmp_path: Path
) -> None:
    """From a clone to a locked result, and again from the repository and the registry alone."""
    image_there(BASE)
    base = f"{registry}/base"
    client.images.get(BASE).tag(base, "1")
    client.images.push(base, tag="1")
    (tmp_path / "study.yaml").write_text(STUDY)
    first, second = tmp_path / "first", tmp_path / "second"
    env = {
        "REPOSITORY": str(REPO),
        "REGISTRY": f"{registry}/team",
        "BACKEND": "llamacpp",
        "VARIANT": "cpu",
        "BASE": f"{base}:1",
        "STUDY": str(tmp_path / "study.yaml"),
        "PATH": debian_client(tmp_path),
        "DOCKER_HOST": engines[0],
        "PYTHONDONTWRITEBYTECODE": "",
        **lent_wheels(),
        "WATTDOCK_HOME": str(tmp_path / "home"),
        "WATTDOCK_LEASES": str(tmp_path / "leases"),
        **{f"GIT_{who}_{what}": "test@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }
    execute(commands("first machine"), first, env)
    elsewhere = {"REPOSITORY": str(first / "wattdock"), "DOCKER_HOST": engines[1]}
    execute(commands("second machine"), second, {**env, **elsewhere})
    rows, ids = zip(*(stored(machine / "wattdock") for machine in (first, second)), strict=True)
    here, there = (row["environment"]["container"] for row in rows)
    assert here["locked_digest"] == there["locked_digest"]
    assert here["locked_digest"].startswith(f"{registry}/team/wattdock-llamacpp@sha256:")
    assert here == there
    assert len(ids[0]) == 4
    assert ids[0] == ids[1]


def stored(checkout: Path) -> tuple[dict[str, dict[str, dict[str, str]]], list[list[int]]]:
    """Return the one row in a checkout, and the ids of every request."""
    [folder] = (checkout / "results").glob("2*")
    return json.loads((folder / "result.json").read_text()), pq.read_table(folder / "restarts/0/requests.parquet")[
        "output_ids"
    ].to_pylist()
