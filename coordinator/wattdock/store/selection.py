"""Find the stored results that a person means: result folders, folders of them, studies and bundles.

Reads files and prints nothing. Results that a later attempt of the same study stands for are left out. A study is whole
or an error: one result less would change every figure made of it, and nothing in them would show it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock.errors import ConfigError, StoreError
from wattdock.files import BUNDLED, JOURNAL, MANIFEST, STUDIES, TAR
from wattdock.store.folders import RESULT, StoredResult, load_result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wattdock.store.query import LeftOut

# As a folder's name and a plan show an experiment's id.
ID = re.compile(r"[0-9a-f]{8}")
# Of several names that could be meant.
SHOWN = 4


@dataclass(frozen=True)
class _Names:
    """Folder names in one place and the results that each means.

    Attributes:
        unread: Files that are no readable result, and so may belong to any study.
    """

    results: dict[str, list[Path]]
    studies: dict[str, list[Path]]
    unread: list[LeftOut]

    @property
    def every(self) -> dict[str, list[Path]]:
        return dict(sorted((self.results | self.studies).items()))

    def of_study(self, name: str) -> list[Path]:
        """Return a study's results, where it is sure that these are all."""
        if self.unread:
            more = f" and {len(self.unread) - SHOWN} more" if len(self.unread) > SHOWN else ""
            files = ", ".join(f"{file.file} {file.reason}" for file in self.unread[:SHOWN])
            raise StoreError(
                f"{name}: a result of this study may be in what cannot be read: {files}{more}; "
                "restore it, move its folder away, or name each result's folder"
            )
        if not self.studies[name]:
            raise StoreError(f"{name}: this study has no results yet; go on with it by `wattdock run … --resume`")
        return self.studies[name]


def find_results(named: Sequence[str], output_dir: Path, open_bundle: Callable[[Path], Path]) -> list[StoredResult]:
    """Return the results that all of `named` mean, each once, in the order given.

    Args:
        named: Result folders, folders that hold such, studies' folders, bundles (a folder or a .tar); what is no path
            is the name of a result's or a study's folder in `output_dir`, the beginning of one, with its time or
            without, or of the id in it.
        output_dir: Where results and studies that are named so lie.
        open_bundle: Verifies a bundle and returns the folder of its files, which stays as long as the results are read.

    Raises:
        StoreError: One of them means no result, a result cannot be read, or one that cannot may be of a study meant.
        ConfigError: One of them may mean several.
    """
    folders = [folder for what in named for folder in _result_folders(what, output_dir, open_bundle)]
    return without_superseded([StoredResult(folder, load_result(folder)) for folder in dict.fromkeys(folders)])


def is_named(result: StoredResult, what: str) -> bool:
    """Whether `what` names this result, not a study, a bundle or a folder that happens to hold only this one."""
    path = Path(what)
    if path.exists():
        return path.name == RESULT or (path / RESULT).exists()
    if what == result.folder.name:
        return True
    study = result.result.study
    return _begins(result.folder.name, what) and not (study and _begins(study.study_id, what))


def without_superseded(results: Sequence[StoredResult]) -> list[StoredResult]:
    """Leave out results that a later attempt of the same study stands for."""
    latest: dict[tuple[str, str], int] = {}
    for result in results:
        if place := result.place:
            latest[place] = max(latest.get(place, 0), result.attempt)
    return [result for result in results if not result.place or result.attempt == latest[result.place]]


def replacement(result: StoredResult) -> Path | None:
    """Return the folder of the latest later attempt at the same experiment of the study; None where there is none."""
    if result.place is None:
        return None
    from wattdock.store.query import Filters, select

    columns = ("study_id", "experiment_id", "attempt", "folder")
    # A file that cannot be read says nothing of this result.
    latest = select(result.folder.resolve().parent, Filters(study=result.place[0]), columns=columns)
    for *place, attempt, folder in zip(*(column.to_pylist() for column in latest.columns), strict=True):
        if tuple(place) == result.place and attempt > result.attempt:
            return Path(folder)
    return None


def _result_folders(what: str, output_dir: Path, open_bundle: Callable[[Path], Path]) -> list[Path]:
    path = Path(what)
    if not path.exists():
        return _of_name(what, output_dir)
    if path.name == RESULT:
        return [path.parent]
    if path.is_file() and path.suffix != TAR:
        raise StoreError(f"{what}: is no bundle, which ends in {TAR}, and no {RESULT}; name results or their study")
    if path.is_file():
        return _held(open_bundle(path) / BUNDLED)
    if (path / JOURNAL).exists():
        study = path.resolve()
        return _names(study.parent.parent).of_study(study.name)
    return _in_folder(path, what, open_bundle)


def _in_folder(folder: Path, what: str, open_bundle: Callable[[Path], Path]) -> list[Path]:
    """Return a result folder itself, a bundle's results once it was verified, or the results that a folder holds."""
    if (folder / RESULT).exists():
        return [folder]
    # A bundle's files may stand in one folder of its name.
    inside = [place for place in folder.iterdir() if (place / BUNDLED).is_dir()]
    for place in (folder / BUNDLED, folder, *(top / BUNDLED for top in inside if len(inside) == 1)):
        if found := _held(place):
            if place != folder and (place.parent / MANIFEST).exists():
                open_bundle(place.parent)
            return found
    raise StoreError(f"{what}: holds no results; name a result folder, a study, a bundle, or a folder of results")


def _held(place: Path) -> list[Path]:
    return sorted(file.parent for file in place.glob(f"[!.]*/{RESULT}"))


def _of_name(what: str, output_dir: Path) -> list[Path]:
    """Return the results that a folder's name or its beginning means; its whole name goes before any beginning."""
    # Of one result no other file is read.
    if Path(what).name == what and not what.startswith(".") and os.access(output_dir / what / RESULT, os.F_OK):
        return [output_dir / what]
    known = _names(output_dir)
    every = known.every
    names = [what] if what in every else [name for name in every if _begins(name, what)]
    if not names:
        raise StoreError(
            f"{what}: no such folder, and no result or study in {output_dir} whose name begins so; "
            "`wattdock results list` shows what there is"
        )
    # A run of one experiment is a study and a result; both mean the same.
    if len({tuple(every[name]) for name in names}) > 1:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        raise ConfigError(f"{what}: begins the names of {', '.join(names[:SHOWN])}{more}; write more of one")
    study = next((name for name in names if name in known.studies), None)
    return known.of_study(study) if study else every[names[0]]


def _begins(name: str, what: str) -> bool:
    """Whether `what` is a name's beginning, with the time in front or without, or the id in it; nothing is none."""
    if ID.fullmatch(what) and what in name.split("-"):
        return True
    return bool(what) and (name.startswith(what) or name.partition("-")[2].startswith(what))


def _names(output_dir: Path) -> _Names:
    """Return every result's and every study's folder name."""
    from wattdock.store.query import Filters, select

    found = {file.parent.name: [file.parent] for file in output_dir.glob(f"[!.]*/{RESULT}")}
    studies: dict[str, list[Path]] = {path.parent.name: [] for path in output_dir.glob(f"{STUDIES}/*/{JOURNAL}")}
    unread: list[LeftOut] = []
    rows = select(output_dir, Filters(), columns=("folder", "study_id"), tell=unread.append) if found else None
    # A study's own folder may have been left behind where its results were copied from.
    for row in rows.to_pylist() if rows is not None else ():
        if row["study_id"]:
            studies.setdefault(row["study_id"], []).append(Path(row["folder"]))
    return _Names(found, {name: sorted(of_it) for name, of_it in studies.items()}, unread)
