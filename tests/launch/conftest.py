from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from wattdock.launch import LaunchSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def spec(tmp_path: Path) -> Callable[[str], LaunchSpec]:
    """A maker of launch specs by behaviour."""
    return lambda behaviour: LaunchSpec(backend=behaviour, runner_dir=tmp_path, log_path=tmp_path / f"{behaviour}.log")
