"""`wattdock gpus`, `doctor` and `reap`: the state of this machine."""

import sys
import time
from contextlib import nullcontext, suppress
from typing import Annotated

import typer

from wattdock.console.options import RESULTS, File, Json, OutputDir, Quiet, SettingFlags, study_of, with_flags
from wattdock.errors import ExitCode, WattdockError
from wattdock.output import say, say_in_place
from wattdock.text import pluralize

WATCH_S = 2.0
# ANSI: erase everything and go to the first line.
CLEAR_SCREEN = "\033[2J\033[H"


def gpus(
    watch: Annotated[bool, typer.Option("--watch", help="Repeat every two seconds until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """Show this machine's GPUs, their links, processes and leases.

    Exit code 3 without a GPU.
    """
    from wattdock.console.views import show
    from wattdock.live import GpuSnapshot

    with suppress(KeyboardInterrupt) if watch else nullcontext():
        while True:
            snapshot = GpuSnapshot.now()
            if watch and not as_json and sys.stdout.isatty():
                say_in_place(CLEAR_SCREEN)
            show(snapshot, as_json=as_json, indent=None if watch else 2)
            if not snapshot.inventory.gpus:
                raise typer.Exit(ExitCode.PREFLIGHT)
            if not watch:
                return
            time.sleep(WATCH_S)


@with_flags
def doctor(
    flags: SettingFlags,
    file: File = None,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Calibrate the energy counters with load pulses."),
    ] = False,
    pulses: Annotated[
        int,
        typer.Option(
            min=30, help="Load pulses per GPU; 100 take 130 s, and results need a calibration of at least 100."
        ),
    ] = 100,
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
    from wattdock.doctor import calibrate_meters, examine
    from wattdock.host import folders

    config = study_of(file, flags).experiments[0]
    home, progress = folders.wattdock_home(), progress_for(quiet=quiet)
    if calibrate:
        for card in calibrate_meters(config, home=home, pulses=pulses, say=progress.say):
            # A line each, as they come.
            show(card, as_json=as_json, indent=None)
        return
    with_engine = file is not None or flags.backend is not None
    checks = []
    for check in examine(config, output_dir=output_dir, home=home, with_engine=with_engine, say=progress.say):
        checks.append(check)
        if not as_json:
            show(check)
    # What stays unknown never passes.
    unsound = [check.name for check in checks if check.status in ("fail", "unknown")]
    warnings = sum(check.status == "warn" for check in checks)
    if as_json:
        show({"schema_version": 1, "sound": not unsound, "checks": checks}, as_json=True)
    elif unsound:
        say(f"a measurement here would not be sound: {', '.join(unsound)}")
    else:
        more = f"; {pluralize(warnings, 'warning')} to know about" if warnings else ""
        say(f"a measurement here would be sound{more}")
    if unsound:
        raise typer.Exit(ExitCode.PREFLIGHT)


def reap(
    every: Annotated[float | None, typer.Option(min=1, help="Repeat after this many seconds until Ctrl-C.")] = None,
    output_dir: OutputDir = RESULTS,
) -> None:
    """Remove what killed commands left behind: half-made folders of yours, and containers."""
    from wattdock.host import folders
    from wattdock.launch import reap as reap_orphans

    while every:
        # An engine that does not answer may answer the next time.
        try:
            for path in folders.remove_leftovers(output_dir, folders.wattdock_home()):
                say(f"removed: {path}", err=True)
            for name in reap_orphans().removed:
                say(f"removed: {name}", err=True)
        except WattdockError as error:
            say(f"wattdock: {error}", err=True)
        time.sleep(every)
    for path in folders.remove_leftovers(output_dir, folders.wattdock_home()):
        say(f"removed: {path}")
    containers = reap_orphans()
    for verb, names in (("removed", containers.removed), ("left alone", containers.in_use)):
        for name in names:
            say(f"{verb}: {name}")
    if not (containers.removed or containers.in_use):
        say("this machine has no container of wattdock")
