"""One task, as a script runs it on a node: measure a load group, and queue it again where it was told to end."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from wattdock.config import load_study
from wattdock.errors import ConfigError, ExitCode, WattdockError
from wattdock.execution import Measurement, NodeTask, RunOptions, measure
from wattdock.files import MAX_JSON_BYTES, write_whole
from wattdock.fleet import slurm
from wattdock.fleet.script import gpus_of
from wattdock.host import folders
from wattdock.opening import read_regular
from wattdock.secrets import withheld
from wattdock.study import events, find_study
from wattdock.study.tasks import results_of, tasks_of
from wattdock.text import from_json, json_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from wattdock.config import Study
    from wattdock.execution import MachineAccess
    from wattdock.store import StoredResult
    from wattdock.study.tasks import Task

# In a task's folder.
ENDING = "ending.json"
# After how many endings without a new pass a task is not queued again: it needs a person's attention.
MOST_WITHOUT_PROGRESS = 3


@dataclass(frozen=True)
class Ending:
    """Why a task ended with work left.

    Attributes:
        passes: The most passes that were ever measured; on another machine a task begins anew.
        without_progress: Endings in a row, of one job, that came before a new pass.
    """

    why: str
    exit_code: int
    passes: int
    without_progress: int

    @classmethod
    def read(cls, folder: Path) -> Ending | None:
        """Return how the task of this folder ended; None where the task was killed, or the file cannot be read."""
        try:
            return cls(**from_json(read_regular(folder / ENDING, limit_bytes=MAX_JSON_BYTES)))
        except (OSError, ValueError, TypeError):
            return None

    @classmethod
    def write(cls, task: Task, why: str, exit_code: int, earlier: Ending | None) -> Ending:
        """Note in a task's folder why the task ends now, and return that.

        Args:
            earlier: How the same job ended before; None where it did not.
        """
        # A copy reads the journal anew.
        passes = replace(task).begun.passes(task.study)[0]
        most = earlier.passes if earlier else 0
        without = 1 + (earlier.without_progress if earlier and passes <= most else 0)
        if exit_code == ExitCode.INTERRUPTED and without >= MOST_WITHOUT_PROGRESS:
            why = f"told to end {without} times without a new pass; raise `time:` of `fleet:`"
        ending = cls(withheld(why), int(exit_code), max(passes, most), without)
        write_whole(task.path / ENDING, json_text(asdict(ending)).encode())
        return ending


def run_task(
    path: Path,
    number: int,
    *,
    retry_failed: bool,
    emit: events.Emit,
    reach: Callable[[Study], AbstractContextManager[MachineAccess]],
) -> list[StoredResult]:
    """Measure what task `number` of the study at `path` has left, and return its results.

    Where Slurm told it to end, it is queued again, unless it has been so several times without a new pass.

    Args:
        reach: Returns a block that yields how a study reaches this node and, where it names any, others.

    Raises:
        ConfigError: There is no such task.
        PreflightError, LaunchError, StoreError: It cannot be measured here.
        KeyboardInterrupt: It was told to end.
    """
    output_dir, measurement = results_of(path), Measurement()
    study = load_study(find_study(path.name, output_dir).settings, {})
    tasks = tasks_of(study, path)
    if not 0 <= number < len(tasks):
        raise ConfigError(f"task {number}: {path.name} has tasks 0 to {len(tasks) - 1}")
    task = tasks[number]
    task.path.mkdir(0o755, exist_ok=True)
    restarted = bool(int(os.environ.get("SLURM_RESTART_COUNT", "0")))
    # A job that somebody has queued since counts anew.
    earlier = Ending.read(task.path) if restarted else None
    (task.path / ENDING).unlink(missing_ok=True)
    try:
        node = NodeTask(task.path, gpus_of(task))
        # The job itself starts again without the flag: a failure is retried once.
        retry_failed = retry_failed and not restarted
        options = RunOptions(output_dir, folders.wattdock_home(), retry_failed=retry_failed, task=node)
        with reach(task.study) as machine:
            measure(task.study, options, measurement, emit=emit, machine=machine)
    except KeyboardInterrupt:
        job, ending = os.environ.get("WATTDOCK_JOB"), Ending.write(task, "told to end", ExitCode.INTERRUPTED, earlier)
        again = _queue_again(job) if job and ending.without_progress < MOST_WITHOUT_PROGRESS else ""
        emit(events.Note(f"{ending.why}: what was measured is stored{again}"))
        raise
    except Exception as error:
        is_bug, code = not isinstance(error, WattdockError), getattr(error, "exit_code", ExitCode.BUG)
        Ending.write(task, f"a bug in wattdock: {error}" if is_bug else str(error), code, earlier)
        raise
    if not replace(task).is_done():
        why = "ended by a failure under on_failure: stop"
        Ending.write(task, why, ExitCode.RUNNER, earlier)
    return measurement.results


def _queue_again(job: str) -> str:
    """Queue the task again, and return in words whether that was done."""
    try:
        return ", and the task is queued again" if slurm.requeue(job) else "; Slurm or a person ends the task"
    except WattdockError as error:
        return f"; cannot queue the task again: {error}"
