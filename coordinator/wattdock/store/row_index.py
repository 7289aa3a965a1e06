"""Keep the rows of a folder of results in a file there, so that a list or a query reads only what is new.

The file is a copy: where it is missing or damaged, or other code wrote it, the results are read instead.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock.files import MANIFEST, RESULT, write_whole
from wattdock.opening import read_regular
from wattdock.store.folders import readable_results
from wattdock.store.table import Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.store.folders import Say

# A digest, and a Parquet file with one column more than `Row` has.
INDEX, STATE = ".rows", "state"
DIGEST_BYTES = 32
# Fewer results are read in less time than an index is written.
FEWEST = 100


def read_rows(folders: Sequence[Path], say: Say) -> list[Row]:
    """Return the rows of results, those that are as they were indexed from the index, in no order.

    The index is written anew if there are many others, but into no bundle; a folder that cannot be written has none.

    Args:
        folders: Of all results of one folder.
        say: Receives a line about each result that cannot be read.
    """
    file = folders[0].parent / INDEX
    # Of the time before anything is read: a result that changes meanwhile is read again.
    states = {folder.name: _state(folder / RESULT) for folder in folders}
    indexed = _unchanged(file, states) if os.access(file, os.R_OK) else []
    indexed_folders = {row.folder for row in indexed}
    others = [folder for folder in folders if str(folder) not in indexed_folders]
    read = [stored.row for stored in readable_results(others, say)]
    new = [row for row in read if _may_be_indexed(Path(row.folder))]
    if len(new) >= FEWEST and not (file.parent.resolve().parent / MANIFEST).exists():
        # Names and numbers that Arrow cannot hold are no reason to read nothing.
        with suppress(OSError, ValueError, OverflowError):
            _write(file, [*indexed, *new], states)
    return [*indexed, *read]


def _unchanged(file: Path, states: dict[str, str | None]) -> list[Row]:
    """Return the rows whose results have these states; none where the index cannot be used."""
    import pyarrow.parquet as pq

    with suppress(OSError):
        content = read_regular(file, owned=True)
        if content[:DIGEST_BYTES] == digest(content[DIGEST_BYTES:]):
            rows = pq.ParquetFile(io.BytesIO(content[DIGEST_BYTES:])).read().to_pylist()
            same = [row for row in rows if row.pop(STATE) == states.get(Path(row["folder"]).name)]
            return [Row(**row | {"folder": str(file.with_name(Path(row["folder"]).name))}) for row in same]
    return []


def _write(file: Path, rows: list[Row], states: dict[str, str | None]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = Row.table(rows).append_column(STATE, pa.array([states[Path(row.folder).name] for row in rows]))
    content = io.BytesIO()
    pq.write_table(table, content)
    write_whole(file, digest(content.getvalue()) + content.getvalue())


def _may_be_indexed(folder: Path) -> bool:
    """Whether whoever can read the index could read a result, too."""
    with suppress(OSError):
        is_open = folder.lstat().st_mode & stat.S_IXOTH and (folder / RESULT).lstat().st_mode & stat.S_IROTH
        return bool(is_open or not folder.parent.stat().st_mode & stat.S_IXOTH)
    return False


def _state(file: Path) -> str | None:
    """Return a text that differs once a file's content, owner or mode did; None where it cannot be read."""
    with suppress(OSError):
        status = file.lstat()
        return f"{status.st_ctime_ns} {status.st_size}" if os.access(file, os.R_OK) else None
    return None


def digest(content: bytes) -> bytes:
    """Return the SHA-256 of this wattdock's code and of an index; of another index, or a damaged one, it differs."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    return hashlib.sha256(b"".join([*(file.read_bytes() for file in files), content])).digest()
