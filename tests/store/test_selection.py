"""Which stored results a name means, and what is read to know it."""

from __future__ import annotations

import tarfile
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from stored_results import bundled, opener, stored

from wattdock.errors import StoreError
from wattdock.store import find_results

if TYPE_CHECKING:
    from pathlib import Path


def chosen(*named: Path) -> list[str]:
    with ExitStack() as unpacked:
        return [row.folder.name for row in find_results([str(path) for path in named], named[0], opener(unpacked))]


def test_the_folder_of_a_bundle_is_used_once_every_byte_of_it_was_checked(tmp_path: Path) -> None:
    """Named itself, or by the folder that it alone lies in; one that was measured in it since is named by its own."""
    result = stored(tmp_path / "results")
    around = tmp_path / "around"
    around.mkdir()
    with tarfile.open(bundled(result, tmp_path / "b.tar").path) as file:
        file.extractall(around, filter="data")
    bundle = around / "b"
    for named in (bundle, around):
        assert chosen(named) == [result.name]
    (bundle / "results" / result.name / "restarts/0/requests.parquet").write_bytes(b"other")
    for named in (bundle, around):
        with pytest.raises(StoreError, match=r"not as it was bundled: changed: .*requests\.parquet"):
            chosen(named)
    assert chosen(bundle / "results" / result.name) == [result.name]
