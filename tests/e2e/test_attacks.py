"""What a real neighbour, or a model, tries against a real command: it goes on, or ends in one line."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
from e2e.test_fleet_task import BEGIN
from unprivileged import OTHER_UID, UID, popen_as_user

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from command import Command

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="two real users need root")
STORE = 7
# A study on a cluster, and Slurm's commands as far as a submission needs them: what is sent is kept, with its mode.
STUDY = {"name": "x", "backend": "fake", "model": "shape:tiny-llama", "accelerator": "cpu"}
SBATCH = """#!/bin/sh
for script; do :; done
[ "$script" = --version ] || { stat -c %a "$script" >$HOME/tmp/mode; cat "$script" >$HOME/tmp/sent; exit 1; }
"""


@pytest.fixture
def slurm(wattdock: Command) -> dict[str, str]:
    """Return the variable with which stand-ins for Slurm's commands are found."""
    programs = wattdock.home / "bin"
    programs.mkdir()
    for name, text in (("sbatch", SBATCH), ("squeue", "#!/bin/sh\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (wattdock.folder / "x.yaml").write_text(json.dumps(STUDY))
    return {"PATH": f"{programs}:{os.environ['PATH']}"}


def as_user(
    wattdock: Command, *words: str | Path, uid: int = UID, env: dict[str, str] | None = None
) -> tuple[int, str, str]:
    """Run a command in the folder of `wattdock` to its end; return code, output and errors."""
    pipes: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), -1) | {"text": True}
    started: subprocess.Popen[str] = popen_as_user(words, env=wattdock.env(env), cwd=wattdock.folder, uid=uid, **pipes)
    out, err = started.communicate(timeout=240)
    return started.returncode, out, err


@AS_ROOT
def test_a_script_is_submitted_from_no_folder_that_another_user_can_change(
    wattdock: Command, slurm: dict[str, str]
) -> None:
    """The neighbour's study is equal and open to all; between its writing and sbatch a script there is the neighbour's."""
    results = wattdock.folder / "results"
    results.mkdir()
    results.chmod(0o1777)
    code, out, err = as_user(wattdock, sys.executable, "-c", BEGIN, json.dumps(STUDY), uid=OTHER_UID)
    assert code == 0, err
    as_user(wattdock, "/bin/chmod", "-R", "a+rwX", results / "studies", uid=OTHER_UID)
    done = wattdock("run", "x.yaml", "--on", "slurm", "--resume", env=slurm)
    assert (done.returncode, f"{out.strip()}: other users can change" in done.stderr) == (STORE, True), done.stderr
    assert not (wattdock.home / "tmp/sent").exists()
    assert not list((wattdock.folder / out.strip()).glob("*.sh"))


def test_a_script_is_written_for_its_owner_alone_whatever_the_umask(wattdock: Command, slurm: dict[str, str]) -> None:
    """On many clusters the umask lets the group write; whoever holds the script open changes what is submitted."""
    words = [str(word) for word in wattdock.words("run", "x.yaml", "--on", "slurm")]
    as_user(wattdock, "/bin/sh", "-c", 'umask 002; exec "$@"', "sh", *words, env=slurm)
    assert "wattdock run --on slurm" in (wattdock.home / "tmp/sent").read_text()
    assert (wattdock.home / "tmp/mode").read_text() == "644\n"
