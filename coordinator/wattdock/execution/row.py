"""One experiment on its way to becoming a stored row: what was measured of it so far, and what is missing.

What was measured lies in the study's folder; here stands only where.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock.clock import NS_PER_S
from wattdock.errors import ExitCode
from wattdock.execution.environment import environment
from wattdock.execution.eta import Work
from wattdock.execution.study_folder import PASS
from wattdock.metering import excerpt
from wattdock.records import INTERRUPTED, Failure, RestartRecord

if TYPE_CHECKING:
    from wattdock.analysis import Fallback
    from wattdock.checks import ExecutionPlan
    from wattdock.config import ExperimentConfig
    from wattdock.execution.eta import Cost
    from wattdock.execution.passes import Collected
    from wattdock.execution.study_folder import Kept, StudyFolder
    from wattdock.inputs import ModelFolder
    from wattdock.metering import Span, Timeline, Window
    from wattdock.records import RunnerEnvironment

# Kept of the timeline on either side of a span: idle enough to see its edges.
MARGIN_NS = 6 * NS_PER_S


@dataclass
class Row:
    """One experiment of a study.

    Attributes:
        earlier_rows: How many rows of it the study has stored before.
        expected: What it cost in earlier results; None where there are none.
        model: As this run's last runner had it.
        kept: What each runner measured of it, by the record's name.
        interruption: Why the run ended in the middle of it, if it did.
        fallback: What it was measured instead of; None where it was asked for itself.
        unmeasured: A runner's service that was interrupted before its first pass ended.
    """

    ready: ExecutionPlan
    folder: StudyFolder
    earlier_rows: int = 0
    expected: Cost | None = None
    model: ModelFolder | None = None
    kept: dict[str, Kept] = field(default_factory=dict)
    interruption: Failure | None = None
    unmeasured: RestartRecord | None = None
    fallback: Fallback | None = None

    @property
    def config(self) -> ExperimentConfig:
        """The experiment's settings."""
        return self.ready.config

    @property
    def log_path(self) -> Path:
        """Where its runners' logs are gathered."""
        return self.folder.log_path(self.config.experiment_id)

    @property
    def failure(self) -> Failure | None:
        """Why a restart of it failed."""
        return next((one.failure for one in self.kept.values() if one.failure), None)

    @property
    def begun(self) -> bool:
        """Whether a runner has served it."""
        return bool(self.kept or self.unmeasured or self.interruption)

    @property
    def complete(self) -> bool:
        """Whether every pass of every restart is measured, or one has failed."""
        return bool(self.failure) or not any(self.passes_left())

    def measured(self, restart: int) -> frozenset[int]:
        """Return the passes of restart number `restart`, from 0, that are measured."""
        return frozenset().union(*(one.passes for one in self.kept.values() if one.restart == restart))

    def wants(self, restart: int) -> bool:
        """Return whether a pass of restart number `restart`, from 0, is still to be measured."""
        repeats = self.config.repeats
        return restart < repeats.restarts and not self.failure and len(self.measured(restart)) < repeats.passes

    def passes_left(self) -> tuple[int, ...]:
        """Return how many passes are left of each restart that is not complete."""
        left = (self.config.repeats.passes - len(self.measured(one)) for one in range(self.config.repeats.restarts))
        return tuple(number for number in left if number)

    def work(self) -> Work:
        """Return what is left, and what it has cost so far."""
        seen = next((one.cost for one in reversed(self.kept.values()) if one.passes), self.expected)
        return Work(self.config, () if self.failure else self.passes_left(), seen)

    def keep(self, name: str, collected: Collected, timeline: Timeline | None) -> None:
        """Make what a runner has measured so far durable, under a name of this runner's own."""
        failure = collected.failure
        if failure and failure.kind == INTERRUPTED:
            # No fault of the experiment: whoever resumes goes on where it stopped.
            self.interruption, collected.failure = failure, None
        seen = timeline and excerpt(timeline, _intervals(collected, timeline))
        record = self._with_environment(collected.record(seen), collected.runner)
        if not record.passes and not record.failure:
            self.unmeasured = record
            return
        before = self.measured(record.restart)
        self.kept[name] = self.folder.keep(name, record)
        for measured in record.passes:
            if measured.index not in before:
                self.note_pass(record.restart, measured.index, measured.output_tokens)

    def note_pass(self, restart: int, index: int, output_tokens: int | None = None) -> None:
        """Add a measured pass to the journal."""
        facts = {"experiment": self.config.experiment_id, "restart": restart, "pass": index}
        self.folder.note(PASS, **facts, output_tokens=output_tokens)

    def restarts(self, *, stopped: str) -> list[tuple[RestartRecord, Path | None]]:
        """Return all records in the order measured, each with the folder that holds it; an unfinished row says why.

        The folder is None where it does not hold all of a record, or there is none.

        Args:
            stopped: Why the run ended, for a row that it ended before.

        Raises:
            StoreError: A record cannot be read back.
        """
        found = [(kept.read(), kept.at if isinstance(kept.at, Path) else None) for kept in self.kept.values()]
        found.sort(key=lambda pair: (pair[0].restart, pair[0].started_utc))
        if self.complete:
            return found
        failure = self.interruption or Failure(
            kind=INTERRUPTED,
            message=stopped,
            stage=f"restart {self._next_restart() + 1}",
            exit_code=int(ExitCode.INTERRUPTED),
        )
        if self.unmeasured:
            found.append((self.unmeasured, None))
        if not found:
            began = datetime.now(UTC).isoformat(timespec="milliseconds")
            found.append((self._with_environment(RestartRecord(self._next_restart(), began), None), None))
        last, _ = found[-1]
        return [*found[:-1], (dataclasses.replace(last, failure=failure), None)]

    def _with_environment(self, record: RestartRecord, runner: RunnerEnvironment | None) -> RestartRecord:
        """Return `record` with what it was measured on: whoever resumes may find another driver or package."""
        try:
            seen = environment(self.ready, record, runner, self.model)
        except Exception:  # noqa: BLE001  (a bug here must not cost the passes; the analysis meets it again, and tells)
            return record
        return dataclasses.replace(record, environment=seen, architecture=self.model.config if self.model else None)

    def _next_restart(self) -> int:
        return next(one for one in range(self.config.repeats.restarts) if self.wants(one))


def _intervals(collected: Collected, timeline: Timeline) -> tuple[tuple[int, int], ...]:
    """Return what of the timeline this experiment keeps: around its spans, which may be far from the load's."""
    passes = [one.span for one in collected.passes]
    windows = [one for one in timeline.windows if any(one.holds(span.start_ns, span.end_ns) for span in passes)]
    kept: tuple[Span | Window, ...] = (*collected.spans, *passes, *windows)
    return tuple((one.start_ns - MARGIN_NS, one.end_ns + MARGIN_NS) for one in kept)
