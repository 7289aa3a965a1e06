"""Keep the rows of a folder of results in a file there, so that a list or a query reads only what is new.

The file is a copy: where it is missing or damaged, or other code wrote it, the results are read instead.
"""

from __future__ import annotations

import hashlib
import io
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock.files import MANIFEST, read_regular, write_whole
from wattdock.store.folders import RESULT, read_summaries
from wattdock.store.table import Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from wattdock.store.folders import Tell

# A digest, and a Parquet file with one column more than `Row` has.
INDEX, STATE = ".rows", "state"
DIGEST_BYTES = 32
# Fewer results are read in less time than an index is written.
FEWEST = 100


def read_rows(folders: Sequence[Path], tell: Tell) -> tuple[list[pa.Table], list[Row]]:
    """Return the rows of results that are as they were indexed, in a table if there are any, and those of the others.

    The index is written anew if there are many others, but into no bundle; a folder that cannot be written has none.

    Args:
        folders: Of all results of one folder.
        tell: Receives a line about each result that cannot be read.
    """
    file = folders[0].parent / INDEX
    # Of the time before anything is read: a result that changes meanwhile is read again.
    states = {folder.name: _state(folder / RESULT) for folder in folders}
    tables = _unchanged(file, states) if os.access(file, os.R_OK) else []
    indexed_folders = {folder for table in tables for folder in table["folder"].to_pylist()}
    others = [folder for folder in folders if str(folder) not in indexed_folders]
    rows = list(map(Row.of, read_summaries(others, tell=tell)))
    if len(rows) >= FEWEST and not (file.parent.resolve().parent / MANIFEST).exists():
        # Names and numbers that Arrow cannot hold are no reason to read nothing.
        with suppress(OSError, ValueError, OverflowError):
            _write(file, whole_table(tables, rows), states)
    return tables, rows


def whole_table(tables: list[pa.Table], rows: list[Row]) -> pa.Table:
    """Return both parts of `read_rows` as one table, in no order."""
    import pyarrow as pa

    # Even an empty list would import pandas where that is installed, which takes longer than all else here.
    return pa.concat_tables([*tables, Row.table(rows)] if rows or not tables else tables)


def _unchanged(file: Path, states: dict[str, str | None]) -> list[pa.Table]:
    """Return a table of the rows whose results have these states; none where the index cannot be used."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    # Arrow cannot hold every folder's name.
    with suppress(OSError, UnicodeError):
        content = read_regular(file, owned=True)
        if content[:DIGEST_BYTES] == digest(content[DIGEST_BYTES:]):
            table = pq.ParquetFile(io.BytesIO(content[DIGEST_BYTES:])).read()
            pairs = zip(table["folder"].to_pylist(), table[STATE].to_pylist(), strict=True)
            same = [states.get(name) == state for name, state in pairs]
            paths = pc.binary_replace_slice(table["folder"], 0, 0, str(file).removesuffix(INDEX))
            table = table.drop_columns(STATE).set_column(0, "folder", paths)
            return [table if all(same) else table.filter(pa.array(same))]
    return []


def _write(file: Path, table: pa.Table, states: dict[str, str | None]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [Path(folder).name for folder in table["folder"].to_pylist()]
    table = table.set_column(0, "folder", pa.array(names)).append_column(STATE, pa.array([*map(states.get, names)]))
    content = io.BytesIO()
    pq.write_table(table, content)
    write_whole(file, digest(content.getvalue()) + content.getvalue())


def _state(file: Path) -> str | None:
    """Return a text that differs once a file's content, owner or mode did; None where it cannot be read."""
    with suppress(OSError):
        status = file.stat()
        return f"{status.st_ctime_ns} {status.st_size}" if os.access(file, os.R_OK) else None
    return None


def digest(content: bytes) -> bytes:
    """Return the SHA-256 of this wattdock's code and of an index; of another index, or a damaged one, it differs."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    return hashlib.sha256(b"".join([*(file.read_bytes() for file in files), content])).digest()
