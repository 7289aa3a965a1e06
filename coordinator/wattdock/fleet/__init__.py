"""Measure a study's load groups as tasks on the nodes of a cluster, each by a coordinator of its own.

In: a `Study` with its `fleet:` section, a folder for results that every node shares. Out: scripts of job arrays
(`jobs_of`), queued by Slurm (`Fleet.submit`); what each task does (`Fleet.states`, `TaskState`), and in the end the
study's journal as if one coordinator had measured it. Scripts run `run_task`.
Slurm says what is queued, the tasks' journals say what is done; nothing else is kept.
Must not know: how experiments are measured, terminals.
"""

from wattdock.fleet.fleet import Fleet, process_choices
from wattdock.fleet.script import Job, jobs_of
from wattdock.fleet.states import TaskState, summary
from wattdock.fleet.task import run_task

__all__ = ["Fleet", "Job", "TaskState", "jobs_of", "process_choices", "run_task", "summary"]
