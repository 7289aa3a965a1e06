"""Virtual environments of runners: a real uv makes them once, completely or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import unprivileged
from launch.local_index import LocalIndex, make_wheel
from launch.standins import wait_until
from seams.launch import Environment, check_python, environment, find_python, uv

from wattdock.errors import ConfigError, LaunchError, PreflightError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from seams.launch import Variant

pytestmark = pytest.mark.slow

MAKE = """
import sys
from pathlib import Path
from wattdock.launch.environment import Environment
print("python", Environment(Path(sys.argv[1]), "cpu", lambda line: print(line, flush=True)).ensure())
"""

USE = """
import sys
from pathlib import Path
from wattdock.launch.environment import Environment
with Environment(Path(sys.argv[1]), "cpu", print).in_use() as python:
    print("python", python)
"""


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalIndex]:
    """Serve a few wheels, and let pip, whose configuration uv gets, know of nothing else."""
    with LocalIndex(
        make_wheel("leaf", "1.0"), make_wheel("leaf", "2.0"), make_wheel("stem", "1.5", ("leaf",))
    ) as index:
        for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
            monkeypatch.setenv(name, "")
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        monkeypatch.setenv("PIP_RETRIES", "0")
        monkeypatch.setenv("UV_NO_CACHE", "1")
        yield index


@pytest.fixture
def runner_dir(tmp_path: Path) -> Path:
    """Return a backend's folder with a small requirements file."""
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "requirements-cpu.txt").write_text("stem\n")
    return folder


def lock_of(*wheels: tuple[str, bytes]) -> str:
    """Return a lock of these files."""
    parts = [(file.split("-"), hashlib.sha256(content).hexdigest()) for file, content in wheels]
    return "".join(
        f"{name}=={version.removesuffix('.tar.gz')} --hash=sha256:{digest}\n" for (name, version, *_), digest in parts
    )


def pretend_complete(runner_dir: Path, variant: Variant = "cpu") -> None:
    """Make a folder look as if its environment had been made, without the seconds that takes."""
    made = Environment(runner_dir, variant, pytest.fail)
    for folder in (made.python.parent, made.stamp_file.parent):
        folder.mkdir(parents=True)
    made.python.symlink_to(sys.executable)
    made.stamp_file.write_text(made.stamps()[0])


