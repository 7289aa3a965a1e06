"""Who else was on the GPUs, in the worst restart. Pure."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from wattdock.analysis.conditions import sampled_throughout
from wattdock.analysis.idle import IDLE_SPANS
from wattdock.analysis.procedure_schema import GpuEvidence
from wattdock.clock import NS_PER_S
from wattdock.values import all_known, known_sum

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wattdock.analysis.joules import SpanJoules
    from wattdock.metering import Span
    from wattdock.records import RestartRecord

# A list is asked for as a pass begins, and when its results are here, a second and more after its end.
LIST_REACH_NS = 5 * NS_PER_S


def gpu_evidence(
    restarts: Sequence[RestartRecord], used: Sequence[str], bystanders: Sequence[str], joules_in: SpanJoules
) -> dict[str, GpuEvidence]:
    """Return what was seen of every GPU of the host: the worst of all restarts with passes."""
    measured = [restart for restart in restarts if restart.passes]

    def fewest(count: Callable[[RestartRecord, str], int], uuid: str) -> int:
        return min((count(restart, uuid) for restart in measured), default=0)

    found = {}
    for uuid in (*used, *bystanders):
        is_used = uuid in used
        foreign = [_foreign_bytes(restart, uuid) for restart in measured] if is_used else []
        above = [] if is_used else [_above_idle_w(restart, uuid, joules_in) for restart in measured]
        found[uuid] = GpuEvidence(
            process_lists=fewest(_lists, uuid),
            runner_lists=fewest(partial(_lists, own=True), uuid),
            unlisted_ends=max((_unlisted_ends(restart, uuid) for restart in measured), default=0) if is_used else 0,
            foreign_bytes=_largest(foreign),
            counter_changes=fewest(_counter_changes, uuid),
            above_idle_w=_largest(above),
        )
    return found


def runners_per_restart(restarts: Sequence[RestartRecord]) -> int:
    """Return the most runners that measured passes of the same restart; 0 without a pass."""
    return max(Counter(restart.restart for restart in restarts if restart.passes).values(), default=0)


def _counter_changes(restart: RestartRecord, uuid: str) -> int:
    return len(restart.gpus[uuid].ticks.energy_mj) if uuid in restart.gpus else 0


def _lists(restart: RestartRecord, uuid: str, *, own: bool = False) -> int:
    """How often a GPU's processes were listed; how often with one of the runner's, where that is asked for."""
    samples = restart.gpus[uuid].processes if uuid in restart.gpus else ()
    return sum(not own or any(one.pid in restart.own_pids for one in sample.processes) for sample in samples)


def _near_lists(restart: RestartRecord, uuid: str, at_ns: int) -> list[float | None]:
    """Memory of the runner in each list near an instant that shows it; None where the driver does not tell it."""
    samples = restart.gpus[uuid].processes if uuid in restart.gpus else ()
    shown = [
        [process.memory_bytes for process in one.processes if process.pid in restart.own_pids]
        for one in samples
        if abs(one.at_ns - at_ns) <= LIST_REACH_NS
    ]
    return [known_sum(sizes) for sizes in shown if sizes]


def _unlisted_ends(restart: RestartRecord, uuid: str) -> int:
    spans = [one.span for one in restart.passes]
    return sum(not _near_lists(restart, uuid, at_ns) for span in spans for at_ns in (span.start_ns, span.end_ns))


def _foreign_bytes(restart: RestartRecord, uuid: str) -> float | None:
    """Most memory in a pass beyond what the runner held at its begin or end, whichever is more."""
    return _largest([_foreign_in(restart, uuid, one.span) for one in restart.passes])


def _foreign_in(restart: RestartRecord, uuid: str, span: Span) -> float | None:
    gpu = restart.gpus.get(uuid)
    used = sampled_throughout([(gpu, span)], "memory_used_bytes")
    held = all_known(size for at_ns in (span.start_ns, span.end_ns) for size in _near_lists(restart, uuid, at_ns))
    return max(used[0]) - max(held) if used and held else None


def _above_idle_w(restart: RestartRecord, uuid: str, joules_in: SpanJoules) -> float | None:
    """Mean power in the pass where it is largest, less that before the runner started; None where one is unknown."""
    empty = [span for span in restart.spans if IDLE_SPANS.get(span.name) == "empty"]
    busy_w = _largest([_mean_power_w(restart, uuid, [one.span], joules_in) for one in restart.passes])
    idle_w = _mean_power_w(restart, uuid, empty, joules_in)
    return None if busy_w is None or idle_w is None else busy_w - idle_w


def _mean_power_w(restart: RestartRecord, uuid: str, spans: Sequence[Span], joules_in: SpanJoules) -> float | None:
    gpu = restart.gpus.get(uuid)
    energy_j = known_sum(joules_in.of_gpu(gpu, span).energy_j for span in spans) if gpu else None
    seconds = sum(span.duration_s for span in spans)
    return energy_j / seconds if energy_j is not None and seconds else None


def _largest(watts: Sequence[float | None]) -> float | None:
    known = all_known(watts)
    return max(known) if known else None
