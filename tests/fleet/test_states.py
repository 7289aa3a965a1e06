"""What a task does, told from Slurm's queue and its own journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleet.test_script import study
from seams.fleet import Ending, QueuedTask, states_of
from seams.study import STORED

from wattdock.fleet import summary
from wattdock.study import StudyFolder
from wattdock.study.tasks import TASKS, begin_tasks, collect, tasks_of

if TYPE_CHECKING:
    from pathlib import Path

    from wattdock.config import Study

FIVE = study(*({"name": f"{at}", "fake": {"step_s": at / 1e3}} for at in range(1, 6)))


def store(path: Path, of: Study, number: int, *statuses: str) -> None:
    """Write what a task's coordinator writes of its one experiment."""
    config = of.experiments[number]
    with StudyFolder.at(path / TASKS / str(number)) as folder:
        folder.begin(of, path.name, machine={}, task=number)
        for at, status in enumerate(statuses):
            folder.note(STORED, experiment=config.experiment_id, status=status, folder=f"{number}-{at}")


def test_the_queue_comes_before_the_journal_and_the_journal_before_how_a_task_ended(tmp_path: Path) -> None:
    """A task that waits again is neither done nor unfinished; one that tells nothing was killed."""
    path = begin_tasks(FIVE, tmp_path)
    for number, statuses in enumerate((("interrupted", "ok"), ("failed",), ("interrupted",), ("interrupted",))):
        store(path, FIVE, number, *statuses)
    queued = [QueuedTask(3, "7_3", "PENDING", "BeginTime", "")]
    endings = [None, None, Ending("told to end", 130, 1, 1), Ending("told to end", 130, 1, 1), None]
    states = states_of(tasks_of(FIVE, path), queued, endings)
    assert [(state.state, state.detail, state.exit_code) for state in states] == [
        *(("done", "", 0), ("failed", "1 experiment", 0), ("unfinished", "told to end", 130)),
        *(("pending", "BeginTime", 0), ("unfinished", "not begun", 130)),
    ]
    assert states_of(tasks_of(FIVE, path)[2:3], [], [None])[0].detail == "killed"
    (path / TASKS / "0" / "journal.jsonl").write_bytes(b"\0\n")
    broken, *others = states_of(tasks_of(FIVE, path), queued, endings)
    assert (broken.state, "journal.jsonl:1" in broken.detail) == ("unfinished", True)
    assert others == states[1:]
    assert summary(states) == "5 tasks: 1 done, 1 failed, 1 pending, 2 unfinished; 2 of 10 passes"


def test_what_tasks_have_stored_is_gathered_once(tmp_path: Path) -> None:
    """And a study whose tasks are all done has ended, until one of them stores more."""
    path = begin_tasks(FIVE, tmp_path)
    for number in range(5):
        store(path, FIVE, number, "interrupted", "ok" if number else "failed")
        for _ in range(2):
            with StudyFolder.at(path) as folder:
                collect(folder, tasks_of(FIVE, path))
    with StudyFolder.at(path) as folder:
        assert [line["event"] for line in folder.lines] == ["study", *["stored"] * 10, "ended"]
        assert {line["folder"] for line in folder.lines[1:-1]} == {f"{task}-{at}" for task in range(5) for at in (0, 1)}
