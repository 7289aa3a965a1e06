"""The files of a bundle: their names, the tar file that holds them, and the check that nothing was changed.

A bundle may come from anybody: only plain files below one folder are unpacked, and none is used before all hashes
match. Matching hashes do not say who made a bundle: compare its digest with the one that its authors printed.
"""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.filesize import decimal as size_text

from wattdock.errors import ConfigError, StoreError
from wattdock.files import BUNDLED, MANIFEST, open_data, read_regular
from wattdock.host import folders
from wattdock.reports import draw
from wattdock.store import RESULT, StoredResult, load_result

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

BUNDLE_SCHEMA: Final = 1
SUMS, README, STUDY, LOCK = "SHA256SUMS", "README.md", "study.yaml", "images.lock"
PROMPTS, CARDS = "prompts", "meter-cards"
# A name that is not hidden and does not lead out of its folder, on any system.
SAFE_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
# 1980-01-01 UTC: GNU tar calls files of 1970 implausibly old.
MTIME_S = 315_532_800
DIFFERENCES_SHOWN = 3
AGAIN = "get it again from its source"
REPACKED = "if you packed it anew yourself, name its folder instead"
Content = Path | bytes


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
class BundleFile:
    """A bundle as its user named it.

    Attributes:
        path: The tar file, or the folder that it was unpacked to.
        digest: SHA-256 of its SHA256SUMS, which stands for all of it; print it in a paper.
    """

    path: Path
    manifest: Manifest
    digest: str

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {"path": str(self.path), "digest": f"sha256:{self.digest}", **self.manifest.model_dump()}

    def as_view(self) -> Iterator[str]:
        """Yield what is missing, then the digest."""
        yield from (f"missing: {sentence}" for sentence in self.manifest.missing)
        yield f"digest sha256:{self.digest}"


@dataclass(frozen=True)
class Bundle(BundleFile):
    """An unpacked bundle with unchanged files.

    Attributes:
        folder: The folder of the files.
        file_count: Number of files, SHA256SUMS included.
        size_bytes: Sum of their sizes.
    """

    folder: Path
    file_count: int
    size_bytes: int

    def results(self) -> list[StoredResult]:
        """Return its results.

        Raises:
            StoreError: A result cannot be read.
        """
        folders = [self.folder / BUNDLED / name for name in self.manifest.results]
        return [StoredResult(folder, load_result(folder)) for folder in folders]

    def as_view(self, *, with_results: bool = False) -> Iterator[str]:
        """Yield that the bundle is whole, and a table of its results if asked for."""
        yield f"{self.path}: whole, {self.file_count} files, {size_text(self.size_bytes)}"
        if with_results:
            yield from ("", *results_table(self.results()).splitlines())
        yield from super().as_view()


def results_table(results: Sequence[StoredResult]) -> str:
    """Return results as a Markdown table for people."""
    with folders.scratch_folder() as scratch:
        file = scratch / "table.md"
        draw("table", results, file)
        return read_regular(file).decode()


def pack(files: Mapping[str, Content], file: IO[bytes], *, top: str) -> None:
    """Write `files`, by name, as a tar file in which they lie in the folder `top`; equal files give equal bytes."""
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(files):
            info = tarfile.TarInfo(f"{top}/{name}")
            info.mtime, content = MTIME_S, files[name]
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, BytesIO(content))
                continue
            with open_data(content) as opened:
                info.size = os.fstat(opened.fileno()).st_size
                tar.addfile(info, opened)


def sums_of(files: Mapping[str, Content]) -> str:
    """Return the content of SHA256SUMS, as `sha256sum -c` reads it."""
    return "".join(f"{_sha256(files[name])}  {name}\n" for name in sorted(files))


@contextmanager
def open_bundle(path: Path) -> Iterator[Bundle]:
    """Yield the bundle at `path`, a tar file or the folder that one was unpacked to, after checking every byte of it.

    A tar file is unpacked to a temporary folder, which is removed at the end.

    Raises:
        ConfigError: There is nothing at `path`.
        StoreError: The bundle is damaged, cut short, changed or hostile, or cannot be read; says what and where.
    """
    if not path.exists():
        raise ConfigError(f"{path}: there is no such bundle; name a .tar file, or the folder it was unpacked to")
    with folders.scratch_folder() as scratch:
        try:
            bundle = _checked(path, path) if path.is_dir() else _unpacked(path, scratch)
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror or error}; TMPDIR says where bundles are unpacked") from error
        except StoreError as error:
            raise StoreError(f"{path}: {error}") from error
        yield bundle


def is_safe(name: str) -> bool:
    """Whether a file's name, parts joined by "/", stays inside the bundle on every system."""
    return all(SAFE_PART.fullmatch(part) for part in name.split("/"))


