"""Which stored results a name means, and what is read to know it."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from stored_results import bundled, opener, stored

from wattdock.errors import StoreError
from wattdock.store import find_results

if TYPE_CHECKING:
    from pathlib import Path

CHOOSE = """
import sys
from pathlib import Path
from wattdock.store import find_results
[row] = find_results([sys.argv[1]], Path("results"), Path)
print(row.folder.name, "duckdb" in sys.modules)
"""


def test_a_whole_name_is_found_without_a_question_to_every_result(tmp_path: Path) -> None:
    """There may be thousands; a beginning has to be held against all of them."""
    for number in (1, 2):
        stored(tmp_path / "results", name=f"20260101T00000{number}-fake-{number}")
    for written, asked in (("20260101T000002-fake-2", False), ("fake-2", True)):
        choose = [sys.executable, "-c", CHOOSE, written]
        said = subprocess.run(choose, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        assert said == f"20260101T000002-fake-2 {asked}\n"


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
