"""A Slurm of two nodes, each with its GPUs and leases, and a user."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import fake_nvml
import pytest
from command import Command
from fake_nvml import FakeGpu
from slurm.cluster import NODES, Cluster, cluster
from unprivileged import give_to_user, user_home

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def slurm(wattdock: Command) -> Iterator[Cluster]:
    home = wattdock.home
    for number, node in enumerate(NODES):
        library, leases = home / f"nvml-{node}", home / f"leases-{node}"
        library.mkdir()
        leases.mkdir()
        leases.chmod(0o1777)
        fake_nvml.build(library)
        gpus = [FakeGpu(uuid=fake_nvml.uuid_of(1 + 2 * number + at)) for at in range(2)]
        fake_nvml.config(library, gpus=gpus)
        for file in filter(Path.is_file, library.iterdir()):
            give_to_user(file)
    with cluster(home, wattdock.env()) as running:
        yield running


@pytest.fixture
def wattdock(tmp_path: Path) -> Command:
    home = user_home(tmp_path)
    (home / "work").mkdir()
    give_to_user(home / "work")
    return Command(home, home / "work")
