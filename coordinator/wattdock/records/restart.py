"""What a measurement saw, before it is analysed: requests, passes, restarts.

Plain values: no protobuf, no hardware. All instants are CLOCK_MONOTONIC nanoseconds of the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wattdock.clock import NS_PER_S
from wattdock.errors import ClockError
from wattdock.records.environment import ClockFacts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from wattdock.clock import ClockCheck
    from wattdock.metering import GpuTimeline, Span, Timeline
    from wattdock.records.environment import EnvironmentSnapshot
    from wattdock.records.failure import Failure


@dataclass(frozen=True)
class RequestRecord:
    """One request as the runner saw it; None where the engine does not tell, or there is one engine (`replica`)."""

    index: int
    submitted_ns: int
    intended_ns: int | None = None
    first_token_ns: int | None = None
    finished_ns: int | None = None
    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str = ""
    text: str | None = None
    output_ids: tuple[int, ...] | None = None
    replica: int | None = None


@dataclass(frozen=True)
class TokenSeries:
    """Output tokens of a pass so far, at instants; both of shape (n,)."""

    at_ns: NDArray[np.int64]
    output_tokens: NDArray[np.int64]


@dataclass(frozen=True)
class ReplicaPass:
    """What one of several equal engines did in a pass.

    Attributes:
        span: From the common start until this engine had drained.
        last_token_ns: When its last token was produced; None without any.
    """

    gpu_uuids: tuple[str, ...]
    span: Span
    requests: int
    output_tokens: int
    last_token_ns: int | None


@dataclass(frozen=True)
class PassRecord:
    """One pass: what the runner reported, and what the host saw meanwhile.

    Attributes:
        replicas: What each engine did, where several equal ones served the pass.
        prompts_sha256: Hash of the prompts sent.
        prompts_reused: Some of the prompts were sent in an earlier pass already.
        cpu_busy: Mean share of all CPU time that was busy, 0 to 1; None where the host does not tell.
        cpu_others_share: Share of the runner's CPUs that other processes or the hypervisor took, 0 to 1; None where
            that is unknown.
        clock_checked: After the pass, the runner's clock was checked against the host's; False where the runner was
            gone by then.
    """

    span: Span
    requests: tuple[RequestRecord, ...]
    tokens: TokenSeries
    output_tokens: int
    prompt_tokens: int | None
    cached_prompt_tokens: int | None
    prompt_repeats: int
    replicas: tuple[ReplicaPass, ...] = ()
    index: int = 0
    cpu_busy: float | None = None
    cpu_others_share: float | None = None
    prompts_sha256: str = ""
    prompts_reused: bool = False
    clock_checked: bool = True


@dataclass(frozen=True)
class WarmUpSample:
    """One pass of a warm-up.

    Attributes:
        energy_j: Over the GPUs asked for; None where it is unknown.
        temperature_c: Mean over the pass's second half, or its last three seconds where that is longer, by
            "<GPU UUID> <sensor>".
    """

    span: Span
    output_tokens: int
    energy_j: float | None
    temperature_c: Mapping[str, float]


@dataclass(frozen=True)
class RestartRecord:
    """One runner's service to one experiment: its passes, and the timeline around them.

    Attributes:
        restart: Number of the restart, from 0; where a restart was interrupted and resumed, two records have it.
        started_utc: When it began, ISO 8601 with milliseconds; a label, never a duration's end.
        environment: What the passes ran on and with.
        architecture: The model's config.json; None where the model was not resolved.
        own_pids: Processes of the runner, as this host numbers them.
        clock: Identity of the clock that all instants are of, as text.
        warm_up: Passes of a steady warm-up, in order; empty where the profile is "quick".
        failure: Why the restart ended early.
    """

    restart: int
    started_utc: str = ""
    environment: EnvironmentSnapshot | None = None
    architecture: Mapping[str, Any] | None = None
    spans: tuple[Span, ...] = ()
    passes: tuple[PassRecord, ...] = ()
    clock_checks: tuple[ClockCheck, ...] = ()
    timeline: Timeline | None = None
    warm_up: tuple[WarmUpSample, ...] = ()
    failure: Failure | None = None
    own_pids: frozenset[int] = frozenset()
    clock: str = ""

    @property
    def gpus(self) -> Mapping[str, GpuTimeline]:
        """What the meter saw of each GPU of the host, by UUID; empty without a timeline."""
        return self.timeline.gpus if self.timeline else {}


def clocks_of(restarts: Sequence[RestartRecord]) -> dict[str, int]:
    """Return a number for each clock that the restarts' instants are of, from 0, in the restarts' order.

    A reboot of the host between a kill and the resumption starts another clock, which counts from another zero.
    """
    return {clock: number for number, clock in enumerate(dict.fromkeys(restart.clock for restart in restarts))}


def clock_facts(restarts: Sequence[RestartRecord]) -> ClockFacts:
    """Return the evidence that the runners shared the host's clock.

    Every check that was made passed: another clock fails the restart instead.
    """
    checks = [check for restart in restarts for check in restart.clock_checks]
    mistrusted = any(restart.failure and restart.failure.kind == ClockError.__name__ for restart in restarts)
    slowest_ns = max((check.round_trip_ns for check in checks), default=None)
    return ClockFacts(
        trusted=bool(checks) and not mistrusted,
        checks=len(checks),
        round_trip_max_s=None if slowest_ns is None else slowest_ns / NS_PER_S,
        unchecked_passes=sum(not measured.clock_checked for restart in restarts for measured in restart.passes),
        identities=[clock for clock in clocks_of(restarts) if clock],
    )
