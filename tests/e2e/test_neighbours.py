"""Pipes, links and locks that a real neighbour puts where a command looks: it goes on, or says what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from command import SMALL, Command, one_line, wait_for
from make import models as tiny
from unprivileged import UID, kernel_protection, popen_as_user

from wattdock.files import new_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="two real users need root")
CONFIG, STORE = 2, 7
# What would wait waits for ever.
HANGS_S = 120
# Folders that all may write to.
RESULTS, TEMPORARY = "results", "../tmp"
TABLES = ("requests", "steps", "timeline")


@pytest.fixture(params=[0, 1], ids=["kernel guards nothing", "kernel guards"])
def shared(request: pytest.FixtureRequest, wattdock: Command) -> Iterator[Command]:
    """Results and temporary files in folders that all may write to."""
    for name in (RESULTS, TEMPORARY, f"{RESULTS}/studies"):
        folder = wattdock.folder / name
        folder.mkdir(exist_ok=True)
        os.chown(folder, 0, 0)
        folder.chmod(0o1777)
    with kernel_protection(request.param):
        yield wattdock


def name_of_boot(scratch: Path) -> str:
    """Return what the end of every new folder's name begins with."""
    with new_folder(scratch, ".") as folder:
        return folder.path.name[1:5]


@contextmanager
def neighbour(wattdock: Command, script: str) -> Iterator[subprocess.Popen[str]]:
    """Run a shell script as another user in the command's folder; it ends with the block."""
    env = {"HOME": str(wattdock.home), "BOOT": name_of_boot(wattdock.home.parent)}
    words = ["/bin/sh", "-ec", script]
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    with popen_as_user(words, env=env, cwd=wattdock.folder, uid=UID + 1, **pipes) as process:
        yield process
        assert process.stdin
        process.stdin.close()


def plant(wattdock: Command, script: str) -> None:
    with neighbour(wattdock, script) as process:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err


def test_what_a_neighbour_puts_into_shared_folders_stops_no_run_and_no_list(shared: Command) -> None:
    """In the place of a lock, a result, a restart's tables, a journal."""
    plant(
        shared,
        """cd ../tmp
        mkdir wattdock-run-x; mkfifo wattdock-run-x/lock; chmod -R 777 wattdock-run-x
        mkfifo "wattdock-run-${BOOT}0001"; ln -s /etc "wattdock-run-${BOOT}0002"
        mkdir -m 1700 "wattdock-run-${BOOT}0003"; mkdir -m 1777 "wattdock-${BOOT}0004"
        cd ../work/results; mkdir 20260101T000000-fake-12345678; mkfifo -m 666 20260101T000000-fake-12345678/result.json
        mkdir studies/20990101T000000-fake-12345678; mkfifo -m 666 studies/20990101T000000-fake-12345678/journal.jsonl
        mkdir -m 1700 ".20990101T000000-fake-12345678.${BOOT}0001"
        """,
    )
    run = shared("run", *SMALL, "--resume", timeout=HANGS_S)
    assert run.returncode == 0, run.stderr
    plant(
        shared,
        """cd results; ours=$(ls | grep -v -e 12345678 -e studies); theirs=20260101T000001-fake-87654321
        cp -r "$ours" $theirs; cd $theirs/restarts/0
        for name in requests steps timeline; do rm $name.parquet; mkfifo -m 666 $name.parquet; done
        """,
    )
    listed = shared("results", "list", timeout=HANGS_S)
    assert (listed.returncode, "2 results" in listed.stdout) == (0, True), listed.stderr
    assert "12345678/result.json: " in listed.stderr
    counts = ", ".join(f"(SELECT count(DISTINCT folder) FROM {view}) AS {view}" for view in TABLES)
    asked = shared("results", "query", f"SELECT {counts}", "--json", timeout=HANGS_S)
    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout) == [dict.fromkeys(TABLES, 1)]
    assert all(f"restarts/0/{view}.parquet: " in asked.stderr for view in TABLES)
    one_line(shared("show", "20260101T000000", timeout=HANGS_S), STORE, "result.json: ", "is not a regular file")
    one_line(shared("report", "20260101T000001", timeout=HANGS_S), STORE, "restarts/0", "is not a regular file")
    one_line(shared("report", "results", timeout=HANGS_S), STORE, "12345678/result.json", "is not a regular file")


@pytest.mark.parametrize("shared", [0], indirect=True)
def test_a_pipe_that_a_person_names_is_refused(shared: Command) -> None:
    """Where a study, prompts, a lock of images, a bundle or a model should be."""
    make = "mkdir open results/b; chmod 1777 open; mkfifo -m 666 results/pipe results/pipe.tar results/b/bundle.json"
    plant(shared, make.replace("mkdir open", "cd results; mkdir open").replace("results/", ""))
    pipe = "results/pipe"
    one_line(shared("plan", pipe, timeout=HANGS_S), CONFIG, "is not a regular file")
    prompts = ("--set", f"workload.prompts.source={shared.folder}/{pipe}")
    one_line(shared("plan", *SMALL, *prompts, timeout=HANGS_S), CONFIG, "is not a regular file")
    lock = {"WATTDOCK_IMAGES_LOCK": str(shared.folder / pipe)}
    one_line(shared("images", "pull", "vllm", env=lock, timeout=HANGS_S), CONFIG, "is not a regular file")
    one_line(shared("bundle", "verify", f"{pipe}.tar", timeout=HANGS_S), STORE, "is not a regular file")
    one_line(shared("bundle", "verify", "results/b", timeout=HANGS_S), STORE, "bundle.json", "link or device")
    for name in ("config.json", "model.safetensors"):
        model = tiny.write(shared.folder / f"model-of-{name}")
        (model / name).unlink()
        os.mkfifo(model / name)
        os.chown(model / name, UID + 1, UID + 1)
        refused = shared("plan", *SMALL[:2], "--model", f"./{model.name}", timeout=HANGS_S)
        one_line(refused, CONFIG, name, "is not a regular file")


def test_a_neighbour_who_reads_everything_can_lock_nothing_that_a_run_waits_for(wattdock: Command) -> None:
    """The journal can be read, and so locked; a run that goes on with its study does not care."""
    locking = "for path in $(find .. -type f -o -type d 2>/dev/null); do flock -n $path true && echo $path; done; true"
    words = ("run", *SMALL, "--passes", "3", "--set", "fake.step_s=0.05", "--max-output-tokens", "20", "--resume")
    with wattdock.start(*words, stderr=subprocess.PIPE) as running:
        wait_for(running, "tokens in")
        with neighbour(wattdock, locking) as process:
            locked = process.communicate(timeout=HANGS_S)[0].split()
        wattdock.interrupt()
        assert running.stderr
        running.stderr.read()
    assert [path for path in locked if path.endswith("/journal.jsonl")]
    assert not [path for path in locked if path.endswith("lock") or "/tmp/wattdock-" in path]
    with neighbour(wattdock, "flock results/studies/*/journal.jsonl sh -c 'echo held; read end'") as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        resumed = wattdock(*words, timeout=HANGS_S)
    assert resumed.returncode == 0, resumed.stderr
