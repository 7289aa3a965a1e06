"""Records of restarts, before any analysis.

Plain values: no protobuf, no hardware. All instants are CLOCK_MONOTONIC nanoseconds of the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import ConfigDict

from wattdock.clock import NS_PER_S, ClockCheck
from wattdock.errors import ClockError
from wattdock.metering import Span, Timeline
from wattdock.quality import Score
from wattdock.records.passes import MAX_COUNT, MAX_NS, PassRecord, require_within
from wattdock.records.snapshot import ClockFacts, EnvironmentSnapshot
from wattdock.values import Said, Stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock.metering import GpuTimeline


class Failure(Stored):
    """Why an experiment has no full result.

    Attributes:
        INTERRUPTED: The kind that Ctrl-C leaves.
        kind: Class of the error, for instance "RunnerError".
        stage: "launch", "load", "warm-up", "pass 2", ….
        log_tail: The runner's last lines.
        cause: Its `wattdock.errors.Cause`, where it is known.
        advice: What helps against that cause, where anything does.
    """

    INTERRUPTED: ClassVar = "Interrupted"

    kind: str
    message: Said
    stage: str
    exit_code: int
    log_tail: Said = ""
    cause: str | None = None
    advice: str | None = None


@dataclass(frozen=True)
class Evaluation:
    """What a loaded model made of one task of `quality:`, after the measured passes.

    Attributes:
        few_shot: Solved examples before each question.
        passes: Those in which it answered, numbered from -1 downwards over the tasks of a restart.
        failure: Why there are no scores; None where there are.
    """

    task: str
    version: str = ""
    few_shot: int = 0
    passes: tuple[PassRecord, ...] = ()
    scores: tuple[Score, ...] = ()
    failure: str | None = None


@dataclass(frozen=True)
class RestartRecord:
    """The passes that one runner served for one experiment, and the timeline around them.

    Attributes:
        restart: Number of the restart, from 0; a restart that was interrupted and resumed has several records.
        started_utc: Start, ISO 8601 with milliseconds; a label, never used to compute a duration.
        started_ns: The same instant by the clock of all others; None in records of before it was kept.
        environment: Hardware, software and settings of the passes.
        architecture: The model's config.json; None where the model was not resolved.
        runner_pids: Processes of the runner, as this host numbers them.
        clock: Identity of the clock of all instants, as text.
        rendered: SHA-256 of what the texts of each pass, warm-up included, were rendered and encoded to, by that of the
            texts.
        failure: Why the restart ended early.
        evaluations: What was asked of the model afterwards.
    """

    # For reading and writing; holds for the dataclasses within, too.
    __pydantic_config__: ClassVar = ConfigDict(arbitrary_types_allowed=True)

    restart: int
    started_utc: str = "1970-01-01T00:00:00.000+00:00"
    started_ns: int | None = None
    environment: EnvironmentSnapshot | None = None
    architecture: Mapping[str, Any] | None = None
    spans: tuple[Span, ...] = ()
    passes: tuple[PassRecord, ...] = ()
    clock_checks: tuple[ClockCheck, ...] = ()
    timeline: Timeline | None = None
    rendered: Mapping[str, str] = field(default_factory=dict)
    failure: Failure | None = None
    runner_pids: frozenset[int] = frozenset()
    clock: str = ""
    evaluations: tuple[Evaluation, ...] = ()

    @staticmethod
    def clock_facts(restarts: Sequence[RestartRecord]) -> ClockFacts:
        """Return the evidence from these restarts that runner and host share a clock.

        A check that fails ends its restart, so that each check in a record has passed.
        """
        checks = [check for restart in restarts for check in restart.clock_checks]
        mistrusted = any(restart.failure and restart.failure.kind == ClockError.__name__ for restart in restarts)
        slowest_ns = max((check.round_trip_ns for check in checks), default=None)
        return ClockFacts(
            trusted=bool(checks) and not mistrusted,
            checks=len(checks),
            round_trip_max_s=None if slowest_ns is None else slowest_ns / NS_PER_S,
            unchecked_passes=sum(not run_pass.clock_checked for restart in restarts for run_pass in restart.passes),
            identities=list(dict.fromkeys(restart.clock for restart in restarts if restart.clock)),
        )

    def require_possible(self) -> None:
        """Check the figures of the restart and its passes, as `PassRecord.require_possible` does."""
        require_within("the restart", (self.restart,), MAX_COUNT)
        require_within("the restart's start", (self.started_ns,), MAX_NS)
        for span in self.spans:
            require_within(f"the span {span.name[:40]!r}", (span.start_ns, span.end_ns), MAX_NS)
        for run_pass in self.all_passes:
            run_pass.require_possible()

    @property
    def all_passes(self) -> tuple[PassRecord, ...]:
        """The measured passes, and those in which the model was asked questions."""
        return (*self.passes, *(run_pass for evaluation in self.evaluations for run_pass in evaluation.passes))

    @property
    def gpus(self) -> Mapping[str, GpuTimeline]:
        """The meter's timeline of each GPU of the host, by UUID; empty without a timeline."""
        return self.timeline.gpus if self.timeline else {}
