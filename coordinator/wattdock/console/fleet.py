"""`wattdock fleet …`, and `run` and `plan` with `--on slurm`."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattdock.console.exits import exit_if_failed, fail, interruptible
from wattdock.console.options import RESULTS, Json, LogTo, OutputDir, Quiet, in_help, logger_to, named, typed_again
from wattdock.console.views import show
from wattdock.errors import Cause, ConfigError, ExitCode, LaunchError, PreflightError
from wattdock.files import STUDIES, real_path
from wattdock.output import one_line, say
from wattdock.text import pluralize, without_timestamp

if TYPE_CHECKING:
    from wattdock.config import Study
    from wattdock.console.progress import Progress
    from wattdock.fleet import Fleet, TaskState
    from wattdock.store import StoredResult
    from wattdock.study import EarlierStudy

app = typer.Typer(help="Show and end the tasks of studies on a cluster.")
POLL_S = 5.0
# How late a shared file system may show what another machine has written (nfs(5): acregmax, acdirmax, and a margin).
LATE_S = 65.0
# How many tasks are shown while a study is followed: a terminal has few more lines.
MOST_ROWS = 20
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A study that `run --on slurm` began, or the beginning of its name.")
]


def plan_on_slurm(study: "Study", output_dir: Path, *, as_json: bool) -> None:
    """Show what `run_on_slurm` would submit, and how long it takes by earlier results; submit nothing."""
    from wattdock.fleet import jobs_of, process_choices
    from wattdock.host import folders
    from wattdock.planning import forecast
    from wattdock.study.tasks import require_tasks

    process_choices(study)
    folders.require_writable(output_dir / STUDIES, setting="--output-dir")
    path = real_path(output_dir) / STUDIES / f"TIME-{study.name}-N"
    tasks = require_tasks(study, path)
    jobs, lines = jobs_of(study, tasks, path=path), []
    for job in jobs:
        expected = forecast([config for number in job.tasks for config in tasks[number].study.experiments], output_dir)
        passes = pluralize(expected.passes, "pass", "passes")
        lines.append(f"{job.file_name}: {job.description}, {passes}, expected one after the other: {expected.total}")
    if as_json:
        show([asdict(job) | {"expected": line} for job, line in zip(jobs, lines, strict=True)], as_json=True)
        return
    scripts = [line for job in jobs for line in (f"{job.file_name}:", *job.script.splitlines(), "")]
    total = forecast(study.experiments, output_dir).total
    for line in (*scripts, *lines, f"{pluralize(len(jobs), 'job')}, expected in all: {total}"):
        say(line)


def run_on_slurm(
    study: "Study",
    progress: "Progress",
    *,
    output_dir: Path,
    resume: "bool | EarlierStudy",
    retry_failed: bool,
    as_json: bool,
    log_to: LogTo = None,
) -> "list[StoredResult]":
    """Queue what is left of a study, follow its tasks to their end, and show its results as `run` does."""
    from wattdock.fleet import Fleet
    from wattdock.study import study_to_resume

    # What cannot be logged to is refused before anything is queued.
    log = logger_to(log_to)
    begun = study_to_resume(study, output_dir, resume=resume, in_tasks=True)
    fleet = Fleet(study, begun.path, retry_failed=retry_failed) if begun else Fleet.begin(study, output_dir)
    name = without_timestamp(fleet.path.name)
    shown = named(name, output_dir)
    again = typed_again() if begun else f"wattdock run --on slurm --resume {shown}"
    with interruptible(lambda: f"the tasks go on; to follow them: {again}; to end them: wattdock fleet cancel {shown}"):
        progress.say(f"{name}: {fleet.path}")
        fleet.submit(progress)
        states = _follow(fleet, progress)
    found = fleet.collect()
    results = [stored.result for stored in found]
    show(found, as_json=as_json, errors=False, more=f"wattdock show {shown} --checks")
    log(found)
    if not as_json:
        say(f"next: wattdock show {shown}, wattdock report {shown}" if found else "nothing was measured")
    models = {", ".join(sorted(set(of.environment.gpu_names))) for of in results if of.environment} - {""}
    if len(models) > 1:
        say(f"wattdock: measured on different GPU models: {'; '.join(sorted(models))}; choose by constraint", err=True)
    left = [state for state in states if state.state == "unfinished"]
    for state in left[:MOST_ROWS]:
        say(f"wattdock: task {state.task}: {state.detail}; log: {fleet.log(state.task)}", err=True)
    # An interrupted experiment goes on, or is unfinished with its task.
    exit_if_failed(result for result in results if result.status != "interrupted")
    if left:
        fail(f"unfinished: {pluralize(len(left), 'task')}; to go on: {again}", ExitCode(left[0].exit_code))
    return found


def _follow(fleet: "Fleet", progress: "Progress") -> "list[TaskState]":
    """Show how the tasks go on until Slurm has none of them; return their states then."""
    from rich.console import Group
    from rich.text import Text

    from wattdock.console.views.tables import tasks_view
    from wattdock.fleet import summary

    last, queued_s = "", time.monotonic()
    while True:
        states: list[TaskState] = []
        try:
            states = fleet.states()
            line = summary(states)
        except (LaunchError, PreflightError) as error:
            # A controller may be started again; its jobs go on.
            line = f"{error}; asked again every {POLL_S:g} s"
        if line != last:
            progress.show(line, Group(*(tasks_view(states, most=MOST_ROWS) if states else [Text(one_line(line))])))
            last = line
        if not states or any(state.job for state in states):
            queued_s = time.monotonic()
        elif time.monotonic() - queued_s > LATE_S or not any(state.may_be_late for state in states):
            progress.close()
            return states
        time.sleep(POLL_S)


@app.command(epilog=in_help("fleet status study", "fleet status study-2 --json"))
def status(name: Name, output_dir: OutputDir = RESULTS, as_json: Json = False) -> None:
    """Show the state of each task of a study.

    A task waits, runs, is done, or has ended unfinished.
    """
    show(_found(name, output_dir).states(), as_json=as_json)


@app.command(epilog=in_help("fleet cancel study"))
def cancel(name: Name, output_dir: OutputDir = RESULTS) -> None:
    """End all tasks of a study, waiting and running.

    What was measured stays, and `run --on slurm --resume NAME` continues from there.
    """
    fleet = _found(name, output_dir)
    what = "its tasks were told to end" if fleet.cancel() else "none of its tasks is queued"
    say(f"{without_timestamp(fleet.path.name)}: {what}")


@app.command(hidden=True)
def task(
    folder: Path,
    number: int,
    retry_failed: Annotated[bool, typer.Option("--retry-failed")] = False,
    quiet: Quiet = False,
) -> None:
    """Measure one task of a study: what a job array's script runs."""
    from wattdock.console.machine import machine_of
    from wattdock.console.progress import progress_for
    from wattdock.fleet import run_task

    progress = progress_for(quiet=quiet)
    with interruptible(lambda: "what was measured is stored"):
        results = run_task(real_path(folder), number, retry_failed=retry_failed, emit=progress, reach=machine_of)
    exit_if_failed(stored.result for stored in results)


def _found(name: str, output_dir: Path) -> "Fleet":
    """Return the study on a cluster that a person named.

    Raises:
        ConfigError: There is none, or it was begun on this machine.
    """
    from wattdock.config import load_study
    from wattdock.fleet import Fleet
    from wattdock.study import find_study

    begun = find_study(name, output_dir)
    if not begun.in_tasks:
        raise ConfigError(
            f"{begun.name} was begun on this machine and has no tasks",
            f"see wattdock show {begun.name}",
            cause=Cause.OTHER_MACHINE,
        )
    return Fleet(load_study(begun.settings, {}), begun.path)
