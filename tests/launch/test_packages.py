"""Locks of packages: read, and held against what is installed."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from command import REPO
from seams.launch import PackageLock, note_installed

from wattdock.errors import LaunchError, PreflightError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HASH = f"    --hash=sha256:{'a' * 64}"
# Of two versions by a marker, as uv writes a lock for several machines, one is this machine's.
LINES = ("My_Pack.age==1.0", "other==2.0 ; sys_platform == 'win32'", "other==2.1 ; sys_platform != 'win32'")
LOCK = "".join(f"{line} \\\n{HASH}\n" for line in (*LINES, "colorama==0.4 ; sys_platform == 'win32'"))


def install(venv: Path, name: str, version: str) -> Path:
    """Install a package of one module as a wheel does; return the module."""
    site = venv / "lib/python3.11/site-packages"
    module, info = site / f"{name}/__init__.py", site / f"{name}-{version}.dist-info"
    for folder in (module.parent, info, venv / "wattdock"):
        folder.mkdir(parents=True, exist_ok=True)
    module.write_text("x = 1\n")
    digest = base64.urlsafe_b64encode(hashlib.sha256(module.read_bytes()).digest()).rstrip(b"=").decode()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{name}/__init__.py,sha256={digest},6\n{info.name}/RECORD,,\n")
    return module


def change_but_for_size_and_time(module: Path) -> None:
    state = module.stat()
    module.write_text("x = 3\n")
    os.utime(module, ns=(state.st_atime_ns, state.st_mtime_ns))


def become_a_link(module: Path) -> None:
    """As uv makes them under `UV_LINK_MODE=symlink`."""
    module.symlink_to(module.rename(module.parents[1] / "in-a-cache.py"))


def become_a_pipe(module: Path) -> None:
    module.unlink()
    os.mkfifo(module)


@pytest.fixture
def lock(tmp_path: Path) -> PackageLock:
    """Return a lock of two packages and one for another system."""
    file = tmp_path / "a.lock"
    file.write_text(LOCK)
    return PackageLock.read(file)


def test_a_lock_names_versions_by_normalised_name_and_is_known_by_its_hash(lock: PackageLock) -> None:
    """Of this machine's packages; hashes are uv's to read."""
    assert lock.versions == {"my-pack-age": {"1.0"}, "other": {"2.1"}}
    assert lock.sha256 == hashlib.sha256(LOCK.encode()).hexdigest()


def test_a_copy_of_a_backend_with_other_code_is_not_wattdocks_own(tmp_path: Path) -> None:
    """Its lock may be another; code that counts tokens otherwise, or a new backend, is of no commit."""
    copy = tmp_path / "pytorch"
    shutil.copytree(REPO / "runners/pytorch", copy, ignore=shutil.ignore_patterns(".venv*", "__pycache__"))
    (copy / "requirements-cpu.lock").write_text(LOCK)
    lock = PackageLock.read(copy / "requirements-cpu.lock")
    assert lock.foreign_code() == []
    with (copy / "wattdock_pytorch_steps.py").open("a") as file:
        file.write("# more\n")
    (copy / "extra.py").touch()
    assert lock.foreign_code() == ["extra.py", "wattdock_pytorch_steps.py"]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda _: None, None),
        (lambda module: module.write_text("x = 2\n"), "other/__init__.py of other is not the wheel's"),
        (change_but_for_size_and_time, "other/__init__.py of other is not the wheel's"),
        (become_a_link, None),
        (become_a_pipe, "other/__init__.py of other is not the wheel's"),
        (lambda module: shutil.rmtree(module.parents[1] / "other-2.1.dist-info"), "other is not installed"),
        (lambda module: module.unlink(), "other/__init__.py of other is not the wheel's"),
        (lambda module: (module.parents[1] / "x.pth").touch(), "x.pth is no package's, and Python runs it"),
        (lambda module: (module.parents[1] / "_virtualenv.pth").touch(), None),
        (lambda module: (module.parents[1] / "other-2.1.dist-info/RECORD").unlink(), "other does not list its files"),
        (lambda module: install(module.parents[4], "third", "1.0"), "third 1.0 is not in the lock"),
        (lambda module: (module.parents[1] / "third-1.0.dist-info").mkdir(), "is not in the lock"),
        (
            lambda module: (module.parents[1] / "other-2.1.dist-info/METADATA").write_text(
                "Name: other\nVersion: 2.0\n"
            ),
            "other 2.0 is not in the lock",
        ),
        (lambda module: install(module.parents[4], "colorama", "0.4"), "colorama 0.4 is not in the lock"),
        (lambda module: shutil.rmtree(module.parents[1] / "my_pack.age-1.0.dist-info"), "my-pack-age is not installed"),
    ],
)
def test_an_environment_that_is_not_what_is_locked_is_refused(
    lock: PackageLock, tmp_path: Path, spoil: Callable[[Path], object], said: str | None
) -> None:
    """A changed, missing or other file or package is named, and what to do."""
    install(tmp_path / "venv", "my_pack.age", "1.0")
    module = install(tmp_path / "venv", "other", "2.1")
    lock.check(tmp_path / "venv/bin/python")
    spoil(module)
    if said is None:
        lock.check(tmp_path / "venv/bin/python")
        return
    with pytest.raises(LaunchError, match=said) as refused:
        lock.check(tmp_path / "venv/bin/python")
    assert "remove that folder" in str(refused.value)


def test_a_wheel_that_lists_a_file_wrongly_is_still_the_locks(lock: PackageLock, tmp_path: Path) -> None:
    """As pynvvideocodec of vLLM's CUDA lock: noted when the environment is made, and held against that later."""
    install(tmp_path / "venv", "my_pack.age", "1.0")
    module = install(tmp_path / "venv", "other", "2.1")
    module.write_text("x = 1  # built again\n")
    note_installed(tmp_path / "venv")
    lock.check(tmp_path / "venv/bin/python")
    module.write_text("x = 1  # another one\n")
    with pytest.raises(LaunchError, match=r"other/__init__.py of other is not the wheel's"):
        lock.check(tmp_path / "venv/bin/python")


