"""`wattdock bundle create`, `verify` and `show`, and `wattdock reproduce`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattdock.cli.exits import fail, interruptible
from wattdock.cli.options import RESULTS, Json, Named, OutputDir, Quiet, open_results, parse_fraction
from wattdock.errors import ConfigError, ExitCode
from wattdock.text import pluralize, print_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wattdock.publish import Bundle, CreatedBundle
    from wattdock.reports import Comparison

app = typer.Typer(help="Make a publication bundle of results, check one, show one.")

BundlePath = Annotated[Path, typer.Argument(metavar="BUNDLE", help="A .tar file, or the folder it was unpacked to.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="NAME.tar; makes no folder above it.")]
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
    logs: Logs = False,
    prompts: Prompts = True,
    lock: Lock = None,
    output_dir: OutputDir = RESULTS,
    as_json: Json = False,
) -> None:
    """Put results, settings, images' digests, environment and checksums into one file for others to check and rerun."""
    from wattdock.host import folders
    from wattdock.publish import create_bundle

    with open_results(named, output_dir) as results:
        made = create_bundle(results, output, home=folders.wattdock_home(), logs=logs, prompts=prompts, lock=lock)
    lines = [f"missing: {line}" for line in made.manifest.missing]
    if made.named:
        more = ", …" if len(made.named) > NAMES_SHOWN else ""
        files = f"{pluralize(len(made.named), 'file')}: {', '.join(made.named[:NAMES_SHOWN])}{more}"
        lines.append(f"your user name, home folder or this machine's name stands in {files}")
    lines.append(f"{made.path}: {pluralize(len(results), 'result')} {'with' if logs else 'without'} logs")
    _print(made.path, made, lines, as_json=as_json)


@app.command()
def verify(bundle: BundlePath, as_json: Json = False) -> None:
    """See that a bundle is what was bundled; exit code 7 where one byte is not."""
    from wattdock.publish import open_bundle

    with open_bundle(bundle) as found:
        whole = f"{bundle}: whole, {found.file_count} files, {found.size_bytes / 1e6:,.1f} MB"
        _print(bundle, found, [whole], as_json=as_json)


@app.command()
def show(bundle: BundlePath, as_json: Json = False) -> None:
    """Show what is in a bundle, once it was verified."""
    from wattdock.publish import open_bundle, results_table

    with open_bundle(bundle) as found:
        missing = (f"missing: {line}" for line in found.manifest.missing)
        lines = [found.manifest.name, "", *results_table(found.results()).splitlines(), *missing]
        _print(bundle, found, lines, as_json=as_json)


def _print(path: Path, bundle: "Bundle | CreatedBundle", lines: "Iterable[str]", *, as_json: bool) -> None:
    """Print lines and the digest of a bundle, without what would steer a terminal: it may be anybody's; or JSON."""
    if as_json:
        print_json({"path": str(path), "digest": f"sha256:{bundle.digest}", **bundle.manifest.model_dump()})
        return
    for line in lines:
        typer.echo("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line))
    typer.echo(f"digest sha256:{bundle.digest}")


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
    from wattdock.reports import compare
    from wattdock.reports import show as print_comparison

    if not (allowed := parse_fraction(margin, "--margin")):
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
                compared = compare(ready.bundled, ready.run.results, margin=allowed)
                if compared.pairs and not as_json:
                    typer.echo("A: the bundle, B: here")
                if compared.pairs or as_json:
                    print_comparison(compared, as_json=as_json)
    if errors := [stored.result.error for stored in ready.run.results if stored.result.error]:
        fail(f"{errors[0].stage}: {errors[0].message}", ExitCode(errors[0].exit_code))
    _require_equivalent(compared)


def _require_equivalent(compared: "Comparison") -> None:
    count = len(compared.pairs) + len(compared.only_in_a)
    unlike = [pair.label for pair in compared.pairs if pair.repeated.equivalent is False]
    undecided = [pair.label for pair in compared.pairs if pair.repeated.equivalent is None]
    undecided += [f"{label}, which was not measured; go on with --resume" for label in compared.only_in_a]
    for labels, verdict, code in (
        (unlike, "not equivalent", ExitCode.REGRESSION),
        (undecided, "undecided", ExitCode.UNDECIDED),
    ):
        if labels:
            said = f"{len(labels)} of {count} experiments {verdict}, the first: {labels[0]}"
            fail(f"not reproduced: {said}", code)
