"""`wattdock results …` and `wattdock show`."""

import io
from pathlib import Path
from typing import Annotated

import typer

from wattdock.console.options import RESULTS, Again, Json, Named, OutputDir, in_help, open_results, typed_again
from wattdock.errors import ConfigError
from wattdock.output import say
from wattdock.text import pluralize, shortest_unique_names

app = typer.Typer(
    help="List, query and export stored results. A file that cannot be read is named on standard error and left out; "
    "the exit code stays 0."
)

Where = Annotated[
    str | None,
    typer.Option(help="Condition in SQL on columns of results, as in \"backend = 'vllm' AND batch_size > 4\"."),
]
All = Annotated[
    bool, typer.Option("--all", help="Include results that a later attempt replaced; in a list, failures, too.")
]
Limit = Annotated[int, typer.Option(min=1, help="Most rows shown.")]
Csv = Annotated[Path | None, typer.Option("--csv", help="CSV file to write.")]
Parquet = Annotated[Path | None, typer.Option("--parquet", help="Parquet file to write.")]


@app.command("list", epilog=in_help("results list", "results list --where \"name LIKE '%70b%'\" --all"))
def list_(
    where: Where = None,
    show_all: All = False,
    limit: Limit = 50,
    again: Again = False,
    output_dir: OutputDir = RESULTS,
    as_json: Json = False,
) -> None:
    """List stored results, the latest first.

    Failures are counted in the last line; --all, --json and a condition on their status list them.
    """
    from wattdock.console.views import show
    from wattdock.store import TABLES, all_rows, matching

    everything, left_out = all_rows(output_dir, again=again, warn=_say_left_out), dict[str, int]()
    rows = matching(everything, where, superseded=show_all, failed=show_all or as_json, left_out=left_out)
    if as_json:
        show(rows[:limit], as_json=True)
        return
    if rows:
        names = [name for row in everything for name in (Path(row.folder).name, row.study_id) if name]
        show(rows[:limit], columns=TABLES["list"], names=shortest_unique_names(names))
    more = f", the latest {limit} shown; --limit shows more" if len(rows) > limit else ""
    counts = ", ".join(f"{count} {kind}" for kind, count in left_out.items() if count)
    say(f"{pluralize(len(rows), 'result')}{more}{counts and f'; {counts}: --all shows them'}")


@app.command(
    epilog=in_help(
        'results query "SELECT name, energy_per_output_token_j FROM results"', 'results query "DESCRIBE requests"'
    )
)
def query(
    sql: Annotated[
        str,
        typer.Argument(metavar="SQL", help="A SELECT (DuckDB's SQL) over results, passes, requests, steps, timeline."),
    ],
    again: Again = False,
    output_dir: OutputDir = RESULTS,
    as_json: Json = False,
) -> None:
    """Query stored results in SQL."""
    from wattdock.console.views import show
    from wattdock.store import query as ask

    show(ask(output_dir, sql, again=again, warn=_say_left_out), as_json=as_json)


@app.command(
    epilog=in_help("results export --csv all.csv", "results export --where batch_size=8 --parquet eight.parquet")
)
def export(
    where: Where = None,
    show_all: All = False,
    csv: Csv = None,
    parquet: Parquet = None,
    again: Again = False,
    output_dir: OutputDir = RESULTS,
) -> None:
    """Write stored results to a file, one row each."""
    import pyarrow.csv
    import pyarrow.parquet

    from wattdock.files import require_ending, write_output
    from wattdock.store import Row, all_rows, matching

    asked = [(kind, file) for kind, file in (("csv", csv), ("parquet", parquet)) if file]
    if len(asked) != 1:
        raise ConfigError("give one of --csv FILE and --parquet FILE")
    [(kind, file)] = asked
    require_ending(file, "", f".{kind}")
    rows = matching(all_rows(output_dir, again=again, warn=_say_left_out), where, superseded=show_all)
    results = Row.table(rows)
    content = io.BytesIO()
    write = pyarrow.csv.write_csv if kind == "csv" else pyarrow.parquet.write_table
    write(results, content)
    write_output(file, content.getvalue(), f"--{kind}")
    say(f"{pluralize(results.num_rows, 'result')} written to {file}")


def show(
    named: Named,
    checks: Annotated[bool, typer.Option("--checks", help="Show every check behind the verdict.")] = False,
    again: Again = False,
    output_dir: OutputDir = RESULTS,
    as_json: Json = False,
) -> None:
    """Show stored results, or analyse them again as this version of wattdock does."""
    from wattdock.console.views import show as print_object

    with open_results(named, output_dir, again=again) as results:
        print_object(results, as_json=as_json, checks=checks, more=typed_again("--checks"))


def _say_left_out(line: str) -> None:
    """Name a file that the answer lacks on standard error."""
    say(f"wattdock: {line}", err=True)
