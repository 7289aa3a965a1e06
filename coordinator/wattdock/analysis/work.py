"""Work of a measurement in its unit, and the energy of the spans that a command of the user's own marked. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from wattdock.analysis.joules import NORMAL95, Joules
from wattdock.analysis.occupancy import tokens_in
from wattdock.analysis.statistics import Interval, Restarts
from wattdock.clock import NS_PER_S
from wattdock.metering import Span
from wattdock.records import passes as pass_records
from wattdock.values import Stored, known_sum

if TYPE_CHECKING:
    from wattdock.analysis.measured import Measured

TOO_MANY = "it was marked in more places than are told apart; mark larger parts"
TOO_SHORT = "its spans are shorter than the meter resolves; mark larger parts"
# Largest share of the joules of spans that timing may hide (half a 95 % interval); beyond, they are the neighbours'.
MOST_HIDDEN = 0.5


class MarkedEnergy(Stored):
    """Spans of one name that a command's processes marked, over all restarts.

    Attributes:
        count: How many in all restarts; of processes at work together, those of one.
        duration_s: Time in which any process was inside one.
        share: That time, of the time of all runs.
        share_within: Share of the time in spans that count, `work.within`, in which any process was inside one; null
            without these, where either are in more places than are told apart, and in older results.
        total_j: Energy of the GPUs used in that time; null with the reason.
        per_gpu_j: The same by UUID.
        energy_per_span_j: Joules ÷ count.
        interval_j: Its 95 % interval, of restarts and timing; null with fewer than three.
    """

    name: str
    count: int
    duration_s: float
    share: float
    share_within: float | None = None
    total_j: float | None = None
    timing_j: float | None = None
    per_gpu_j: dict[str, float | None] = Field(default_factory=dict)
    energy_per_span_j: float | None = None
    interval_j: Interval | None = None
    reason: str | None = None


class Work(Stored):
    """What was done, and in which unit it is counted.

    Attributes:
        unit: In the plural: output tokens, or what a command's script counts.
        count: Over all restarts, in the headline's window; null where nothing counted it; `reason` says why.
        others: Further kinds of work of a command over its whole runs, by unit.
        late: How many of the unit were marked after the headline's window, in which their joules may be.
        marked: Spans that a command marked, the first one first.
        malformed_marks: Lines among its marks that are none.
        counting_processes: How many processes' counts add up to a run's, in the run where they are most: ranks that see
            the same samples, as in tensor parallelism, count them several times.
        repeated_ranks: Ranks that counted the unit in several processes, over all restarts: some of it twice, perhaps.
    """

    unit: str
    count: int | None
    reason: str | None = None
    late: int = 0
    others: dict[str, int] = Field(default_factory=dict)
    marked: list[MarkedEnergy] = Field(default_factory=list)
    malformed_marks: int = 0
    counting_processes: int = 0
    repeated_ranks: int = 0

    @property
    def counted_by(self) -> str:
        """Who counted it, where several processes did: a reader knows whether each had samples of its own."""
        return f", counted by {self.counting_processes} processes" * (self.counting_processes > 1)


def work(measured: Measured) -> Work:
    """Return what was done."""
    passes, headline, unit = measured.pass_records, measured.headline, measured.config.unit
    ends = [(run_pass, figure.end_ns) for run_pass, figure in zip(passes, headline, strict=True) if run_pass.units]
    units = sum((Counter(run_pass.units) for run_pass in passes), Counter[str]())
    names = dict.fromkeys(marked.name for run_pass in passes for marked in run_pass.marked)
    others = {name: count for name, count in units.items() if name != unit}
    count = known_sum(figure.output_tokens for figure in headline) or None
    uncounted = f"the command counted no {unit}{', but ' * bool(others)}{', '.join(sorted(others))}"
    lacking = next((figure.reason for figure in headline if figure.duration_s is None), uncounted)
    return Work(
        unit=unit,
        count=count,
        reason=lacking if count is None else None,
        late=sum(int(tokens_in(run_pass, [end_ns, pass_records.MAX_NS])[0]) for run_pass, end_ns in ends if end_ns),
        others=others,
        marked=[_marked(measured, name) for name in names],
        malformed_marks=sum(run_pass.malformed_marks for run_pass in passes),
        counting_processes=max((run_pass.counting_processes for run_pass in passes), default=0),
        repeated_ranks=sum(run_pass.repeated_ranks for run_pass in passes),
    )


def _marked(measured: Measured, name: str) -> MarkedEnergy:
    """Return the energy of the spans of one name."""
    found = [(restart, part) for restart, run_pass in measured.passes for part in run_pass.marked if part.name == name]
    seconds = sum(end_ns - start_ns for _, part in found for start_ns, end_ns in part.spans) / NS_PER_S
    facts = {"name": name, "count": sum(part.count for _, part in found), "duration_s": seconds}
    facts |= {"share": seconds / measured.passes_s, "share_within": _share_within(measured, name)}
    if not all(part.spans for _, part in found):
        return MarkedEnergy(**facts, reason=TOO_MANY)
    by_restart = []
    for restart, part in found:
        spans = [Span(name, *ends_ns) for ends_ns in part.spans]
        measured.energy.compute(restart.timeline, spans)
        by_restart.append(Joules.of_all([measured.energy_of(restart, span) for span in spans]))
    total = Joules.of_all(by_restart)
    if total.reason:
        return MarkedEnergy(**facts, reason=total.reason)
    counts = tuple(float(part.count) for _, part in found)
    restarts = Restarts(tuple(part.total_j or 0.0 for part in by_restart), counts)
    total_j, hidden_j = total.total_j or 0.0, NORMAL95 * (total.timing_j or 0.0)
    if hidden_j > MOST_HIDDEN * total_j:
        return MarkedEnergy(**facts, reason=TOO_SHORT)
    known = (total.timing_j or 0.0) / total_j if total_j else 0.0
    return MarkedEnergy(
        **facts,
        total_j=total_j,
        timing_j=total.timing_j,
        per_gpu_j=total.per_gpu_j,
        energy_per_span_j=restarts.value if all(restarts.bottoms) else None,
        interval_j=restarts.interval_beside(known) if all(restarts.bottoms) else None,
    )


def _share_within(measured: Measured, name: str) -> float | None:
    """Return the share of the time in spans that count in which spans of a name were; None where that is unknown."""
    within, both_ns, all_ns = measured.config.command and measured.config.command.work.within, 0.0, 0
    for run_pass in measured.pass_records:
        spans = {part.name: np.array(part.spans) for part in run_pass.marked}
        counted, inside = spans.get(within or ""), spans.get(name, np.zeros((1, 2)))
        if counted is None or not len(counted) or not len(inside):
            return None
        edges, lengths = inside.ravel(), np.diff(inside, prepend=inside[:, :1])
        before_ns = np.interp(counted - edges[0], edges - edges[0], np.cumsum(lengths))
        both_ns, all_ns = both_ns + np.diff(before_ns).sum(), all_ns + np.diff(counted).sum()
    return float(both_ns / all_ns) if all_ns else None
