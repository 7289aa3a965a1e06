"""The locks of runners' packages: every package by version and hash, and what the requirements ask for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPO = Path(__file__).parents[2]
REQUIREMENTS = sorted((REPO / "runners").glob("*/requirements-*.txt"))
LOCKS = [*sorted((REPO / "runners").glob("*/*.lock")), REPO / "docker" / "coordinator.lock"]
# Its packages come from an index of NVIDIA's, through a package that must be built to be read.
UNLOCKED = {"tensorrt/requirements-cuda.txt"}
HASH = re.compile(r" --hash=sha256:[0-9a-f]{64}")


def name(file: Path) -> str:
    return f"{file.parent.name}/{file.name}"


def pins(lock: Path) -> list[tuple[Requirement, int]]:
    """Return the packages of a lock, and how many hashes each has."""
    entries = lock.read_text().replace("\\\n   ", "").splitlines()
    return [(Requirement(HASH.sub("", entry)), len(HASH.findall(entry))) for entry in entries]


@pytest.mark.parametrize("file", REQUIREMENTS, ids=name)
def test_every_requirement_is_met_by_its_lock(file: Path) -> None:
    """Whoever changes one makes the locks anew: make locks."""
    if name(file) in UNLOCKED:
        assert not file.with_suffix(".lock").exists()
        return
    locked = pins(file.with_suffix(".lock"))
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    for wanted in map(Requirement, lines):
        found = [pin for pin, _ in locked if canonicalize_name(pin.name) == canonicalize_name(wanted.name)]
        assert found, wanted
        for pin in found:
            [version] = pin.specifier
            assert wanted.specifier.contains(version.version), (wanted, pin)


@pytest.mark.parametrize("lock", LOCKS, ids=name)
def test_a_lock_holds_versions_and_hashes_and_nothing_else(lock: Path) -> None:
    """No index, which each machine has its own of, and no package without a hash."""
    for pin, hashes in pins(lock):
        assert [version.operator for version in pin.specifier] == ["=="], pin
        assert (hashes > 0, pin.url) == (True, None), pin


@pytest.mark.parametrize("backend", ["pytorch", "vllm"])
def test_torch_for_a_cpu_is_the_build_for_cpus(backend: str) -> None:
    """The other would bring gigabytes of CUDA."""
    locked = [str(pin) for pin, _ in pins(REPO / "runners" / backend / "requirements-cpu.lock")]
    assert [pin for pin in locked if pin.startswith(("torch==", "nvidia-"))] == ["torch==2.13.0+cpu"]
