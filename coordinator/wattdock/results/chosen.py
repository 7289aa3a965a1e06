"""Find the stored results that a person means: result folders, folders of them, studies and bundles.

Reads files and prints nothing. Rows that a later one of the same study stands for are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock.errors import StoreError
from wattdock.results.store import RESULT, load_result

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack

    from wattdock.results.result import ExperimentResult

STUDIES, JOURNAL, BUNDLED = "studies", "journal.jsonl", "results"


@dataclass(frozen=True)
class Row:
    """One stored result and the folder that holds its files."""

    folder: Path
    result: ExperimentResult


def chosen_rows(named: Sequence[str], output_dir: Path, unpacked: ExitStack) -> list[Row]:
    """Return the rows that all of `named` mean, each once, in the order given.

    Args:
        named: Result folders, folders that hold such, studies (a folder or an id), bundles (a folder or a .tar).
        output_dir: Where a study that is named by its id lies.
        unpacked: Holds the bundles' temporary folders; the rows' folders are there until it is closed.

    Raises:
        StoreError: One of them means no result, or a result cannot be read.
    """
    folders = [folder for what in named for folder in _result_folders(what, output_dir, unpacked)]
    rows = [Row(folder, load_result(folder)) for folder in dict.fromkeys(folders)]
    return without_superseded(rows)


def without_superseded(rows: Sequence[Row]) -> list[Row]:
    """Leave out what a later attempt of the same study stands for."""
    latest: dict[tuple[str, str], int] = {}
    for row in rows:
        if (study := row.result.study) is not None:
            key = (study.study_id, row.result.experiment_id)
            latest[key] = max(latest.get(key, 0), study.attempt)
    return [
        row
        for row in rows
        if (study := row.result.study) is None or study.attempt == latest[study.study_id, row.result.experiment_id]
    ]


def _result_folders(what: str, output_dir: Path, unpacked: ExitStack) -> list[Path]:
    path = Path(what)
    if not path.exists():
        return _of_study(what, output_dir, f"{what}: no such folder, and no study of that name in {output_dir}")
    if path.is_file():
        return [path.parent] if path.name == RESULT else _in_folder(_unpack(path, unpacked), what)
    if (path / JOURNAL).exists():
        study = path.resolve()
        return _of_study(study.name, study.parent.parent, f"{what}: this study has no results yet")
    return _in_folder(path, what)


def _in_folder(folder: Path, what: str) -> list[Path]:
    """Return a result folder itself, a bundle's results, or the results that a folder holds."""
    if (folder / RESULT).exists():
        return [folder]
    # A bundle's files may stand in one folder of its name.
    inside = [one for one in folder.iterdir() if (one / BUNDLED).is_dir()]
    for place in (folder / BUNDLED, folder, *(one / BUNDLED for one in inside if len(inside) == 1)):
        if found := sorted(file.parent for file in place.glob(f"[!.]*/{RESULT}")):
            return found
    raise StoreError(f"{what}: holds no results; name a result folder, a study, a bundle, or a folder of results")


def _of_study(study_id: str, output_dir: Path, otherwise: str) -> list[Path]:
    from wattdock.results.query import Filters, select

    if not any(output_dir.glob(f"[!.]*/{RESULT}")):
        raise StoreError(f"{otherwise}; `wattdock results list` shows what there is")
    found = select(output_dir, Filters(study=study_id), columns=("folder", "study_id")).to_pylist()
    of_it = {Path(one["folder"]) for one in found if one["study_id"] == study_id}
    if not of_it:
        raise StoreError(f"{otherwise}; `wattdock results list` shows what there is")
    return sorted(of_it)


def _unpack(file: Path, unpacked: ExitStack) -> Path:
    """Unpack a bundle into a temporary folder, once every byte of it was checked."""
    # It stands to the right of stored results, which it is made of.
    from wattdock.bundle.verify import opened

    folder, _ = unpacked.enter_context(opened(file))
    return folder
