"""ExperimentResult: what one experiment says, written once, read for years.

Names carry units. Not measured is null, with a reason beside it, never 0.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from wattdock.analysis.data_parallel_schema import DataParallel
from wattdock.analysis.derived_schema import Compute, Statistics
from wattdock.analysis.energy_schema import EnergyResult, MultiGPUMetrics
from wattdock.analysis.procedure_schema import Procedure
from wattdock.records import EnvironmentSnapshot, Failure
from wattdock.values import Stored

SCHEMA_VERSION = 1


class StoredSpan(Stored):
    """A named interval on a monotonic clock of the host; `pass` is null outside the measured passes.

    Attributes:
        clock: Which of `environment.clock.identities` its instants are of.
    """

    name: str
    restart: int
    pass_index: int | None = Field(default=None, alias="pass")
    start_ns: int
    end_ns: int
    drained: bool
    clock: int = 0
    energy_j: float | None = None
    timing_j: float | None = None
    reason: str | None = None


# A Poisson count strays by more once in 700 draws.
CHANCE_DEVIATIONS = 3


class Quantiles(Stored):
    """Distribution over requests, in seconds."""

    count: int
    mean_s: float
    p50_s: float
    p90_s: float
    p95_s: float
    p99_s: float
    max_s: float


class Performance(Stored):
    """Speed over the measured passes.

    Attributes:
        output_tokens: Ids that the engine generated: the end-of-sequence id counts, padding after it does not.
        schedule_lag_share: How far the last request of a pass entered the engine behind its intended arrival, or how
            much longer the last quarter of its requests took than the first, whichever is more, over the pass's
            duration, in the worst pass: an engine that keeps up stays near 0, one that serves 80 % of the offered rate
            one request at a time ends at 0.2. A late one that never finished counts as if it had taken the whole pass.
            None where arrivals follow no schedule.
        arrivals_min: Fewest requests of a pass, where arrivals follow a schedule.
        arrivals_expected: How many arrive on average until a pass takes no more, over all passes. Where far fewer were
            served, the rest never entered the engine, and latencies leave out the longest waits.
        backlog_slope: Seconds by which requests' delay grows per second, before they enter the engine or in all, in the
            worst pass: 0 for an engine that keeps up, 0.25 for one that serves 80 % of what is offered.
        ttft, tpot, e2e: Time to first token; per output token after the first; to the last token. From the intended
            arrival where there was one, else from submission.
    """

    duration_s: float
    requests: int
    prompt_tokens: int | None
    cached_prompt_tokens: int | None
    output_tokens: int
    output_tokens_per_s: float
    requests_per_s: float
    offered_rate_per_s: float | None = None
    schedule_lag_share: float | None = None
    arrivals_min: int | None = None
    arrivals_expected: float | None = None
    backlog_slope: float | None = None
    ttft: Quantiles | None
    tpot: Quantiles | None
    e2e: Quantiles | None

    @property
    def arrivals_left_out(self) -> str | None:
        """That arrivals were never served, in words, where it is more than the chance of a Poisson count."""
        expected = self.arrivals_expected or 0.0
        if self.requests >= expected - CHANCE_DEVIATIONS * expected**0.5:
            return None
        return f"only {self.requests:,} of about {expected:,.0f} arrivals were served, and latencies are of these"


class Check(Stored):
    """A finding of the audit, of doctor or of preflight; unknown never passes.

    Attributes:
        status: "fail": nothing sound can be, or was, measured; "warn": a reader must know it.
        figure: What was seen.
        threshold: The limit that it was held against.
        source: Where the figure, or the limit, comes from.
        remedy: What to do about it.
    """

    name: str
    status: Literal["pass", "info", "warn", "fail", "unknown"]
    figure: str
    threshold: str | None = None
    source: str | None = None
    remedy: str | None = None


class Audit(Stored):
    """Whether the figure may be published, and why."""

    publishable: bool
    reasons: list[str]
    checks: list[Check]


class StudyFacts(Stored):
    """The study that an experiment was measured in.

    Attributes:
        study_id: Name of its folder under `studies/`.
        attempt: 1 for the first row that it stored of this experiment; a later one stands for the earlier.
    """

    study_id: str
    attempt: int


class Fallback(Stored):
    """That this experiment was measured because another one, which was asked for, failed; it never stands for that one.

    Attributes:
        fallback_of: Id of the experiment that was asked for.
        step: Of the ladder, from 1.
        change: What is different from what was asked for.
    """

    fallback_of: str
    step: int
    change: str


class ExperimentResult(Stored):
    """One experiment's row; a failed one has every key too.

    Attributes:
        fallback: Null for what was asked for itself.
        data_parallel: Null where one engine served the workload.
    """

    schema_version: int = SCHEMA_VERSION
    experiment_id: str
    study: StudyFacts | None = None
    fallback: Fallback | None = None
    started_utc: str
    config: dict[str, Any]
    status: Literal["ok", "failed", "interrupted"]
    error: Failure | None
    environment: EnvironmentSnapshot | None
    energy: EnergyResult | None
    performance: Performance | None
    compute: Compute | None
    statistics: Statistics | None
    multi_gpu: MultiGPUMetrics | None
    data_parallel: DataParallel | None = None
    audit: Audit | None
    procedure: Procedure | None = None
    spans: list[StoredSpan]

    @property
    def in_flight(self) -> int:
        """Requests that all engines together served at a time, which weak scaling makes more than were written."""
        if split := self.data_parallel:
            return split.in_flight_per_replica * split.data_parallel_size
        return int(self.config["workload"]["batch_size"])
