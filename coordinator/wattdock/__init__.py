"""wattdock: what LLM inference costs in energy, measured well enough to publish."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    import pyarrow as pa

__version__ = "0.1.0"


def load_results(path: str | os.PathLike[str] = "results") -> pa.Table:
    """Return every result stored under `path` as an Arrow table, one row each, the latest first; for notebooks.

    `.to_pandas()` makes a frame of it. Units stand in the columns' names. A result that a later attempt of the same
    study replaces is left out; so is a result that cannot be read, with a warning that names its file.

    Raises:
        StoreError: There are none.
    """
    import warnings
    from pathlib import Path

    from wattdock.store import Filters, Row, select

    lines: list[str] = []
    rows = select(Path(path), Filters(), tell=lines.append)
    for line in lines:
        warnings.warn(line, stacklevel=2)
    return Row.table(rows)
