"""The files of a bundle: their names, the tar file that holds them, and the check that nothing was changed.

A bundle is somebody else's: only plain files below one folder are unpacked, and nothing is used before all hashes
agree. Matching hashes do not say who made a bundle: compare its digest with the one its authors have printed.
"""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wattdock.errors import StoreError
from wattdock.files import BUNDLED, MANIFEST
from wattdock.store import RESULT, StoredResult, load_result

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

BUNDLE_SCHEMA: Final = 1
SUMS, README, STUDY, LOCK = "SHA256SUMS", "README.md", "study.yaml", "images.lock"
PROMPTS, CARDS = "prompts", "meter-cards"
# Neither hidden nor a way out of the folder, on any system.
SAFE_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
KINDS = {tarfile.SYMTYPE: "a symbolic link", tarfile.LNKTYPE: "a hard link", tarfile.DIRTYPE: "a folder"}
# 1980-01-01 UTC: GNU tar calls files of 1970 implausibly old.
MTIME_S = 315_532_800
DIFFERENCES_SHOWN = 3
AGAIN = "get it again from its source"
REPACKED = "if you packed it anew, unpack it and name the folder instead"
Content = Path | bytes


class Manifest(BaseModel):
    """bundle.json.

    Attributes:
        results: Result folder below `results/` → position of its experiment in study.yaml.
        studies: Names of the studies whose journals are in the bundle.
        prompts: SHA-256 of a prompt file → its place in the bundle.
        missing: What would belong in the bundle and could not be had, in words.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = BUNDLE_SCHEMA
    name: str
    results: dict[str, int] = Field(min_length=1)
    studies: list[str] = Field(default_factory=list)
    prompts: dict[str, str] = Field(default_factory=dict)
    missing: list[str] = Field(default_factory=list)


@dataclass(frozen=True)
class Bundle:
    """An unpacked bundle whose files are those it was made with.

    Attributes:
        digest: SHA-256 of its SHA256SUMS, which stands for all of it.
        file_count: Files, the list of hashes included.
        size_bytes: Sum of their sizes.
    """

    folder: Path
    manifest: Manifest
    digest: str
    file_count: int
    size_bytes: int

    def results(self) -> list[StoredResult]:
        """Return its results.

        Raises:
            StoreError: One cannot be read.
        """
        folders = [self.folder / BUNDLED / name for name in self.manifest.results]
        return [StoredResult(folder, load_result(folder)) for folder in folders]


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
            with content.open("rb") as opened:
                info.size = os.fstat(opened.fileno()).st_size
                tar.addfile(info, opened)


def sums_of(files: Mapping[str, Content]) -> str:
    """Return the content of SHA256SUMS, as `sha256sum -c` reads it."""
    return "".join(f"{_sha256(files[name])}  {name}\n" for name in sorted(files))


@contextmanager
def open_bundle(path: Path) -> Iterator[Bundle]:
    """Yield a bundle, a tar file or the folder that one was unpacked to, once every byte of it was checked.

    A tar file is unpacked to a temporary folder, which goes at the end.

    Raises:
        StoreError: The bundle is damaged, cut short, changed or hostile, or cannot be read; says what and where.
    """
    with tempfile.TemporaryDirectory(prefix="wattdock-bundle-") as scratch:
        try:
            bundle = _checked(path) if path.is_dir() else _unpacked(path, Path(scratch))
        except OSError as error:
            why = f"{error.strerror or error}; name a bundle, a .tar file or a folder; TMPDIR says where it is unpacked"
            raise StoreError(f"{path}: {why}") from error
        except StoreError as error:
            raise StoreError(f"{path}: {error}") from error
        yield bundle


def is_safe(name: str) -> bool:
    """Whether a file's name, parts joined by "/", stays inside the bundle on every system."""
    return all(SAFE_PART.fullmatch(part) for part in name.split("/"))


def _unpacked(path: Path, into: Path) -> Bundle:
    try:
        with tarfile.open(path, "r:") as tar:
            members = tar.getmembers()
            top = _require_plain(members, path.stat().st_size)
            # Python before 3.11.4 has no filters; what this one refuses was refused above.
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            tar.extractall(into)
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise StoreError(f"is no tar file, or is damaged or cut short ({error}); {AGAIN}") from error
    bundle = _checked(into / top)
    # Hashes cover content only; headers, padding and what follows the end are bytes, too.
    packed = _Hasher()
    pack(_files_of(bundle.folder), packed, top=top)  # type: ignore[arg-type]
    if packed.hexdigest() != _sha256(path):
        said = f"its files are whole and the tar file around them is not as wattdock wrote it; {AGAIN}"
        raise StoreError(f"{said}; {REPACKED}")
    return bundle


