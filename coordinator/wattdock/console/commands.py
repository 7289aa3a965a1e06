"""`wattdock measure`: a command of the user's own under the meter."""

from dataclasses import dataclass, field
from typing import Annotated

import typer

from wattdock.console.experiments import (
    Publishable,
    RequirePublishable,
    exit_unless_publishable,
    run_here,
    study_to_run,
)
from wattdock.console.options import RESULTS, Json, LogTo, OutputDir, Quiet, SettingFlags, flag, with_flags

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
