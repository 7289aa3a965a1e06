"""Stored results for a page: a row each, the report of one or of its study, two of them compared."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from wattdock.errors import ConfigError
from wattdock.files import STUDIES, read_regular, refuse_others_link
from wattdock.host import folders
from wattdock.live.order import ask
from wattdock.store import Filters, select

COLUMNS = (
    *("name", "status", "publishable", "backend", "model", "gpus", "batch_size", "restarts", "study_id"),
    *("energy_per_output_token_j", "energy_per_output_token_low_j", "energy_per_output_token_high_j"),
    *("output_tokens_per_s", "mean_power_w"),
)
MOST_ROWS = 1_000
# Room for every column of a comparison.
COMPARED_COLUMNS = 150


def result_rows(output_dir: Path) -> list[dict[str, Any]]:
    """Return the latest results, the latest first; none where there is none."""
    with suppress(ConfigError):
        return [
            {name: getattr(row, name) for name in COLUMNS}
            | {"folder": Path(row.folder).name, "started_utc": f"{row.started_utc:%Y-%m-%d %H:%M}"}
            for row in select(output_dir, Filters())[:MOST_ROWS]
            if _is_own(Path(row.folder))
        ]
    return []


def report_page(output_dir: Path, name: str) -> str:
    """Return the report of a result or a study as HTML.

    Raises:
        ConfigError: There is none of this name, or it cannot be shown.
    """
    with folders.scratch_folder() as scratch:
        file = scratch / "report.html"
        said = ask(["report", str(_known(output_dir, name)), "--title", name, "-o", str(file)])
        if not file.is_file():
            raise ConfigError(said.strip())
        return read_regular(file).decode()


def comparison_text(output_dir: Path, first: str, second: str) -> str:
    """Return what `wattdock compare` prints of two results or studies.

    Raises:
        ConfigError: There is none of one of the names.
    """
    return ask(["compare", *(str(_known(output_dir, name)) for name in (first, second))], columns=COMPARED_COLUMNS)


def _is_own(folder: Path) -> bool:
    """Whether a folder is one here, not another user's link to what only the caller may read."""
    with suppress(OSError):
        refuse_others_link(folder)
        return True
    return False


def _known(output_dir: Path, name: str) -> Path:
    """Return the folder of a result or a study by its exact name, which comes from a stranger."""
    for folder in (output_dir.absolute(), output_dir.absolute() / STUDIES):
        with suppress(OSError):
            if name[:1].isdigit() and name in (path.name for path in folder.iterdir()) and _is_own(folder / name):
                return folder / name
    raise ConfigError(f"no result and no study is called {name[:200]!r}")
