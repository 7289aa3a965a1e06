"""`wattdock run --launcher apptainer` from outside, with a stand-in of the program and the fake backend."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from command import REPO, SMALL, WATTDOCK, Command
from launch.standin_apptainer import may_contain
from launch.standins import write_apptainer
from seams.launch import LockedImage, write_lock
from unprivileged import give_to_user

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DIGEST = f"registry.example/wattdock-fake@sha256:{'d' * 64}"
MODULES = ":".join(str(REPO / folder) for folder in ("proto", "runners/common", "tests/runners/fake"))


@dataclass(frozen=True)
class OnACluster(Command):
    """The command of a user who has the program, and no engine."""

    def words(self, *args: str | Path) -> list[str | Path]:
        return [WATTDOCK, *args]

    def env(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        own = {"PATH": f"{self.home}:/usr/bin:/bin", "DOCKER_HOST": f"unix://{self.home}/absent.sock"}
        return super().env({**own, "WATTDOCK_IMAGES_LOCK": str(self.home / "images.lock"), **(more or {})})


@pytest.mark.skipif(not may_contain(), reason="the stand-in needs namespaces of the user's own")
def test_a_run_in_an_image_by_digest_can_be_repeated_and_one_in_a_file_says_why_not(wattdock: Command) -> None:
    """Without an engine; the file of the registry's image is made once, by this user."""
    command = OnACluster(wattdock.home, wattdock.folder)
    python = command.home / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={MODULES} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    write_lock(command.home / "images.lock", {"fake": LockedImage(digest=DIGEST, base="b", revision="c0ffee")})
    for file in (command.home / "program", command.folder / "own.sif"):
        file.write_text(str(python))
    for file in (write_apptainer(command.home), *command.home.iterdir(), command.folder / "own.sif"):
        give_to_user(file)

    done = command("run", *SMALL, "--launcher", "apptainer", "--locked")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"launcher: apptainer (locked image {DIGEST})")
    assert command("run", *SMALL, "--launcher", "apptainer", "--set", "container.image=own.sif").returncode == 0
    by_digest, by_file = (row["environment"] | {"audit": row["audit"]} for row in command.results())
    inside = by_digest["container"]
    assert (by_digest["launcher"], by_digest["image_digest"], inside["locked_digest"]) == ("apptainer", DIGEST, DIGEST)
    assert (inside["engine"], inside["engine_version"], inside["revision"]) == ("apptainer", "1.4.0", "c0ffee")
    assert (by_file["container"]["image"], by_file["image_digest"]) == ("own.sif", None)
    sha256 = hashlib.sha256(str(python).encode()).hexdigest()
    assert by_file["container"]["image_id"] == f"sha256:{sha256}"
    checks = [
        next(check for check in each["audit"]["checks"] if check["name"] == "software") for each in (by_digest, by_file)
    ]
    # A checkout with changes of its own is no commit's.
    first = ("fail", "wattdock is of no") if by_digest["wattdock_dirty"] else ("pass", f"{DIGEST}; an image does not")
    assert [check["status"] for check in checks] == [first[0], "fail"]
    assert checks[0]["figure"].startswith(first[1])
    assert checks[1]["figure"] == f"sha256:{sha256[:12]}, a file without a registry's digest"
    assert command.processes() == {}
