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
from refused import raises
from seams.launch import Environment, environment, uv

from wattdock.errors import LaunchError, PreflightError

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


@pytest.mark.parametrize("cpus", [7, 8])
def test_many_cpus_compile_all_packages_before_the_first_load(
    index: LocalIndex, runner_dir: Path, monkeypatch: pytest.MonkeyPatch, cpus: int
) -> None:
    """On a few, only what is imported, when it is."""
    (runner_dir / "requirements-cpu.lock").write_text(lock_of(make_wheel("leaf", "2.0")))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cpus)))
    Environment(runner_dir, "cpu", lambda _: None).ensure()
    assert bool(list((runner_dir / ".venv").rglob("leaf*.pyc"))) == (cpus == 8)


SOURCES = ("source-1.0.tar.gz", b"not even a tar")


@pytest.mark.parametrize("package", ["stem==1.5", "source==1.0"])
def test_only_the_wheel_that_the_lock_names_is_installed(index: LocalIndex, runner_dir: Path, package: str) -> None:
    """Another file of an index is refused; a build would fetch packages of its own, whose hashes nobody knows."""
    index.wheels |= dict([SOURCES])
    locked = SOURCES if package.startswith("source") else make_wheel("stem", "1.5")
    (runner_dir / "requirements-cpu.lock").write_text(lock_of(locked))
    with raises(LaunchError, package):
        Environment(runner_dir, "cpu", lambda _: None).ensure()
    assert not list((runner_dir / ".venv").rglob("stem.py"))


def test_a_backend_without_a_lock_is_installed_with_a_line_and_its_stamp_says_so(
    index: LocalIndex, runner_dir: Path
) -> None:
    """A lock that is added later makes the environment anew."""
    lines: list[str] = []
    made = Environment(runner_dir, "cpu", lines.append)
    made.ensure()
    assert any(f"{runner_dir}/requirements-cpu.lock" in line for line in lines)
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
    assert any(line.endswith("uv's cache") for line in lines)


def test_two_processes_make_one_environment_once(index: LocalIndex, runner_dir: Path) -> None:
    """The second waits, says so, and uses what the first made."""
    command = [sys.executable, "-c", MAKE, str(runner_dir)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=240)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("waiting" in text for text in said) == sum("making" in text for text in said) == 1
    assert {text.splitlines()[-1] for text in said} == {f"python {runner_dir}/.venv/bin/python"}


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
    assert version_in(Environment(runner_dir, "cpu", lines.append).ensure(), "stem") == "1.5"
    assert lines[0].startswith("making")


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
    assert [str(os.getpid()) in lines[0], f"{runner_dir}/.venv.lock" in lines[0]] == [True, True]
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
        assert "3600 s" in lines[0]
        shutil.rmtree(runner_dir / ".venv")
    user.join(60)
    assert lines[1].startswith("making")
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
        with raises(PreflightError, ".venv.lock", f"process {os.getpid()} "):
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
    ("requirement", "index_url", "advice"),
    [
        ("absent==9", None, "the configured package index lacks it or refuses access"),
        ("stem", "http://me:secret@127.0.0.1:9/tok-in-path/simple/", "the configured package index does not answer"),
        ("stem", "stalled", "the configured package index does not answer"),
    ],
)
def test_what_uv_cannot_get_is_one_line_with_the_cause(
    requirement: str,
    index_url: str | None,
    advice: str,
    index: LocalIndex,
    runner_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is missing, where the index is configured without its address, and where the rest is."""
    if index_url == "stalled":
        index.gate.clear()
        monkeypatch.setenv("UV_HTTP_TIMEOUT", "1")
        index_url = None
    if index_url:
        monkeypatch.setenv("PIP_INDEX_URL", index_url)
    (runner_dir / "requirements-cpu.txt").write_text(requirement)
    log_file = runner_dir / ".venv" / "wattdock" / "uv.log"
    with raises(LaunchError, requirement.partition("=")[0], advice, "`pip config list`", log_file) as caught:
        Environment(runner_dir, "cpu", lambda _: None).ensure()
    assert "\n" not in str(caught.value)
    assert "127.0.0.1" not in str(caught.value)
    log = log_file.read_text()
    assert (requirement in log, "secret" in log, "tok-in-path" in log) == (True, False, False)


@pytest.mark.parametrize(
    ("refused", "named"), [("stem", "stem"), ("stem-1.5-py3-none-any.whl", "401")], ids=["package", "file"]
)
def test_an_index_that_refuses_a_password_is_not_said_to_be_silent(
    refused: str, named: str, index: LocalIndex, runner_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers, so nothing is tried without a network, where an older package in the cache would hide the refusal."""
    index.refusals[refused] = 401
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("://", "://me:secret@"))
    lines: list[str] = []
    with raises(LaunchError, named) as caught:
        Environment(runner_dir, "cpu", lines.append).ensure()
    assert not [line for line in (*lines, str(caught.value)) if "uv's cache" in line or "secret" in line]


def test_uv_as_make_calls_it_ends_with_a_line_or_on_ctrl_c_with_none(index: LocalIndex, tmp_path: Path) -> None:
    """Without a traceback, and with the exit codes that every command of wattdock has."""
    command = [sys.executable, "-I", uv.__file__, "pip", "install", "--quiet", "--target", str(tmp_path), "absent"]
    missing = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (missing.returncode, missing.stdout, missing.stderr.count("\n")) == (3, "", 1)
    assert "absent" in missing.stderr
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
    words = ("PreflightError", str(shared), "Permission denied", "runner_python")
    assert [word for word in words if word not in last] == []


@pytest.mark.parametrize(("there", "variant", "hardware"), [("cuda", "cpu", "a CPU"), ("cpu", "cuda", "NVIDIA GPUs")])
def test_a_backend_that_is_not_for_this_machine_says_so(
    there: Variant, variant: Variant, hardware: str, tmp_path: Path
) -> None:
    """Nobody is sent to write a requirements file that cannot be written."""
    folder = tmp_path / "backend"
    folder.mkdir()
    (folder / f"requirements-{there}.txt").touch()
    with raises(PreflightError, hardware, folder / f"requirements-{variant}.txt", "runner_python"):
        Environment(folder, variant, lambda _: None).ensure()
    assert not (folder / ".venv.lock").exists()
