"""The state of each task of a study, from Slurm's queue and the task's journal. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock.errors import ExitCode
from wattdock.fleet.script import gpus_of
from wattdock.text import listed, pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wattdock.fleet.slurm import QueuedTask
    from wattdock.fleet.task import Ending
    from wattdock.study.tasks import Task

DONE, FAILED, UNFINISHED = "done", "failed", "unfinished"
# Why a task without an `Ending` is unfinished.
KILLED, NOT_BEGUN = "killed", "not begun"


@dataclass(frozen=True)
class TaskState:
    """One task of a study.

    Attributes:
        state: "done"; "failed" where all is measured or has failed; Slurm's word, in small letters, for what is queued;
            "unfinished" for what is neither done nor queued.
        detail: Why it waits, why it ended unfinished, or empty.
        gpus: How many GPUs it needs.
        experiments, done: How many there are, and how many have nothing left to measure.
        passes, measured: Measured passes that are asked for, and that there are, failed experiments' aside.
        label: Its first experiment, and how many more.
        exit_code: With which code it ended unfinished, 130 where it was killed; else 0.
    """

    task: int
    state: str
    node: str
    job: str
    detail: str
    gpus: int
    experiments: int
    done: int
    passes: int
    measured: int
    label: str
    exit_code: int

    @property
    def may_be_late(self) -> bool:
        """Whether the task has ended, and its files may not be visible here yet."""
        return self.state == UNFINISHED and self.detail in (KILLED, NOT_BEGUN)


def states_of(tasks: Sequence[Task], queued: Iterable[QueuedTask], endings: Sequence[Ending | None]) -> list[TaskState]:
    """Return the state of every task.

    Args:
        endings: How each task ended with work left; None without an ending.
    """
    by_number = {waiting.number: waiting for waiting in queued}
    states = []
    for task, ending in zip(tasks, endings, strict=True):
        slurm, experiments, exit_code = by_number.get(task.number), task.study.experiments, 0
        if slurm:
            state, detail = slurm.state.lower(), "" if slurm.reason == "None" else slurm.reason
        elif task.is_done():
            state, detail = (FAILED, pluralize(task.failed, "experiment")) if task.failed else (DONE, "")
        else:
            state = UNFINISHED
            detail = task.begun.problem or (ending.why if ending else KILLED if task.begun.lines else NOT_BEGUN)
            exit_code = ending.exit_code if ending else ExitCode.INTERRUPTED
        measured, passes = task.begun.passes(task.study)
        states.append(
            TaskState(
                *(task.number, state, slurm.node if slurm else "", slurm.job if slurm else "", detail),
                *(gpus_of(task) * experiments[0].node_count, len(experiments), task.done(), passes, measured),
                *(listed([config.label for config in experiments], 1), exit_code),
            )
        )
    return states


def summary(states: Sequence[TaskState]) -> str:
    """Return a line about all tasks: "12 tasks: 4 running, 8 done; 30 of 48 passes"."""
    counts = Counter(state.state for state in states)
    passes = f"{sum(state.measured for state in states)} of {sum(state.passes for state in states)} passes"
    each = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    return f"{pluralize(len(states), 'task')}: {each}; {passes}"
