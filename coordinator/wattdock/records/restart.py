"""Records of requests, passes and restarts, before any analysis.

Plain values: no protobuf, no hardware. All instants are CLOCK_MONOTONIC nanoseconds of the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import ConfigDict

from wattdock.clock import ClockCheck
from wattdock.metering import Span, Timeline
from wattdock.records import folder, possible
from wattdock.records.declared import DeclaredWork
from wattdock.records.failure import Failure
from wattdock.records.series import NO_STEPS, Steps, TokenSeries
from wattdock.records.snapshot import EnvironmentSnapshot

if TYPE_CHECKING:
    from wattdock.config import ExperimentConfig
    from wattdock.inputs import PromptSet
    from wattdock.metering import GpuTimeline


@dataclass(frozen=True)
class RequestRecord:
    """One request as the runner recorded it; None where the engine does not report a value.

    Attributes:
        replica: The engine that served the request; None with a single engine.
        token_gaps_ns: From each token to the one after it; None where the engine's steps tell, and of a single token.
        max_output_tokens: The output limit that the engine was given.
        prompt_hash: Of the ids that the engine was given, see the wire; None in records older than it.
    """

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
    token_gaps_ns: tuple[int, ...] | None = None
    max_output_tokens: int | None = None
    prompt_hash: int | None = None


@dataclass(frozen=True)
class ReplicaPass:
    """The part of a pass that one of several equal engines served.

    Attributes:
        span: From the common start until this engine had drained.
        last_token_ns: The instant of its last token; None without a token.
    """

    gpu_uuids: tuple[str, ...]
    span: Span
    requests: int
    output_tokens: int
    last_token_ns: int | None


@dataclass(frozen=True)
class PassRecord:
    """One pass: the runner's report, and the host's readings in the same time.

    Attributes:
        replicas: Each engine's part, where several equal engines served the pass.
        prompts_sha256: Hash of the prompts sent.
        prompts_reused: Some of the prompts were sent in an earlier pass of the runner already, warm-up included.
        repeated_prompts: Requests whose prompt an earlier request of the pass had; None in records older than it.
        declared: What the pass was to send; None in records older than it.
        cpu_busy: Mean busy share of all CPUs, 0 to 1; None where the host does not tell.
        cpu_others_share: Share of the runner's CPUs that other processes or the hypervisor used, 0 to 1; None where
            unknown.
        lease_fault: Why other measurements were not kept off, although the leases were held; None where they were.
        clock_checked: The runner's clock was checked against the host's after the pass; False where the runner had
            ended by then.
        cacheable_tokens: Prompt tokens that earlier prompts of the pass held, where conversations were declared.
        arrivals_due: Requests of an open loop that had arrived when the last one was taken; None for other kinds.
        client_cpu_share: Busy share of the one thread that sent requests and read answers, 0 to 1; like the next three
            only where the engine is behind its own server.
        client_late_s: By how much it read late what had come: the 99th percentile.
        server_ttft_s, server_itl_s: Means over requests, and over gaps between tokens, by the server's own clock; None
            where it does not tell.
        tokens_without_ids: Output tokens that the server counted without telling their ids.
        rendered_sha256: Of the ids of the text prompts as the runner rendered and encoded them; None without text.
        template_asked_time: Whether the chat template asked for the present, which is that of the study's begin.
    """

    span: Span
    requests: tuple[RequestRecord, ...]
    tokens: TokenSeries
    output_tokens: int
    prompt_tokens: int | None
    cached_prompt_tokens: int | None
    prompt_repeats: int
    replicas: tuple[ReplicaPass, ...] = ()
    steps: Steps = NO_STEPS
    index: int = 0
    cpu_busy: float | None = None
    cpu_others_share: float | None = None
    prompts_sha256: str = ""
    prompts_reused: bool = False
    repeated_prompts: int | None = None
    declared: DeclaredWork | None = None
    lease_fault: str | None = None
    clock_checked: bool = True
    arrivals_due: int | None = None
    cacheable_tokens: int | None = None
    client_cpu_share: float | None = None
    client_late_s: float | None = None
    server_ttft_s: float | None = None
    server_itl_s: float | None = None
    tokens_without_ids: int = 0
    rendered_sha256: str | None = None
    template_asked_time: bool = False

    require_possible = possible.require_possible

    def declared_work(self, config: ExperimentConfig) -> DeclaredWork:
        """Return what the pass was to send; for an older record, what the settings say of it."""
        return self.declared or DeclaredWork.of_settings(config)

    def of_prompts(self, prompts: PromptSet, config: ExperimentConfig, *, ignore_eos: bool) -> PassRecord:
        """Return the record with what it was to send, held against its requests.

        Args:
            ignore_eos: Whether answers run to their limits.
        """
        declared = DeclaredWork.of(prompts, config, self.requests, start_ns=self.span.start_ns, ignore_eos=ignore_eos)
        repeated = len(self.requests) - len({request.prompt_hash for request in self.requests})
        return replace(self, declared=declared, repeated_prompts=repeated, prompts_sha256=prompts.sha256)


@dataclass(frozen=True)
class WarmUpSample:
    """One pass of a warm-up.

    Attributes:
        energy_j: Over the experiment's GPUs; None where it is unknown.
        temperature_c: Mean over the pass's second half or its last three seconds, whichever is longer, by
            "<GPU UUID> <sensor>".
    """

    span: Span
    output_tokens: int
    energy_j: float | None
    temperature_c: Mapping[str, float]


@dataclass(frozen=True)
class RestartRecord:
    """The passes that one runner served for one experiment, and the timeline around them; on disk by `records.folder`.

    Attributes:
        restart: Number of the restart, from 0; a restart that was interrupted and resumed has several records.
        started_utc: Start, ISO 8601 with milliseconds; a label, never used to compute a duration.
        environment: Hardware, software and settings of the passes.
        architecture: The model's config.json; None where the model was not resolved.
        runner_pids: Processes of the runner, as this host numbers them.
        clock: Identity of the clock of all instants, as text.
        rendered: SHA-256 of what the texts of each pass, warm-up included, were rendered and encoded to, by that of the
            texts.
        warm_up: Passes of a steady warm-up, in order; empty where the profile is "quick".
        failure: Why the restart ended early.
    """

    # For reading and writing; holds for the dataclasses within, too.
    __pydantic_config__: ClassVar = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    restart: int
    started_utc: str = "1970-01-01T00:00:00.000+00:00"
    environment: EnvironmentSnapshot | None = None
    architecture: Mapping[str, Any] | None = None
    spans: tuple[Span, ...] = ()
    passes: tuple[PassRecord, ...] = ()
    clock_checks: tuple[ClockCheck, ...] = ()
    timeline: Timeline | None = None
    rendered: Mapping[str, str] = field(default_factory=dict)
    warm_up: tuple[WarmUpSample, ...] = ()
    failure: Failure | None = None
    runner_pids: frozenset[int] = frozenset()
    clock: str = ""

    write = folder.write
    read = staticmethod(folder.read)
    read_table = staticmethod(folder.read_table)
    find = staticmethod(folder.find)
    measured = staticmethod(folder.measured)

    @property
    def gpus(self) -> Mapping[str, GpuTimeline]:
        """The meter's timeline of each GPU of the host, by UUID; empty without a timeline."""
        return self.timeline.gpus if self.timeline else {}
