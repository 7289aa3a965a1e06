"""Hold an environment's packages against the lock that names them, file by file.

Knows no backend. Nothing of an environment is imported or run.
"""

from __future__ import annotations

import base64
import csv
import filecmp
import hashlib
import os
import platform
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from email import message_from_string
from importlib.metadata import distributions
from typing import TYPE_CHECKING

from packaging.markers import Marker

from wattdock.errors import LaunchError, PreflightError, os_errors_as
from wattdock.launch.runners import REPO
from wattdock.opening import open_data, open_regular, read_regular
from wattdock.text import from_json, json_text, listed

if TYPE_CHECKING:
    import io
    from importlib.metadata import Distribution
    from pathlib import Path

# A package of a lock, its marker, and whether a hash follows it: "torch==2.11.0+cpu ; marker \".
LOCKED = re.compile(rb"^([A-Za-z0-9._-]+)==([^\s;\\]+) *(?:;([^\\\n]*))?[^\n]*(\n\s+--hash=sha256:)?", re.MULTILINE)

# Any other line could bring packages that nobody locked: an index, a file of requirements, an address.
OTHER = re.compile(rb"^(?!\s*(#|--hash=sha256:[0-9a-f]{64}|$)|[A-Za-z0-9._-]+==[^\s;\\]+)[^\n]+", re.MULTILINE)
# Files at the top of site-packages that Python runs when it starts, and uv's own of them.
HOOKS, OF_UV = ("*.pth", "sitecustomize.py", "usercustomize.py"), ("_virtualenv.pth",)
# What `note_installed` writes in an environment.
NOTE = "wattdock/listed-wrongly.json"
# SHA-256 of files that this process read, by path, inode, size and instant of change, which nobody but root can set.
_KNOWN: dict[tuple[Path, int, int, int], bytes] = {}


@dataclass(frozen=True)
class PackageLock:
    """A file that names every package of an environment with its version and the hashes of its wheels.

    Attributes:
        path: The file.
        sha256: Of its content.
        versions: Versions by normalised name, of the packages whose markers hold for this Python and machine.
    """

    path: Path
    sha256: str
    versions: dict[str, frozenset[str]]

    def foreign_code(self) -> list[str]:
        """Return which Python files beside the lock are not those of wattdock's own backend of that name."""
        folder = self.path.parent
        names = sorted(file.name for file in folder.glob("*.py"))
        # Contents, whatever the files' sizes and times.
        _, changed, unreadable = filecmp.cmpfiles(folder, REPO / "runners" / folder.name, names, shallow=False)
        return sorted([*changed, *unreadable])

    @classmethod
    def read(cls, path: Path) -> PackageLock:
        """Return a lock.

        Raises:
            PreflightError: It cannot be read, a package in it has no hash, or a line is neither package nor hash.

        Source: PEP 508, "Environment Markers"; environments are made with the Python that runs this.
        """
        how = "docs/how-to/publish.md says how to write one"
        with os_errors_as(PreflightError, f"no lock of packages: {path}", how):
            content = read_regular(path, follow=True)
        if other := OTHER.search(content):
            raise PreflightError(f"{path}: {other[0][:60]!r} is neither a package nor a hash", "leave it out")
        versions = dict[str, set[str]]()
        for name, version, condition, hashed in LOCKED.findall(content):
            marker = condition.decode(errors="replace")
            if not hashed:
                raise PreflightError(
                    f"{path}: {name.decode()} has no hash", "make it where the package index tells hashes"
                )
            try:
                if not marker or Marker(marker).evaluate():
                    versions.setdefault(_normalised(name.decode()), set()).add(version.decode())
            except ValueError as error:
                raise PreflightError(f"{path}: {marker.strip()!r} is no marker", "correct it") from error
        if not versions:
            raise PreflightError(f"{path} names no package for this machine", how)
        by_name = {name: frozenset(found) for name, found in versions.items()}
        return cls(path, hashlib.sha256(content).hexdigest(), by_name)

    @property
    def interpreter(self) -> str:
        """Which build of Python environments are made with, and its C library."""
        build = " ".join(sys.version.split())
        return f"{platform.python_implementation()} {build}, {' '.join(platform.libc_ver())}"

    def check(self, python: Path) -> None:
        """Check that an environment holds the packages of this lock only, and each with the files of its wheel.

        Files are held against the hashes that wheels list of them (`RECORD`) or, where those were wrong from the first,
        against those noted then (`note_installed`); once in this process unless they change. Not proof against
        tampering.

        Raises:
            LaunchError: A package or file is another or missing, or Python would run a file that is no wheel's.

        Source: Binary distribution format, "The .dist-info directory". From Python 3.12 on, `Distribution.files` leaves
            out files that are missing.
        """
        venv = python.parent.parent
        differences, wheels, names = [], dict[str, str](), set[str]()
        # Wheels may hold the same path: the one that was installed last has it, and nobody knows which that was.
        contents = {path: {digest} for path, digest in _noted(venv).items()}
        site = _site(venv)
        for package in distributions(path=[str(site)]):
            # An uninstallation that broke off leaves a folder without metadata.
            metadata = message_from_string(package.read_text("METADATA") or "")
            name, version = _normalised(str(metadata.get("Name"))), str(metadata.get("Version"))
            names.add(name)
            if version not in self.versions.get(name, ()):
                differences.append(f"{name} {version} is not in the lock")
            if not (recorded := _recorded(package)):
                differences.append(f"{name} does not list its files")
            for path, digest, _ in recorded:
                wheels[path] = name
                contents.setdefault(path, set()).add(digest)
        differences += [f"{name} is not installed" for name in self.versions.keys() - names]
        with ThreadPoolExecutor() as pool:
            found = pool.map(lambda path: _recorded_digest(site / path), wheels)
            for (path, name), content in zip(wheels.items(), found, strict=True):
                if content not in contents[path]:
                    differences.append(f"{path} of {name} is not the wheel's")
        known = {*OF_UV, *wheels}
        hooks = {hook.name for pattern in HOOKS for hook in site.glob(pattern)} - known
        differences += [f"{name} is no package's, and Python runs it" for name in hooks]
        if differences:
            raise LaunchError(
                f"{venv} is not what {self.path.name} locks: {listed(sorted(differences), 3)}",
                "remove that folder; the next run makes it anew",
            )


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def note_installed(venv: Path) -> None:
    """Note, in an environment just made of wheels with the lock's hashes, the files that a wheel lists wrongly.

    Of vLLM 0.33's 61,021 files for GPUs three differ: two that NVIDIA changed after listing them, and a path that two
    wheels hold. Only a size that differs is seen; a file of the listed size with other content is refused by `check`.

    Raises:
        OSError: The note cannot be written.
    """
    site, wrong = _site(venv), dict[str, str]()
    for package in distributions(path=[str(site)]):
        for path, _, size in _recorded(package):
            # A file that is missing is not noted, and refused by `check`.
            with suppress(OSError):
                is_other = size.isdecimal() and (site / path).stat().st_size != int(size)
                if is_other and (digest := _recorded_digest(site / path)):
                    wrong[path] = digest
    (venv / NOTE).write_text(json_text(wrong, indent=2), encoding="utf-8")


