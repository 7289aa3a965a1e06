"""Arguments of `wattdock results …`, nothing else."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from wattdock.errors import ConfigError

if TYPE_CHECKING:
    from wattdock.results.query import Filters

app = typer.Typer(help="List, query and export stored results.")

OutputDir = Annotated[Path, typer.Option(help="Where results are.")]
Model = Annotated[str | None, typer.Option(help="Part of the model's name.")]
Backend = Annotated[str | None, typer.Option(help="Backend.")]
Gpu = Annotated[str | None, typer.Option(help="Part of a GPU's name.")]
Since = Annotated[str | None, typer.Option(help="Begun at this UTC date or later: 2026-01-31.")]
Until = Annotated[str | None, typer.Option(help="Begun before this UTC date.")]
Verdict = Annotated[str | None, typer.Option(help="publishable or unpublishable.")]
Status = Annotated[str | None, typer.Option(help="ok, failed or interrupted.")]
StudyId = Annotated[str | None, typer.Option("--study", help="Part of the study's name.")]
All = Annotated[bool, typer.Option("--all", help="Also rows that a later one of the same study stands for.")]
Limit = Annotated[int, typer.Option(min=1, help="Rows shown, the latest first.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Csv = Annotated[Path | None, typer.Option("--csv", help="File to write.")]
Parquet = Annotated[Path | None, typer.Option("--parquet", help="File to write.")]
RESULTS = Path("results")
VERDICTS = {"publishable": True, "unpublishable": False}


@app.command("list")
def list_(
    model: Model = None,
    backend: Backend = None,
    gpu: Gpu = None,
    since: Since = None,
    until: Until = None,
    verdict: Verdict = None,
    status: Status = None,
    study: StudyId = None,
    superseded: All = False,
    limit: Limit = 50,
    output_dir: OutputDir = RESULTS,
    as_json: Json = False,
) -> None:
    """Show stored results, the latest first."""
    from wattdock.report.listing import SHOWN, print_json, print_results
    from wattdock.results.query import select

    wanted = _filters(model, backend, gpu, since, until, verdict, status, study, superseded)
    _require_known(wanted, output_dir)
    found = select(output_dir, wanted, columns=("*",) if as_json else tuple(SHOWN))
    if as_json:
        print_json(found.slice(0, limit))
    else:
        print_results(found, limit=limit)


@app.command()
def query(
    sql: Annotated[str, typer.Argument(help="A SELECT over results, passes, requests, timeline (DuckDB's SQL).")],
    output_dir: OutputDir = RESULTS,
    as_json: Json = False,
) -> None:
    """Ask the stored files a question in SQL."""
    from wattdock.report.listing import print_json, print_rows
    from wattdock.results.query import query as ask

    (print_json if as_json else print_rows)(ask(output_dir, sql))


@app.command()
def export(
    csv: Csv = None,
    parquet: Parquet = None,
    model: Model = None,
    backend: Backend = None,
    gpu: Gpu = None,
    since: Since = None,
    until: Until = None,
    verdict: Verdict = None,
    status: Status = None,
    study: StudyId = None,
    superseded: All = False,
    output_dir: OutputDir = RESULTS,
) -> None:
    """Write one line per stored result to a file."""
    from wattdock.results.query import select, write_csv, write_parquet

    if (csv is None) == (parquet is None):
        raise ConfigError("give one of --csv FILE and --parquet FILE")
    wanted = _filters(model, backend, gpu, since, until, verdict, status, study, superseded)
    _require_known(wanted, output_dir)
    found = select(output_dir, wanted)
    if csv:
        write_csv(found, csv)
    elif parquet:
        write_parquet(found, parquet)
    typer.echo(f"{found.num_rows} results written to {csv or parquet}")


def _filters(
    model: str | None,
    backend: str | None,
    gpu: str | None,
    since: str | None,
    until: str | None,
    verdict: str | None,
    status: str | None,
    study: str | None,
    superseded: bool,
) -> "Filters":
    from wattdock.results.query import Filters

    if verdict not in (None, *VERDICTS):
        raise ConfigError(f"--verdict {verdict}: write publishable or unpublishable")
    publishable = None if verdict is None else VERDICTS[verdict]
    return Filters(model, backend, gpu, since, until, status, publishable, study, superseded)


def _require_known(wanted: "Filters", output_dir: Path) -> None:
    """Refuse a status or a backend that no result can have: an empty list would pass for an answer."""
    from wattdock.launch.runners import backends
    from wattdock.results.query import stored_backends
    from wattdock.results.result import ExperimentResult

    statuses = get_args(ExperimentResult.model_fields["status"].annotation)
    if wanted.status not in (None, *statuses):
        raise ConfigError(f"--status {wanted.status}: write one of {', '.join(statuses)}")
    # A result may be of a backend that is not here any more.
    if wanted.backend not in (None, *backends()):
        known = sorted({*backends(), *stored_backends(output_dir)})
        if wanted.backend not in known:
            raise ConfigError(f"--backend {wanted.backend}: unknown; there are {', '.join(known)}")
