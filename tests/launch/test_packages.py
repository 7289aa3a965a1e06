"""Locks of packages: read, and held against what is installed."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from seams.launch import PackageLock

from wattdock.errors import LaunchError, PreflightError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HASH = f"    --hash=sha256:{'a' * 64}"
LOCK = f"My_Pack.age==1.0 ; python_version < '4' \\\n{HASH}\nother==2.0 \\\n{HASH}\nother==2.1 \\\n{HASH}\n"


def install(venv: Path, name: str, version: str) -> Path:
    """Install a package of one module as a wheel does; return the module."""
    site = venv / "lib/python3.11/site-packages"
    module, info = site / f"{name}/__init__.py", site / f"{name}-{version}.dist-info"
    for folder in (module.parent, info):
        folder.mkdir(parents=True)
    module.write_text("x = 1\n")
    digest = base64.urlsafe_b64encode(hashlib.sha256(module.read_bytes()).digest()).rstrip(b"=").decode()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{name}/__init__.py,sha256={digest},6\n{info.name}/RECORD,,\n")
    return module


def change_but_for_size_and_time(module: Path) -> None:
    state = module.stat()
    module.write_text("x = 3\n")
    os.utime(module, ns=(state.st_atime_ns, state.st_mtime_ns))


@pytest.fixture
def lock(tmp_path: Path) -> PackageLock:
    """Return a lock of two packages, one of them in two versions."""
    file = tmp_path / "a.lock"
    file.write_text(LOCK)
    return PackageLock.read(file)


def test_a_lock_names_versions_by_normalised_name_and_is_known_by_its_hash(lock: PackageLock) -> None:
    """Markers and hashes are uv's to read."""
    assert lock.versions == {"my-pack-age": {"1.0"}, "other": {"2.0", "2.1"}}
    assert lock.sha256 == hashlib.sha256(LOCK.encode()).hexdigest()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda _: None, None),
        (lambda module: module.write_text("x = 2\n"), "other/__init__.py of other is not the wheel's"),
        (change_but_for_size_and_time, "other/__init__.py of other is not the wheel's"),
        (lambda module: shutil.rmtree(next(module.parents[1].glob("*.dist-info"))), "other is not installed"),
        (lambda module: module.unlink(), "other/__init__.py of other is not the wheel's"),
        (lambda module: (module.parents[1] / "x.pth").touch(), "x.pth is no package's, and Python runs it"),
        (lambda module: (module.parents[1] / "_virtualenv.pth").touch(), None),
        (lambda module: next(module.parents[1].glob("*/RECORD")).unlink(), "other does not list its files"),
        (lambda module: install(module.parents[4], "third", "1.0"), "third 1.0 is not in the lock"),
        (lambda module: (module.parents[1] / "third-1.0.dist-info").mkdir(), "is not in the lock"),
        (lambda module: install(module.parents[4], "my_pack.age", "1.1"), "my-pack-age 1.1 is not in the lock"),
    ],
)
def test_an_environment_that_is_not_what_is_locked_is_refused(
    lock: PackageLock, tmp_path: Path, spoil: Callable[[Path], object], said: str | None
) -> None:
    """A changed, missing or other file or package is named, and what to do."""
    module = install(tmp_path / "venv", "other", "2.1")
    lock.check(tmp_path / "venv/bin/python")
    spoil(module)
    if said is None:
        lock.check(tmp_path / "venv/bin/python")
        return
    with pytest.raises(LaunchError, match=said) as refused:
        lock.check(tmp_path / "venv/bin/python")
    assert "remove that folder" in str(refused.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (f"a==1 \\\n{HASH}\nb==2\n", "b has no hash"),
        ("# none\n", "names no package"),
        (f"--index-url http://x\n{LOCK}", "neither a package nor a hash"),
        (f"{LOCK}d @ http://x\n", "neither a package nor a hash"),
        (None, "no lock of packages"),
    ],
)
def test_what_is_no_lock_is_refused(tmp_path: Path, content: str | None, said: str) -> None:
    """A package without a hash could be anything."""
    file = tmp_path / "b.lock"
    if content:
        file.write_text(content)
    with pytest.raises(PreflightError, match=said):
        PackageLock.read(file)
