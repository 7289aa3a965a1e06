"""The files of a bundle: what they are, and the check that nothing was changed.

A bundle may come from anybody: none of its files is used before all hashes match, and a tar file is unpacked only where
somebody needs its files and there is room. Matching hashes do not say who made a bundle: compare its digest with the
one that its authors printed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.filesize import decimal as size_text

from wattdock.errors import Cause, ConfigError, StoreError
from wattdock.files import BUNDLED, MANIFEST, RESULT, SUMS
from wattdock.host import folders
from wattdock.opening import open_data
from wattdock.owned_folder import OwnedFolder
from wattdock.publish.archive import AGAIN, PIECE_BYTES, is_safe, unpack
from wattdock.store import StoredResult, load_result
from wattdock.text import listed, sums_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BUNDLE_SCHEMA: Final = 1
README, STUDY, LOCK = "README.md", "study.yaml", "images.lock"
PROMPTS, LOCKS, TASKS = "prompts", "package-locks", "tasks"
DIFFERENCES_SHOWN = 3
# The longest list of hashes, and the longest manifest: a hundred times those of a study of 1000 results.
MOST_BYTES = 20_000_000
# Length of a line in the list of hashes without the file's name.
LINE_BYTES = len(f"{hashlib.sha256().hexdigest()}  \n")


class Manifest(BaseModel):
    """bundle.json.

    Attributes:
        results: Result folder below `results/` → position of its experiment in study.yaml.
        missing: Sentences about what belongs in the bundle and could not be had.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = BUNDLE_SCHEMA
    name: str
    results: dict[str, int] = Field(min_length=1)
    missing: list[str] = Field(default_factory=list)


@dataclass(frozen=True)
class VerifiedBundle:
    """A bundle with unchanged files.

    Attributes:
        path: The tar file, or the folder that it was unpacked to.
        digest: SHA-256 of its SHA256SUMS, which stands for all of it; print it in a paper.
        file_count: Number of files, SHA256SUMS included.
        size_bytes: Sum of their sizes.
    """

    path: Path
    manifest: Manifest
    digest: str
    file_count: int
    size_bytes: int

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {"path": str(self.path), "digest": f"sha256:{self.digest}", **self.manifest.model_dump()}


@dataclass(frozen=True)
class Bundle(VerifiedBundle):
    """An unpacked bundle with unchanged files, which lie in `folder`."""

    folder: Path

    def results(self) -> list[StoredResult]:
        """Return its results.

        Raises:
            StoreError: A result cannot be read.
        """
        folders = [self.folder / BUNDLED / name for name in self.manifest.results]
        return [StoredResult(folder, load_result(folder)) for folder in folders]


def verify_bundle(path: Path) -> VerifiedBundle:
    """Check every byte of the bundle at `path`, a tar file or the folder that one was unpacked to; writes nothing.

    Raises:
        ConfigError, StoreError: As `open_bundle`, but for room.
    """
    with _explained(path):
        return _checked(path, _read_folder(path) if path.is_dir() else _read_tar(path))


