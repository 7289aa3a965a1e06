"""`wattdock bundle create` and `verify`, and `wattdock reproduce`."""

import re
from contextlib import suppress
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
from wattdock.files import RESULT
from wattdock.output import say
from wattdock.text import pluralize

if TYPE_CHECKING:
    from wattdock.reports import Comparison

app = typer.Typer(help="Create and verify bundles of results for publication.")

BundlePath = Annotated[Path, typer.Argument(metavar="BUNDLE", help="A .tar file, or the folder it was unpacked to.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="New file, NAME.tar; its folder must exist.")]
Logs = Annotated[bool, typer.Option("--logs", help="Include the runners' logs; read them first.")]
Prompts = Annotated[bool, typer.Option("--prompts/--no-prompts", help="Include files of prompts, and tasks.")]
Margin = Annotated[str, typer.Option(help="Largest difference that counts as equal: 5% or 0.05.")]
ModelFolder = Annotated[list[Path] | None, typer.Option(help="Weights that were in a local folder; once for each.")]
DraftFolder = Annotated[list[Path] | None, typer.Option(help="The same of draft models.")]
Trust = Annotated[
    bool, typer.Option("--trust-remote-code", help="Allow the model's own code, or the bundle's (command, tasks).")
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

    _require_bundle(bundle)
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

    _require_bundle(bundle)
    if not (allowed := parse_fraction(margin, "--margin")):
        raise ConfigError(
            "--margin 0: no two measurements are equal", "say what difference does not matter, such as 5%"
        )
    progress, home = progress_for(quiet=quiet), folders.wattdock_home()
    weights = tuple(model_folder or ()), tuple(draft_folder or ())
    local = LocalChoices(runner_python, *weights, trust_remote_code, progress.say)
    with open_bundle(bundle) as opened:
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
                # Where nothing was measured here, the error says why, and there is nothing to compare.
                if comparison.measured and not as_json:
                    say("A: the bundle, B: here")
                if comparison.measured or (as_json and done.study_id):
                    show(comparison, as_json=as_json)
    exit_if_failed(stored.result for stored in done.results)
    _require_equivalent(comparison)


def _require_bundle(path: Path) -> None:
    """Refuse a study and a folder of results, with the command that takes them."""
    if path.suffix in (".yaml", ".yml"):
        raise ConfigError(f"{path}: a study is no bundle", f"`wattdock run {path}` measures it")
    with suppress(OSError):
        # The results of an unpacked bundle lie one folder deeper.
        if any(path.glob(RESULT)) or any(path.glob(f"*/{RESULT}")):
            raise ConfigError(f"{path}: results are no bundle", f"`wattdock bundle create {path}` makes one of them")


def _remedy(error: WattdockError, context: typer.Context) -> str | None:
    """Return an error's remedy, and how to take an option that it names and this command leaves to the bundle."""
    own = {name for option in context.command.params for name in option.opts}
    lacking = [name for name in re.findall("--[a-z-]+", error.remedy or "") if name not in own]
    way = "an option of `wattdock run`: unpack the bundle, run its study.yaml, and use `wattdock compare`"
    return f"{error.remedy}; {lacking[0]} is {way}" if lacking else error.remedy


def _advice(comparison: "Comparison", label: str) -> str | None:
    """Return what to change before a pair that came out another, or undecided, is measured again."""
    from wattdock.analysis import statistics

    if not (pair := next((pair for pair in comparison.pairs if pair.label == label), None)):
        return "continue with --resume"
    test, disturbed = pair.repeated, dict(pair.disturbed)
    if pair.unscored and test.equivalent is not False:
        return pair.unscored + ": ask as the bundle did" * bool(pair.other_questions)
    if "B" in disturbed:
        return (
            "others used this machine meanwhile: end what top or `wattdock gpus` shows, then start a new reproduction"
        )
    if "A" in disturbed:
        return "others used the bundle's machine meanwhile: ask its authors for an undisturbed bundle"
    if test.equivalent is not None or not (test.a and test.b):
        return test.reason if test.equivalent is None else None
    if test.restarts[0] < (least := statistics.LEAST_RESTARTS):
        few = f"the bundle has {pluralize(test.restarts[0], 'restart')}, an interval takes {least} on each side"
        return f"{few}: ask its authors for one with repeats.restarts: {least}"
    errors = [row.result.restarts(test.quantity).relative_error for row in pair.rows]
    known = f"restarts leave its figure uncertain by {errors[0]:.2%}, and by {errors[1]:.2%} here"
    if errors[1] > errors[0]:
        return f"{known}: remove what makes this machine unsteady (`wattdock doctor`), then start a new reproduction"
    return f"{known}: only a wider --margin, chosen before another reproduction, can be decided against this bundle"


def _require_equivalent(comparison: "Comparison") -> None:
    count = len(comparison.pairs) + len(comparison.only_in_a)
    different = [
        pair.label
        for pair in comparison.pairs
        if pair.repeated.equivalent is False or (pair.quality and pair.quality.fell)
    ]
    undecided = [pair.label for pair in comparison.pairs if pair.repeated.equivalent is None or pair.unscored]
    undecided += comparison.only_in_a
    for labels, verdict, code in (
        (different, "not reproduced", ExitCode.REGRESSION),
        (undecided, "undecided", ExitCode.UNDECIDED),
    ):
        if labels:
            what = f"{verdict}: {len(labels)} of {count} experiments, the first: {labels[0]}"
            advice = _advice(comparison, labels[0])
            fail(f"{what}; {advice}" if advice else what, code, WattdockError(what, advice) if advice else None)