def version_in(python: Path, module: str) -> str:
    code = f"import {module}; print({module}.VERSION)"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_first_use_makes_it_and_every_later_use_finds_it(
    index: LocalIndex, runner_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From nothing, though ruins are there; what the lock names and no more, torch from where it is; silent later."""
    newer, branch, torch = (
        make_wheel("leaf", "3.0"),
        make_wheel("branch", "3.0", ("leaf", "thorn")),
        make_wheel("torch", "7.0+cpu"),
    )
    index.wheels |= dict([newer, branch, make_wheel("thorn", "1.0"), make_wheel("torch", "7.0")])
    (runner_dir / "requirements-cpu.lock").write_text(lock_of(branch, make_wheel("leaf", "2.0"), torch))
    venv = runner_dir / ".venv"
    venv.mkdir()
    (venv / "left-over").touch()
    lines: list[str] = []
    with LocalIndex(torch) as pytorch:
        monkeypatch.setattr(environment, "PYTORCH_CPU_INDEX", pytorch.url)
        python = Environment(runner_dir, "cpu", lines.append).ensure()
    assert python == venv / "bin" / "python"
    assert not (venv / "left-over").exists()
    assert any(line.startswith("Installed 3 packages in ") for line in lines)
    assert [version_in(python, module) for module in ("branch", "leaf", "torch")] == ["3.0", "2.0", "7.0+cpu"]
    assert not list(venv.rglob("thorn*"))
    requests = len(index.requests)
    assert Environment(runner_dir, "cpu", pytest.fail).ensure() == python
    assert len(index.requests) == requests


def test_another_wheel_than_the_lock_names_is_refused_wherever_it_comes_from(
    index: LocalIndex, runner_dir: Path
) -> None:
    """Whoever answers as an index, or has written there, puts nothing into an environment."""
    (runner_dir / "requirements-cpu.lock").write_text(lock_of(make_wheel("stem", "1.5"), make_wheel("leaf", "2.0")))
    said = r"stem==1\.5.*; the configured package index has another file than the lock names"
    with pytest.raises(LaunchError, match=said):
        Environment(runner_dir, "cpu", lambda _: None).ensure()
    assert not list((runner_dir / ".venv").rglob("stem.py"))


def test_nothing_is_built_of_what_a_lock_names(index: LocalIndex, runner_dir: Path) -> None:
    """A build would fetch packages of its own, whose hashes nobody knows."""
    sources = ("source-1.0.tar.gz", b"not even a tar")
    index.wheels |= dict([sources])
    (runner_dir / "requirements-cpu.lock").write_text(lock_of(sources))
    with pytest.raises(LaunchError, match=r"source==1\.0 has no usable wheels"):
        Environment(runner_dir, "cpu", lambda _: None).ensure()


def test_a_backend_without_a_lock_is_installed_with_a_line_and_its_stamp_says_so(
    index: LocalIndex, runner_dir: Path
) -> None:
    """A lock that is added later makes the environment anew."""
    lines: list[str] = []
    made = Environment(runner_dir, "cpu", lines.append)
    made.ensure()
    assert f"{runner_dir}/requirements-cpu.lock is not there: versions and packages are the index's choice" in lines
    assert made.stamp_file.read_text().endswith(" unlocked\n")
    (runner_dir / "requirements-cpu.lock").write_text(lock_of(*index.wheels.items()))
    assert not made.is_complete()


def test_without_a_network_a_filled_cache_will_do(
    index: LocalIndex, runner_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier clone fetched serves the next; a line says that the index was silent."""
    monkeypatch.delenv("UV_NO_CACHE")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    with LocalIndex(*index.wheels.items()) as earlier:
        monkeypatch.setenv("PIP_INDEX_URL", earlier.url)
        Environment(runner_dir, "cpu", lambda _: None).ensure()
    shutil.rmtree(runner_dir / ".venv")
    lines: list[str] = []
    assert version_in(Environment(runner_dir, "cpu", lines.append).ensure(), "stem") == "1.5"
    assert "the configured package index does not answer; taking packages from uv's cache" in lines


def test_two_processes_make_one_environment_once(index: LocalIndex, runner_dir: Path) -> None:
    """The second waits, says so, and uses what the first made."""
    command = [sys.executable, "-c", MAKE, str(runner_dir)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=240)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    waited = [text for text in said if "waiting up to 3600 s for process" in text]
    made = [text for text in said if "is ready after" in text]
    assert (len(waited), len(made)) == (1, 1)
    assert waited[0].splitlines()[-1] == made[0].splitlines()[-1] == f"python {runner_dir}/.venv/bin/python"


def processes_of(runner_dir: Path) -> list[bytes]:
    """Return the command lines of all processes that make this folder's environment."""
    commands = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                if str(runner_dir).encode() in command:
                    commands.append(command)
    return commands


def test_nothing_of_a_killed_process_goes_on_and_what_it_began_is_not_used(index: LocalIndex, runner_dir: Path) -> None:
    """Its uv ends with it, though the index never answered; the next one builds anew."""
    index.gate.clear()
    process = subprocess.Popen([sys.executable, "-c", MAKE, str(runner_dir)], stdout=subprocess.DEVNULL)
    wait_until(lambda: index.requests)
    assert any(b"uv" in command for command in processes_of(runner_dir))
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: not processes_of(runner_dir))
    assert not (runner_dir / ".venv" / "wattdock" / "tmp").exists()
    index.gate.set()
    lines: list[str] = []
    python = Environment(runner_dir, "cpu", lines.append).ensure()
    assert any("is ready after" in line for line in lines)
    assert version_in(python, "stem") == "1.5"


def test_an_environment_in_use_is_not_made_anew_before_its_use_ends(index: LocalIndex, runner_dir: Path) -> None:
    """A runner must not lose its packages to another command that wants others; those then begin from nothing."""
    lines: list[str] = []
    pretend_complete(runner_dir)
    (runner_dir / ".venv" / "left-over").touch()
    with Environment(runner_dir, "cpu", lambda _: None).in_use() as python:
        (runner_dir / "requirements-cpu.txt").write_text("leaf==1.0\n")
        other = threading.Thread(target=Environment(runner_dir, "cpu", lines.append).ensure)
        other.start()
        wait_until(lambda: lines)
        other.join(0.5)
        assert python.exists()
        assert len(lines) == 1
    other.join(60)
    assert lines[0].startswith(f"waiting up to 3600 s for process {os.getpid()} ")
    assert lines[0].endswith(f", holding {runner_dir}/.venv.lock")
    assert sum("waiting" in line for line in lines) == 1
    assert not (runner_dir / ".venv" / "left-over").exists()
    assert version_in(python, "leaf") == "1.0"


