"""Provenance without containers: lock an environment, measure with it, bundle, and make it again elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from command import WATTDOCK

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.system]

WORK = (
    *("--backend", "pytorch", "--model", "shape:tiny-llama", "--accelerator", "cpu", "--restarts", "1"),
    *("--passes", "1", "--min-requests", "2", "--batch-size", "1", "--max-output-tokens", "4"),
)


def test_an_environment_is_locked_checked_bundled_and_made_again_on_an_emptied_machine(tmp_path: Path) -> None:
    """The lock answers for the software; a changed file is refused by name; a stranger's lock needs a word."""
    home, leases = tmp_path / "home", tmp_path / "leases"
    leases.mkdir()
    environ = os.environ | {"WATTDOCK_HOME": str(home), "WATTDOCK_LEASES": str(leases)}

    def wattdock(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [WATTDOCK, *words], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600
        )

    def result_in(output_dir: str) -> dict[str, Any]:
        [file] = (tmp_path / output_dir).glob("2*/result.json")
        result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return result

    locked = wattdock("environments", "lock", "pytorch", "-o", "my.lock")
    assert (locked.returncode, locked.stdout.startswith("my.lock: ")) == (0, True), locked.stderr
    asked = (*WORK, "--locked", "--launcher", "process", "--set", "package_lock=my.lock")
    assert wattdock("run", *asked).returncode == 0
    result = result_in("results")
    packages = result["environment"]["packages"]
    assert (packages["lock"], f"{packages['packages']} packages" in locked.stdout) == ("my.lock", True)
    [check] = [check for check in result["audit"]["checks"] if check["name"] == "software"]
    # A checkout with changes of its own is no commit's.
    assert (check["status"] == "pass") == (not result["environment"]["wattdock_dirty"])
    assert check["figure"].startswith(f"lock of {packages['packages']} packages, {packages['lock_sha256'][:12]}")

    assert wattdock("bundle", "create", "results", "-o", "b.tar").returncode == 0
    [made] = (home / "environments").iterdir()
    made.rename(tmp_path / "old")
    refused = wattdock("reproduce", "b.tar")
    assert (refused.returncode, "--trust-packages" in refused.stderr) == (2, True), refused.stderr
    again = wattdock("reproduce", "b.tar", "--trust-packages", "--output-dir", "again", "--json")
    # One restart decides nothing.
    assert again.returncode == 10, again.stderr
    assert "making " in again.stderr
    assert result_in("again")["environment"]["packages"]["lock_sha256"] == packages["lock_sha256"]

    [module] = made.glob(".venv/lib/python3*/site-packages/accelerate/state.py")
    content = module.read_bytes()
    # A file of its own: uv links files to its cache, and other environments have the same.
    module.unlink()
    module.write_bytes(content + b"\n# changed\n")
    spoilt = wattdock("run", *asked, "--output-dir", "spoilt")
    assert spoilt.returncode == 4, spoilt.stderr
    assert "accelerate/state.py of accelerate is not the wheel's; remove that folder" in spoilt.stderr
