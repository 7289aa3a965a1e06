"""Make a bundle: stage its files, describe them, hash them, and give the whole its name at once."""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock import __version__
from wattdock.errors import ConfigError, StoreError
from wattdock.host import Machine
from wattdock.launch.images import lock_path, lock_sha256
from wattdock.publish.archive import write_tar
from wattdock.publish.identity import own_names
from wattdock.publish.manifest import (
    CITATION,
    LOCK,
    MANIFEST,
    README,
    RESULTS,
    SAFE_PART,
    STUDY,
    SUMS,
    BundleManifest,
    Code,
    Replaced,
    bundled,
    sums_text,
)
from wattdock.publish.redaction import Private
from wattdock.publish.sources import gather
from wattdock.publish.staging import copy_lock, redactor_for, stage
from wattdock.publish.study_file import study_document, study_text
from wattdock.publish.texts import citation, readme
from wattdock.publish.verify import opener
from wattdock.store import chosen_rows, load_result
from wattdock.text import json_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wattdock.analysis import ExperimentResult
    from wattdock.publish.redaction import Redactor
    from wattdock.publish.sources import Sources

TAR = ".tar"


@dataclass(frozen=True)
class Wishes:
    """What a person asks of a bundle.

    Attributes:
        title: For people; the bundle's name unless given.
        authors: As in "Family, Given", or one name each.
        keep_names: Leave users, home folders and hosts as they are; secrets go all the same.
        more_names: Further words to replace.
        with_prompts: Take files of prompts in.
        lock: The lock file of images; None takes the one in use, docker/images.lock of this checkout.
    """

    title: str | None = None
    authors: tuple[str, ...] = ()
    keep_names: bool = False
    more_names: tuple[str, ...] = ()
    with_prompts: bool = True
    lock: Path | None = None


@dataclass(frozen=True)
class Created:
    """A new bundle.

    Attributes:
        digest: SHA-256 of its SHA256SUMS: what to print in a paper to pin all of it.
    """

    path: Path
    manifest: BundleManifest
    digest: str


def create(named: Sequence[str], out: Path | None, wishes: Wishes, *, output_dir: Path, home: Path) -> Created:
    """Bundle the results that `named` means.

    Args:
        named: As `report` takes them: result folders, folders of them, studies, bundles.
        out: A name that ends in .tar makes a tar file, any other a folder; None makes NAME.tar in the current folder.
        output_dir: Where a study that is named by its id lies.
        home: WATTDOCK_HOME.

    Raises:
        ConfigError: The name cannot be one, or something private cannot be replaced.
        StoreError: A result cannot be read, or the bundle cannot be written; nothing is left of it.
    """
    with ExitStack() as unpacked:
        rows = chosen_rows(named, output_dir, opener(unpacked))
        sources = gather(rows, home=home, with_prompts=wishes.with_prompts)
        words = {Private("user", word) for word in wishes.more_names}
        redactor = redactor_for(sources, own_names() | words, keep_names=wishes.keep_names)
        # A study's name, and so its folder's, may hold one.
        sources = sources.renamed(redactor.text)
        out = out or Path(f"wattdock-{_natural_name(sources)}{TAR}")
        if not SAFE_PART.fullmatch(name := out.name.removesuffix(TAR)):
            raise ConfigError(f"{name!r} cannot be a bundle's name; use letters, digits, . _ - only")
        with _room_beside(out) as folder:
            stage(sources, folder, redactor)
            _stage_lock(wishes.lock, sources, folder)
            manifest = _describe(folder, name, sources, redactor, wishes)
            digests = hashes(folder)
            _write(folder / SUMS, sums_text(digests))
            _place(folder, [*digests, SUMS], out)
    return Created(out, manifest, hashlib.sha256(sums_text(digests).encode()).hexdigest())


def hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below `folder`, by name."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): _sha256(path) for path in files}


def _natural_name(sources: Sources) -> str:
    names = sources.studies or sorted(sources.results)
    return names[0] if len(names) == 1 else f"{names[-1]}-and-{len(names) - 1}-more"


def _stage_lock(given: Path | None, sources: Sources, folder: Path) -> None:
    """Copy the lock of images, and note where results were measured under another, which nothing here can bring."""
    path = given or lock_path()
    if given and not path.is_file():
        raise ConfigError(f"--lock {given}: is not there")
    found = None
    if path.is_file():
        copy_lock(path, folder / LOCK)
        found = lock_sha256(folder / LOCK)
    else:
        sources.missing.append("no lock file of images was there")
    inside = [one.environment.container for one in sources.results.values() if one.environment]
    for wanted in sorted({one.lock_sha256 for one in inside if one and one.lock_sha256} - {found}):
        sources.missing.append(f"the lock of images that results were measured under (SHA-256 {wanted}): see --lock")


def _describe(folder: Path, name: str, sources: Sources, redactor: Redactor, wishes: Wishes) -> BundleManifest:
    """Write what describes the files, from the results as they stand in the bundle."""
    results = {one: load_result(folder / RESULTS / one) for one in sources.results}
    title = wishes.title or name
    manifest = _manifest(name, title, sources, results, redactor, keep_names=wishes.keep_names)
    _write(folder / STUDY, study_text(study_document(name, results, sources.prompt_files)))
    _write(folder / README, readme(manifest, title, has_lock=(folder / LOCK).is_file()))
    _write(folder / CITATION, citation(manifest, title, wishes.authors))
    _write(folder / MANIFEST, json_text(manifest, indent=2, ascii_only=False) + "\n")
    return manifest


def _manifest(
    name: str,
    title: str,
    sources: Sources,
    results: dict[str, ExperimentResult],
    redactor: Redactor,
    *,
    keep_names: bool,
) -> BundleManifest:
    missing = [redactor.text(line) for line in sources.missing]
    kinds = redactor.kinds
    here = Machine.here()
    return BundleManifest(
        name=name,
        title=title,
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        code=Code(version=__version__, commit=here.wattdock_commit, dirty=here.wattdock_dirty),
        results=[bundled(folder, one) for folder, one in results.items()],
        studies=sources.studies,
        prompt_files=sources.prompt_files,
        missing=missing,
        names_kept=keep_names,
        replaced=[Replaced(kind=kinds[one], stand_in=one, times=redactor.times[one]) for one in kinds],
    )


@contextmanager
def _room_beside(out: Path) -> Iterator[Path]:
    """Yield a hidden folder beside `out`, which goes in any case."""
    if not out.absolute().parent.is_dir():
        raise StoreError(f"cannot write {out}: there is no folder {out.parent}; make it, or choose another --output")
    if out.exists():
        raise StoreError(f"{out} is there already; bundles are never overwritten: choose another name with --output")
    parent = out.absolute().parent
    try:
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=parent, ignore_cleanup_errors=True) as room:
            folder = Path(room, "bundle")
            folder.mkdir()
            yield folder
    except OSError as error:
        raise StoreError(f"cannot write {out}: {error.strerror or error}; choose another with --output") from error


def _place(folder: Path, names: Sequence[str], out: Path) -> None:
    """Give the bundle its final name; nobody sees half of it."""
    if out.suffix != TAR:
        folder.rename(out)
        return
    partial = folder.parent / out.name
    with partial.open("wb") as file:
        write_tar(folder, sorted(names), file, top=out.name.removesuffix(TAR), at_s=int(datetime.now(UTC).timestamp()))
        file.flush()
        os.fsync(file.fileno())
    # Unlike a rename, a link does not replace what has come there meanwhile.
    out.hardlink_to(partial)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
