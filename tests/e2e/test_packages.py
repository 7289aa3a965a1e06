"""Provenance without containers: a locked environment, measured with, bundled, and made again elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from command import REPO, WATTDOCK

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.system]

WORK = (
    *("--backend", "pytorch", "--model", "shape:tiny-llama", "--accelerator", "cpu", "--restarts", "1"),
    *("--passes", "1", "--min-requests", "2", "--batch-size", "1", "--max-output-tokens", "4"),
)


def test_an_environment_is_checked_bundled_and_made_again_on_an_emptied_machine(tmp_path: Path) -> None:
    """The lock answers for the software; a changed file is refused by name; of another lock a reader is told."""
    home, leases, backend = tmp_path / "home", tmp_path / "leases", tmp_path / "runners" / "pytorch"
    leases.mkdir()
    shutil.copytree(REPO / "runners/pytorch", backend, ignore=shutil.ignore_patterns(".venv*", "__pycache__"))
    environ = os.environ | {"WATTDOCK_HOME": str(home), "WATTDOCK_LEASES": str(leases)}
    environ |= {"WATTDOCK_RUNNERS": str(backend.parent)}

    def wattdock(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [WATTDOCK, *words], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600
        )

    def result_in(output_dir: str) -> dict[str, Any]:
        [file] = (tmp_path / output_dir).glob("2*/result.json")
        result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return result

    asked = (*WORK, "--locked", "--launcher", "process")
    done = wattdock("run", *asked)
    assert done.returncode == 0, done.stderr
    result = result_in("results")
    packages = result["environment"]["packages"]
    assert packages["lock"] == "requirements-cpu.lock"
    [check] = [check for check in result["audit"]["checks"] if check["name"] == "software"]
    # A checkout with changes of its own is no commit's.
    assert (check["status"] == "pass") == (not result["environment"]["wattdock_dirty"])
    locked = f"lock of {packages['packages']} packages, {packages['lock_sha256'][:12]}"
    assert check["figure"].startswith(locked if check["status"] == "pass" else "wattdock is of no commit, or")

    assert wattdock("bundle", "create", "results", "-o", "b.tar").returncode == 0
    shutil.rmtree(backend / ".venv")
    again = wattdock("reproduce", "b.tar", "--output-dir", "again", "--json")
    # One restart decides nothing.
    assert again.returncode == 10, again.stderr
    assert "making " in again.stderr
    assert result_in("again")["environment"]["packages"]["lock_sha256"] == packages["lock_sha256"]

    [module] = backend.glob(".venv/lib/python3*/site-packages/accelerate/state.py")
    content = module.read_bytes()
    # A file of its own: uv links files to its cache, and other environments have the same.
    module.unlink()
    module.write_bytes(content + b"\n# changed\n")
    spoilt = wattdock("run", *asked, "--output-dir", "spoilt")
    assert spoilt.returncode == 4, spoilt.stderr
    assert "accelerate/state.py of accelerate is not the wheel's; remove that folder" in spoilt.stderr

    with (backend / "requirements-cpu.lock").open("a") as lock:
        lock.write("# another\n")
    refused = wattdock("reproduce", "b.tar")
    assert (refused.returncode, "WATTDOCK_RUNNERS" in refused.stderr) == (2, True), refused.stderr
