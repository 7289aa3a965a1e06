"""`wattdock run`, `plan` and `measure`."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from wattdock.console.exits import exit_if_failed, fail, interruptible
from wattdock.console.options import (
    RESULTS,
    File,
    Json,
    LogTo,
    OutputDir,
    Quiet,
    SettingFlags,
    flag,
    logger_to,
    named,
    study_of,
    typed_again,
    with_flags,
)
from wattdock.console.views import show
from wattdock.errors import ConfigError, ExitCode
from wattdock.output import say
from wattdock.text import listed, pluralize, without_timestamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.config import Study
    from wattdock.console.progress import Progress
    from wattdock.execution import Measurement
    from wattdock.store import StoredResult
    from wattdock.study import EarlierStudy

SUFFIXES = (".yaml", ".yml", ".json")
RequirePublishable = Annotated[
    bool, typer.Option("--require-publishable", help="Exit with 8 unless every result is publishable.")
]
Publishable = Annotated[
    bool,
    typer.Option(
        "--publishable",
        help="Fill in what publication needs, list what is missing, and exit with 8 unless publishable.",
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Continue this study, or the one named, where it stopped; no pass is measured twice."
    ),
]
FileOrName = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        help="YAML file of an experiment or a study; defaults without it. With --resume also a study's name, or its "
        "beginning.",
    ),
]
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Like --resume, and measure failed experiments again.")
]
On = Annotated[Literal["local", "slurm"], typer.Option(help="Measure on this machine, or on the nodes of a cluster.")]
ProgressJson = Annotated[bool, typer.Option("--progress-json", help="Print progress as JSON lines on standard error.")]


@with_flags
def run(
    flags: SettingFlags,
    file: FileOrName = None,
    output_dir: OutputDir = RESULTS,
    as_json: Json = False,
    quiet: Quiet = False,
    publishable: Publishable = False,
    require_publishable: RequirePublishable = False,
    resume: Resume = False,
    retry_failed: RetryFailed = False,
    progress_json: ProgressJson = False,
    log_to: LogTo = None,
    on: On = "local",
) -> None:
    """Measure an experiment or a study, and store the results."""
    from wattdock.console.fleet import run_on_slurm
    from wattdock.console.progress import progress_for
    from wattdock.study import find_study

    earlier, name = None, file if file and file.suffix not in SUFFIXES and not file.is_file() else None
    if name and not (resume or retry_failed or name.exists()):
        raise ConfigError(f"{name}: no such file", f"a study that was begun goes on with --resume {name}")
    if name and (resume or retry_failed):
        earlier = find_study(str(name), output_dir)
        study = study_of(earlier.settings, flags)
        if (begun_in := earlier.begun_in) and begun_in.is_dir() and begun_in != Path.cwd():
            # Relative paths of its settings begin there.
            output_dir, earlier = output_dir.absolute(), replace(earlier, path=earlier.path.absolute())
            os.chdir(begun_in)
    else:
        study, _ = study_to_run(file, flags, publishable=publishable, on_nodes=on == "slurm")
    progress = progress_for(quiet=quiet, json_lines=progress_json)
    how: dict[str, Any] = {"output_dir": output_dir, "retry_failed": retry_failed, "as_json": as_json, "log_to": log_to}
    how["resume"] = earlier or resume or retry_failed
    found = run_on_slurm(study, progress, **how) if on == "slurm" else run_here(study, progress, **how)
    if publishable or require_publishable:
        exit_unless_publishable(found)


def exit_unless_publishable(found: "Sequence[StoredResult]") -> None:
    """End with exit code 8 and the first reason, unless every result may be published."""
    audits = [stored.result.audit for stored in found]
    unfit = [audit.reasons if audit else ["no audit"] for audit in audits if not audit or audit.reasons]
    if unfit:
        which = f"{len(unfit)} of {len(found)} results: " if len(found) > 1 else ""
        first = f"{pluralize(len(unfit[0]), 'reason')}, the first: {unfit[0][0]}"
        fail(f"not publishable: {which}{first}", ExitCode.NOT_PUBLISHABLE)


def run_here(
    study: "Study",
    progress: "Progress",
    *,
    output_dir: Path,
    as_json: bool,
    resume: "bool | EarlierStudy" = False,
    retry_failed: bool = False,
    log_to: LogTo = None,
) -> "list[StoredResult]":
    """Measure a study on this machine and show its results."""
    from wattdock.console.machine import machine_of
    from wattdock.execution import Measurement, RunOptions, measure
    from wattdock.host import folders

    log = logger_to(log_to)
    options, done = RunOptions(output_dir, folders.wattdock_home(), resume, retry_failed), Measurement()

    def consequence() -> str:
        if done.study_id is None:
            return "nothing was begun"
        # A new study has a name by now, which the command that was typed did not hold.
        new = f"wattdock run --resume {named(without_timestamp(done.study_id), output_dir)}"
        again = typed_again() if resume else new
        return f"what was measured is stored; to go on: {again}"

    with interruptible(consequence):
        try:
            with machine_of(study) as machine:
                measure(study, options, done, emit=progress, machine=machine)
        finally:
            progress.close()
            # Without it nothing was begun; the error says why.
            if done.study_id:
                more = f"wattdock show {_named(done, output_dir)} --checks"
                show(done.results, as_json=as_json, errors=False, more=more)
            log(done.results)
    if not as_json:
        words = [f"wattdock {verb} {_named(done, output_dir)}" for verb in ("show", "report")]
        if any(stored.result.status == "failed" for stored in done.results):
            words.append(f"wattdock run --retry-failed {named(without_timestamp(done.study_id or ''), output_dir)}")
        say(f"next: {', '.join(words)}" if done.results else "nothing was measured")
    exit_if_failed(stored.result for stored in done.results)
    return done.results


@with_flags
def plan(
    flags: SettingFlags,
    file: File = None,
    output_dir: OutputDir = RESULTS,
    publishable: Publishable = False,
    online: Annotated[bool, typer.Option("--online", help="Ask the hub for its models, as `run` does.")] = False,
    on: On = "local",
    as_json: Json = False,
) -> None:
    """Check and show what `run` would do; start nothing."""
    from huggingface_hub.constants import is_offline_mode

    from wattdock.host import folders
    from wattdock.planning import ExecutionPlan, forecast, preflight

    study, left = study_to_run(file, flags, publishable=publishable, on_nodes=on == "slurm")
    if on == "slurm":
        from wattdock.console.fleet import plan_on_slurm

        plan_on_slurm(study, output_dir, as_json=as_json)
        _fail_if_left(left)
        return
    home = folders.wattdock_home()
    # Offline, `run` asks the cache alone, which needs no network.
    online = online or is_offline_mode()
    checked = preflight(study.experiments, output_dir=output_dir, home=home, online=online)
    refused: dict[str, list[str]] = {}
    for config, outcome in zip(study.experiments, checked, strict=True):
        if not isinstance(outcome, ExecutionPlan):
            refused.setdefault(str(outcome), []).append(config.label)
    for message, labels in refused.items():
        say(f"wattdock: {listed(labels, 1)}: {message}", err=True)
    errors = [outcome for outcome in checked if not isinstance(outcome, ExecutionPlan)]
    if as_json or len(errors) < len(checked):
        options: dict[str, Any] = {"forecast": forecast(study.experiments, output_dir), "online": online}
        show(study.experiments, as_json=as_json, notes=study.notes, checked=checked, **options)
    if errors:
        raise typer.Exit(errors[0].exit_code)
    _fail_if_left(left)


def _fail_if_left(left: int) -> None:
    """End as a run for publication would, where something is left to do before."""
    if left:
        fail(f"not publishable as it is: {pluralize(left, 'thing')} left to do, see above", ExitCode.NOT_PUBLISHABLE)


def study_to_run(
    file: Path | dict[str, Any] | None, flags: Any, *, publishable: bool, on_nodes: bool = False
) -> "tuple[Study, int]":
    """Return the study; for publication, with the settings that it needs, and how many things are left to do."""
    study, left = study_of(file, flags, publishable=publishable), list[str]()
    if publishable:
        from wattdock.audit import left_to_do
        from wattdock.host import Machine

        laid = ", ".join(f"{name}={value}" for name, value in study.experiments[0].publication.items())
        say(f"for publication, where the study sets nothing else: {laid}", err=True)
        left, warned = left_to_do(study.experiments, Machine.checkout().revision, on_nodes=on_nodes)
        for line in left or ("nothing that can be told before the run",):
            say(f"left to do: {line}", err=True)
        for line in warned:
            say(f"warned of: {line}", err=True)
    return study, len(left)


def _named(done: "Measurement", output_dir: Path) -> str:
    """Return the words that name what was measured, as the last ones of a command."""
    name = done.results[0].folder.name if len(done.results) == 1 else without_timestamp(done.study_id or "")
    return named(name, output_dir)


Command = Annotated[
    list[str],
    typer.Argument(metavar="-- COMMAND…", help="Program and arguments; {gpus} stands for the number of GPUs."),
]
# Fields of the flags that `wattdock run` has, too.
SHARED = SettingFlags.__dataclass_fields__


@dataclass(frozen=True)
class CommandFlags:
    """Flags that stand for settings of a command."""

    name: str | None = flag("Its name in tables.  [default: the command]", setting="name")
    unit: str | None = flag(
        "What joules are divided by: the plural that the script counts, as in work(samples=64); or steps.  "
        "[default: runs]",
        setting="measure.work.unit",
    )
    count: int | None = flag("Units in a run, where the script does not say.", setting="measure.work.count")
    within: str | None = flag(
        "Name of the marked spans that count.  [default: the whole run]", setting="measure.work.within"
    )
    step_regex: str | None = flag("Each line of output in which it is found is a step.", setting="measure.step_regex")
    image: str | None = flag("Container image to run in, NAME or NAME@sha256:….", setting="container.image")
    restarts: int | None = field(default=None, metadata=SHARED["restarts"].metadata)
    gpus: str | None = field(default=None, metadata=SHARED["gpus"].metadata)
    wait: float | None = field(default=None, metadata=SHARED["wait"].metadata)
    accelerator: str | None = field(default=None, metadata=SHARED["accelerator"].metadata)
    meter: str | None = field(default=None, metadata=SHARED["meter"].metadata)
    assignments: list[str] | None = field(default=None, metadata=SHARED["assignments"].metadata)


@with_flags
def measure(
    command: Command,
    flags: CommandFlags,
    output_dir: OutputDir = RESULTS,
    as_json: Json = False,
    quiet: Quiet = False,
    publishable: Publishable = False,
    require_publishable: RequirePublishable = False,
    log_to: LogTo = None,
) -> None:
    """Run any command under the meter, once in each restart, and store what it cost."""
    from wattdock.console.progress import progress_for

    study, _ = study_to_run({"measure": {"command": command}}, flags, publishable=publishable)
    found = run_here(study, progress_for(quiet=quiet), output_dir=output_dir, as_json=as_json, log_to=log_to)
    if publishable or require_publishable:
        exit_unless_publishable(found)
