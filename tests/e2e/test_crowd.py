"""The live page among neighbours who hold locks and write long texts: its owner is served all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from command import Command, wait_for
from make.served import Served, served
from unprivileged import OTHER_UID, UID, popen_as_user

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="two real users need root")
# Holds the locks of twenty studies, and writes what events may hold into each.
LOCKS = """
import fcntl, json, os, sys
held = []
for number in range(20):
    folder = f"results/studies/2099010{number % 10}T000000-{number}-1"
    os.makedirs(folder + "/records", exist_ok=True)
    held.append(open(folder + "/.lock", "w"))
    fcntl.flock(held[-1], fcntl.LOCK_EX)
    at = {"at_utc": "2026-01-01T00:00:00+00:00"}
    watts = {f"GPU-{number}-{gpu}": 1.5 for gpu in range(250)}
    failed = {"event": "ExperimentFailed", "experiment": "e" * 3_000, "message": "m" * 4_000, "cause": None}
    stored = {"event": "ResultStored", "experiment": "e", "experiment_id": "i", "folder": "f"}
    beat = {"event": "TokensSeen", "stage": "p" * 1_000, "output_tokens": 1, "elapsed_s": 1.0, "watts": watts}
    lines = [{"event": "PassStarted", "stage": "x" * 7_000}] * 80 + [failed | {"stage": "s", "kind": "k"}] * 20
    lines += [stored | {"status": f"{key}" * 2_000} for key in range(20)] + [beat] * 20
    with open(folder + "/records/events.jsonl", "w") as file:
        file.writelines(json.dumps(line | at) + "\\n" for line in lines)
print("here", file=sys.stderr, flush=True)
sys.stdin.read()
"""


@contextmanager
def neighbour(wattdock: Command, uid: int, script: str, *words: Any) -> Iterator[None]:
    """Run a script as another user in the command's folder until the block ends, from when it says that it is here."""
    command = [sys.executable, "-c", script, *map(str, words)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with popen_as_user(command, env={"HOME": str(wattdock.home)}, cwd=wattdock.folder, uid=uid, **pipes) as process:
        try:
            wait_for(process, "here")
            yield
        finally:
            process.kill()


def test_a_neighbour_s_twenty_runs_make_no_large_event_and_hide_no_run(wattdock: Command) -> None:
    """Events had 4 kB and then 32 MB."""
    for name in ("results", "results/studies"):
        (wattdock.folder / name).mkdir()
        os.chown(wattdock.folder / name, UID, UID)
        (wattdock.folder / name).chmod(0o1777)
    own = wattdock.folder / "results/studies/20200101T000000-own-1"
    (own / "records").mkdir(parents=True)
    for folder in (own, own / "records"):
        os.chown(folder, UID, UID)
    lock = f"import fcntl, sys; file = open({str(own / '.lock')!r}, 'w'); fcntl.flock(file, fcntl.LOCK_EX)"
    holding = f"{lock}\nprint('here', file=sys.stderr, flush=True); sys.stdin.read()"
    with (
        neighbour(wattdock, OTHER_UID, LOCKS),
        neighbour(wattdock, UID, holding),
        served(wattdock, "--port", "0") as server,
    ):
        # What is seen at the first look has its beginning still before it.
        time.sleep(2)
        history, update = told(server)
        assert len(history) < 1_000_000
        assert len(update) < 400_000
        runs = json.loads(update)["runs"]
        assert "20200101T000000-own-1" in [run["study"] for run in runs]
        assert 0 < len(runs) <= 9
        assert any(run["stage"] for run in runs)
        assert len(server.get("/metrics").content) < 200_000


def told(server: Served) -> list[str]:
    """Return what the page is first told: the history and an update."""
    import httpx

    with httpx.stream("GET", server.url + "/events", timeout=60) as stream:
        lines = (line.removeprefix("data: ") for line in stream.iter_lines() if line.startswith("data: "))
        return [next(lines), next(lines)]
