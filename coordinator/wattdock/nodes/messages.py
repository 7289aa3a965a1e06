"""Messages between head and agent ↔ plain values: errors, plans, timelines. Pure but for scratch folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from wattdock.errors import Cause, MeterError, RunnerError, StoreError, WattdockError, error_kind
from wattdock.files import write_whole
from wattdock.host import Gpu, Machine, processes
from wattdock.opening import read_regular
from wattdock.owned_folder import OwnedFolder
from wattdock.records import RestartRecord, disk, snapshot
from wattdock.values import Stored
from wattdock.version import __version__
from wattdock_proto.v1 import node_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from wattdock.metering import Timeline

PROTOCOL_VERSION = 1


class PlannedNode(Stored):
    """How a node would run an experiment: the GPUs it gives, all that it has, and what it is."""

    gpus: list[Gpu] = Field(default_factory=list)
    host_gpus: list[Gpu] = Field(default_factory=list)
    facts: snapshot.NodeFacts


def description() -> pb.DescribeNodeResponse:
    """Return what both sides of a link must have in common, as this one has it."""
    return pb.DescribeNodeResponse(
        protocol=PROTOCOL_VERSION,
        wattdock=__version__,
        commit=Machine.checkout().revision or "",
        user=processes.user_name(),
    )


def error_message(error: WattdockError) -> pb.NodeError:
    """Return an error as it goes over the wire."""
    return pb.NodeError(what=error.what, remedy=error.remedy, cause=error.cause, exit_code=error.exit_code)


def error_from(message: pb.NodeError, node: str) -> WattdockError:
    """Return the error of a node, in the class of its exit code, a `RunnerError` where no error has that code."""
    kind = error_kind(message.exit_code, otherwise=RunnerError)
    causes = {cause.value: cause for cause in Cause}
    remedy = message.remedy if message.HasField("remedy") else None
    return kind(f"node {node}: {message.what}", remedy, cause=causes.get(message.cause))


def timeline_files(timeline: Timeline, scratch: Path) -> dict[str, bytes]:
    """Return a timeline as the files of a record, by name."""
    folder = scratch / "timeline"
    disk.write(RestartRecord(0, timeline=timeline), folder)
    return {name: read_regular(folder / name, owned=True) for name in disk.FILES}


def timeline_from(files: Mapping[str, bytes], scratch: Path, node: str) -> Timeline:
    """Return the timeline that a node sent; its files are read as any record that others made.

    Raises:
        MeterError: They hold no timeline.
    """
    folder = scratch / node.replace(":", "-")
    folder.mkdir(mode=0o700)
    for name in disk.FILES:
        write_whole(folder / name, files.get(name, b""))
    try:
        with OwnedFolder.open(folder) as opened:
            timeline = disk.read(opened).timeline
    except StoreError as error:
        raise MeterError(f"node {node} sent no timeline: {error.what}") from error
    if timeline is None:
        raise MeterError(f"node {node} sent no timeline")
    return timeline
