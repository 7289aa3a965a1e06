"""`wattdock bundle …`."""

from pathlib import Path
from typing import Annotated

import typer

from wattdock.cli.options import RESULTS, Bundle, Json, Named, OutputDir
from wattdock.text import print_json

app = typer.Typer(help="Make a publication bundle of results, check one, show one.")

Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="NAME.tar, or a folder's name; makes no folder above it.")
]
Title = Annotated[str | None, typer.Option(help="Title for README.md and CITATION.cff.")]
Author = Annotated[list[str] | None, typer.Option(help='For CITATION.cff, "Family, Given"; several times.')]
KeepNames = Annotated[bool, typer.Option("--keep-names", help="Leave users, home folders and hosts as they are.")]
Redact = Annotated[list[str] | None, typer.Option(help="A further word to replace, such as another machine's name.")]
Prompts = Annotated[bool, typer.Option("--prompts/--no-prompts", help="Take files of prompts in.")]
Lock = Annotated[Path | None, typer.Option(help="Lock file of images; docker/images.lock unless given.")]


@app.command()
def create(
    named: Named,
    output: Output = None,
    title: Title = None,
    author: Author = None,
    redact: Redact = None,
    keep_names: KeepNames = False,
    prompts: Prompts = True,
    lock: Lock = None,
    output_dir: OutputDir = RESULTS,
    as_json: Json = False,
) -> None:
    """Put results, settings, images' digests, environment and checksums into one file for others to check and rerun."""
    from wattdock.host import folders
    from wattdock.publish import Wishes, print_created
    from wattdock.publish import create as make

    wishes = Wishes(
        title=title,
        authors=tuple(author or ()),
        keep_names=keep_names,
        more_names=tuple(redact or ()),
        with_prompts=prompts,
        lock=lock,
    )
    created = make(named, output, wishes, output_dir=output_dir, home=folders.wattdock_home())
    if as_json:
        _print_digest(created.path, created.digest)
    else:
        print_created(created)


@app.command()
def verify(bundle: Bundle, as_json: Json = False) -> None:
    """See that a bundle is what was bundled, and says what its results say; exit code 7 where one byte is not."""
    from wattdock.publish import print_verified
    from wattdock.publish import verify as check

    found = check(bundle)
    if as_json:
        _print_digest(bundle, found.digest)
    else:
        print_verified(bundle, found)


@app.command()
def show(bundle: Bundle, as_json: Json = False) -> None:
    """Show what is in a bundle, once it was verified."""
    from wattdock.publish import print_bundle
    from wattdock.publish import verify as check

    found = check(bundle)
    if as_json:
        print_json(found.manifest)
    else:
        print_bundle(found)


def _print_digest(path: Path, digest: str) -> None:
    print_json({"path": str(path), "digest": f"sha256:{digest}"}, indent=None)
