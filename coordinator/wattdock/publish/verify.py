"""See that a bundle is what was bundled, before anything in it is used.

A bundle is somebody else's: nothing of it is trusted before its hashes agree, and nothing but plain files is unpacked.
That the hashes agree does not say who made it; compare its digest with the one its authors have printed. Nor does it
say that its files agree with each other: what people read, its table and its study, is held against its results.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pydantic import ValidationError

from wattdock.config import read_yaml
from wattdock.errors import ConfigError, StoreError
from wattdock.publish.archive import PIECE, members
from wattdock.publish.manifest import (
    BUNDLE_SCHEMA,
    MANIFEST,
    RESULTS,
    STUDY,
    SUMS,
    BundleManifest,
    bundled,
    is_safe,
    require_equal,
)
from wattdock.publish.study_file import study_document, study_text
from wattdock.store import RESULT, load_result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import ExitStack

    from wattdock.analysis import ExperimentResult

# Unpacked in any case; the rest of a tar file only where it is to be used.
TOLD = (SUMS, MANIFEST, STUDY, RESULT)
# What stands in memory at once; a bundle of a thousand results has a tenth of that.
SMALL_BYTES = 50_000_000


@dataclass(frozen=True)
class Verified:
    """A bundle whose files are those it was made with.

    Attributes:
        digest: SHA-256 of its SHA256SUMS, which stands for all of it.
    """

    manifest: BundleManifest
    digest: str
    files: int
    size_bytes: int


@dataclass
class _Seen:
    """What was found while a bundle was read once."""

    digests: dict[str, str]
    size_bytes: int = 0


def verify(path: Path, *, into: Path | None = None) -> Verified:
    """Read a bundle, a tar file or a folder, once and whole.

    Args:
        into: An empty folder to unpack a tar file to meanwhile; of no use before this has returned.

    Raises:
        StoreError: It is damaged, cut short, changed or hostile, or cannot be read; says what and where.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="wattdock-bundle-") as room:
            folder = path if path.is_dir() else into or Path(room)
            seen = _read_folder(path) if path.is_dir() else _read_tar(path, folder, whole=into is not None)
            sums = _small(folder, SUMS, seen)
            require_equal(sums.decode("ascii", "backslashreplace"), seen.digests)
            manifest = _manifest(_small(folder, MANIFEST, seen))
            _require_files(manifest, seen.digests)
            _require_agreement(manifest, folder, _small(folder, STUDY, seen))
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}; name a bundle, a .tar file or a folder") from error
    except StoreError as error:
        raise StoreError(f"{path}: {error}") from error
    return Verified(manifest, hashlib.sha256(sums).hexdigest(), len(seen.digests), seen.size_bytes)


def opener(unpacked: ExitStack) -> Callable[[Path], Path]:
    """Return a function that verifies a bundle and returns its folder, which stays until `unpacked` is closed."""
    return lambda bundle: unpacked.enter_context(opened(bundle))[0]


@contextmanager
def opened(path: Path) -> Iterator[tuple[Path, Verified]]:
    """Yield a folder with the files of a bundle that was verified; one of our own, for a tar file, which then goes.

    Raises:
        StoreError: As `verify`.
    """
    if path.is_dir():
        yield path, verify(path)
        return
    _require_room(path)
    with tempfile.TemporaryDirectory(prefix="wattdock-bundle-") as name:
        yield Path(name), verify(path, into=Path(name))


def _read_tar(path: Path, into: Path, *, whole: bool) -> _Seen:
    seen = _Seen({})
    top = None
    with path.open("rb") as file:
        for member in members(file):
            begin, _, name = member.name.partition("/")
            top = top or begin
            if not name or begin != top:
                raise StoreError(f"holds {member.name!r} outside its folder {top!r}; do not unpack it")
            wanted = whole or name.rpartition("/")[2] in TOLD
            _take(name, member.pieces(), seen, into / name if wanted else None)
    return seen


