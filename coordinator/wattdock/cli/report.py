"""`wattdock report`."""

from pathlib import Path
from typing import Annotated

import typer

from wattdock.cli.options import RESULTS, Named, OutputDir, stored


def report(
    named: Named,
    output: Annotated[Path, typer.Option("--output", "-o", help="Page to write; replaces what is there.")] = Path(
        "report.html"
    ),
    title: Annotated[str, typer.Option(help="Its heading.")] = "Energy of LLM inference",
    output_dir: OutputDir = RESULTS,
) -> None:
    """Write one self-contained page over stored results: verdicts, intervals, charts, timelines, audit."""
    from wattdock.reports import write_page
    from wattdock.text import pluralize

    replaced = ", which replaced another page" if output.exists() else ""
    with stored(named, output_dir) as rows:
        write_page(rows, output, title=title)
    typer.echo(f"{pluralize(len(rows), 'result')} in {output} ({output.stat().st_size / 1e6:.1f} MB){replaced}")
