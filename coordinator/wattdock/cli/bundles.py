"""`wattdock bundle create`, `verify` and `show`, and `wattdock reproduce`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattdock.cli.exits import fail, interruptible
from wattdock.cli.options import RESULTS, Json, Named, OutputDir, Quiet, share, stored
from wattdock.errors import ConfigError, ExitCode
from wattdock.text import pluralize, print_json

if TYPE_CHECKING:
    from wattdock.publish import ReproducedExperiment, Reproduction

app = typer.Typer(help="Make a publication bundle of results, check one, show one.")

BundlePath = Annotated[Path, typer.Argument(metavar="BUNDLE", help="A .tar file, or the folder it was unpacked to.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="NAME.tar; makes no folder above it.")]
Title = Annotated[str | None, typer.Option(help="Title for README.md and CITATION.cff.")]
Author = Annotated[list[str] | None, typer.Option(help='For CITATION.cff, "Family, Given"; several times.')]
Logs = Annotated[bool, typer.Option("--logs", help="Take the runners' logs in; read them before.")]
Prompts = Annotated[bool, typer.Option("--prompts/--no-prompts", help="Take files of prompts in.")]
Lock = Annotated[Path | None, typer.Option(help="Lock file of images; docker/images.lock unless given.")]
Margin = Annotated[str, typer.Option(help="Largest difference that does not matter: 5% or 0.05.")]
Python = Annotated[Path | None, typer.Option(help="Interpreter that has the backend's packages already.")]
ModelFolder = Annotated[Path | None, typer.Option(help="The weights, where the bundle's were a local folder.")]
Trust = Annotated[bool, typer.Option("--trust-remote-code", help="Let the model's own code run.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a reproduction that was begun.")]
NAMES_SHOWN = 3


@app.command()
def create(
    named: Named,
    output: Output = None,
    title: Title = None,
    author: Author = None,
    logs: Logs = False,
    prompts: Prompts = True,
    lock: Lock = None,
    output_dir: OutputDir = RESULTS,
    as_json: Json = False,
) -> None:
    """Put results, settings, images' digests, environment and checksums into one file for others to check and rerun."""
    from wattdock.host import folders
    from wattdock.publish import BundleOptions, create_bundle

    options = BundleOptions(title=title, authors=tuple(author or ()), logs=logs, prompts=prompts, lock=lock)
    with stored(named, output_dir) as rows:
        made = create_bundle(rows, output, options, home=folders.wattdock_home())
    if as_json:
        _print_digest(made.path, made.digest)
        return
    for line in made.manifest.missing:
        typer.echo(f"missing: {line}")
    if made.named:
        more = ", …" if len(made.named) > NAMES_SHOWN else ""
        files = f"{pluralize(len(made.named), 'file')}: {', '.join(made.named[:NAMES_SHOWN])}{more}"
        typer.echo(f"your user name, home folder or this machine's name stands in {files}")
    typer.echo(f"{made.path}: {pluralize(len(made.manifest.results), 'result')} {'with' if logs else 'without'} logs")
    typer.echo(f"digest sha256:{made.digest} (print it beside your figures)")


@app.command()
def verify(bundle: BundlePath, as_json: Json = False) -> None:
    """See that a bundle is what was bundled; exit code 7 where one byte is not."""
    from wattdock.publish import open_bundle

    with open_bundle(bundle) as found:
        size = f"{found.file_count} files, {found.size_bytes / 1e6:,.1f} MB"
    if as_json:
        _print_digest(bundle, found.digest)
    else:
        typer.echo(f"{bundle}: whole: {size}, digest sha256:{found.digest}")


@app.command()
def show(bundle: BundlePath, as_json: Json = False) -> None:
    """Show what is in a bundle, once it was verified."""
    from wattdock.publish import open_bundle, results_table

    with open_bundle(bundle) as found:
        if as_json:
            print_json(found.manifest)
            return
        missing = [f"missing: {line}" for line in found.manifest.missing]
        for line in (found.manifest.title, "", *results_table(found.results()).splitlines(), *missing):
            typer.echo(_plain(line))
    typer.echo(f"digest sha256:{found.digest}")


def reproduce(
    bundle: BundlePath,
    margin: Margin = "5%",
    runner_python: Python = None,
    model_folder: ModelFolder = None,
    trust_remote_code: Trust = False,
    resume: Resume = False,
    output_dir: OutputDir = RESULTS,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a bundle's study here and say of each experiment whether it came out the same; exit code 9: not all did."""
    from wattdock.cli.progress import progress_for
    from wattdock.host import folders
    from wattdock.publish import LocalChoices, open_bundle, prepare_reproduction

    if not (wanted := share(margin, "--margin")):
        raise ConfigError("--margin 0: no two measurements are equal; say what difference does not matter, such as 5%")
    local = LocalChoices(runner_python, model_folder, trust_remote_code)
    with open_bundle(bundle) as opened:
        progress, home = progress_for(quiet=quiet), folders.wattdock_home()
        ready = prepare_reproduction(opened, local, output_dir=output_dir, home=home, resume=resume, emit=progress)
        for line in ready.skipped:
            progress.say(line)
        with interruptible("what was measured is stored, go on with --resume"):
            try:
                ready.run.run(progress)
            finally:
                progress.close()
                verdicts = ready.verdicts(margin=wanted)
                _show(ready, verdicts, margin=wanted, as_json=as_json)
    if errors := [stored.result.error for stored in ready.run.results if stored.result.error]:
        fail(f"{errors[0].stage}: {errors[0].message}", ExitCode(errors[0].exit_code))
    for verdict, code in (("not equivalent", ExitCode.REGRESSION), ("undecided", ExitCode.UNDECIDED)):
        if unlike := [found for found in verdicts if found.verdict == verdict]:
            count = f"{len(unlike)} of {len(verdicts)} experiments"
            fail(f"not reproduced: {count} {verdict}, the first: {unlike[0].label}", code)


def _show(ready: "Reproduction", verdicts: "list[ReproducedExperiment]", *, margin: float, as_json: bool) -> None:
    import dataclasses

    from wattdock.reports import compare, show

    compared = compare(ready.bundled, ready.measured)
    if as_json:
        differences = [dataclasses.asdict(difference) for difference in compared.differs_in]
        experiments = [dataclasses.asdict(found) for found in verdicts]
        print_json({"margin": margin, "experiments": experiments, "differences": differences})
        return
    if compared.pairs:
        typer.echo("A: the bundle, B: here")
        show(compared)
    for found in verdicts:
        reason = f": {found.reason}" if found.reason else ""
        typer.echo(_plain(f"{found.label}: {found.verdict} within ± {margin:.3g} (ratio of {found.quantity}){reason}"))
        if found.tokens:
            typer.echo(_plain(f"{found.label}: {found.tokens}"))


def _plain(text: str) -> str:
    """Return a text without what would steer a terminal: a bundle may be anybody's."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def _print_digest(path: Path, digest: str) -> None:
    print_json({"path": str(path), "digest": f"sha256:{digest}"}, indent=None)
