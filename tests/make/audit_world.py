"""A sound experiment on a simulated H200, in virtual time, and what can be wrong with it.

The real meter watches; what a runner would have reported is made up to match.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fake_nvml
import numpy as np
from fake_nvml import FakeGpu, FakeProcess, constant
from seams.execution import environment
from seams.inputs import shape_config
from seams.launch import Engine, Image, Pin
from seams.metering import NvmlSource
from seams.records import DeclaredWork, TokenSeries

from wattdock.audit import audited
from wattdock.clock import NS_PER_S, Clock, ClockCheck
from wattdock.config import ExperimentConfig
from wattdock.host import Gpu, GpuInventory, Machine
from wattdock.inputs import ModelFolder
from wattdock.launch import LauncherChoice
from wattdock.metering import Meter, MeterChoice, Span
from wattdock.planning import ExecutionPlan
from wattdock.records import PassRecord, RequestRecord, RestartRecord, RunnerEnvironment, WarmUpSample

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from fake_nvml import FakeNvml

    from wattdock.analysis import ExperimentResult
    from wattdock.metering import Timeline
    from wattdock.records import EnvironmentSnapshot

USED, OTHER = fake_nvml.uuid_of(1), fake_nvml.uuid_of(2)
DIGEST = f"registry.example/wattdock-pytorch@sha256:{'d' * 64}"
IMAGE = Image(Engine("unix:///x", "28.0"), DIGEST, f"sha256:{'1' * 64}", DIGEST)


def launched(locked_digest: str | None) -> LauncherChoice:
    """Return a container of a locked image, by its digest or by its id only."""
    return LauncherChoice("docker", "test", "none", IMAGE, Pin(locked_digest, "f" * 64))


RUNNER = FakeProcess(pid=4242)
IN_FLIGHT, ROUNDS, ROUND_S, PREFILL_S, PROMPT_TOKENS = 8, 5, 5.0, 0.6, 512
# Seconds: empty idle, loaded idle, passes, loaded idle again.
EMPTY, BEFORE, PASSES, AFTER = (3, 33), (40, 70), ((80, 105), (107, 132)), (140, 170)
POWER = (
    constant(80, 36),
    constant(118, 44),
    constant(500, 25),
    constant(118, 2),
    constant(500, 25),
    constant(118),
)


@dataclass(frozen=True)
class World:
    """What is simulated; the defaults are without fault.

    Attributes:
        gpu: Fields of the used GPU that differ; `other`, those of the other one.
        restarts: Fresh runners.
        recordings: How many of them the meter watches; the others have the recordings of those.
        round_s: Length of a round of requests; a pass has five.
        output_tokens: Per request.
        warm_up_slope: Relative growth of tokens/s per minute over the warm-up.
        config: Settings that differ.
        environments: What differs in each restart's environment; None where it is not known.
        used: GPUs that hold the model in each restart.
        unchecked: Passes of each restart after which the runner was gone.
        cpu_others_share: Share of the CPUs that strangers used.
        early_end_s: A pass's span ends by so much before its last token.
    """

    gpu: Mapping[str, Any] = field(default_factory=dict)
    other: Mapping[str, Any] = field(default_factory=dict)
    restarts: int = 3
    recordings: int = 1
    round_s: float = ROUND_S
    output_tokens: int = 100
    cached_prompt_tokens: int = 0
    warm_up_slope: float = 0.0
    config: Mapping[str, Any] = field(default_factory=dict)
    environments: Sequence[Mapping[str, Any] | None] = ({"driver_version": "580"},) * 3
    used: Sequence[Sequence[str]] = ((USED,),) * 3
    unchecked: frozenset[int] = frozenset()
    cpu_others_share: float | None = 0.02
    early_end_s: float = 0.0
    launch: LauncherChoice = launched(DIGEST)  # noqa: RUF009  (frozen)


def result_of(world: World, library: Path) -> ExperimentResult:
    """Return what merging everything gives."""
    gpus = [
        FakeGpu(**{"uuid": USED, "profile": POWER, "processes": (RUNNER,), **world.gpu}),
        FakeGpu(**{"uuid": OTHER, **world.other}),
    ]
    config = ExperimentConfig.model_validate(
        {
            "workload": {"batch_size": IN_FLIGHT, "max_output_tokens": world.output_tokens},
            "warmup": {"profile": "steady"},
            "idle": {"duration_s": 30},
            **world.config,
        }
    )
    plan = ExecutionPlan(
        config=config,
        machine=Machine("CPU", 8, 1, "Linux"),
        inventory=GpuInventory(tuple(gpu_info(index, gpu) for index, gpu in enumerate(gpus))),
        gpus=(gpu_info(0, gpus[0]),),
        launch=world.launch,
        meter=MeterChoice("nvml", "test"),
    )
    model = ModelFolder(
        path=Path(),
        kind="hub",
        name="model",
        revision="0123abcd",
        has_tokenizer=True,
        random_weights=False,
        config=shape_config("llama-3.1-8b"),
    )
    records = [
        _restart(world, number, _timeline(gpus[0], gpus[1], library, number % world.recordings))
        for number in range(world.restarts)
    ]
    restarts = [
        dataclasses.replace(record, environment=_environment(world, record, plan, model), architecture=model.config)
        for record in records
    ]
    return audited(config, restarts)


def _environment(
    world: World, record: RestartRecord, plan: ExecutionPlan, model: ModelFolder
) -> EnvironmentSnapshot | None:
    runner = RunnerEnvironment(
        visible_gpu_uuids=[USED],
        used_gpu_uuids=list(world.used[record.restart]),
        framework="vllm",
        python_version="3.12",
        weight_bytes=16_060_000_000,
        engine_args={"dtype": "bfloat16"},
    )
    differing = world.environments[record.restart]
    return None if differing is None else environment(plan, record, runner, model).model_copy(update=differing)


class EdgeClock(Clock):
    """The library's clock, on which each pass begins and ends with a call of the meter, as around real passes."""

    now_ns: Callable[[], int]

    def __init__(self, fake: FakeNvml) -> None:
        self._fake = fake
        self.now_ns = fake.now_ns
        self._left: dict[int, list[int]] = {}
        self.meter: Meter | None = None

    def wall_ns(self) -> int:
        return self._fake.wall_ns()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until the next edge at the latest; each sampler has its own thread, and so its own time."""
        left = self._left.setdefault(id(event), [_ns(edge) for span in PASSES for edge in span])
        if not left or left[0] > self.now_ns() + timeout_s * NS_PER_S:
            return self._fake.wait(event, timeout_s)
        self._fake.wait(event, max(0, left.pop(0) - self.now_ns()) / NS_PER_S)
        assert self.meter is not None
        [own] = [thread.sampler for thread in self.meter._threads if thread.sampler._wake is event]
        own.note_edge()
        return True


def _timeline(used: FakeGpu, other: FakeGpu, library: Path, number: int) -> Timeline:
    seeded = [dataclasses.replace(gpu, seed=10 * number + index) for index, gpu in enumerate((used, other), start=1)]
    first, second = (_metered(gpu, library) for gpu in seeded)
    return dataclasses.replace(first, gpus={**first.gpus, **second.gpus}, end_ns=max(first.end_ns, second.end_ns))


@functools.cache
def _metered(gpu: FakeGpu, library: Path) -> Timeline:
    """Return what the meter recorded of one GPU, whose thread has a virtual time of its own beside others, too."""
    with fake_nvml.loaded(library, gpus=[gpu]) as fake:
        clock = EdgeClock(fake)
        clock.meter = meter = Meter(NvmlSource(), clock=clock)
        meter.start()
        return meter.stop(_ns(175))


def _restart(world: World, number: int, timeline: Timeline) -> RestartRecord:
    idle = [("idle-empty", EMPTY), ("idle-loaded-before", BEFORE), ("idle-loaded-after", AFTER)]
    return RestartRecord(
        number,
        spans=tuple(Span(name, _ns(start), _ns(end)) for name, (start, end) in idle),
        passes=tuple(_pass(world, index, start) for index, (start, _) in enumerate(PASSES)),
        clock_checks=(ClockCheck("boot", 1000),),
        timeline=timeline,
        warm_up=tuple(_warm_up_pass(world, index) for index in range(9)),
        runner_pids=frozenset({RUNNER.pid}),
        started_utc="2026-01-02T03:04:05.678+00:00",
    )


def _warm_up_pass(world: World, index: int) -> WarmUpSample:
    tokens = round(100_000 * (1 + world.warm_up_slope * index / 4))
    span = Span("warm-up", 15 * index * NS_PER_S, 15 * (index + 1) * NS_PER_S)
    return WarmUpSample(span, tokens, 0.1 * tokens, {f"{USED} temperature_c": 50.0})


def _pass(world: World, index: int, start_s: float) -> PassRecord:
    requests: list[RequestRecord] = []
    series: list[tuple[int, int]] = []
    total = 0
    for number in range(ROUNDS):
        at_s = start_s + number * world.round_s
        tokens = world.output_tokens
        requests += [_request(world, len(requests) + slot, at_s, tokens) for slot in range(IN_FLIGHT)]
        for step in range(tokens):
            total += IN_FLIGHT
            first_s, last_s = at_s + PREFILL_S, at_s + world.round_s
            series.append((_ns(first_s + (last_s - first_s) * step / max(1, tokens - 1)), total))
    at_ns, counts = np.array(series, dtype=np.int64).T
    return PassRecord(
        span=Span("pass", _ns(start_s), _ns(start_s + ROUNDS * world.round_s - world.early_end_s)),
        requests=tuple(requests),
        tokens=TokenSeries(at_ns, counts),
        output_tokens=total,
        prompt_tokens=PROMPT_TOKENS * len(requests),
        cached_prompt_tokens=world.cached_prompt_tokens * len(requests),
        prompt_repeats=0,
        index=index,
        cpu_busy=0.5,
        cpu_others_share=world.cpu_others_share,
        prompts_sha256="f" * 64,
        repeated_prompts=0,
        declared=DeclaredWork(PROMPT_TOKENS, world.output_tokens),
        clock_checked=index not in world.unchecked,
    )


def _request(world: World, index: int, at_s: float, tokens: int) -> RequestRecord:
    return RequestRecord(
        index=index,
        submitted_ns=_ns(at_s),
        first_token_ns=_ns(at_s + PREFILL_S),
        finished_ns=_ns(at_s + world.round_s),
        prompt_tokens=PROMPT_TOKENS,
        cached_prompt_tokens=world.cached_prompt_tokens,
        output_tokens=tokens,
        finish_reason="length",
    )


def gpu_info(index: int, gpu: FakeGpu) -> Gpu:
    return Gpu(
        index=index,
        uuid=gpu.uuid,
        name=gpu.name,
        vram_total_bytes=gpu.memory_total_bytes,
        vram_used_bytes=0,
        power_limit_w=gpu.power_limit_w,
        power_limit_default_w=gpu.power_limit_default_w,
        sm_clock_max_mhz=1980,
        memory_clock_max_mhz=3201,
        ecc=True,
        mig=False,
        persistence=True,
        pci_bus_id=None,
        compute_capability="9.0",
        driver_version="580",
        vram_reserved_bytes=None if "memory_v2" in gpu.unsupported else gpu.memory_reserved_bytes,
        cuda_driver_version="13.0",
    )


def _ns(at_s: float) -> int:
    return fake_nvml.VIRTUAL_ORIGIN_NS + round(at_s * NS_PER_S)