def test_a_file_that_a_wheel_lists_and_lacks_does_not_end_the_making(lock: PackageLock, tmp_path: Path) -> None:
    """Nor does a size that is none, or a row without one: `check` refuses what is missing."""
    module = install(tmp_path / "venv", "other", "2.1")
    record = install(tmp_path / "venv", "my_pack.age", "1.0").parents[1] / "my_pack.age-1.0.dist-info/RECORD"
    record.write_text(f"{record.read_text()}a.py,sha256=x,4\nb.py,sha256=x\nother/__init__.py,sha256=x,many\n")
    note_installed(tmp_path / "venv")
    assert module.exists()
    with pytest.raises(LaunchError, match=r"a\.py of my-pack-age is not the wheel's"):
        lock.check(tmp_path / "venv/bin/python")


def test_two_wheels_may_hold_the_same_path(lock: PackageLock, tmp_path: Path) -> None:
    """As flashinfer's and torch-c-dlpack-ext's `build_backend.py`: whichever was installed last has it."""
    module = install(tmp_path / "venv", "other", "2.1")
    record = install(tmp_path / "venv", "my_pack.age", "1.0").parents[1] / "my_pack.age-1.0.dist-info/RECORD"
    record.write_text(f"{record.read_text()}other/__init__.py,sha256={'a' * 43},6\n")
    note_installed(tmp_path / "venv")
    lock.check(tmp_path / "venv/bin/python")
    module.write_text("x = 2\n")
    with pytest.raises(LaunchError, match=r"other/__init__.py of (other|my-pack-age) is not the wheel's"):
        lock.check(tmp_path / "venv/bin/python")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (f"a==1 \\\n{HASH}\nb==2\n", "b has no hash"),
        ("# none\n", "names no package"),
        (f"a==1 ; sys_platform == 'win32' \\\n{HASH}\n", "names no package for this machine"),
        (f"a==1 ; sys_platfrom == 'linux' \\\n{HASH}\n", "sys_platfrom == 'linux'. is no marker"),
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
