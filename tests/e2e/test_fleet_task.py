"""A task of a study as a job array's script runs it, on this machine and without Slurm."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from command import SMALL, wait_for
from unprivileged import run_as_user

if TYPE_CHECKING:
    from pathlib import Path

    from command import Command

INTERRUPTED = 130
# Three load groups; the first one's only pass takes half a minute.
WORK = {"workload": {"max_output_tokens": 5, "batch_size": 1}}
DEFAULTS = {"backend": "fake", "model": "shape:tiny-llama", "repeats": {"passes": 1}, "warmup": {"passes": 0}, **WORK}
STUDY = {
    "name": "x",
    "defaults": DEFAULTS,
    "experiments": [
        {"name": "long", "accelerator": "cpu", "fake": {"step_s": 3.0}},
        {"name": "short", "accelerator": "cpu"},
        {"name": "on a gpu"},
    ],
}
BEGIN = """
import json, sys
from pathlib import Path
from wattdock.config import load_study
from wattdock.study.tasks import begin_tasks
print(begin_tasks(load_study(json.loads(sys.argv[1]), {"runner_python": sys.executable}), Path("results")))
"""


@pytest.fixture
def study(wattdock: Command) -> Path:
    begun = run_as_user([sys.executable, "-c", BEGIN, json.dumps(STUDY)], env=wattdock.env(), cwd=wattdock.folder)
    assert begun.returncode == 0, begun.stderr
    return wattdock.folder / begun.stdout.strip()


def ending(study: Path, task: int) -> dict[str, Any] | None:
    file = study / f"tasks/{task}/ending.json"
    return json.loads(file.read_text()) if file.exists() else None


def test_a_task_measures_its_load_group_and_nothing_else(wattdock: Command, study: Path) -> None:
    """Its result is the study's; done again it measures nothing."""
    for _ in range(2):
        done = wattdock("fleet", "task", study, "1")
        assert done.returncode == 0, done.stderr
        [result] = wattdock.results()
    assert (result["status"], result["config"]["name"], result["study"]["study_id"]) == ("ok", "short", study.name)
    assert (ending(study, 1), sorted(path.name for path in (study / "tasks").iterdir())) == (None, ["1"])


@pytest.mark.parametrize(
    ("task", "code", "words"),
    [("2", 3, "on a gpu needs 1 GPU, and this node gives it no GPU"), ("3", 2, "task 3: {study} has tasks 0 to 2")],
)
def test_a_task_that_cannot_be_measured_here_says_so_in_one_line(
    wattdock: Command, study: Path, task: str, code: int, words: str
) -> None:
    """It does not run on the CPU instead; who asks after the study is told the same."""
    done = wattdock("fleet", "task", study, task)
    assert (done.returncode, done.stderr) == (code, f"wattdock: {words.format(study=study.name)}\n")
    assert not wattdock.results()
    if told := ending(study, int(task)):
        assert (told["why"], told["exit_code"]) == (words, code)


def test_a_task_whose_machine_is_leased_says_by_whom_and_ends(wattdock: Command, study: Path) -> None:
    """Slurm may give a node to somebody who measures without it."""
    slow = ("--set", "fake.step_s=0.05", "--passes", "1000", "--set", "warmup.passes=0", "--max-output-tokens", "4")
    other = wattdock.start("run", *SMALL, *slow, stderr=subprocess.PIPE)
    wait_for(other, "tokens in")
    done = wattdock("fleet", "task", study, "1")
    assert (done.returncode, "exclusive use" in done.stderr.splitlines()[-1]) == (3, True)
    told = ending(study, 1)
    assert told
    assert (f"wattdock: {told['why']}", told["exit_code"]) == (done.stderr.splitlines()[-1], 3)
    wattdock.interrupt()
    other.communicate(timeout=240)


def test_a_task_that_is_told_to_end_again_and_again_without_a_new_pass_says_what_to_do(
    wattdock: Command, study: Path
) -> None:
    """So that nothing loops for ever; a job that somebody queues after that has its own three times."""
    said = []
    for restarts, time in ((0, 1), (1, 2), (2, 3), (0, 1)):
        env = {"SLURM_RESTART_COUNT": str(restarts)}
        running = wattdock.start("fleet", "task", str(study), "0", env=env, stderr=subprocess.PIPE)
        wait_for(running, "begins (left: ")
        wattdock.interrupt(signal.SIGTERM)
        _, err = running.communicate(timeout=240)
        assert running.returncode == INTERRUPTED, err
        told = ending(study, 0)
        assert told
        assert (told["exit_code"], told["passes"], told["without_progress"]) == (INTERRUPTED, 0, time)
        said.append("told to end 3 times without a new pass; raise `time:` of `fleet:`" in err)
    assert said == [False, False, True, False]
