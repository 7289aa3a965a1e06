"""`wattdock show`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattdock.commands.options import Json
from wattdock.errors import ConfigError

if TYPE_CHECKING:
    from wattdock.results.result import ExperimentResult


def show(
    path: Annotated[Path, typer.Argument(help="A result folder.")],
    window: Annotated[
        str | None,
        typer.Option(help="Analyse the stored run anew: drained, steady_state, ml-energy, begin-end, or all."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a stored result, or what it says under another definition of what counts."""
    from wattdock.json_text import json_text
    from wattdock.report.table import print_result
    from wattdock.results.store import load_result

    result = load_result(path)
    if window is not None:
        _show_window(path if path.is_dir() else path.parent, result, window, as_json=as_json)
        return
    if as_json:
        typer.echo(json_text(result, indent=2, ascii_only=False))
    else:
        print_result(result, path if path.is_dir() else path.parent, every_reason=True)


def _show_window(folder: Path, result: "ExperimentResult", window: str, *, as_json: bool) -> None:
    from wattdock.json_text import json_text
    from wattdock.merge.windows import WINDOWS, windows
    from wattdock.report.windows import print_windows
    from wattdock.results.reread import load_restarts

    if window not in (*WINDOWS, "all"):
        raise ConfigError(f"--window {window}: known are {', '.join(WINDOWS)} and all")
    used = result.environment.gpu_uuids if result.environment else []
    in_flight = result.config["workload"]["batch_size"]
    summary = windows(load_restarts(folder, result), used, in_flight=in_flight)
    chosen = [one for one in summary.passes if window in (one.window, "all")]
    if as_json:
        typer.echo(json_text(summary.model_copy(update={"passes": chosen}), indent=2))
    else:
        print_windows(summary, chosen)
