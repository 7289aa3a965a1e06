"""`wattdock audit`: what others' published figures say for and against themselves."""

from pathlib import Path
from typing import Annotated

import typer

from wattdock.console.options import Json
from wattdock.errors import ConfigError
from wattdock.output import say


def audit(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…",
            help="Results of ML.ENERGY's leaderboard, AIPerf, InferenceX, vllm bench, llm-d-benchmark or codecarbon.",
        ),
    ],
    published_at: Annotated[
        str | None,
        typer.Option("--published-at", metavar="URL", help="Address of the folder of the files; rows link to it."),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print tables for a page.")] = False,
    as_json: Json = False,
) -> None:
    """Audit results that others published.

    Says of each row which of the verdict's three questions it answers, what speaks against it and what evidence is
    missing. Rows of one form are compared with each other. Imported rows are never publishable.
    """
    from wattdock.console.views import show
    from wattdock.imported import audit_rows, page, read_rows

    if markdown and as_json:
        raise ConfigError("--markdown and --json exclude each other", "give one of them")
    audited = audit_rows([row for file in files for row in read_rows(file, published_at)])
    if not audited:
        raise ConfigError(f"{', '.join(map(str, files))}: no rows", "give files with results")
    if not markdown:
        show(audited, as_json=as_json)
    for line in page(audited) if markdown else ():
        say(line)
