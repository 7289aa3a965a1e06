from __future__ import annotations

from typing import TYPE_CHECKING

import fake_nvml
import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a freshly built fake libnvidia-ml.so.1."""
    return fake_nvml.build(tmp_path_factory.mktemp("fake_nvml"))