@contextmanager
def open_bundle(path: Path) -> Iterator[Bundle]:
    """Yield the bundle at `path`, a tar file or the folder that one was unpacked to, after checking every byte of it.

    A tar file is unpacked to a temporary folder, which is removed at the end.

    Raises:
        ConfigError: There is nothing at `path`.
        StoreError: The bundle is damaged, cut short, changed or hostile, cannot be read, or there is no room to unpack
            it; says what and where.
    """
    with folders.scratch_folder() as scratch:
        with _explained(path):
            files = _read_folder(path) if path.is_dir() else _read_tar(path, scratch)
            bundle = Bundle(**vars(_checked(path, files)), folder=files.folder)
        yield bundle


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Name the bundle in an error."""
    if not path.exists():
        raise ConfigError(f"{path}: there is no such bundle", "name a .tar file, or the folder it was unpacked to")
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}", "TMPDIR says where bundles are unpacked") from error
    except StoreError as error:
        raise error.at(path) from error


@dataclass
class _Files:
    """The files of a bundle: hashes by name, and the content of the list of hashes and the manifest."""

    folder: Path
    hashes: dict[str, str] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)
    size_bytes: int = 0
    listed_bytes: int = 0

    def take(self, name: str, content: Iterable[bytes], copy: IO[bytes] | None = None) -> None:
        """Read one file in pieces, and write each to a copy where one is wanted."""
        digest, kept = hashlib.sha256(), bytearray()
        self.listed_bytes += len(name) + LINE_BYTES
        if self.listed_bytes > MOST_BYTES:
            raise StoreError(f"has more files than {SUMS} may list", "it is not a bundle")
        for piece in content:
            digest.update(piece)
            if copy:
                copy.write(piece)
            self.size_bytes += len(piece)
            if name in (SUMS, MANIFEST):
                kept += piece
            if len(kept) > MOST_BYTES:
                raise StoreError(f"has a {name} of more than {size_text(MOST_BYTES)}", "it is not a bundle")
        self.hashes[name], self.contents[name] = digest.hexdigest(), bytes(kept)


def _read_tar(path: Path, into: Path | None = None) -> _Files:
    """Return the files of a tar file, and unpack them below a folder where one is given."""
    files = _Files(Path())
    with open_data(path) as tar:
        size_bytes = os.fstat(tar.fileno()).st_size
        if into and (free_bytes := shutil.disk_usage(into).free) < size_bytes:
            raise StoreError(
                f"has {size_text(size_bytes)}, and {into.parent}, where it would be unpacked, has "
                f"{size_text(free_bytes)} free",
                "make room there, or set TMPDIR to another folder",
                cause=Cause.NO_SPACE,
            )
        for name, content in unpack(tar):
            top, _, inner = name.partition("/")
            files.folder = Path(into or "", top)
            if into:
                (files.folder / inner).parent.mkdir(parents=True, exist_ok=True)
            with (files.folder / inner).open("wb") if into else nullcontext() as copy:
                files.take(inner, content, copy)
    return files


def _read_folder(folder: Path) -> _Files:
    """Return the files below a folder; anything but plain files with safe names is an error."""
    files = _Files(folder)
    with OwnedFolder.open(folder) as opened:
        for name in opened.files():
            if not opened.is_regular(name):
                raise StoreError(f"holds {name!r}, a link or device: no bundle has one")
            if not is_safe(name):
                raise StoreError(f"holds {name!r}, which cannot be a name in a bundle", "the file was added")
            with opened.file(name) as file:
                files.take(name, iter(partial(file.read, PIECE_BYTES), b""))
    return files


def _checked(path: Path, files: _Files) -> VerifiedBundle:
    """Return the bundle of these files after comparing every hash with the list of hashes."""
    for name in (SUMS, MANIFEST, STUDY):
        if name not in files.hashes:
            raise StoreError(f"has no {name}", "it is not a bundle, or was cut short")
    expected_sums = files.contents[SUMS].decode(errors="backslashreplace")
    actual = sums_of({name: digest for name, digest in files.hashes.items() if name != SUMS})
    if actual != expected_sums:
        expected, hashes = ({line[66:]: line[:64] for line in text.splitlines()} for text in (expected_sums, actual))
        wrong = [f"missing: {name!r}" for name in expected if name not in hashes]
        wrong += [f"not in the list: {name!r}" for name in hashes if name not in expected]
        wrong += [f"changed: {name!r}" for name in hashes if expected.get(name, hashes[name]) != hashes[name]]
        differences = listed(wrong or [f"changed: {SUMS}"], DIFFERENCES_SHOWN, between="; ")
        raise StoreError(f"not as it was bundled: {differences}", AGAIN, cause=Cause.DAMAGED)
    try:
        manifest = Manifest.model_validate_json(files.contents[MANIFEST])
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"])) or "the file"
        raise StoreError(
            f"{MANIFEST} is not of bundle schema {BUNDLE_SCHEMA} ({where}: {problem['msg']})",
            "use the wattdock that made it",
            cause=Cause.VERSION,
        ) from error
    for name in manifest.results:
        if f"{BUNDLED}/{name}/{RESULT}" not in files.hashes:
            raise StoreError(f"{MANIFEST} names the result {name!r}, which is not in the bundle", AGAIN)
    return VerifiedBundle(path, manifest, files.hashes[SUMS], len(files.hashes), files.size_bytes)
