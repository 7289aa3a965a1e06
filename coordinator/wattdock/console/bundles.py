"""`wattdock bundle create` and `verify`, and `wattdock reproduce`."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattdock.console.exits import exit_if_failed, fail, interruptible
from wattdock.console.options import (
    RESULTS,
    Json,
    Named,
    OutputDir,
    Quiet,
    RunnerPython,
    in_help,
    open_results,
    parse_fraction,
    typed_again,
)
from wattdock.console.views import show
from wattdock.errors import ConfigError, ExitCode, WattdockError, error_kind
from wattdock.output import say

if TYPE_CHECKING:
    from wattdock.reports import Comparison

app = typer.Typer(help="Create and verify bundles of results for publication.")

BundlePath = Annotated[Path, typer.Argument(metavar="BUNDLE", help="A .tar file, or the folder it was unpacked to.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="New file, NAME.tar; its folder must exist.")]
Logs = Annotated[bool, typer.Option("--logs", help="Include the runners' logs; read them first.")]
Prompts = Annotated[bool, typer.Option("--prompts/--no-prompts", help="Include files of prompts.")]
Margin = Annotated[str, typer.Option(help="Largest difference that counts as equal: 5% or 0.05.")]
ModelFolder = Annotated[Path | None, typer.Option(help="The model's weights, if the bundle used a local folder.")]
DraftFolder = Annotated[Path | None, typer.Option(help="The draft model's weights, if the bundle used a local folder.")]
Trust = Annotated[
    bool, typer.Option("--trust-remote-code", help="Allow the model's own code, or the bundle's command, to run.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue a reproduction that was begun.")]


@app.command(epilog=in_help("bundle create study -o study.tar", "bundle create study --no-prompts"))
def create(
    named: Named,
    output: Output = None,
    logs: Logs = False,
    prompts: Prompts = True,
    output_dir: OutputDir = RESULTS,
    as_json: Json = False,
) -> None:
    """Pack results into one file for publication.

    It also holds settings, image digests, environment and checksums, so that others can check and repeat the results.
    """
    from wattdock.publish import create_bundle

    with open_results(named, output_dir) as results:
        created = create_bundle(results, output, logs=logs, prompts=prompts)
    show(created, as_json=as_json)


@app.command(epilog=in_help("bundle verify study.tar", "bundle verify study.tar --json"))
def verify(bundle: BundlePath, as_json: Json = False) -> None:
    """Check that a bundle is unchanged.

    Exit code 7 if a single byte differs.
    """
    from wattdock.publish import verify_bundle

    show(verify_bundle(bundle), as_json=as_json)


def reproduce(
    context: typer.Context,
    bundle: BundlePath,
    margin: Margin = "5%",
    runner_python: RunnerPython = None,
    model_folder: ModelFolder = None,
    draft_folder: DraftFolder = None,
    trust_remote_code: Trust = False,
    resume: Resume = False,
    output_dir: OutputDir = RESULTS,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure a bundle's study again here, and compare.

    Exit code 9 if an experiment is not equivalent within the margin or its score fell by more than 2 %, 10 if that
    cannot be decided.
    """
    from wattdock.console.progress import progress_for
    from wattdock.execution import Measurement, RunOptions, measure
    from wattdock.host import folders
    from wattdock.publish import LocalChoices, open_bundle, prepare_reproduction
    from wattdock.reports import compare

    if not (allowed := parse_fraction(margin, "--margin")):
        raise ConfigError(
            "--margin 0: no two measurements are equal", "say what difference does not matter, such as 5%"
        )
    local = LocalChoices(runner_python, model_folder, draft_folder, trust_remote_code)
    with open_bundle(bundle) as opened:
        progress, home = progress_for(quiet=quiet), folders.wattdock_home()
        ready, done = prepare_reproduction(opened, local, home=home), Measurement()
        for line in ready.skipped:
            progress.say(line)
        again = typed_again(*([] if resume else ["--resume"]))
        stored = f"what was measured is stored; to go on: {again}"
        with interruptible(lambda: stored if done.study_id else "nothing was begun"):
            try:
                options = RunOptions(output_dir, home, resume, lock=ready.lock)
                measure(ready.study, options, done, emit=progress)
            except WattdockError as error:
                raise error_kind(error.exit_code)(error.what, _remedy(error, context), cause=error.cause) from error
            finally:
                progress.close()
                comparison = compare(ready.bundled, done.results, margin=allowed)
                if comparison.pairs and not as_json:
                    say("A: the bundle, B: here")
                if comparison.pairs or (as_json and done.study_id):
                    show(comparison, as_json=as_json)
    exit_if_failed(stored.result for stored in done.results)
    _require_equivalent(comparison)


def _remedy(error: WattdockError, context: typer.Context) -> str | None:
    """Return an error's remedy, and how to take an option that it names and this command leaves to the bundle."""
    own = {name for option in context.command.params for name in option.opts}
    lacking = [name for name in re.findall("--[a-z-]+", error.remedy or "") if name not in own]
    way = "an option of `wattdock run`: unpack the bundle, run its study.yaml, and use `wattdock compare`"
    return f"{error.remedy}; {lacking[0]} is {way}" if lacking else error.remedy


def _require_equivalent(comparison: "Comparison") -> None:
    count = len(comparison.pairs) + len(comparison.only_in_a)
    different = [
        pair.label
        for pair in comparison.pairs
        if pair.repeated.equivalent is False or (pair.quality and pair.quality.fell)
    ]
    undecided = [pair.label for pair in comparison.pairs if pair.repeated.equivalent is None]
    undecided += [f"{label}, which was not measured; continue with --resume" for label in comparison.only_in_a]
    for labels, verdict, code in (
        (different, "not equivalent", ExitCode.REGRESSION),
        (undecided, "undecided", ExitCode.UNDECIDED),
    ):
        if labels:
            disturbed = "; others used the machine meanwhile: see above" if comparison.disturbed else ""
            first = f"the first: {labels[0]}"
            fail(f"not reproduced: {len(labels)} of {count} experiments {verdict}, {first}{disturbed}", code)
