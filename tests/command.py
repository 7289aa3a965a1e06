"""The real command, run as a real unprivileged user, with the fake backend in a real runner process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fake_nvml
from unprivileged import give_to_user, popen_as_user, run_as_user

if TYPE_CHECKING:
    from collections.abc import Mapping

REPO = Path(__file__).resolve().parents[1]
WATTDOCK = Path(sys.executable).with_name("wattdock")
# One short pass of the fake engine on an empty model folder.
SMALL = ("--backend", "fake", "--model", "shape:tiny-llama", "--passes", "1", "--batch-size", "2")


@dataclass(frozen=True)
class Command:
    """The installed `wattdock`, in a folder and home of its own."""

    home: Path
    folder: Path
    runner_python: Path = Path(sys.executable)

    def env(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        return {
            "HOME": str(self.home),
            "WATTDOCK_HOME": str(self.home / "wattdock"),
            "WATTDOCK_RUNNERS": str(REPO / "tests" / "runners"),
            # How every process of this run, and nothing else, is found again.
            "WATTDOCK_TEST_MARK": str(self.home),
            **(more or {}),
        }

    def words(self, *args: str | Path) -> list[str | Path]:
        python = ("--runner-python", self.runner_python) if args[0] in ("run", "plan", "reproduce") else ()
        return [WATTDOCK, *args, *python]

    def __call__(
        self, *args: str | Path, env: Mapping[str, str] | None = None, timeout: float = 240
    ) -> subprocess.CompletedProcess[str]:
        return run_as_user(self.words(*args), env=self.env(env), cwd=self.folder, timeout=timeout)

    def measured(self, *args: str | Path, env: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Run, and return the result; again where the machine stood still and the meter could not read."""
        for _ in range(3):
            done = self("run", *args, env=env)
            result = self.results()[-1]
            if "was not read in that time" not in (result["energy"]["reason"] or ""):
                break
        assert done.returncode == 0, done.stderr
        return result

    def start(self, *args: str | Path, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
        process: subprocess.Popen[str] = popen_as_user(
            self.words(*args), env=self.env(env), cwd=self.folder, text=True, **options
        )
        return process

    def write(self, text: str) -> str:
        """Write a study file into the folder, and return its name."""
        (self.folder / "x.yaml").write_text(text)
        return "x.yaml"

    def results(self) -> list[dict[str, Any]]:
        files = sorted((self.folder / "results").glob("*/result.json"))
        return [json.loads(file.read_text()) for file in files]

    def processes(self) -> dict[int, str]:
        """Return the command line of every process of this run that still lives, by pid."""
        mark = f"WATTDOCK_TEST_MARK={self.home}".encode()
        alive = {}
        for process in Path("/proc").iterdir():
            try:
                if process.name.isdigit() and mark in (process / "environ").read_bytes():
                    alive[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
        return alive

    def running(self) -> list[str]:
        """Return the command lines of `processes`."""
        return list(self.processes().values())

    def left_after(self, seconds: float = 60) -> list[str]:
        """Return what of `running` does not end within so long; as soon as nothing is left, nothing."""
        deadline = time.monotonic() + seconds
        while (left := self.running()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def interrupt(self, signal_number: int = signal.SIGINT) -> None:
        """Send the signal to the coordinator itself, wherever namespaces put it."""
        for process in Path("/proc").iterdir():
            if process.name.isdigit() and self._is_coordinator(process):
                os.kill(int(process.name), signal_number)

    def _is_coordinator(self, process: Path) -> bool:
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            marked = f"WATTDOCK_TEST_MARK={self.home}".encode() in (process / "environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return False
        return marked and str(WATTDOCK).encode() in words[:2]


def one_line(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """See that a command ended with this code and one clear line, which holds these words."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("wattdock: ")]
    assert (done.returncode, len(lines), "Traceback" in done.stdout + done.stderr) == (code, 1, False), done.stderr
    assert all(word in lines[0] for word in words), lines[0]


def check_of(result: dict[str, Any], name: str) -> tuple[str, str]:
    """Return a check's status and figure in a result."""
    [found] = [check for check in result["audit"]["checks"] if check["name"] == name]
    return found["status"], found["figure"]


def commit_all(folder: Path) -> None:
    """Make a folder a checkout of a commit of all of its files."""
    git = ("git", "-c", "safe.directory=*", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(folder))
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "first")):
        subprocess.run([*git, *words], check=True)


def wait_for(running: subprocess.Popen[str], text: str) -> None:
    """Return once the command says `text` on its error stream."""
    assert running.stderr is not None
    assert any(text in line for line in running.stderr), f"the command ended without a line that holds {text!r}"


def wait_in_pass(running: subprocess.Popen[str], number: int, of: int | None = None) -> None:
    """Return once `--progress-json` tells tokens of this pass, from 1, of so many; those before it are durable."""
    assert running.stderr is not None
    stages = (event["stage"] for event in map(json.loads, running.stderr) if event["event"] == "TokensSeen")
    assert any(stage.startswith(f"pass {number}/{of or ''}") for stage in stages), "the command ended before"


def on_gpus(wattdock: Command, *gpus: fake_nvml.FakeGpu, origin_ns: int | None = None) -> dict[str, str]:
    """Return the variable that gives the run these GPUs, whose course begins at `origin_ns`, or now."""
    folder = fake_nvml.build(wattdock.home)
    fake_nvml.config(folder, gpus=list(gpus), origin_ns=origin_ns)
    for file in filter(Path.is_file, folder.iterdir()):
        give_to_user(file)
    return {"LD_LIBRARY_PATH": str(folder)}
