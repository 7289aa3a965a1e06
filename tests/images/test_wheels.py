"""The wheels that an image was locked with are fetched again, these and no others, by a real pip."""

from __future__ import annotations

import hashlib
import os
import sys
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from launch.local_index import LocalIndex, make_wheel

from wattdock.errors import ConfigError, LaunchError
from wattdock.launch.images.inputs import inputs_sha256
from wattdock.launch.images.lock import SETTING, LockedImage, write_lock
from wattdock.launch.images.wheels import fetch_locked
from wattdock.launch.pip import Pip

if TYPE_CHECKING:
    from collections.abc import Iterator

A, B, NEWER_B = make_wheel("alpha", "1.0"), make_wheel("beta_x", "2.0"), make_wheel("beta_x", "2.1")


def lock(file: Path, *wheels: tuple[str, bytes]) -> None:
    inputs = {f"build/wheels/x/{name}": hashlib.sha256(content).hexdigest() for name, content in wheels}
    inputs["runners/x.py"] = "1" * 64
    unresolved = dict.fromkeys(("repo_digest", "image_id", "base_digest"), "-")
    entry = LockedImage(
        base="b", date=date.today(), inputs=inputs, inputs_sha256=inputs_sha256(inputs), unresolved=unresolved
    )
    write_lock(file, {"x": entry})


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pip]:
    """pip with an index that has a newer wheel too, and a lock of the older one."""
    lock(tmp_path / "images.lock", A, B)
    monkeypatch.setenv(SETTING, str(tmp_path / "images.lock"))
    (tmp_path / "wheels").mkdir()
    held = os.open(tmp_path, os.O_RDONLY)
    with LocalIndex(A, B, NEWER_B) as index:
        for name, value in (("INDEX_URL", index.url), ("EXTRA_INDEX_URL", ""), ("CONFIG_FILE", os.devnull)):
            monkeypatch.setenv(f"PIP_{name}", value)
        yield Pip(Path(sys.executable), tmp_path / "wheels/pip.log", print, held)
    os.close(held)


def wheels(tmp_path: Path) -> dict[str, bytes]:
    return {wheel.name: wheel.read_bytes() for wheel in (tmp_path / "wheels").glob("*.whl")}


def test_what_is_missing_is_fetched_and_what_is_not_locked_goes(
    pip: Pip, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A newer wheel beside the locked one would be built in as well."""
    for name, content in (A, NEWER_B):
        (tmp_path / "wheels" / name).write_bytes(content)
    fetch_locked(pip, "x", tmp_path / "wheels")
    assert wheels(tmp_path) == dict((A, B))
    assert "2 wheels locked, 1 to fetch" in capsys.readouterr().out
    fetch_locked(pip, "x", tmp_path / "wheels")
    assert "2 wheels locked, 0 to fetch" in capsys.readouterr().out


def test_a_wheel_of_that_name_with_other_bits_is_refused(pip: Pip, tmp_path: Path) -> None:
    """Whatever an index serves under it by now."""
    lock(tmp_path / "images.lock", A, (B[0], b"other bits"))
    with pytest.raises(LaunchError, match=r"(?i)hash"):
        fetch_locked(pip, "x", tmp_path / "wheels")
    assert B[0] not in wheels(tmp_path)


def test_an_image_that_was_locked_without_wheels_has_none_to_fetch(pip: Pip, tmp_path: Path) -> None:
    """The index decided then; nothing says what."""
    lock(tmp_path / "images.lock")
    with pytest.raises(ConfigError, match="holds no wheels for x; without WHEELS=locked, pip chooses them"):
        fetch_locked(pip, "x", tmp_path / "wheels")