def _require_plain(members: Sequence[tarfile.TarInfo], size_bytes: int) -> str:
    """Return the folder that holds all members, which must be plain files with harmless names."""
    if not members or sum(member.size for member in members) > size_bytes:
        raise StoreError(f"holds no files, or claims more than it holds; it is no bundle, or was cut short; {AGAIN}")
    top = members[0].name.partition("/")[0]
    seen: set[str] = set()
    for member in members:
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            kind = KINDS.get(member.type, "neither file nor folder")
            raise StoreError(f"holds {member.name!r}, {kind}: no bundle has one; do not unpack it; {REPACKED}")
        if not is_safe(member.name):
            raise StoreError(f"holds {member.name!r}, which would lie outside its folder or hidden; do not unpack it")
        if not member.name.startswith(f"{top}/"):
            raise StoreError(f"holds {member.name!r} outside its folder {top!r}; do not unpack it")
        if member.name.casefold() in seen:
            raise StoreError(f"holds {member.name!r} twice; do not unpack it")
        seen.add(member.name.casefold())
    return top


def _checked(folder: Path) -> Bundle:
    """Return the bundle in `folder`, every file held against the list of hashes."""
    files = _files_of(folder)
    for name in (SUMS, MANIFEST, STUDY):
        if name not in files:
            raise StoreError(f"has no {name}; it is no bundle, or was cut short")
    sums = files.pop(SUMS)
    written = sums.read_text(encoding="utf-8", errors="backslashreplace")
    found = sums_of(files)
    if found != written:
        raise StoreError(_difference(written, found))
    manifest = _manifest(files[MANIFEST], found)
    size = sum(path.stat().st_size for path in (sums, *files.values()))
    return Bundle(folder, manifest, hashlib.sha256(found.encode()).hexdigest(), len(files) + 1, size)


def _files_of(folder: Path) -> dict[str, Path]:
    """Return every file below `folder` by name; anything but plain files with harmless names is an error."""
    found = {}
    for here, folders, names in os.walk(folder):
        for path in (Path(here, name) for name in (*folders, *names)):
            name = str(path.relative_to(folder))
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise StoreError(f"holds {name!r}, a link or device: no bundle has one")
            if path.is_file():
                if not is_safe(name):
                    raise StoreError(f"holds {name!r}, which is no name of a bundle's file; it was added")
                found[name] = path
    return found


def _difference(written: str, found: str) -> str:
    """Return what is not as the list of hashes says."""
    listed, there = ({line[66:]: line[:64] for line in text.splitlines()} for text in (written, found))
    wrong = [f"missing: {name!r}" for name in listed if name not in there]
    wrong += [f"not in the list: {name!r}" for name in there if name not in listed]
    wrong += [f"changed: {name!r}" for name in there if listed.get(name, there[name]) != there[name]]
    more = f" and {len(wrong) - DIFFERENCES_SHOWN} more" if len(wrong) > DIFFERENCES_SHOWN else ""
    return f"not as it was bundled: {'; '.join(wrong[:DIFFERENCES_SHOWN]) or f'changed: {SUMS}'}{more}; {AGAIN}"


def _manifest(path: Path, sums: str) -> Manifest:
    """Return the manifest; the results and prompts that it names must be there, and no other results."""
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"])) or "the file"
        said = f"{MANIFEST} is not of bundle schema {BUNDLE_SCHEMA} ({where}: {problem['msg']})"
        raise StoreError(f"{said}; use the wattdock that made it") from error
    lines = set(sums.splitlines())
    listed = {f"{BUNDLED}/{folder}/{RESULT}" for folder in manifest.results}
    there = set(re.findall(rf"  ({BUNDLED}/[^/\n]+/{RESULT})$", sums, re.MULTILINE))
    prompts = {name for digest, name in manifest.prompts.items() if f"{digest}  {name}" not in lines}
    if wrong := sorted((listed ^ there) | prompts):
        raise StoreError(f"{MANIFEST} and the files disagree about {wrong[0]!r}; wattdock did not make it so")
    return manifest


class _Hasher:
    """A file that keeps the hash of what is written to it, and nothing else."""

    def __init__(self) -> None:
        digest = hashlib.sha256()
        self.write, self.hexdigest = digest.update, digest.hexdigest


def _sha256(content: Content) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