def _unpacked(path: Path, scratch: Path) -> Bundle:
    try:
        with open_data(path) as opened, tarfile.open(fileobj=opened, mode="r:") as tar:
            members = tar.getmembers()
            _require_plain(members, path.stat().st_size)
            # Plain files with safe names need no filter, which Python has since 3.11.4 only; 3.14 filters unless told.
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            tar.extractall(scratch)
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise StoreError(f"is not a tar file, or is damaged or cut short ({error}); {AGAIN}") from error
    top = members[0].name.partition("/")[0]
    bundle = _checked(path, scratch / top)
    # SHA256SUMS covers the files' content. Their headers, padding, names told twice, and files beside the top folder
    # show when the files are packed again.
    packed = _Hasher()
    pack(_files_of(bundle.folder), packed, top=top)  # type: ignore[arg-type]
    if packed.hexdigest() != _sha256(path):
        raise StoreError(
            f"its files are whole and the tar file around them is not as wattdock wrote it; {AGAIN}; {REPACKED}"
        )
    return bundle


def _require_plain(members: Sequence[tarfile.TarInfo], size_bytes: int) -> None:
    """Refuse what no bundle holds before anything is unpacked."""
    if not members or sum(member.size for member in members) > size_bytes:
        raise StoreError(f"holds no files, or claims more than it holds; it is not a bundle, or was cut short; {AGAIN}")
    for member in members:
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or not is_safe(member.name):
            raise StoreError(
                f"holds {member.name!r}, which is not a plain file, is hidden or lies outside its folder: "
                f"wattdock packs no such file; do not unpack it; {REPACKED}"
            )


def _checked(path: Path, folder: Path) -> Bundle:
    """Return the bundle in `folder` after comparing every file with the list of hashes."""
    files = _files_of(folder)
    for name in (SUMS, MANIFEST, STUDY):
        if name not in files:
            raise StoreError(f"has no {name}; it is not a bundle, or was cut short")
    sums = files.pop(SUMS)
    listed = read_regular(sums).decode("utf-8", errors="backslashreplace")
    actual = sums_of(files)
    if actual != listed:
        raise StoreError(_difference(listed, actual))
    manifest = _manifest(files[MANIFEST])
    for name in manifest.results:
        if f"{BUNDLED}/{name}/{RESULT}" not in files:
            raise StoreError(f"{MANIFEST} names the result {name!r}, which is not in the bundle; {AGAIN}")
    size_bytes = sum(file.stat().st_size for file in (sums, *files.values()))
    return Bundle(path, manifest, hashlib.sha256(actual.encode()).hexdigest(), folder, len(files) + 1, size_bytes)


def _files_of(folder: Path) -> dict[str, Path]:
    """Return every file below `folder` by name; anything but plain files with safe names is an error."""
    files = {}
    for parent, below, names in os.walk(folder):
        for path in (Path(parent, name) for name in (*below, *names)):
            name = str(path.relative_to(folder))
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise StoreError(f"holds {name!r}, a link or device: no bundle has one")
            if path.is_file():
                if not is_safe(name):
                    raise StoreError(f"holds {name!r}, which cannot be a name in a bundle; the file was added")
                files[name] = path
    return files


def _difference(listed: str, actual: str) -> str:
    """Return how two lists of hashes differ."""
    expected, hashes = ({line[66:]: line[:64] for line in text.splitlines()} for text in (listed, actual))
    wrong = [f"missing: {name!r}" for name in expected if name not in hashes]
    wrong += [f"not in the list: {name!r}" for name in hashes if name not in expected]
    wrong += [f"changed: {name!r}" for name in hashes if expected.get(name, hashes[name]) != hashes[name]]
    more = f" and {len(wrong) - DIFFERENCES_SHOWN} more" if len(wrong) > DIFFERENCES_SHOWN else ""
    return f"not as it was bundled: {'; '.join(wrong[:DIFFERENCES_SHOWN]) or f'changed: {SUMS}'}{more}; {AGAIN}"


def _manifest(path: Path) -> Manifest:
    try:
        return Manifest.model_validate_json(read_regular(path))
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"])) or "the file"
        raise StoreError(
            f"{MANIFEST} is not of bundle schema {BUNDLE_SCHEMA} ({where}: {problem['msg']}); "
            "use the wattdock that made it"
        ) from error


class _Hasher:
    """A file that hashes what is written to it, and stores nothing."""

    def __init__(self) -> None:
        digest = hashlib.sha256()
        self.write, self.hexdigest = digest.update, digest.hexdigest


def _sha256(content: Content) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with open_data(content) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
