"""`wattdock show`."""

from typing import TYPE_CHECKING, Annotated

import typer

from wattdock.cli.options import NAMED, RESULTS, Json, OutputDir, stored
from wattdock.errors import ConfigError
from wattdock.text import json_text, print_json

if TYPE_CHECKING:
    from wattdock.store import Row


def show(
    named: Annotated[str, typer.Argument(metavar="RESULT", help=NAMED)],
    window: Annotated[
        str | None,
        typer.Option(help="Analyse the stored run anew: drained, steady_state, ml-energy, begin-end, or all."),
    ] = None,
    output_dir: OutputDir = RESULTS,
    as_json: Json = False,
) -> None:
    """Show a stored result or a study's, or what a result says under another definition of what counts."""
    from wattdock.store import is_result_itself

    with stored([named], output_dir) as rows:
        if window is None:
            _show(rows, as_json=as_json, itself=is_result_itself(named, rows[0]))
        elif len(rows) == 1:
            _show_window(rows[0], window, as_json=as_json)
        else:
            raise ConfigError(f"--window {window} takes one result, and {named} is {len(rows)}; name one of them")


def _show(rows: "list[Row]", *, as_json: bool, itself: bool) -> None:
    from wattdock.reports import print_result, print_stored
    from wattdock.store import replacement

    if as_json:
        # As they lie on disk; a study's, a bundle's or a folder's are a list, however many there are.
        documents = [json_text(row.result, indent=2, ascii_only=False) for row in rows]
        typer.echo(documents[0] if itself else f"[{', '.join(documents)}]")
    elif len(rows) == 1:
        print_result(rows[0].result, rows[0].folder, every_reason=True)
        if later := replacement(rows[0]):
            typer.echo(f"a later attempt of its study stands for it: {later}")
    else:
        print_stored([(row.result, row.folder) for row in rows])


def _show_window(row: "Row", window: str, *, as_json: bool) -> None:
    from wattdock.analysis import WINDOWS, SpanJoules, windows
    from wattdock.execution import DIFFERENT_GPUS
    from wattdock.reports import print_windows
    from wattdock.store import load_restarts

    if window not in (*WINDOWS, "all"):
        raise ConfigError(f"--window {window}: known are {', '.join(WINDOWS)} and all")
    folder, result = row.folder, row.result
    used = result.environment.gpu_uuids if result.environment else []
    # Only the last restart's GPUs are stored.
    reason = DIFFERENT_GPUS if result.energy and result.energy.reason == DIFFERENT_GPUS else None
    restarts = load_restarts(folder, result)
    summary = windows(restarts, used, in_flight=result.in_flight, joules_in=SpanJoules(reason))
    chosen = [one for one in summary.passes if window in (one.window, "all")]
    if as_json:
        print_json(summary.model_copy(update={"passes": chosen}))
    else:
        print_windows(summary, chosen)
