"""Which results are to be bundled, and where their files and what belongs to them are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock.errors import ConfigError, StoreError
from wattdock.execution import JOURNAL, STUDIES
from wattdock.inputs import BUNDLED, SYNTHETIC
from wattdock.metering import load_cards
from wattdock.publish.manifest import CARDS, PROMPTS, RESULTS, SAFE_PART
from wattdock.store import LOG, REQUESTS, RESULT, TIMELINE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wattdock.analysis import ExperimentResult
    from wattdock.store import Row

FILES = (RESULT, TIMELINE, REQUESTS, LOG)


@dataclass
class Sources:
    """Files of a bundle by their name in it, and what could not be had.

    Attributes:
        results: By folder name, in order.
        studies: Names of their folders.
        files: Results' and studies' own files, and meter cards.
        prompt_files: Hash → name in the bundle.
        prompts: Name in the bundle → file; kept byte for byte, since their hash is part of every result.
    """

    results: dict[str, ExperimentResult] = field(default_factory=dict)
    studies: list[str] = field(default_factory=list)
    files: dict[str, Path] = field(default_factory=dict)
    prompt_files: dict[str, str] = field(default_factory=dict)
    prompts: dict[str, Path] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def renamed(self, change: Callable[[str], str]) -> Sources:
        """Return the same with the names of studies changed: a person chose them, unlike those of results."""
        studies = {name: change(name) for name in self.studies}
        journals = {_journal(old): _journal(new) for old, new in studies.items()}
        files = {journals.get(name, name): path for name, path in self.files.items()}
        return replace(self, studies=[*studies.values()], files=files)


def gather(rows: Sequence[Row], *, home: Path, with_prompts: bool) -> Sources:
    """Return the files that belong in the bundle: results', meter cards, and journals of studies they were measured in.

    Args:
        home: WATTDOCK_HOME, for the cards of meters.
        with_prompts: Take files of prompts in.

    Raises:
        StoreError: A result's folder is incomplete.
        ConfigError: Two different results or studies have one name, or one has a name that a bundle cannot hold.
    """
    sources = Sources()
    folders: dict[str, Path] = {}
    studies: dict[str, Path] = {}
    for row in sorted(rows, key=lambda row: row.folder.resolve().name):
        folder = row.folder.resolve()
        _add(folders, folder)
        sources.results[folder.name] = row.result
        for file in FILES:
            if not (folder / file).is_file():
                raise StoreError(f"{folder} has no {file}; a bundle holds whole results only")
            sources.files[f"{RESULTS}/{folder.name}/{file}"] = folder / file
        if (study := row.result.study) and (path := folder.parent / STUDIES / study.study_id / JOURNAL).is_file():
            _add(studies, path.parent)
    sources.studies = sorted(studies)
    sources.files |= {_journal(name): studies[name] / JOURNAL for name in sources.studies}
    _gather_cards(sources, home)
    _gather_prompts(sources, with_prompts=with_prompts)
    return sources


def _journal(study: str) -> str:
    return f"{RESULTS}/{STUDIES}/{study}/{JOURNAL}"


def _add(folders: dict[str, Path], path: Path) -> None:
    if folders.setdefault(path.name, path) != path:
        raise ConfigError(f"{path} and {folders[path.name]} have one name; bundle them apart")
    if not SAFE_PART.fullmatch(path.name):
        said = "cannot be a name in a bundle; rename the folder with letters, digits, . _ - only"
        raise ConfigError(f"{path.name!r} {said}")


def _gather_cards(sources: Sources, home: Path) -> None:
    cited = {
        uuid: fact.card
        for result in sources.results.values()
        for uuid, fact in (result.energy.meter if result.energy else {}).items()
        if fact.card
    }
    cards = load_cards(sorted(cited), home=home, progress=sources.missing.append)
    for uuid, measured_utc in sorted(cited.items()):
        if uuid in cards and cards[uuid].measured_utc == measured_utc:
            sources.files[f"{CARDS}/{uuid}.json"] = home / "meter-cards" / f"{uuid}.json"
        else:
            sources.missing.append(f"the card of {uuid}'s counter of {measured_utc}, which results cite, is not here")


def _gather_prompts(sources: Sources, *, with_prompts: bool) -> None:
    wanted: dict[str, str] = {}
    for result in sources.results.values():
        seen = result.environment
        if seen and seen.dataset and seen.dataset not in (BUNDLED, SYNTHETIC) and seen.dataset_sha256:
            wanted[seen.dataset_sha256] = seen.dataset
    for digest, source in sorted(wanted.items()):
        path = Path(source).expanduser()
        if why := _missing(path, digest) if with_prompts else "was left out":
            sources.missing.append(f"the file of prompts with SHA-256 {digest} {why}; it cannot be run again without")
            continue
        sources.prompt_files[digest] = f"{PROMPTS}/{digest[:16]}.jsonl"
        sources.prompts[sources.prompt_files[digest]] = path


def _missing(path: Path, digest: str) -> str | None:
    """Return why a file with this SHA-256 cannot be had; None where it can."""
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return "is not here"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None if found == digest else "has changed"
