"""Images for container tests, each built in a moment on one that is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from containers.engines import BASE, build_on, tagged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wattdock.launch.engine import Containers

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def standin_image() -> Iterator[Containers]:
    """An image whose runner is the launcher tests' stand-in."""
    with tagged("standin") as name:
        files = {"/standin.py": TESTS / "launch/standin_runner.py"}
        yield build_on(BASE, name, files, 'ENTRYPOINT ["python3", "/standin.py"]')
