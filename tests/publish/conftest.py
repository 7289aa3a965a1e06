"""A bundle of one result, as a tar file and unpacked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from make.stored import bundled, stored, unpacked

if TYPE_CHECKING:
    from pathlib import Path

    from wattdock.publish import CreatedBundle


@pytest.fixture
def bundle(tmp_path: Path) -> CreatedBundle:
    return bundled(stored(tmp_path / "results"), tmp_path / "b.tar")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    bundled(stored(tmp_path / "results"), tmp_path / "b.tar")
    return unpacked(tmp_path / "b.tar", tmp_path)
