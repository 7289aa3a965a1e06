"""`wattdock gpus`, `doctor` and `reap`: the state of this machine."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from wattdock.console.options import RESULTS, File, Json, OutputDir, Quiet, SettingFlags, study_of, with_flags
from wattdock.errors import ExitCode, WattdockError
from wattdock.output import say
from wattdock.text import pluralize


def gpus(as_json: Json = False) -> None:
    """Show this machine's GPUs, their links, processes and leases.

    Exit code 3 without a GPU.
    """
    from wattdock.console.views import show
    from wattdock.live import GpuSnapshot

    snapshot = GpuSnapshot.now()
    show(snapshot, as_json=as_json)
    if not snapshot.inventory.gpus:
        raise typer.Exit(ExitCode.PREFLIGHT)


@with_flags
def doctor(
    flags: SettingFlags,
    file: File = None,
    output_dir: OutputDir = RESULTS,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check whether a measurement here would be sound.

    Each check that fails says what to do. A backend is checked, too, if FILE or --backend names it.
    Exit code 3 if a measurement would not be sound.
    """
    from wattdock.console.progress import progress_for
    from wattdock.console.views import show
    from wattdock.doctor import examine
    from wattdock.host import folders

    config = study_of(file, flags).experiments[0]
    home, progress = folders.wattdock_home(), progress_for(quiet=quiet)
    with_engine = file is not None or flags.backend is not None
    checks = []
    for check in examine(config, output_dir=output_dir, home=home, with_engine=with_engine, say=progress.say):
        checks.append(check)
        if not as_json:
            show(check)
    # An unknown state blocks publication.
    unsound = [check.name for check in checks if check.status in ("fail", "unknown")]
    if as_json:
        show({"schema_version": 1, "sound": not unsound, "checks": checks}, as_json=True)
    elif unsound:
        say(f"a measurement here would not be sound: {', '.join(unsound)}")
    else:
        warnings = sum(check.status == "warn" for check in checks)
        more = f"; {pluralize(warnings, 'warning')} to know about" if warnings else ""
        say(f"a measurement here would be sound{more}")
    if unsound:
        raise typer.Exit(ExitCode.PREFLIGHT)


def reap(
    every: Annotated[float | None, typer.Option(min=1, help="Repeat after this many seconds until Ctrl-C.")] = None,
    output_dir: OutputDir = RESULTS,
) -> None:
    """Remove what killed commands left behind: half-made folders of yours, and containers."""
    while every:
        # An engine that does not answer may answer the next time.
        try:
            for line in _reaped(output_dir, only_removed=True):
                say(line, err=True)
        except WattdockError as error:
            say(f"wattdock: {error}", err=True)
        time.sleep(every)
    for line in _reaped(output_dir, only_removed=False):
        say(line)


def _reaped(output_dir: Path, *, only_removed: bool) -> Iterator[str]:
    """Remove leftovers, and yield a line for each."""
    from wattdock.host import folders
    from wattdock.launch import reap as reap_orphans

    for path in folders.remove_leftovers(output_dir, folders.wattdock_home()):
        yield f"removed: {path}"
    containers = reap_orphans()
    yield from (f"removed: {name}" for name in containers.removed)
    if not only_removed:
        yield from (f"left alone: {name}" for name in containers.in_use)
        if not (containers.removed or containers.in_use):
            yield "this machine has no container of wattdock"