def test_two_runners_use_one_environment_at_the_same_time(runner_dir: Path) -> None:
    """Only a process that makes it must be alone, and a use that ends leaves the other."""
    pretend_complete(runner_dir)
    with Environment(runner_dir, "cpu", pytest.fail).in_use():
        with Environment(runner_dir, "cpu", pytest.fail).in_use():
            pass
        with (runner_dir / ".venv.lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with (runner_dir / ".venv.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_an_environment_that_was_taken_apart_before_its_use_began_is_made_again(
    index: LocalIndex, runner_dir: Path
) -> None:
    """Found whole and locked are two instants; another command may come between them."""
    pretend_complete(runner_dir)
    (runner_dir / ".venv.lock").touch()
    lines: list[str] = []
    versions: list[str] = []

    def use() -> None:
        with Environment(runner_dir, "cpu", lines.append).in_use() as python:
            versions.append(version_in(python, "stem"))

    with (runner_dir / ".venv.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        user = threading.Thread(target=use)
        user.start()
        wait_until(lambda: lines)
        assert "waiting up to 3600 s" in lines[0]
        shutil.rmtree(runner_dir / ".venv")
    user.join(60)
    assert any("is ready after" in line for line in lines)
    assert versions == ["1.5"]


@pytest.mark.parametrize("locked", [True, False])
def test_another_users_environment_can_be_used(tmp_path: Path, locked: bool) -> None:
    """A shared installation need not be writable to be run; that its owner has a lock open stops nobody."""
    home = unprivileged.user_home(tmp_path)
    shared = home / "shared"
    shared.mkdir()
    (shared / "requirements-cpu.txt").write_text("stem\n")
    pretend_complete(shared)
    with Environment(shared, "cpu", pytest.fail).in_use() if locked else contextlib.nullcontext():
        assert (shared / ".venv.lock").exists() is locked
        run = unprivileged.run_as_user([sys.executable, "-c", USE, shared], env={"HOME": str(home)}, cwd=home)
    assert (run.stdout, run.stderr) == (f"python {shared}/.venv/bin/python\n", "")


def test_an_environment_that_others_keep_in_use_is_refused_with_their_name(
    runner_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for ever."""
    pretend_complete(runner_dir)
    monkeypatch.setattr(environment, "WAIT_S", 0.1)
    with Environment(runner_dir, "cpu", lambda _: None).in_use():
        (runner_dir / "requirements-cpu.txt").write_text("leaf\n")
        said = (
            rf"cannot make a virtual environment in .*: \.venv\.lock: locked by process {os.getpid()} .*; wait for it"
        )
        with pytest.raises(PreflightError, match=said):
            Environment(runner_dir, "cpu", lambda _: None).ensure()


def test_a_removal_that_was_interrupted_leaves_no_complete_environment(
    runner_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of its packages may be gone already, while its Python is still there."""
    pretend_complete(runner_dir)
    (runner_dir / "requirements-cpu.txt").write_text("leaf\n")

    def interrupted(_: Path) -> None:
        raise OSError("interrupted")

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(PreflightError, match="interrupted"):
        Environment(runner_dir, "cpu", lambda _: None).ensure()
    (runner_dir / "requirements-cpu.txt").write_text("stem\n")
    assert not Environment(runner_dir, "cpu", pytest.fail).is_complete()


@pytest.mark.parametrize(
    ("made_for", "used_for", "requirements", "fits"),
    [
        ("cuda", "cpu", "stem\n", True),
        ("cpu", "cuda", "stem\n", False),
        ("cuda", "cpu", "leaf\n", False),
        ("cpu", "cpu", "stem\n", True),
        ("cuda", "cuda", "stem\n", True),
    ],
)
def test_a_cuda_environment_serves_a_cpu_too_if_made_from_the_same_requirements(
    runner_dir: Path, made_for: Variant, used_for: Variant, requirements: str, fits: bool
) -> None:
    """Changing between CPU and GPU must not build a gigabyte each time; a CPU build cannot use a GPU."""
    (runner_dir / f"requirements-{made_for}.txt").write_text("stem\n")
    pretend_complete(runner_dir, made_for)
    (runner_dir / f"requirements-{used_for}.txt").write_text(requirements)
    assert Environment(runner_dir, used_for, pytest.fail).is_complete() is fits


@pytest.mark.parametrize(
    ("requirement", "index_url", "said"),
    [
        (
            "absent==9",
            None,
            r"absent was not found .* index lacks it or refuses access; it is set in .* \(all of it: .*uv.log\)$",
        ),
        (
            "stem",
            "http://me:secret@127.0.0.1:9/tok-in-path/simple/",
            "Failed to fetch: .?stem from the configured package index.*; the configured package index does not ",
        ),
    ],
)
def test_what_uv_cannot_get_is_one_line_with_the_cause(
    requirement: str,
    index_url: str | None,
    said: str,
    index: LocalIndex,
    runner_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is missing, where the index is configured without its address, and where the rest is."""
    if index_url:
        monkeypatch.setenv("PIP_INDEX_URL", index_url)
    (runner_dir / "requirements-cpu.txt").write_text(requirement)
    with pytest.raises(LaunchError, match=said) as caught:
        Environment(runner_dir, "cpu", lambda _: None).ensure()
    assert "\n" not in str(caught.value)
    assert "127.0.0.1" not in str(caught.value)
    log = (runner_dir / ".venv" / "wattdock" / "uv.log").read_text()
    assert (requirement in log, "secret" in log, "tok-in-path" in log) == (True, False, False)


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        ("stem", r"stem was not found .* index lacks it or refuses access; "),
        ("stem-1.5-py3-none-any.whl", r"401 Unauthorized.* index refuses the request; "),
    ],
)
def test_an_index_that_refuses_a_password_is_not_said_to_be_silent(
    refused: str, said: str, index: LocalIndex, runner_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers, so nothing is tried without a network, where an older package in the cache would hide the refusal."""
    index.refusals[refused] = 401
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("://", "://me:secret@"))
    lines: list[str] = []
    with pytest.raises(LaunchError, match=said) as caught:
        Environment(runner_dir, "cpu", lines.append).ensure()
    assert not [line for line in (*lines, str(caught.value)) if "does not answer" in line or "secret" in line]


def test_uv_as_make_calls_it_ends_with_a_line_or_on_ctrl_c_with_none(index: LocalIndex, tmp_path: Path) -> None:
    """Without a traceback, and with the exit codes that every command of wattdock has."""
    command = [sys.executable, "-I", uv.__file__, "pip", "install", "--quiet", "--target", str(tmp_path), "absent"]
    missing = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (missing.returncode, missing.stdout, missing.stderr.count("\n")) == (3, "", 1)
    assert "the configured package index lacks it or refuses access" in missing.stderr
    index.gate.clear()
    index.requests.clear()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        wait_until(lambda: index.requests)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[0] == ""
    assert process.returncode == 130


def test_a_folder_that_cannot_be_written_is_named_with_the_other_way(runner_dir: Path, tmp_path: Path) -> None:
    """A shared installation is often read-only; runner_python still works there."""
    home = unprivileged.user_home(tmp_path)
    shared = home / "shared"
    shared.mkdir()
    (shared / "requirements-cpu.txt").write_text("stem\n")
    shared.chmod(0o555)
    run = unprivileged.run_as_user([sys.executable, "-c", MAKE, shared], env={"HOME": str(home)}, cwd=home)
    last = run.stderr.splitlines()[-1]
    assert "PreflightError: cannot make a virtual environment in" in last
    assert "Permission denied" in last
    assert "runner_python" in last


@pytest.mark.parametrize(
    ("there", "variant", "words"),
    [
        ("cuda", "cpu", r"^backend does not run on a CPU: .*requirements-cpu.txt: No such file"),
        ("cpu", "cuda", r"^backend does not run on NVIDIA GPUs: .*requirements-cuda.txt: No such file"),
    ],
)
def test_a_backend_that_is_not_for_this_machine_says_so(
    there: Variant, variant: Variant, words: str, tmp_path: Path
) -> None:
    """Nobody is sent to write a requirements file that cannot be written."""
    folder = tmp_path / "backend"
    folder.mkdir()
    (folder / f"requirements-{there}.txt").touch()
    with pytest.raises(PreflightError, match=words + r".* name an interpreter that has the packages .*runner_python"):
        Environment(folder, variant, lambda _: None).ensure()
    assert not (folder / ".venv.lock").exists()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, r"runner_python: .*/named is not there"),
        ("", "/named cannot be executed"),
        ('exec {python} -I -S "$@"', "named ModuleNotFoundError: No module named 'grpc'"),
        ('shift; exec {python} -c "{old}" "$@"', r"is Python 3\.9\.1, 3\.10 or later is needed"),
        ("echo not today >&2; exit 4", "not today"),
        ("exit 1", "is not a Python interpreter; name a Python interpreter"),
    ],
    ids=["absent", "no program", "without grpc", "too old", "no Python", "silent"],
)
def test_an_interpreter_that_cannot_run_a_runner_is_refused_with_the_reason(
    script: str | None, said: str, tmp_path: Path
) -> None:
    """The message names what was written and what is wrong; this interpreter will do, and so does a wrapper."""
    old = "import sys; sys.version_info = (3, 9, 1); sys.version = '3.9.1 (x)'; exec(sys.argv[1])"
    named, good = tmp_path / "named", tmp_path / "good"
    for path, text in ((named, script), (good, 'exec {python} "$@"')):
        if text is not None:
            path.write_text("#!/bin/sh\n" + text.format(python=sys.executable, old=old))
            path.chmod(0o755 if text else 0o644)
    with pytest.raises(PreflightError if named.exists() else ConfigError, match=said):
        check_python(find_python(named), {})
    with pytest.raises(ConfigError, match="~nobody-here/python: nobody knows the home folder"):
        find_python("~nobody-here/python")
    for path in (good, Path(sys.executable)):
        assert find_python(path) == path
        check_python(path, {})
