"""What the measuring procedure saw, before it is merged: spans, requests, passes, restarts.

Plain values: no protobuf, no pydantic, no hardware. All instants are CLOCK_MONOTONIC nanoseconds of the host.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from wattdock.clock import ClockCheck
    from wattdock.metering import GpuTimeline, Span, Timeline
    from wattdock.records.environment import RunnerEnvironment
    from wattdock.records.failure import Failure

# Kind of the failure that Ctrl-C leaves on a row.
INTERRUPTED = "Interrupted"


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
class GeneratedPass:
    """What a runner reports of one pass; `replicas` is empty where one engine served it."""

    span: Span
    requests: tuple[RequestRecord, ...]
    tokens: TokenSeries
    output_tokens: int
    prompt_tokens: int | None
    cached_prompt_tokens: int | None
    prompt_repeats: int
    replicas: tuple[ReplicaPass, ...] = ()


@dataclass(frozen=True)
class MeasuredPass:
    """One pass of a restart, with what the host saw meanwhile.

    Attributes:
        cpu_busy: Mean share of all CPU time that was busy, 0 to 1; None where the host does not tell.
        prompts_sha256: Of the prompts sent.
        prompts_reused: Some of them were sent in an earlier pass already.
        clock_checked: The runner's clock was seen to be the host's after it; False where the runner was gone by then.
        cpu_others_share: Of the time of the CPUs that the runner may use, what others used or the hypervisor gave away,
            0 to 1; None where that is unknown.
    """

    index: int
    generated: GeneratedPass
    cpu_busy: float | None
    prompts_sha256: str
    prompts_reused: bool
    clock_checked: bool = True
    cpu_others_share: float | None = None


@dataclass(frozen=True)
class Loaded:
    """What a runner reports of one load."""

    environment: RunnerEnvironment
    spans: tuple[Span, ...]


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
    """One restart of one experiment: a fresh runner, its passes, and the timeline around them.

    Attributes:
        own_pids: Processes of the runner, as this host numbers them.
        clock: Which clock its instants are of, as text; "" where that was not recorded.
        conditions: What it was measured on and with, as names and texts; empty where that was not recorded.
        warm_up: Its passes in order; empty where the profile is "quick".
        one_token: Passes of one output token per request, after the measured ones.
    """

    restart: int
    spans: tuple[Span, ...] = ()
    passes: tuple[MeasuredPass, ...] = ()
    loaded: Loaded | None = None
    clock_checks: tuple[ClockCheck, ...] = ()
    timeline: Timeline | None = None
    warm_up: tuple[WarmUpSample, ...] = ()
    one_token: tuple[GeneratedPass, ...] = ()
    failure: Failure | None = None
    own_pids: frozenset[int] = frozenset()
    clock: str = ""
    conditions: Mapping[str, str] = field(default_factory=dict)

    @property
    def gpus(self) -> Mapping[str, GpuTimeline]:
        """What the meter saw of each GPU of the host, by UUID; empty without a timeline."""
        return self.timeline.gpus if self.timeline else {}


def clocks_of(restarts: Sequence[RestartRecord]) -> dict[str, int]:
    """Return a number for each clock that these records' instants are of, from 0, in the records' order.

    A reboot of the host between a kill and its resumption makes another one, which counts from another zero.
    """
    return {clock: number for number, clock in enumerate(dict.fromkeys(one.clock for one in restarts))}
