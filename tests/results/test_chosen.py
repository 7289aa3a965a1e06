"""Which stored results a name means, and what is read to know it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from stored_results import stored

if TYPE_CHECKING:
    from pathlib import Path

CHOOSE = """
import sys
from contextlib import ExitStack
from pathlib import Path
from wattdock.results.chosen import chosen_rows
with ExitStack() as unpacked:
    [row] = chosen_rows([sys.argv[1]], Path("results"), unpacked)
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
