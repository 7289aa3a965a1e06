"""`wattdock audit`: what others' published figures say for and against themselves."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattdock.console.options import RESULTS, Json, OutputDir, open_results
from wattdock.errors import ConfigError
from wattdock.files import real_path

if TYPE_CHECKING:
    from wattdock.imported import Imported

# Of commands that show own results.
Beside = Annotated[
    list[Path] | None, typer.Option(metavar="FILE", help="Results of others, as `audit` reads; may be repeated.")
]


def rows_of_others(files: Sequence[Path] | None) -> "list[Imported]":
    """Return the rows of files in which others published results; of no files, none."""
    from wattdock.imported import read_rows

    once = {real_path(file): file for file in files or ()}
    return [row for file in once.values() for row in read_rows(file)]


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
        typer.Option("--beside", metavar="RESULTS", help="Own results to show in the same table; may be repeated."),
    ] = None,
    output_dir: OutputDir = RESULTS,
    as_json: Json = False,
) -> None:
    """Audit results that others published.

    Says of each row which of the verdict's three questions it answers, what speaks against it and what evidence is
    missing. Rows of one form are compared with each other. Imported rows are never publishable.
    """
    from wattdock.console.views import show
    from wattdock.imported import audit_rows

    audited = audit_rows(rows_of_others(files))
    if not audited:
        raise ConfigError(f"{', '.join(map(str, files))}: no rows", "give files with results")
    with open_results(beside or [], output_dir) as own:
        if as_json:
            show({"imported": audited, "own": own} if own else audited, as_json=True)
        else:
            show(audited, own=own)
