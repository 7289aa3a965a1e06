"""The lock file: what it holds can be checked without an engine, and what was changed by hand is seen."""

from __future__ import annotations

import re
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from wattdock.checks.preflight import _Host
from wattdock.errors import ConfigError
from wattdock.host import GpuInventory
from wattdock.launch.images.inputs import inputs_sha256
from wattdock.launch.images.lock import (
    DEFAULT_LOCK,
    SETTING,
    LockedImage,
    lock_path,
    lock_sha256,
    read_lock,
    write_lock,
)

if TYPE_CHECKING:
    from pathlib import Path

INPUTS = {"FROM": f"sha256:{'b' * 64}", "ARG VARIANT": "cpu", "runners/x.py": "1" * 64}
RESOLVED: dict[str, Any] = {
    "repo_digest": f"127.0.0.1:5000/team/wattdock-x@sha256:{'a' * 64}",
    "image_id": f"sha256:{'c' * 64}",
    "image_store": "classic",
    "platform": "linux/amd64",
    "base": "base:1",
    "base_digest": f"sha256:{'b' * 64}",
    "inputs_sha256": inputs_sha256(INPUTS),
    "date": date(2026, 11, 21),
    "inputs": INPUTS,
}


def written(tmp_path: Path, **changes: object) -> Path:
    """Write a lock whose one entry was changed by hand afterwards."""
    file = tmp_path / "images.lock"
    write_lock(file, {"x": LockedImage(**RESOLVED)})
    content = yaml.safe_load(file.read_text())
    content["images"]["x"].update(changes)
    file.write_text(yaml.safe_dump(content))
    return file


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """Hashes of digits only stay text."""
    assert read_lock(written(tmp_path)).images == {"x": LockedImage(**RESOLVED)}


def test_all_experiments_of_a_run_start_what_one_lock_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is written while the first of them is checked does not count."""
    monkeypatch.setenv(SETTING, str(written(tmp_path)))
    host = _Host(inventory=GpuInventory(()), holders={})
    before = lock_sha256(lock_path())
    assert host.lock.images["x"].platform == "linux/amd64"
    written(tmp_path, platform="linux/arm64")
    assert (host.lock.images["x"].platform, host.lock.sha256) == ("linux/amd64", before)
    assert lock_sha256(lock_path()) != before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"inputs_sha256": "0" * 64}, "inputs_sha256 is 000000000000, its inputs hash to"),
        ({"inputs": {**INPUTS, "runners/x.py": "2" * 64}}, "one of them was changed by hand"),
        ({"repo_digest": None}, "repo_digest is null and `unresolved` does not say why"),
        ({"base_digest": None}, "base_digest is null and `unresolved` does not say why"),
        ({"repo_digest": "wattdock-x:latest"}, "images.x.repo_digest: String should match pattern"),
        ({"image_id": "sha256:12"}, "images.x.image_id: String should match pattern"),
        ({"digest": "x"}, "images.x.digest: Extra inputs are not permitted"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_an_entry_that_was_tampered_with_is_refused_with_what_is_wrong(
    changes: dict[str, object], words: str, tmp_path: Path
) -> None:
    """In one line that names the file, the entry, and what to do."""
    file = written(tmp_path, **changes)
    with pytest.raises(ConfigError, match=re.escape(words)) as refused:
        read_lock(file)
    assert str(refused.value).startswith(f"{file}: images.x")
    assert str(refused.value).endswith("; write it anew with: wattdock images lock")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["images: [", "\udcff", "- a"])
def test_a_file_that_is_no_lock_is_a_mistake_in_one_line(text: str, tmp_path: Path) -> None:
    """Not a traceback."""
    file = tmp_path / "images.lock"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=r"images\.lock.*wattdock images lock") as refused:
        read_lock(file)
    assert "\n" not in str(refused.value)


def test_the_lock_that_is_shipped_is_one_and_hides_nothing_that_it_lacks() -> None:
    """What could not be resolved where it was written says so, for every image that can be built."""
    shipped = read_lock(DEFAULT_LOCK).images
    assert shipped.keys() == {"coordinator", "pytorch", "tensorrt", "vllm"}
    for entry in shipped.values():
        assert entry.repo_digest or entry.unresolved["repo_digest"]
