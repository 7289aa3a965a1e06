"""`wattdock reproduce`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattdock.cli.ending import fail, interruptible
from wattdock.cli.options import RESULTS, Bundle, Json, OutputDir, Quiet, share
from wattdock.errors import ConfigError, ExitCode
from wattdock.text import print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.publish import Comparison, Reproduction

Margin = Annotated[str, typer.Option(help="Largest difference that does not matter: 5% or 0.05.")]
Python = Annotated[Path | None, typer.Option(help="Interpreter that has the backend's packages already.")]
ModelFolder = Annotated[Path | None, typer.Option(help="The weights, where the bundle's were a local folder.")]
Trust = Annotated[bool, typer.Option("--trust-remote-code", help="Let the model's own code run.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a reproduction that was begun.")]


def reproduce(
    bundle: Bundle,
    margin: Margin = "5%",
    runner_python: Python = None,
    model_folder: ModelFolder = None,
    trust_remote_code: Trust = False,
    resume: Resume = False,
    output_dir: OutputDir = RESULTS,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure a bundle's experiments again here, and say of each whether it is equivalent; exit code 9: not all are."""
    from wattdock.execution import progress_for
    from wattdock.host import folders
    from wattdock.publish import Local, opened, prepare

    if not (wanted := share(margin, "--margin")):
        raise ConfigError(
            "--margin 0: nothing measured twice is equal; say what difference does not matter, such as 5%"
        )
    local = Local(runner_python, model_folder, trust_remote_code)
    with opened(bundle) as (folder, verified):
        ready = prepare(folder, verified, local, output_dir=output_dir, home=folders.wattdock_home(), resume=resume)
        with interruptible("what was measured is stored, go on with --resume"):
            try:
                ready.measure(progress_for(quiet=quiet))
            finally:
                comparisons = _show(ready, margin=wanted, as_json=as_json)
    _require_equivalent(ready, comparisons)


def _show(ready: "Reproduction", *, margin: float, as_json: bool) -> "Sequence[Comparison]":
    from wattdock.publish import print_comparisons

    comparisons = ready.comparisons(margin=margin)
    if as_json:
        print_json([one.model_dump(mode="json") for one in comparisons])
    else:
        print_comparisons(comparisons)
    return comparisons


def _require_equivalent(ready: "Reproduction", comparisons: "Sequence[Comparison]") -> None:
    errors = [one.result.error for one in ready.run.stored if one.result.error]
    if errors:
        fail(f"{errors[0].stage}: {errors[0].message}", ExitCode(errors[0].exit_code))
    for verdict, code in (("not equivalent", ExitCode.REGRESSION), ("undecided", ExitCode.UNDECIDED)):
        if unlike := [one for one in comparisons if one.verdict == verdict]:
            count = f"{len(unlike)} of {len(comparisons)} experiments"
            fail(f"not reproduced: {count} {verdict}, the first: {unlike[0].label}", code)
