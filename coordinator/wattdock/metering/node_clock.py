"""The clock of another node against this host's: offset, drift and their uncertainty from exchanges of instants. Pure.

No message arrives before it was sent. So each exchange bounds the node's clock from both sides, and all exchanges
together bound a line, which is offset and drift; delays of messages widen no bound but their own. What remains is the
part of the shortest round trip that each direction takes, which no exchange can tell.
The model and its limits: docs/decisions/nodes.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wattdock.clock import NS_PER_S
from wattdock.errors import Cause, ClockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from wattdock.metering.timeline import GpuTimeline, ProcessSample, Timeline

    Floats = NDArray[np.float64]
    Instants = NDArray[np.int64]

__all__ = ["LEAST_EXCHANGES", "Exchange", "NodeClock", "on_this_clock", "pid_here"]
# Largest rate of one clock against another, s/s. Source: adjtimex(2), a kernel slews a clock by 500 ppm at most.
MOST_DRIFT = 1e-3
# Fewest exchanges that a line is laid through: where two rates of a slewed clock meet, a piece is halved down to these.
LEAST_EXCHANGES = 8
# Share of half the shortest round trip that holds 95 %, if any part of it may be the way there.
SHARE_95, NORMAL95 = 0.95, 1.96
# First number that the process 0 of the first other node gets here: above every process number of Linux (2^22).
PIDS_OF_A_NODE = 1 << 22


class Exchange(NamedTuple):
    """A question and its answer: sent and returned by this host's clock, received and replied by the node's, ns."""

    sent_ns: int
    received_ns: int
    replied_ns: int
    returned_ns: int


@dataclass(frozen=True)
class NodeClock:
    """Converts a node's instants to this host's clock, between the first exchange and the last.

    Attributes:
        at_ns: The node's instants between which its offset is a straight line, ascending, shape (n,).
        offset_ns: What is added to each of them, shape (n,).
        bound_s: Farthest that a converted instant can be off, if the clocks keep their rates between exchanges.
        half_trip_s: Half of the shortest way there and the shortest way back by this clock, which may be of two
            exchanges.
    """

    at_ns: Instants
    offset_ns: Instants
    bound_s: float
    half_trip_s: float

    @classmethod
    def of(cls, exchanges: Sequence[Exchange]) -> NodeClock:
        """Return the clock that exchanges, in the order in which they were made, leave possible.

        Raises:
            ClockError: There are too few exchanges, or no steady clock gives such instants: one was set or slewed.
        """
        if len(exchanges) < LEAST_EXCHANGES:
            what = f"{len(exchanges)} exchanges of instants do not tell a clock; {LEAST_EXCHANGES} are needed"
            raise ClockError(what, cause=Cause.OTHER_CLOCK)
        pieces = _pieces(np.asarray(exchanges, dtype=np.int64))
        return cls(
            np.concatenate([piece.at_ns for piece in pieces]),
            np.concatenate([piece.offset_ns for piece in pieces]),
            max(piece.bound_s for piece in pieces),
            max(piece.half_trip_s for piece in pieces),
        )

    @property
    def std_s(self) -> float:
        """Standard uncertainty of a converted instant, s; ± 1.96 of it hold 95 %."""
        return SHARE_95 * self.half_trip_s / NORMAL95

    @property
    def drift(self) -> float:
        """By how much a second of the node is longer than one of this host, s."""
        return float((self.offset_ns[-1] - self.offset_ns[0]) / (self.at_ns[-1] - self.at_ns[0]))

    def here(self, at_ns: Instants) -> Instants:
        """Return instants of the node by this host's clock."""
        # From the first instant on: nanoseconds of months are no floats.
        offset_ns = np.interp(at_ns - self.at_ns[0], self.at_ns - self.at_ns[0], self.offset_ns - self.offset_ns[0])
        here_ns: Instants = at_ns + self.offset_ns[0] + np.rint(offset_ns).astype(np.int64)
        return here_ns

    def require(self, *, limit_j: float, step_w: float, node: str) -> None:
        """Refuse a link over which a step of power cannot be placed well enough.

        Args:
            limit_j: Most joules by which the end of a span may be off on one GPU, at the 95 % level.
            step_w: The largest step of power of one GPU.

        Raises:
            ClockError: Holds the figure, the round trip, and the limit.
        """
        if (off_j := NORMAL95 * self.std_s * step_w) > limit_j:
            raise ClockError(
                f"the clock of {node} is known to ±{NORMAL95 * self.std_s * 1e3:.3f} ms (round trip "
                f"{2 * self.half_trip_s * 1e3:.3f} ms): a step of {step_w:.0f} W would be off by {off_j:.2f} J",
                f"the limit is {limit_j:g} J; use a faster link, or raise nodes.clock_limit_j",
                cause=Cause.OTHER_CLOCK,
            )