def _noted(venv: Path) -> dict[str, str]:
    """Return digests by path; none without a note, as of an environment that is of an earlier version."""
    try:
        noted = dict(from_json(read_regular(venv / NOTE, owned=True)))
    except (OSError, ValueError, TypeError):
        return {}
    return {path: digest for path, digest in noted.items() if isinstance(digest, str)}


def _site(venv: Path) -> Path:
    [site] = venv.glob("lib/python3*/site-packages")
    return site


def _recorded(package: Distribution) -> list[tuple[str, str, str]]:
    """Return path, digest and size, in bytes or empty, of each file that a package lists with its hash."""
    rows = csv.reader((package.read_text("RECORD") or "").splitlines())
    return [(row[0], row[1], "".join(row[2:3])) for row in rows if row[1:] and row[1].startswith("sha256=")]


def _recorded_digest(file: Path) -> str | None:
    """Return the SHA-256 of an environment's file as `RECORD` writes it; None if it cannot be read."""
    # There are tens of thousands, before each restart: `open_data` takes thirty times as long as a look at a file's
    # state. The environment is the caller's own, whose folders Python follows as they are.
    with suppress(OSError):
        if (digest := _KNOWN.get(_state(file, file.stat()))) is None:
            try:
                stream: io.BufferedReader = os.fdopen(open_regular(file), "rb")
            except OSError:
                # A link, as uv makes under `UV_LINK_MODE=symlink`.
                stream = open_data(file)
            with stream:
                digest = _sha256(file, stream)
        return f"sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"
    return None


def sha256_of(path: Path) -> bytes:
    """Return the SHA-256 of a file, which this process reads once unless it changes.

    Raises:
        OSError: It cannot be read.
    """
    with open_data(path) as stream:
        return _sha256(path, stream)


def _sha256(path: Path, stream: io.BufferedReader) -> bytes:
    state = _state(path, os.fstat(stream.fileno()))
    if state not in _KNOWN:
        _KNOWN[state] = hashlib.file_digest(stream, "sha256").digest()
    return _KNOWN[state]


def _state(path: Path, state: os.stat_result) -> tuple[Path, int, int, int]:
    return path, state.st_ino, state.st_size, state.st_ctime_ns
