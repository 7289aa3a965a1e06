"""What a real neighbour, or a model, tries against a real command: it goes on, or ends in one line."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from command import SMALL, wait_for
from contract.runner_process import PYTORCH_PYTHON
from e2e.test_fleet_task import BEGIN
from e2e.test_pytorch import write_checkpoint
from unprivileged import OTHER_UID, UID, popen_as_user

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from command import Command

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="two real users need root")
CONFIG, PREFLIGHT, RUNNER, INTERRUPTED = 2, 3, 5, 130
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
    """The neighbour's study is equal and open to all: a script there can be changed before sbatch reads it."""
    results = wattdock.folder / "results"
    results.mkdir()
    results.chmod(0o1777)
    code, out, err = as_user(wattdock, sys.executable, "-c", BEGIN, json.dumps(STUDY), uid=OTHER_UID)
    assert code == 0, err
    as_user(wattdock, "/bin/chmod", "-R", "a+rwX", results / "studies", uid=OTHER_UID)
    done = wattdock("run", "--on", "slurm", "--resume", "fake", env=slurm)
    assert (done.returncode, f" {OTHER_UID}" in done.stderr) == (CONFIG, True), done.stderr
    assert not (wattdock.home / "tmp/sent").exists()
    assert not list((wattdock.folder / out.strip()).glob("*.sh"))
    for words in (
        ("status", "fake"),
        ("cancel", "fake"),
        ("task", wattdock.folder / out.strip(), "0"),
    ):
        done = wattdock("fleet", *words, env=slurm)
        assert (done.returncode, f" {OTHER_UID}" in done.stderr) == (CONFIG, True), done.stderr


def test_a_script_is_written_for_its_owner_alone_whatever_the_umask(wattdock: Command, slurm: dict[str, str]) -> None:
    """On many clusters the umask lets the group write; whoever holds the script open changes what is submitted."""
    words = [str(word) for word in wattdock.words("run", "x.yaml", "--on", "slurm")]
    as_user(wattdock, "/bin/sh", "-c", 'umask 002; exec "$@"', "sh", *words, env=slurm)
    assert (wattdock.home / "tmp/sent").stat().st_size
    assert (wattdock.home / "tmp/mode").read_text() == "644\n"


# Each makes a model's own template or tokenizer compute for ever: in Python, and in a library that holds Python's lock.
ENDLESS = {
    "a template": ("chat_template", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
    "a tokenizer": ("pre_tokenizer", {"Regex": r"(a|a|a?)+$x|(?:(.*)*)*y|(\w+\s?)+$z"}),
}


@pytest.mark.skipif(not PYTORCH_PYTHON.exists(), reason=f"no PyTorch environment at {PYTORCH_PYTHON}")
@pytest.mark.parametrize("bomb", ENDLESS)
def test_a_model_that_computes_for_ever_before_its_first_token_ends_in_one_line(wattdock: Command, bomb: str) -> None:
    """Within `timeouts`; the coordinator itself runs neither templates nor tokenizers."""
    model, (key, value) = wattdock.folder / "model", ENDLESS[bomb]
    write_checkpoint(model)
    name = "tokenizer_config.json" if isinstance(value, str) else "tokenizer.json"
    settings = json.loads((model / name).read_text())
    split = {"type": "Split", "pattern": value, "behavior": "Isolated", "invert": False}
    settings[key] = settings[key] + value if isinstance(value, str) else split
    (model / name).write_text(json.dumps(settings))
    limits = ("--set", "timeouts.stall_s=3", "--set", "timeouts.heartbeat_s=8", "--set", "timeouts.stop_s=2")
    words = ("run", "--backend", "pytorch", "--model", "./model", "--passes", "1", "--set", "warmup.passes=0", *limits)
    done = replace(wattdock, runner_python=PYTORCH_PYTHON)(*words)
    assert done.returncode == RUNNER, done.stderr
    [result] = wattdock.results()
    assert result["error"]["cause"] == "hang"
    assert wattdock.left_after() == []


@AS_ROOT
def test_nobody_else_reads_what_a_run_has_in_its_environment_nor_in_a_core(wattdock: Command) -> None:
    """A core lies in the working folder, which others may share; where the machine keeps cores elsewhere, none does."""
    wattdock.folder.chmod(0o1777)
    as_user(wattdock, "/bin/sh", "-c", "umask 0; : >core", uid=OTHER_UID)
    words = [
        str(word)
        for word in wattdock.words(
            "run", *SMALL, "--passes", "1000", "--set", "fake.step_s=0.05", "--set", "warmup.passes=0"
        )
    ]
    dumping = ["/bin/sh", "-c", 'ulimit -c unlimited; exec "$@"', "sh", *words]
    pipes: dict[str, Any] = {"stderr": -1, "text": True}
    with popen_as_user(dumping, env=wattdock.env(), cwd=wattdock.folder, **pipes) as running:
        wait_for(running, "tokens in")
        pids = wattdock.processes()
        files = [f"/proc/{pid}/{name}" for pid in pids for name in ("environ", "mem", "maps")]
        read = ("/bin/sh", "-c", 'for file; do cat "$file"; done', "sh")
        _, out, err = as_user(wattdock, *read, *files, uid=OTHER_UID)
        assert (len(pids) >= 3, out, err.count("Permission denied")) == (True, "", len(files))
        wattdock.interrupt(signal.SIGABRT)
        assert running.stderr
        running.stderr.read()
    assert wattdock.left_after() == []
    for core in wattdock.folder.glob("core*"):
        state = core.stat()
        assert (state.st_size == 0 or state.st_uid == UID, state.st_mode & 0o077 if state.st_size else 0) == (True, 0)
        core.unlink()


@AS_ROOT
def test_a_coordinator_that_was_stopped_is_waited_for_no_longer_than_asked_and_named(
    wattdock: Command, other: Command
) -> None:
    """It measures nothing and lets go of nothing; once it goes on, it ends as it would have."""
    leases = {"WATTDOCK_LEASES": str(wattdock.home / "leases")}
    slow = ("--passes", "1000", "--set", "fake.step_s=0.05", "--set", "warmup.passes=0", "--max-output-tokens", "9")
    with wattdock.start("run", *SMALL, *slow, env=leases, stderr=-1) as running:
        wait_for(running, "tokens in")
        wattdock.interrupt(signal.SIGSTOP)
        as_other: dict[str, Any] = {"env": leases, "uid": OTHER_UID, "reach": [wattdock.home], "stderr": -1}
        waiting = other.start("run", *SMALL, "--wait", "1", **as_other)
        said = waiting.communicate(timeout=240)[1]
        assert (waiting.returncode, "exclusive use" in said) == (PREFLIGHT, True), said
        wattdock.interrupt(signal.SIGINT)
        wattdock.interrupt(signal.SIGCONT)
        err = running.communicate(timeout=240)[1]
    assert running.returncode == INTERRUPTED, err
    assert wattdock.left_after() == []
