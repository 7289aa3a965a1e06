"""What a study of 1,000 points costs who submits it to a cluster: queued by a real Slurm, seen, and gathered."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overheads import Row, row, timed_ms

from wattdock.config import load_study
from wattdock.errors import PreflightError
from wattdock.launch.runners import REPO
from wattdock.study import StudyFolder, find_study
from wattdock.study.tasks import tasks_of

sys.path.append(str(REPO / "tests"))

from command import Command
from slurm.cluster import Cluster, cluster, missing
from unprivileged import give_to_user, user_home

if TYPE_CHECKING:
    from collections.abc import Iterator

TASKS = 1_000
# Held, so that nothing is measured meanwhile.
STUDY = f"""\
defaults: {{backend: pytorch, model: 'shape:tiny-llama', accelerator: cpu, isolation: experiment}}
sweep: {{workload.batch_size: {list(range(1, TASKS + 1))}}}
fleet: {{prepare: none, more: [--hold]}}
"""
MOST_SUBMIT_MS, MOST_COLLECT_MS = 10_000, 5_000


def fleet() -> list[Row]:
    """Return how long submission, a look and collection take.

    Raises:
        PreflightError: Slurm is not installed here.
    """
    if why := missing():
        raise PreflightError(f"--only fleet {why}")
    with tempfile.TemporaryDirectory() as scratch:
        home = user_home(Path(scratch))
        (home / "work").mkdir()
        give_to_user(home / "work")
        wattdock = Command(home, home / "work")
        with cluster(home, wattdock.env()) as slurm:
            submitted_ms = submit(wattdock, slurm)
            look_ms = timed_ms(partial(call, wattdock, slurm, "fleet", "status", "x"), repeats=3)
            call(wattdock, slurm, "fleet", "cancel", "x")
            store(wattdock)
            collected_ms = timed_ms(partial(call, wattdock, slurm, "fleet", "collect", "x"), repeats=1)
    points = f"{TASKS:,} points"
    return [
        row(f"run --on slurm, {points}, to the last job", (submitted_ms,) * 3, most_ms=MOST_SUBMIT_MS),
        row(f"fleet status, {points}", look_ms),
        row(f"fleet collect, {points}", collected_ms, most_ms=MOST_COLLECT_MS),
    ]


@contextmanager
def started(wattdock: Command, slurm: Cluster, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a command as the unprivileged user's, on the cluster."""
    how: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "within": slurm.within}
    with wattdock.start(*words, env=slurm.env, **how) as running:
        yield running


def call(wattdock: Command, slurm: Cluster, *words: str) -> None:
    """Run a command to its end."""
    with started(wattdock, slurm, *words) as running:
        _, err = running.communicate()
    assert running.returncode == 0, err


def submit(wattdock: Command, slurm: Cluster) -> float:
    """Return how many milliseconds pass until the study's last job is queued, from the start of the command."""
    begun_s = time.perf_counter()
    with started(wattdock, slurm, "run", wattdock.write(STUDY), "--on", "slurm") as running:
        assert running.stderr
        lines = iter(running.stderr.readline, "")
        assert any(line.startswith("job ") for line in lines)
        taken_ms = (time.perf_counter() - begun_s) * 1e3
        # It follows the tasks; what it was started by passes no signal on.
        for pid in wattdock.processes():
            if "--on slurm" in wattdock.processes().get(pid, ""):
                subprocess.run(["kill", f"-{signal.SIGINT.value}", str(pid)], check=False)
        running.communicate()
    return taken_ms


def store(wattdock: Command) -> None:
    """Leave what tasks leave: a journal and a result each, copies of a stored sample."""
    results = wattdock.folder / "results"
    begun = find_study("x", results)
    sample = json.loads((REPO / "tests" / "data" / "result.json").read_text())
    sample["study"] = {"study_id": begun.path.name, "attempt": 1}
    for task in tasks_of(load_study(wattdock.folder / "x.yaml", {}), begun.path):
        [config] = task.study.experiments
        folder = results / f"20260101T000000-fake-{task.number:08x}"
        folder.mkdir()
        (folder / "result.json").write_text(json.dumps(sample | {"experiment_id": config.experiment_id}))
        with StudyFolder.at(task.begun.path) as of_task:
            of_task.begin(task.study, begun.path.name, machine={}, task=task.number)
            of_task.note("stored", experiment=config.experiment_id, status="ok", folder=folder.name)
    subprocess.run(["chown", "-R", "--reference", wattdock.folder, results], check=True)
