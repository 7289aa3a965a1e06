"""Folders that a killed command was filling: where they are looked for."""

from __future__ import annotations

import os
import sys
import tempfile
from subprocess import run
from typing import TYPE_CHECKING

import pytest
from refused import raises

from wattdock.errors import ConfigError
from wattdock.files import NewFolder
from wattdock.host import folders

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("place", "prefix"),
    [
        ("tmp", "wattdock-run-"),
        ("tmp", "wattdock-"),
        ("runtime", "wattdock-"),
        ("results", ".20260101T000000-fake-12345678."),
        ("results/studies/20260101T000000-fake-12345678/records", ".12345678-0-abcd."),
        ("home/models", ".SmolLM2."),
        ("home", ".images.lock."),
    ],
)
def test_what_was_left_is_removed_wherever_a_command_makes_folders(
    place: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing beside it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    for folder in ("tmp", "runtime", place):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    parent = tmp_path / place
    (parent / ".kept").mkdir()
    made = NewFolder.make(parent, prefix)
    (made.path / "half").touch()
    results, home = tmp_path / "results", tmp_path / "home"
    assert folders.remove_leftovers(results, home) == []
    os.close(made.descriptor)
    assert folders.remove_leftovers(results, home) == [made.path]
    assert list(parent.iterdir()) == [parent / ".kept"]


def test_a_folder_that_a_program_names_is_refused_like_one_on_the_command_line(tmp_path: Path) -> None:
    """`wattdock.measure` takes any path, and no result could be written there."""
    with raises(ConfigError, "/caf\\xe9/results", "UTF-8"):
        folders.require_writable(tmp_path / os.fsdecode(b"caf\xe9") / "results", setting="--output-dir")


def test_a_read_only_file_system_is_called_so(tmp_path: Path) -> None:
    """As the system calls it; permissions are not what is wrong."""
    code = f"from wattdock.host import folders; folders.require_writable(Path({str(tmp_path / 'x')!r}), setting='--o')"
    mounted = f'mount -t tmpfs -o ro tmpfs {tmp_path} && exec "$@"'
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mounted, "sh"]
    done = run(
        [*words, sys.executable, "-c", f"from pathlib import Path; {code}"], capture_output=True, text=True, check=False
    )
    if done.returncode and "Error" not in done.stderr:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    said = f"cannot write to {tmp_path}/x: read-only file system in {tmp_path}; choose another folder with --o"
    assert said in done.stderr
