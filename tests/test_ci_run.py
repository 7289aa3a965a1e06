"""The command that every change must pass, with stand-ins for what it calls: it hides no failure."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / ".ci" / "run"
# Each notes its call, and fails where FAIL is among the words.
CALLS = 'echo "$(basename "$0") $*" >>"$CALLS"; case " $(basename "$0") $* " in *" $FAIL "*) exit 9;; esac\n'
ON_PATH = ("make", "id", "apt-get", "unshare", "dockerd", "docker-registry", "docker-compose")
IN_TREE = ("tests/containers/engine.sh", "tests/containers/make-base.sh")


def run_with(fail: str, tmp_path: Path) -> tuple[int, list[str], str]:
    """Run it where mmdebstrap is missing and one thing fails; return its exit code, its calls and its errors."""
    if Path("/var/run/docker.sock").exists():
        pytest.skip("a Docker engine runs here")
    (tmp_path / ".ci").mkdir()
    shutil.copy(RUN, tmp_path / ".ci" / "run")
    programs = [tmp_path / name for name in (*(f"bin/{name}" for name in ON_PATH), *IN_TREE)]
    for program in programs:
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\n" + CALLS + ("echo 0\n" if program.name == "id" else ""))
        program.chmod(0o755)
    for tool in ("bash", "sh", "env", "dirname", "basename", "mktemp", "mkdir", "ln", "rm"):
        found = shutil.which(tool)
        assert found
        (tmp_path / "bin" / tool).symlink_to(found)
    calls = tmp_path / "calls"
    done = subprocess.run(
        [tmp_path / ".ci" / "run"],
        env={"PATH": str(tmp_path / "bin"), "CALLS": str(calls), "FAIL": fail},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, calls.read_text().splitlines(), done.stderr


def test_all_is_built_before_the_tests_and_the_engine_is_stopped(tmp_path: Path) -> None:
    """Nothing that is there already is installed, and nothing without a word."""
    code, calls, errors = run_with("nothing", tmp_path)
    installed = ("chromium chromium-driver", "slurmctld slurmd slurm-client munge", "mmdebstrap")
    assert code == 0
    assert errors.splitlines() == [f"installing on this machine, to stay: {packages}" for packages in installed]
    installs = [call for call in calls if call.startswith("apt-get install")]
    assert [packages for packages in installed if not any(call.endswith(f" {packages}") for call in installs)] == []
    asked = [call.split()[1:] for call in calls if call.startswith("make ")]
    made = [[word for word in words if word[0] != "-" and "=" not in word] for words in asked]
    # Style, environments and the images' base are looked at and made meanwhile.
    for meanwhile in ("lint", "environments"):
        made.remove([meanwhile])
    assert made == [[".venv/.wattdock-setup-dev"], ["wheels"], ["images"], ["test-all"]]
    build = next(call for call in calls if " images " in call)
    assert calls.index("make-base.sh ") < calls.index(build)
    assert calls[-1].startswith("engine.sh stop ")


@pytest.mark.parametrize(
    "fail",
    [
        *(".venv/.wattdock-setup-dev", "lint", "test-all", "environments", "wheels", "images"),
        *("start", "make-base.sh"),
    ],
)
def test_whatever_fails_fails_it(fail: str, tmp_path: Path) -> None:
    """An image that cannot be built would otherwise be a handful of skipped tests."""
    assert run_with(fail, tmp_path)[0] != 0


@pytest.mark.parametrize(
    ("fail", "words"),
    [
        ("chromium", "Chromium"),
        ("slurmctld", "Slurm"),
        ("update", "fetched"),
        ("install", "fetched"),
        ("unshare", "started"),
    ],
)
def test_a_machine_that_cannot_have_an_engine_a_browser_or_slurm_is_named_and_tests_the_rest(
    fail: str, words: str, tmp_path: Path
) -> None:
    """No package source, or no right to start one."""
    code, calls, errors = run_with(fail, tmp_path)
    assert code == 0
    assert words in errors
    assert [call for call in calls if call.startswith("make ")][-1] == "make test-all"
