"""`wattdock pair` and `wattdock agent`: the other nodes of a model."""

import signal
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattdock.console.exits import interruptible
from wattdock.output import say

if TYPE_CHECKING:
    from wattdock.config import Study
    from wattdock.execution import MachineAccess

HOURS, LISTEN = 12.0, "0.0.0.0:7407"
PairingFile = Annotated[Path, typer.Argument(metavar="FILE", help="The pairing file.")]


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