def _read_folder(path: Path) -> _Seen:
    seen = _Seen({})
    for here, folders, files in os.walk(path):
        for one in (*folders, *files):
            found = Path(here, one)
            if found.is_symlink() or not (found.is_dir() or found.is_file()):
                raise StoreError(f"holds {str(found.relative_to(path))!r}, a link or device: no bundle has one")
        for one in files:
            name = str(Path(here, one).relative_to(path))
            if not is_safe(name):
                raise StoreError(f"holds {name!r}, which is no name of a bundle's file; it was added")
            with Path(here, one).open("rb") as file:
                _take(name, iter(partial(file.read, PIECE), b""), seen, None)
    return seen


def _take(name: str, pieces: Iterator[bytes], seen: _Seen, target: Path | None) -> None:
    """Use up a file's content: hash it, and write it where it is to be unpacked."""
    digest = hashlib.sha256()
    with _new_file(target) as file:
        for piece in pieces:
            seen.size_bytes += len(piece)
            digest.update(piece)
            file.write(piece)
    seen.digests[name] = digest.hexdigest()


def _new_file(target: Path | None) -> IO[bytes]:
    if target is None:
        return Path(os.devnull).open("wb")
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.open("xb")


def _small(folder: Path, name: str, seen: _Seen) -> bytes:
    """Return the content of one of the files that describe the bundle."""
    if name not in seen.digests or (folder / name).stat().st_size > SMALL_BYTES:
        raise StoreError(f"has no {name}, or an impossibly large one; it is no bundle, or was cut short")
    return (folder / name).read_bytes()


def _manifest(content: bytes) -> BundleManifest:
    try:
        return BundleManifest.model_validate_json(content)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"])) or "the file"
        raise StoreError(
            f"{MANIFEST} is not of bundle schema {BUNDLE_SCHEMA} ({where}: {problem['msg']}); use a newer wattdock"
        ) from error


def _require_files(manifest: BundleManifest, digests: dict[str, str]) -> None:
    """See that what the manifest names is there: results, and prompts by their place and hash."""
    listed = {f"{RESULTS}/{one.folder}/{RESULT}" for one in manifest.results}
    there = {name for name in digests if name.startswith(f"{RESULTS}/") and name.endswith(f"/{RESULT}")}
    prompts = {name for digest, name in manifest.prompt_files.items() if digests.get(name) != digest}
    if wrong := sorted((listed ^ there) | prompts):
        raise StoreError(f"{MANIFEST} and the files disagree about {wrong[0]!r}; it is no bundle of ours")


def _require_agreement(manifest: BundleManifest, folder: Path, study: bytes) -> None:
    """See that the table and the study say what the results say: they are what people read, and look up."""
    results = {one.folder: load_result(folder / RESULTS / one.folder) for one in manifest.results}
    try:
        _require_rows(manifest, results)
        written = study_document(manifest.name, results, manifest.prompt_files)
    except (KeyError, TypeError, ValidationError) as error:
        why = str(error).splitlines()[0]
        raise StoreError(f"a {RESULT} has settings that are none ({why}); it is no bundle of ours") from error
    # One that another version wrote may say the same in other words.
    if study_text(written).encode() != study and _settings(folder / STUDY) != written:
        raise StoreError(f"{STUDY} is not what the results were measured with; do not run either")


def _settings(study: Path) -> Any:
    try:
        return read_yaml(study)[0]
    except ConfigError as error:
        raise StoreError(f"{str(error).replace(str(study), STUDY)}: it is no bundle of ours") from error


def _require_rows(manifest: BundleManifest, results: dict[str, ExperimentResult]) -> None:
    """See that the manifest's rows are the results', in what was told of one when the bundle was made."""
    for row in manifest.results:
        known = bundled(row.folder, results[row.folder])
        for name in sorted(row.model_fields_set):
            if (said := getattr(row, name)) != (measured := getattr(known, name)):
                told = f"{MANIFEST} says {name} {said!r} of {row.folder}, whose {RESULT} says {measured!r}"
                raise StoreError(f"{told}; believe neither")


def _require_room(path: Path) -> None:
    # What is not there is told of when it is read.
    size = path.stat().st_size if path.exists() else 0
    place = Path(tempfile.gettempdir())
    free = shutil.disk_usage(place).free
    if free < size:
        raise StoreError(f"{path} unpacks to {size / 1e6:,.0f} MB and {place} has {free / 1e6:,.0f} MB; set TMPDIR")
