"""A task is measured by one job at a time, also where a file system of several machines has no locks."""

from __future__ import annotations

from pathlib import Path

import pytest
from refused import raises
from seams.fleet import require_alone

from wattdock.errors import Cause, StoreError

PATH = Path("/shared/results/studies/20260101T000000-x-1")


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for Slurm's squeue: job 7 measures task 3 on a node, and task 4 waits."""
    lines = [f"7_3|3|RUNNING|None|n1|{PATH}/gpus-1.sh", f"7_4|4|PENDING|Resources||{PATH}/gpus-1.sh"]
    program = tmp_path / "squeue"
    program.write_text("\n".join(["#!/bin/sh", *(f"echo '{line}'" for line in lines)]))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


@pytest.mark.usefixtures("squeue")
def test_a_task_that_an_earlier_job_measures_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The later job must not drop what the earlier one is measuring."""
    monkeypatch.setenv("WATTDOCK_JOB", "9_3")
    with raises(StoreError, "7_3", cause=Cause.IN_USE):
        require_alone(PATH, 3)


@pytest.mark.usefixtures("squeue")
@pytest.mark.parametrize(("job", "number"), [("7_3", 3), ("5_3", 3), ("9_4", 4), (None, 3)])
def test_other_tasks_waiting_jobs_and_the_job_itself_hinder_no_task(
    monkeypatch: pytest.MonkeyPatch, job: str | None, number: int
) -> None:
    """The earlier of two jobs goes on; outside of Slurm nobody is asked."""
    monkeypatch.delenv("WATTDOCK_JOB", raising=False)
    if job:
        monkeypatch.setenv("WATTDOCK_JOB", job)
    require_alone(PATH, number)
