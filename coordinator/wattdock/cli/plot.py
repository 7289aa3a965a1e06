"""`wattdock plot`."""

from pathlib import Path
from typing import Annotated

import typer

from wattdock.cli.options import RESULTS, Named, OutputDir, stored
from wattdock.errors import ConfigError

KINDS = ("intervals", "pareto", "phases", "gpus", "scaling", "batch", "timeline", "table")
WIDTHS = ("column", "page")


def plot(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}.")],
    named: Named,
    output: Annotated[Path, typer.Option("--output", "-o", help="fig.pdf, .svg or .png; a table: .md, .csv or .tex.")],
    width: Annotated[str, typer.Option(help="column (89 mm) or page (183 mm).")] = "column",
    output_dir: OutputDir = RESULTS,
) -> None:
    """Draw a figure, or write a table, for a paper."""
    if kind not in KINDS:
        raise ConfigError(f"{kind}: no such kind; there are {', '.join(KINDS)}")
    if width not in WIDTHS:
        raise ConfigError(f"--width {width}: write {' or '.join(WIDTHS)}")
    from wattdock.reports import points
    from wattdock.text import pluralize

    with stored(named, output_dir) as rows:
        found = points(rows)
        if kind == "table":
            from wattdock.reports import write_table

            write_table(found, output)
        else:
            from wattdock.reports import draw

            draw(kind, found, output, width=width)
    typer.echo(f"{kind} of {pluralize(len(found), 'result')} in {output}")
