"""The second look at the GPUs, once the leases are held."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import fake_nvml
import pytest
from fake_nvml import FakeGpu, FakeProcess

from wattdock.checks.preflight import require_still_free
from wattdock.errors import PreflightError
from wattdock.host import inventory

if TYPE_CHECKING:
    from pathlib import Path


def test_who_came_between_the_first_look_and_the_lease_is_named(tmp_path: Path) -> None:
    """On the GPUs chosen; what runs on others is theirs to run."""
    library = fake_nvml.build(tmp_path)
    free, busy = (
        FakeGpu(uuid=fake_nvml.uuid_of(1)),
        FakeGpu(uuid=fake_nvml.uuid_of(2), processes=(FakeProcess(os.getpid()),)),
    )
    with fake_nvml.loaded(library, gpus=[free, busy]):
        first, second = inventory().gpus
        on_first: Any = SimpleNamespace(gpus=(first,))
        on_both: Any = SimpleNamespace(gpus=(first, second))
        require_still_free([on_first])
        with pytest.raises(PreflightError, match=rf"GPU 1: process {os.getpid()} "):
            require_still_free([on_first, on_both], patience_s=0)
