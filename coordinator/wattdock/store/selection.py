"""Find the stored results that a person names: result folders, folders of them, studies and bundles.

Reads files and prints nothing. Results that a later attempt of the same study replaces are left out. A missing result
would change every figure made of a study, and nothing in the figures would show it: an unreadable one that may be of a
named study is an error, and a line tells which declared experiments have none.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock.errors import ConfigError, StoreError, os_errors_as
from wattdock.files import BUNDLED, JOURNAL, MANIFEST, RESTARTS, RESULT, STUDIES, TAR
from wattdock.owned_folder import OwnedFolder
from wattdock.store.completeness import lacking, once
from wattdock.store.folders import StoredResult, load_result, readable_results, result_folders
from wattdock.store.table import replaced
from wattdock.text import listed, matching_names, nearest, runs_of, shortest_unique_names, without_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# Folders of results, and whether they are all that there is of their studies.
_Found = tuple[list[Path], bool]


@dataclass(frozen=True)
class _Names:
    """Results in one folder by their own, their studies' and experiments' names, and why others are unreadable."""

    output_dir: Path
    results: dict[str, list[Path]]
    studies: dict[str, list[Path]]
    experiments: dict[Path, str]
    unreadable: list[str]

    def of_study(self, name: str) -> list[Path]:
        """Return a study's results.

        Raises:
            ConfigError: There are none.
            StoreError: Others may be among the results that cannot be read.
        """
        if self.unreadable:
            raise StoreError(
                f"{name}: a result of this study may be in what cannot be read: {listed(self.unreadable)}",
                "or name each result's folder",
            )
        if folders := self.studies.get(name):
            return folders
        elsewhere = f" --output-dir {shlex.quote(str(self.output_dir))}" if self.output_dir != Path("results") else ""
        resume = f"`wattdock run --resume {without_timestamp(name)}{elsewhere}`"
        raise ConfigError(
            f"{name}: no results of this study in {self.output_dir}",
            f"name the folder that holds them, or go on with it: {resume}",
        )


def find_results(
    named: Sequence[str],
    output_dir: Path,
    open_bundle: Callable[[Path], Path],
    warn: Callable[[str], None] = lambda _: None,
) -> list[StoredResult]:
    """Return the results that all of `named` mean, each once, in the order given.

    Args:
        named: Result folders, folders of them, studies' folders, bundles (a folder or a .tar); a text that is no path
            is the name of a result's or a study's folder in `output_dir`, the beginning of such a name, with its time
            or without, or the id in it; STUDY:EXPERIMENT is one of a study. Without its run's number a study is the
            latest run.
        output_dir: The folder of results and studies that are named without a path.
        open_bundle: Verifies a bundle and returns the folder of its files, which stays as long as the results are read.
        warn: Receives a line where one run of several was taken, and about a study that lacks results.

    Raises:
        ConfigError: A name means no result, or may mean several.
        StoreError: A result cannot be read, or an unreadable one may belong to a named study.
    """
    bundles: dict[Path, Path | None] = {}
    of_studies: set[Path] = set()
    for name in named:
        folders, are_studies = _folders(name, output_dir, open_bundle, warn)
        bundles |= dict.fromkeys(folders, _bundle_of(name)[0])
        of_studies |= {*folders} if are_studies else set()
    results = [StoredResult(folder, load_result(folder), bundle) for folder, bundle in bundles.items()]
    rows = [(stored, stored.row) for stored in results]
    named_studies = {row.study_id for stored, row in rows if stored.folder in of_studies}
    lacks = lacking([(stored.folder.parent, row) for stored, row in rows if row.study_id in named_studies], warn)
    earlier = replaced(row for _, row in rows)
    current = ((stored, row) for stored, row in rows if row.folder not in earlier)
    return [replace(stored, lacks=lacks.get(row.study_id or "", ())) for stored, row in once(current, warn)]


def _folders(name: str, output_dir: Path, open_bundle: Callable[[Path], Path], warn: Callable[[str], None]) -> _Found:
    bundle, experiment = _bundle_of(name)
    if Path(name).exists():
        return _of_path(name, open_bundle)
    if not bundle or not experiment:
        return _of_name(name, output_dir, warn)
    labels = {folder: load_result(folder).config.label for folder in _of_path(str(bundle), open_bundle)[0]}
    return _of_experiment(experiment, str(bundle), labels), False


def _bundle_of(name: str) -> tuple[Path | None, str]:
    """Return the .tar file that a name means, if it means one, and the experiment of it that is named, if any."""
    place, experiment = (name, "") if Path(name).exists() else name.partition(":")[::2]
    return (Path(place) if place.endswith(TAR) and Path(place).is_file() else None), experiment


def _of_experiment(name: str, place: str, labels: Mapping[Path, str]) -> list[Path]:
    """Return the results of one experiment, by the names of all that are in a study or bundle."""
    if found := [folder for folder, label in labels.items() if label == name]:
        return found
    known = listed([repr(label) for label in dict.fromkeys(labels.values())])
    raise ConfigError(f"{place}:{name}: no experiment of {place} has this name", f"name one of {known}")


def _of_path(name: str, open_bundle: Callable[[Path], Path]) -> _Found:
    path = Path(name)
    if path.name == RESULT:
        return [path.parent], False
    if path.is_file() and path.suffix != TAR:
        raise ConfigError(
            f"{name}: is neither a bundle, which ends in {TAR}, nor a {RESULT}", "name results or their study"
        )
    if path.is_file():
        return result_folders(open_bundle(path) / BUNDLED), True
    with os_errors_as(StoreError, name, "see its owner and mode"), OwnedFolder.open(path) as opened:
        is_study, is_result = (opened.state(file) is not None for file in (JOURNAL, RESULT))
        study = Path(os.path.abspath(opened.path))  # noqa: PTH100 (no link is followed again)
    if is_result:
        return [path], False
    if is_study:
        return _names(study.parent.parent).of_study(study.name), True
    # A folder of results may hold other files, such as a log of the run.
    if (path / RESTARTS).is_dir() and not result_folders(path):
        return [path], False
    for place in (path / BUNDLED, path):
        if folders := result_folders(place):
            if place != path and (path / MANIFEST).exists():
                open_bundle(path)
            return folders, True
    bundles = f"name its bundles, as in {name}/*{TAR}; or " if any(path.glob(f"*{TAR}")) else ""
    what = f"{bundles}name a result folder, a study, a bundle, or a folder of results"
    raise ConfigError(f"{name}: holds no results", what)


def _of_name(text: str, output_dir: Path, warn: Callable[[str], None]) -> _Found:
    """Return the results that a folder's name or its beginning means; a whole name wins over beginnings."""
    # A whole name is found without reading any other result.
    if Path(text).name == text and not text.startswith(".") and os.access(output_dir / text / RESULT, os.F_OK):
        return [output_dir / text], False
    names = _names(output_dir)
    folders = dict(sorted((names.results | names.studies).items()))
    matches, (study, colon, experiment) = matching_names(text, folders), text.partition(":")
    if not matches and colon:
        of_study, _ = _of_name(study, output_dir, warn)
        labels = {folder: names.experiments.get(folder, "") for folder in of_study}
        return _of_experiment(experiment, study, labels), False
    if not matches:
        names_shown = list(dict.fromkeys(without_timestamp(name) for name in reversed(folders)))
        near = nearest(Path(text).stem, names_shown, cutoff=0.6)
        shown = f"the newest: {listed(names_shown)}; `wattdock results list` shows all" if folders else "measure some"
        raise ConfigError(
            f"{text}: no such folder, and no name of a result or study in {output_dir} begins so",
            f"did you mean {near!r}?" if near else shown,
        )
    if len(runs := runs_of(text, names.studies)) > 1 and len(matches) == 1:
        warn(f"{text}: {without_timestamp(matches[0])}, the latest of {len(runs)} runs")
    # A run of one experiment is a study and a result; both mean the same.
    if len({tuple(folders[name]) for name in matches}) > 1:
        shortest = shortest_unique_names(folders)
        studies = [f"{shortest[name]} (a study)" for name in matches if name in names.studies]
        candidates = [*studies, *(shortest[name] for name in matches if name in names.results)]
        raise ConfigError(f"{text}: begins several names", f"type one of them: {listed(candidates)}")
    whole_study = next((name for name in matches if name in names.studies), None)
    return (names.of_study(whole_study), True) if whole_study else (folders[matches[0]], False)


def _names(output_dir: Path) -> _Names:
    """Return every result's and every study's folder name."""
    folders = result_folders(output_dir)
    # A study's folder may have been left behind where its results were copied from.
    studies: dict[str, list[Path]] = {path.parent.name: [] for path in output_dir.glob(f"{STUDIES}/*/{JOURNAL}")}
    unreadable: list[str] = []
    rows = {stored.folder: stored.row for stored in readable_results(folders, unreadable.append)}
    for folder in sorted(rows):
        row = rows[folder]
        if row.study_id:
            studies.setdefault(row.study_id, []).append(folder)
    # A replaced result is found by its whole name only.
    earlier = replaced(rows.values())
    results = {folder.name: [folder] for folder in folders if str(folder) not in earlier}
    return _Names(output_dir, results, studies, {folder: row.name for folder, row in rows.items()}, unreadable)
