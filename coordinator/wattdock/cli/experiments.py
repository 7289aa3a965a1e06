"""`wattdock run` and `wattdock plan`."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattdock.cli.exits import exit_if_failed, fail, interruptible
from wattdock.cli.options import RESULTS, File, Json, OutputDir, Quiet, SettingFlags, study_of, with_flags
from wattdock.errors import ExitCode
from wattdock.output import say
from wattdock.text import pluralize

if TYPE_CHECKING:
    from wattdock.analysis import ExperimentResult
    from wattdock.config import Study
    from wattdock.execution import StudyRun

RequirePublishable = Annotated[
    bool, typer.Option("--require-publishable", help="Exit with 8 unless every result is publishable.")
]
Publishable = Annotated[
    bool,
    typer.Option(
        "--publishable",
        help="Set what publication needs and FILE does not set; say what is left to do; --require-publishable.",
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue this study where it stopped; no pass is measured twice.")
]
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Like --resume, and measure failed experiments again.")
]
ProgressJson = Annotated[bool, typer.Option("--progress-json", help="Print progress as JSON lines on standard error.")]


@with_flags
def run(
    flags: SettingFlags,
    file: File = None,
    output_dir: OutputDir = RESULTS,
    as_json: Json = False,
    quiet: Quiet = False,
    publishable: Publishable = False,
    require_publishable: RequirePublishable = False,
    resume: Resume = False,
    retry_failed: RetryFailed = False,
    progress_json: ProgressJson = False,
) -> None:
    """Measure an experiment or a study, and store the results."""
    from wattdock.cli.progress import progress_for
    from wattdock.execution import StudyRun, plan_study
    from wattdock.host import folders

    study, home = _study(file, flags, publishable=publishable), folders.wattdock_home()
    progress = progress_for(quiet=quiet, json_lines=progress_json)
    plans = plan_study(study, output_dir=output_dir, home=home, emit=progress)
    study_run = StudyRun(
        study, plans, output_dir=output_dir, home=home, resume=resume or retry_failed, retry_failed=retry_failed
    )
    with interruptible("what was measured is stored"):
        try:
            study_run.run(progress)
        finally:
            progress.close()
            _show(study_run, output_dir, as_json=as_json)
    results = [stored.result for stored in study_run.results]
    exit_if_failed(results)
    if publishable or require_publishable:
        _require_publishable(results)


@with_flags
def plan(
    flags: SettingFlags,
    file: File = None,
    output_dir: OutputDir = RESULTS,
    publishable: Publishable = False,
    online: Annotated[bool, typer.Option("--online", help="Ask the hub for its models, as run does.")] = False,
    as_json: Json = False,
) -> None:
    """Check and show what `run` would do, and start nothing."""
    from wattdock.checks import ExecutionPlan, preflight
    from wattdock.execution import forecast
    from wattdock.host import folders
    from wattdock.reports import Plan, show

    study = _study(file, flags, publishable=publishable)
    home = folders.wattdock_home()
    checked = preflight(study.experiments, output_dir=output_dir, home=home, online=online)
    show(Plan(study, checked, forecast(study.experiments, output_dir), online), as_json=as_json)
    refused: dict[str, list[str]] = {}
    for config, outcome in zip(study.experiments, checked, strict=True):
        if not isinstance(outcome, ExecutionPlan):
            refused.setdefault(str(outcome), []).append(config.label)
    for message, labels in refused.items():
        more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
        say(f"wattdock: {labels[0]}{more}: {message}", err=True)
    if errors := [outcome for outcome in checked if not isinstance(outcome, ExecutionPlan)]:
        raise typer.Exit(errors[0].exit_code)


def _study(file: Path | None, flags: SettingFlags, *, publishable: bool) -> "Study":
    """Return the study; for publication, with the settings that it needs, after what is left to do was said."""
    study = study_of(file, flags, publishable=publishable)
    if publishable:
        from wattdock.checks import left_to_do
        from wattdock.config import ExperimentConfig

        laid = ", ".join(f"{name}={value}" for name, value in ExperimentConfig.PUBLICATION.items())
        say(f"for publication, where the study sets nothing else: {laid}", err=True)
        for line in left_to_do(study.experiments) or ("nothing that can be told before the run",):
            say(f"left to do: {line}", err=True)
    return study


def _require_publishable(results: Sequence["ExperimentResult"]) -> None:
    reasons = [result.audit.reasons if result.audit else ["no audit"] for result in results]
    if unfit := [of_result for of_result in reasons if of_result]:
        which = f"{len(unfit)} of {len(results)} results: " if len(results) > 1 else ""
        count = pluralize(len(unfit[0]), "reason")
        fail(f"not publishable: {which}{count}, the first: {unfit[0][0]}", ExitCode.NOT_PUBLISHABLE)


def _show(study_run: "StudyRun", output_dir: Path, *, as_json: bool) -> None:
    from wattdock.reports import show

    if as_json:
        show([stored.result for stored in study_run.results], as_json=True)
        return
    show(study_run.results, errors=False)
    say(_next(study_run, "" if output_dir == RESULTS else f" --output-dir {shlex.quote(str(output_dir))}"))


def _next(study_run: "StudyRun", elsewhere: str) -> str:
    """Return what can be typed next."""
    results = study_run.results
    name = results[0].folder.name if len(results) == 1 else study_run.study_id
    words = [f"wattdock {verb} {name}{elsewhere}" for verb in ("show", "report")] if results else []
    return f"next: {', '.join(words)}" if words else "nothing was measured"
