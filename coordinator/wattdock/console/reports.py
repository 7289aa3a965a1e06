"""`wattdock report`, `plot`, `compare`, `scaling` and `audit`."""

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer
from rich.filesize import decimal as size_text

from wattdock.console.exits import fail
from wattdock.console.options import RESULTS, RESULTS_HELP, Again, Json, Named, OutputDir, open_results, parse_fraction
from wattdock.console.views import show
from wattdock.errors import ConfigError, ExitCode
from wattdock.files import real_path, require_ending
from wattdock.output import say
from wattdock.text import pluralize

if TYPE_CHECKING:
    from wattdock.imported import Imported

Width = Literal["column", "page"]
# What `plot` draws; a list, since charts take long to import.
Kind = Literal["intervals", "pareto", "frontier", "scaling", "batch", "timeline", "table"]
Page = Annotated[Path, typer.Option("--output", "-o", help="HTML file to write; an existing file is replaced.")]
Figure = Annotated[
    Path, typer.Option("--output", "-o", help="File to write: .pdf, .svg or .png; for a table .md or .tex.")
]
Allowed = Annotated[
    str | None,
    typer.Option(
        "--max-regression",
        metavar="3%",
        help="Exit with 9 if B is worse than A by more than this, with 10 if that cannot be decided.",
    ),
]
# Of commands that show own results.
Beside = Annotated[
    list[Path] | None, typer.Option(metavar="FILE", help="Results of others, as `audit` reads; may be repeated.")
]


def report(
    named: Named,
    output: Page = Path("report.html"),
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "Energy of LLM inference",
    again: Again = False,
    output_dir: OutputDir = RESULTS,
) -> None:
    """Write an HTML page about results.

    It holds verdicts, intervals, charts, timelines and the audit, and needs no other file.
    """
    from wattdock.reports import write_report

    require_ending(output, "", ".html", ".htm")
    replaced = ", which replaced another page" if os.access(output, os.F_OK) else ""
    with open_results(named, output_dir, output, again=again) as rows:
        write_report(rows, output, title=title)
    say(f"{pluralize(len(rows), 'result')} in {output} ({size_text(output.stat().st_size)}){replaced}")


def plot(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help=f"{', '.join(get_args(Kind))}.")],
    named: Named,
    output: Figure,
    width: Annotated[Width, typer.Option(help="Width on the page of a journal: 89 mm or 183 mm.")] = "column",
    beside: Beside = None,
    again: Again = False,
    output_dir: OutputDir = RESULTS,
) -> None:
    """Draw a figure or write a table for a paper."""
    from wattdock.reports import draw

    with open_results(named, output_dir, output, beside, again=again) as rows:
        note = draw(kind, rows, output, width=width, beside=rows_of_others(beside))
    say(f"{kind} of {pluralize(len(rows), 'result')} in {output}" + (f"; for its caption: {note}" if note else ""))


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help=f"Baseline. {RESULTS_HELP}")],
    second: Annotated[str, typer.Argument(metavar="B", help="Results to compare with the baseline.")],
    max_regression: Allowed = None,
    score_margin: Annotated[
        str, typer.Option(metavar="FRACTION", help="Fall of a score that does not matter, such as 2%.")
    ] = "2%",
    across_models: Annotated[
        bool, typer.Option("--across-models", help="Compare results of different GPU models, too.")
    ] = False,
    again: Again = False,
    output_dir: OutputDir = RESULTS,
    as_json: Json = False,
) -> None:
    """Compare two sets of results.

    Says whether they differ, by how much, and how settings, code and machine differ.
    """
    from wattdock.reports import compare as compare_results

    allowed = None if max_regression is None else parse_fraction(max_regression, "--max-regression")
    opened = functools.partial(open_results, output_dir=output_dir, again=again)
    with opened([first]) as before, opened([second]) as after:
        margin = parse_fraction(score_margin, "--score-margin")
        compared = compare_results(before, after, allowed=allowed, score_margin=margin)
    if not compared.pairs:
        alone = f"{len(compared.only_in_a)} and {len(compared.only_in_b)} results"
        remedy = "name one of each, as STUDY:EXPERIMENT"
        raise ConfigError(f"{first} and {second}: no experiment of one is in the other ({alone})", remedy)
    if compared.across_models and not across_models:
        raise ConfigError(
            f"{compared.across_models}; what differs may be the GPUs'", "to compare them anyway, --across-models"
        )
    show(compared, as_json=as_json)
    judged = compared.regression
    if judged and judged.verdict == "regression":
        fail(f"regression: {judged.lines[0]}", ExitCode.REGRESSION)
    if judged and judged.verdict == "cannot be decided":
        fail(f"whether it regressed cannot be decided: {judged.lines[0]}; {judged.advice}", ExitCode.UNDECIDED)
    if not judged and compared.uncompared:
        fail(f"nothing was compared: {compared.uncompared}", ExitCode.UNDECIDED)


def scaling(named: Named, again: Again = False, output_dir: OutputDir = RESULTS, as_json: Json = False) -> None:
    """Compare GPU counts and kinds of split.

    Shows speed-up, efficiency, latency, power and joules per token of each.
    """
    from wattdock.reports import scale

    with open_results(named, output_dir, again=again) as rows:
        curves = scale(rows)
    show(curves, as_json=as_json)


def audit(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…",
            help="Results of ML.ENERGY's leaderboard, AIPerf, InferenceX, vllm bench, llm-d-benchmark or codecarbon.",
        ),
    ],
    beside: Annotated[
        list[str] | None,
        typer.Option(metavar="RESULTS", help="Own results to show in the same table; may be repeated."),
    ] = None,
    output_dir: OutputDir = RESULTS,
    as_json: Json = False,
) -> None:
    """Audit results that others published.

    Says of each row which of the verdict's three questions it answers, what speaks against it and what evidence is
    missing. Rows of one form are compared with each other. Imported rows are never publishable.
    """
    from wattdock.imported import audit_rows

    audited = audit_rows(rows_of_others(files))
    if not audited:
        raise ConfigError(f"{', '.join(map(str, files))}: no rows", "give files with results")
    with open_results(beside or [], output_dir) as own:
        if as_json:
            show({"imported": audited, "own": own} if own else audited, as_json=True)
        else:
            show(audited, own=own)


def rows_of_others(files: Sequence[Path] | None) -> "list[Imported]":
    """Return the rows of files in which others published results; of no files, none."""
    from wattdock.imported import read_rows

    once = {real_path(file): file for file in files or ()}
    return [row for file in once.values() for row in read_rows(file)]
