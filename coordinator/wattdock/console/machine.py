"""`wattdock gpus`, `doctor`, `serve` and `reap`: this machine; `pair` and `agent`: other nodes of a model."""

import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattdock.console.exits import interruptible
from wattdock.console.options import RESULTS, File, Json, OutputDir, Quiet, SettingFlags, study_of, with_flags
from wattdock.console.views import show
from wattdock.errors import ExitCode, WattdockError
from wattdock.output import say
from wattdock.text import pluralize

if TYPE_CHECKING:
    from wattdock.config import Study
    from wattdock.execution import MachineAccess

HOURS, LISTEN = 12.0, "0.0.0.0:7407"
PairingFile = Annotated[Path, typer.Argument(metavar="FILE", help="The pairing file.")]


def gpus(as_json: Json = False) -> None:
    """Show this machine's GPUs, their links, processes and leases.

    Exit code 3 without a GPU.
    """
    from wattdock.live import GpuSnapshot

    snapshot = GpuSnapshot.now()
    show(snapshot, as_json=as_json)
    if not snapshot.inventory.gpus:
        raise typer.Exit(ExitCode.PREFLIGHT)


@with_flags
def doctor(
    flags: SettingFlags, file: File = None, output_dir: OutputDir = RESULTS, as_json: Json = False, quiet: Quiet = False
) -> None:
    """Check whether a measurement here would be sound.

    Each check that fails says what to do. A backend is checked, too, if FILE or --backend names it.
    Exit code 3 if a measurement would not be sound.
    """
    from wattdock.console.progress import progress_for
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
            yield f"this machine has no container {'of wattdock' if containers.engine else 'engine'}"


def serve(
    host: Annotated[str, typer.Option(help="Name or address of this machine to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8089,
    output_dir: OutputDir = RESULTS,
) -> None:
    """Watch this machine in a browser: its GPUs and the runs under way.

    Metrics for Prometheus are under /metrics. Serves until Ctrl-C; the runs that it shows are not disturbed.
    """
    from wattdock.live.server import serve as serve_page

    serve_page(output_dir, host=host, port=port, say=say)


def machine_of(study: "Study") -> "AbstractContextManager[MachineAccess]":
    """Return a block that yields how a study reaches this machine and, where it names any, other nodes."""
    from wattdock.execution import HERE

    if not any(config.nodes for config in study.experiments):
        return nullcontext(HERE)
    from wattdock import nodes

    return nodes.machine_of(study)


def pair(
    file: PairingFile, hours: Annotated[float, typer.Option(min=0.01, max=720, help="How long it is valid.")] = HOURS
) -> None:
    """Make a pairing file, which every node of a model needs.

    Copy it to the other nodes by a way that nobody else can read: who has the file can run what you can.
    """
    from wattdock.nodes import Pairing

    pairing = Pairing.make(file, hours)
    say(f"{file}: valid until {pairing.expires.isoformat(timespec='minutes')}; elsewhere: wattdock agent {file}")


def agent(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The pairing file; - is standard input.")],
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 is any.")] = LISTEN,
    once: Annotated[bool, typer.Option("--once", help="End after the first study.")] = False,
) -> None:
    """Serve the head of a model over several nodes: lease, meter and run this node's part."""
    from wattdock.nodes import Agent, Pairing

    tell = partial(say, err=True)
    # What ends a job of a scheduler ends the agent as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    pairing = Pairing.read(file)
    with interruptible(lambda: "nothing is left running"), Agent(pairing, listen, tell, once=once) as opened:
        if address := opened.address_in_job():
            say(address)
        tell(f"listening on port {opened.port} until {pairing.expires.isoformat(timespec='minutes')}")
        opened.wait()
