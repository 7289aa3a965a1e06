"""NVML's meter and Zeus's in one process over the same passes: both energies of each pass, as a Markdown table.

    python benchmarks/two_meters.py [FILE] [--runner-python PYTHON] [--set NAME=VALUE …] [--output-dir DIR]

FILE is an experiment or a study; without one the default experiment runs. The rows are stored as ever, under NVML's
meter, with ZeusMonitor's windows as their cross-check. Needs a GPU and Zeus; `meter` settings in FILE are not heeded.
Both meters read the same counters, so a difference is one of reading instants; what they share does not show.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from wattdock import __version__
from wattdock.analysis.joules import SpanJoules
from wattdock.cli.progress import progress_for
from wattdock.config import load_study
from wattdock.errors import ExitCode, WattdockError
from wattdock.execution import StudyRun, plan_study
from wattdock.host import folders
from wattdock.launch.images.build import revision
from wattdock.metering.choice import MeterChoice
from wattdock.metering.nvml import NvmlMeter
from wattdock.metering.timeline import Span
from wattdock.metering.zeus import ZeusMeter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wattdock.analysis.energy import PassEnergy
    from wattdock.analysis.result import ExperimentResult, StoredSpan
    from wattdock.metering.protocol import Meter
    from wattdock.metering.timeline import Timeline

HEADER = (
    "experiment", "restart", "pass", "s", "NVML J", "± (95 %)", "Zeus's layer J", "difference J", "%",
    "ZeusMonitor less NVML, its window, J", "%", "counter steps allow J",
)  # fmt: skip


class BothMeters:
    """NVML's and Zeus's meter side by side; satisfies `Meter` and hands on NVML's timeline with Zeus's windows."""

    def __init__(self, zeus_timelines: list[Timeline]) -> None:
        self._nvml, self._zeus = NvmlMeter(), ZeusMeter()
        self._zeus_timelines = zeus_timelines

    def start(self) -> None:
        """Start both."""
        self._nvml.start()
        self._zeus.start()

    @contextmanager
    def window(self, key: str) -> Iterator[None]:
        """Enter both."""
        with self._nvml.window(key), self._zeus.window(key):
            yield

    def watts(self) -> dict[str, float | None]:
        """Return NVML's."""
        return self._nvml.watts()

    def peek(self) -> Timeline:
        """Return NVML's timeline up to now, with Zeus's windows."""
        return dataclasses.replace(self._nvml.peek(), windows=self._zeus.peek().windows)

    def stop(self, after_ns: int | None = None) -> Timeline:
        """Stop both; Zeus's timeline is kept aside."""
        timeline, of_zeus = self._nvml.stop(after_ns), self._zeus.stop(after_ns)
        self._zeus_timelines.append(of_zeus)
        return dataclasses.replace(timeline, windows=of_zeus.windows)


@dataclasses.dataclass(frozen=True)
class BothChoice(MeterChoice):
    """Takes both meters, whatever an experiment asks for."""

    zeus_timelines: list[Timeline] = dataclasses.field(default_factory=list)

    def new_meter(self) -> Meter:
        """Return both, not started."""
        return BothMeters(self.zeus_timelines)


def rows_of(result: ExperimentResult, zeus_timelines: Sequence[Timeline]) -> Iterator[tuple[str, ...]]:
    """Return one line of the table per measured pass."""
    energy, environment = result.energy, result.environment
    if energy is None or environment is None:
        return
    windows = {(one.restart, one.pass_index): one for one in (energy.cross_check.windows if energy.cross_check else ())}
    spans = {(one.restart, one.pass_index): one for one in result.spans if one.pass_index is not None}
    for one in energy.passes:
        key = (one.restart, one.pass_index)
        window = windows.get(key)
        yield (
            str(result.config.get("name") or result.experiment_id[:8]),
            str(one.restart),
            str(one.pass_index),
            f"{one.duration_s:.2f}",
            *compared(one, spans[key], zeus_timelines, environment.gpu_uuids),
            number(window.difference_j if window else None, "+.2f"),
            number(window.difference_share if window else None, "+.4%"),
            number(window.bound_j if window else None, ".1f"),
        )


def compared(
    one: PassEnergy, span: StoredSpan, zeus_timelines: Sequence[Timeline], uuids: Sequence[str]
) -> tuple[str, ...]:
    """Return NVML's joules of a pass, their interval, Zeus's, the difference and its share."""
    inside = (line for line in zeus_timelines if line.start_ns <= span.start_ns and span.end_ns <= line.end_ns)
    line = next(inside, None)
    zeus_j = SpanJoules().of(line, Span("pass", span.start_ns, span.end_ns), uuids).total_j
    known = one.total_j is not None and zeus_j is not None
    difference_j = (zeus_j or 0.0) - (one.total_j or 0.0) if known else None
    share = difference_j / one.total_j if difference_j is not None and one.total_j else None
    interval_j = None if one.timing_j is None else 1.96 * one.timing_j
    figures = ((one.total_j, ".2f"), (interval_j, ".2f"), (zeus_j, ".2f"), (difference_j, "+.2f"), (share, "+.4%"))
    return tuple(number(value, form) for value, form in figures)


def number(value: float | None, form: str) -> str:
    """Return a figure, or a dash where it is unknown."""
    return "–" if value is None else format(value, form)


def main() -> None:
    """Measure under both meters and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--runner-python")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--output-dir", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    settings = {name: yaml.safe_load(value) for name, _, value in (one.partition("=") for one in arguments.set)}
    if arguments.runner_python:
        settings["runner_python"] = arguments.runner_python
    both = BothChoice("nvml+zeus", "both, to compare them")
    interrupted = False
    sources = f"wattdock {__version__} at revision {revision()}"
    try:
        # Refuses machines without a GPU or without Zeus.
        study = load_study(arguments.file, settings | {"meter": "zeus"})
        progress, home = progress_for(quiet=False), folders.wattdock_home()
        plans = plan_study(study, output_dir=arguments.output_dir, home=home, emit=progress)
        plans = [dataclasses.replace(plan, meter=both) for plan in plans]
        run = StudyRun(study, plans, output_dir=arguments.output_dir, home=home)
        run.run(progress)
    except WattdockError as error:
        sys.exit(f"two_meters: {error}")
    except KeyboardInterrupt:
        sys.stderr.write("two_meters: interrupted; what was measured until then:\n")
        interrupted = True
    sys.stdout.write(f"{sources}\n\n")
    rows = [row for stored in run.results for row in rows_of(stored.result, both.zeus_timelines)]
    for line in (HEADER, tuple("---" for _ in HEADER), *rows):
        sys.stdout.write(f"| {' | '.join(line)} |\n")
    if interrupted:
        sys.exit(ExitCode.INTERRUPTED)
    if failed := [one.result.error for one in run.results if one.result.error]:
        sys.exit(f"two_meters: {failed[0].stage}: {failed[0].message}")


if __name__ == "__main__":
    main()
