"""`wattdock report`."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from wattdock.commands.options import NAMED, RESULTS, OutputDir

Named = Annotated[list[str], typer.Argument(metavar="RESULTS", help=NAMED)]


def report(
    named: Named,
    output: Annotated[Path, typer.Option("--output", "-o", help="Page to write; replaces what is there.")] = Path(
        "report.html"
    ),
    title: Annotated[str, typer.Option(help="Its heading.")] = "Energy of LLM inference",
    output_dir: OutputDir = RESULTS,
) -> None:
    """Write one self-contained page over stored results: verdicts, intervals, charts, timelines, audit."""
    from wattdock.report.html.page import write_page
    from wattdock.results.chosen import chosen_rows

    with ExitStack() as unpacked:
        rows = chosen_rows(named, output_dir, unpacked)
        write_page(rows, output, title=title)
    typer.echo(f"{len(rows)} results in {output} ({output.stat().st_size / 1e6:.1f} MB)")
