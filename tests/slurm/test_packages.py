"""A publishable figure on a cluster without containers and without an administrator."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import fake_nvml
import pytest
from command import REPO, Command
from fake_nvml import FakeGpu, FakeProcess
from make import models
from seams.inputs import shape_config
from slurm.cluster import Cluster, cluster, missing
from unprivileged import give_to_user, popen_as_user, unable, user_home

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.skipif(os.getuid() != 0 or unable() is not None, reason="needs root, to show a job quiet CPUs"),
]
# Ends what hangs.
LONGEST_S = 600.0
COMMIT = "c" * 40
COMPILED = shutil.ignore_patterns("__pycache__")
PUBLISHABLE = "^publishable: .* J/output token ± "
STUDY = """
defaults:
  backend: fake
  model: nobody/tiny
  launcher: process
  container: {locked: true}
  workload:
    arrival: closed
    staggered_start: true
    batch_size: 8
    max_output_tokens: {distribution: uniform, min: 8, max: 24}
    min_duration_s: 8
    prompts: {source: synthetic, input_tokens: 16}
  repeats: {restarts: 3, passes: 1}
  warmup: {profile: lead-in, lead_in_s: 16, lead_in_lifetimes: 1, window_lifetimes: 1}
  fake: {step_s: 0.02}
fleet: {}
"""


@dataclass(frozen=True)
class Cloned(Command):
    """wattdock from a clone without changes, in the home of a user who has no folder for all users' leases."""

    def words(self, *args: str | Path) -> list[str | Path]:
        return [sys.executable, "-P", "-m", "wattdock", *args]

    def env(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        return super().env() | {
            "PYTHONPATH": f"{self.home}/clone/coordinator:{self.home}/clone/proto",
            "WATTDOCK_RUNNERS": str(self.folder / "runners"),
            "WATTDOCK_LEASES": str(self.home / "wattdock/leases"),
            "LD_LIBRARY_PATH": str(self.home / "nvml"),
            "HF_HUB_OFFLINE": "1",
            **(more or {}),
        }


@contextmanager
def machine(tmp_path: Path) -> Iterator[tuple[Cloned, Cluster]]:
    """Yield a user on a cluster where nothing was made: a clone, a model of a hub, two GPUs, quiet CPUs."""
    home = user_home(tmp_path)
    library, work = fake_nvml.build(home / "nvml"), home / "work"
    gpu = FakeGpu(uuid=fake_nvml.uuid_of(1), profile=(fake_nvml.constant(150.0),), processes=(FakeProcess(0),))
    fake_nvml.config(library, gpus=[gpu, replace(gpu, uuid=fake_nvml.uuid_of(2), processes=())])
    hub = home / "wattdock/models/hub/models--nobody--tiny"
    config = json.dumps(shape_config("tiny-llama")).encode()
    models.write(hub / "snapshots" / COMMIT, models.files() | {"config.json": config})
    (hub / "refs").mkdir()
    (hub / "refs/main").write_text(COMMIT)
    backend = work / "runners/fake"
    shutil.copytree(REPO / "tests/runners/fake", backend, ignore=COMPILED)
    packages = "".join(f"{package}=={version(package)}\n" for package in ("grpcio", "protobuf"))
    compile_lock = (sys.executable, "-I", REPO / "coordinator/wattdock/launch/uv.py", "pip", "compile", "--quiet")
    for variant in ("cpu", "cuda"):
        (file := backend / f"requirements-{variant}.txt").write_text(packages)
        written = ("--generate-hashes", "--no-header", "--no-annotate", file, "-o", file.with_suffix(".lock"))
        subprocess.run([*compile_lock, *written], check=True)
    for path in (library, work, home / "wattdock"):
        for each in (path, *path.rglob("*")):
            give_to_user(each)
    clone(home / "clone")
    wattdock = Cloned(home, work)
    with cluster(home, wattdock.env(), stat=True) as slurm, quiet_cpus(slurm.folder / "stat"):
        yield wattdock, slurm


def clone(target: Path) -> None:
    """Commit the files of this checkout, changed ones too, in a checkout of their own, with the fake backend."""
    listed = ["git", "-C", str(REPO), "ls-files", "-z", "--cached", "--others"]
    listed += ["--exclude-standard", ".gitignore", "coordinator", "docker", "proto", "runners"]
    for name in subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\0"):
        if (REPO / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPO / name, target / name)
    shutil.copytree(REPO / "tests/runners/fake", target / "runners/fake", ignore=COMPILED)
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "all")):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", target, *words], check=True)


@contextmanager
def quiet_cpus(file: Path) -> Iterator[None]:
    """Keep in a file what /proc/stat says while nobody works: the machine of the tests is busy."""
    names, stop = ["cpu", *(f"cpu{number}" for number in range(os.cpu_count() or 1))], threading.Event()

    def write() -> None:
        with file.open("r+b", buffering=0) as stat:
            while not stop.wait(0.05):
                ticks = int(time.monotonic() * os.sysconf("SC_CLK_TCK"))
                lines = (f"{name} 0 0 0 {ticks:012} 0 0 0 0 0 0\n" for name in names)
                os.pwrite(stat.fileno(), "".join(lines).encode(), 0)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def call(wattdock: Cloned, slurm: Cluster, *command: str | Path) -> tuple[str, str]:
    """Return what a command of the user's says when it succeeds."""
    how: dict[str, Any] = {"within": slurm.within, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with popen_as_user(command, env=wattdock.env(slurm.env), cwd=wattdock.folder, **how) as running:
        out, err = running.communicate(timeout=LONGEST_S)
    assert running.returncode == 0, out + err
    return out, err


def test_a_study_without_containers_is_publishable(tmp_path: Path) -> None:
    """Locked packages, a node alone and no administrator."""
    with machine(tmp_path) as (wattdock, slurm):
        call(wattdock, slurm, *wattdock.words("run", wattdock.write(STUDY), "--on", "slurm"))
        shown, _ = call(wattdock, slurm, *wattdock.words("show", "x"))
        assert re.search(PUBLISHABLE, shown, re.MULTILINE), shown