def _pieces(exchanges: Instants) -> list[NodeClock]:
    """Return straight pieces, as few as halving the exchanges gives."""
    if piece := _straight(exchanges):
        return [piece]
    middle = len(exchanges) // 2
    if middle < LEAST_EXCHANGES:
        raise ClockError(
            f"no steady clock gives the instants of {len(exchanges)} exchanges: one was set, or slewed fast",
            "wait until the nodes' time service is settled",
            cause=Cause.OTHER_CLOCK,
        )
    return _pieces(exchanges[:middle]) + _pieces(exchanges[middle:])


def _straight(exchanges: Instants) -> NodeClock | None:
    """Return the clock whose offset is one straight line, amid all that are possible; None where none is."""
    from scipy.optimize import linprog

    sent_ns, received_ns, replied_ns, returned_ns = exchanges.T
    first_ns, last_ns = int(received_ns[0]), int(replied_ns[-1])
    base_ns, length_ns = int(sent_ns[0] - received_ns[0]), last_ns - first_ns
    length_s = length_ns / NS_PER_S
    # Bounds of the offset, from the base: what was received was sent before, and what returned was replied before.
    below = _hull((received_ns - first_ns) / length_ns, -(sent_ns - received_ns - base_ns) / NS_PER_S)
    above = _hull((replied_ns - first_ns) / length_ns, (returned_ns - replied_ns - base_ns) / NS_PER_S)
    # Of the line, the values at both ends are asked for.
    rows = [[-(1 - at), -at] for at, _ in below] + [[1 - at, at] for at, _ in above] + [[-1, 1], [1, -1]]
    limits = [value for _, value in (*below, *above)] + [MOST_DRIFT * length_s] * 2
    ends = []
    for direction in ([1, 0], [-1, 0], [0, 1], [0, -1]):
        # In microseconds: the solver's tolerances are absolute.
        found = linprog(direction, rows, np.array(limits) * 1e6, bounds=(None, None), method="highs")
        if found.status != 0:
            return None
        ends.append(sum(direction) * found.fun / 1e6)
    least_s, most_s = np.array(ends[::2]), np.array(ends[1::2])
    offset_ns = base_ns + np.rint((least_s + most_s) / 2 * NS_PER_S).astype(np.int64)
    line = NodeClock(np.array([first_ns, last_ns]), offset_ns, float((most_s - least_s).max() / 2), 0.0)
    there_ns, back_ns = (line.here(received_ns) - sent_ns).min(), (returned_ns - line.here(replied_ns)).min()
    return replace(line, half_trip_s=float(there_ns + back_ns) / 2 / NS_PER_S)


def _hull(x: Floats, y: Floats) -> list[tuple[float, float]]:
    """Return the corners of the largest convex line that no point lies below; x ascends."""
    corners: list[tuple[float, float]] = []
    for point in zip(x.tolist(), y.tolist(), strict=True):
        while len(corners) > 1:
            (x0, y0), (x1, y1) = corners[-2:]
            if (y1 - y0) * (point[0] - x0) < (point[1] - y0) * (x1 - x0):
                break
            corners.pop()
        corners.append(point)
    return corners


def on_this_clock(timeline: Timeline, clock: NodeClock, node: str, number: int) -> dict[str, GpuTimeline]:
    """Return a node's GPUs by UUID as if they had been read by this host's clock, with what that makes uncertain.

    Args:
        number: Of the node, from 1: two nodes may have processes of one number.
    """
    return {uuid: _converted(gpu, clock, node, number) for uuid, gpu in timeline.gpus.items()}


def _converted(gpu: GpuTimeline, clock: NodeClock, node: str, number: int) -> GpuTimeline:
    def at(instant_ns: int) -> int:
        return int(clock.here(np.array([instant_ns]))[0])

    def listed(sample: ProcessSample) -> ProcessSample:
        processes = (replace(process, pid=pid_here(process.pid, number)) for process in sample.processes)
        return replace(sample, at_ns=at(sample.at_ns), processes=tuple(processes))

    instants = {name: clock.here(column) for name, column in vars(gpu.ticks).items() if name != "energy_mj"}
    return replace(
        gpu,
        ticks=replace(gpu.ticks, **instants),
        series={name: replace(series, at_ns=clock.here(series.at_ns)) for name, series in gpu.series.items()},
        processes=tuple(map(listed, gpu.processes)),
        events=tuple(
            replace(event, at_ns=at(event.at_ns), end_ns=None if event.end_ns is None else at(event.end_ns))
            for event in gpu.events
        ),
        node=node,
        clock_std_s=clock.std_s,
    )


def pid_here(pid: int, number: int) -> int:
    """Return the number that a process of another node has in what is recorded here; it is no process of this host."""
    return pid + number * PIDS_OF_A_NODE
