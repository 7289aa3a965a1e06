"""A sound experiment on a simulated H200, in virtual time, and what can be wrong with it.

The real meter watches; what a runner would have reported is made up to match.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from math import log, sqrt
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
from wattdock.metering import Meter, MeterChoice, Span, Timeline
from wattdock.planning import ExecutionPlan
from wattdock.records import PassRecord, RequestRecord, RestartRecord, RunnerEnvironment

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from fake_nvml import FakeNvml

    from wattdock.analysis import Check, ExperimentResult
    from wattdock.records import EnvironmentSnapshot, Failure

USED, OTHER = fake_nvml.uuid_of(1), fake_nvml.uuid_of(2)
DIGEST = f"registry.example/wattdock-pytorch@sha256:{'d' * 64}"
IMAGE = Image(Engine("unix:///x", "28.0"), DIGEST, f"sha256:{'1' * 64}", DIGEST)


def launched(locked_digest: str | None) -> LauncherChoice:
    """Return a container of a locked image, by its digest or by its id only."""
    return LauncherChoice("docker", "test", "none", IMAGE, Pin(locked_digest, "f" * 64))


RUNNER = FakeProcess(pid=4242, from_s=6)
IN_FLIGHT, ROUNDS, ROUND_S, PREFILL_S, PROMPT_TOKENS = 8, 18, 5.0, 0.6, 512
# Seconds: idle before the launch, idle with the model loaded; the run, whose first 45 s are its lead-in.
EMPTY, LOADED, RUN, METERED_S = (2, 5), (15, 25), (30, 120), 125
POWER = (constant(80, 8), constant(118, 22), constant(500, 90), constant(118))
# What differs of the used GPU, and of the other one, in a recording.
AS_EVER: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})


@dataclass(frozen=True)
class World:
    """What is simulated; the defaults are without fault.

    Attributes:
        gpu: Fields of the used GPU that differ; `other`, those of the other one.
        restarts: Fresh runners.
        recordings: What differs of the two GPUs in the first recordings; later restarts have these again.
        output_tokens: Per request.
        draw: Seed of prompts like people's, whose prefills take as much longer as they are; None for equal ones.
        config: Settings that differ.
        model: Fields of the model's folder that differ.
        environments: What differs in each restart's environment; None where it is not known.
        used: GPUs that hold the model in each restart; the machine has none where the first restart used none.
        run: Fields of each run's record that differ.
        early_end_s: A run's span ends by so much before its last token.
        resumed: Whether the last restart was interrupted, and another runner made a second pass.
        failure: Why the last restart has no pass.
    """

    gpu: Mapping[str, Any] = field(default_factory=dict)
    other: Mapping[str, Any] = field(default_factory=dict)
    restarts: int = 3
    recordings: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]] = (AS_EVER,)
    output_tokens: int = 100
    draw: int | None = None
    cached_prompt_tokens: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    environments: Sequence[Mapping[str, Any] | None] = ({"driver_version": "580"},) * 3
    used: Sequence[Sequence[str]] = ((USED,),) * 3
    run: Mapping[str, Any] = field(default_factory=dict)
    early_end_s: float = 0.0
    launch: LauncherChoice = launched(DIGEST)  # noqa: RUF009  (frozen)
    resumed: bool = False
    failure: Failure | None = None


def result_of(world: World, library: Path) -> ExperimentResult:
    """Return what merging everything gives."""
    gpus = [
        FakeGpu(**{"uuid": USED, "profile": POWER, "processes": (RUNNER,), **world.gpu}),
        FakeGpu(**{"uuid": OTHER, **world.other}),
    ]
    config = ExperimentConfig.model_validate(
        {
            "workload": {
                "batch_size": IN_FLIGHT,
                "max_output_tokens": world.output_tokens,
                "min_duration_s": 40,
                "prompts": {"source": "synthetic", "input_tokens": PROMPT_TOKENS},
            },
            "repeats": {"restarts": 3, "passes": 1},
            "warmup": {"profile": "lead-in"},
            "idle": {"duration_s": 10},
            **world.config,
        }
    )
    infos = tuple(gpu_info(index, gpu) for index, gpu in enumerate(gpus))
    plan = ExecutionPlan(
        config=config,
        machine=Machine("CPU", 8, 1, "Linux", wattdock_commit="c0ffee", wattdock_dirty=False),
        inventory=GpuInventory(infos if world.used[0] else ()),
        gpus=infos[: len(world.used[0])],
        launch=world.launch,
        meter=MeterChoice("nvml", "test"),
    )
    fields: dict[str, Any] = {"kind": "hub", "name": "model", "revision": "0123abcd", "random_weights": False}
    model = ModelFolder(
        **{"path": Path(), "has_tokenizer": True, "config": shape_config("llama-3.1-8b"), **fields, **world.model}
    )
    records = [_restart(world, number, _recorded(world, gpus, library, number)) for number in range(world.restarts)]
    restarts = [
        dataclasses.replace(record, environment=_environment(world, record, plan, model), architecture=model.config)
        for record in records
    ]
    if world.resumed:
        again = (dataclasses.replace(run_pass, index=1) for run_pass in restarts[-1].passes)
        restarts.append(dataclasses.replace(restarts[-1], passes=tuple(again)))
    return audited(config, restarts)


def checks(result: ExperimentResult) -> dict[str, Check]:
    assert result.audit is not None
    return {check.name: check for check in result.audit.checks}


def _environment(
    world: World, record: RestartRecord, plan: ExecutionPlan, model: ModelFolder
) -> EnvironmentSnapshot | None:
    runner = RunnerEnvironment(
        visible_gpu_uuids=list(world.used[0]),
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
        left = self._left.setdefault(id(event), [_ns(edge) for edge in RUN])
        if not left or left[0] > self.now_ns() + timeout_s * NS_PER_S:
            return self._fake.wait(event, timeout_s)
        self._fake.wait(event, max(0, left.pop(0) - self.now_ns()) / NS_PER_S)
        assert self.meter is not None
        [own] = [sampler for sampler in self.meter._threads if sampler._wake is event]
        own.note_edge()
        return True


def _recorded(world: World, gpus: Sequence[FakeGpu], library: Path, number: int) -> Timeline:
    if not world.used[0]:
        return Timeline("nvml", _ns(0), _ns(METERED_S), {}, reason="no GPU")
    number %= len(world.recordings)
    timelines = [
        _metered(dataclasses.replace(gpu, seed=10 * number + index, **differing), library)
        for index, (gpu, differing) in enumerate(zip(gpus, world.recordings[number], strict=True), start=1)
    ]
    both = {uuid: gpu for timeline in timelines for uuid, gpu in timeline.gpus.items()}
    return dataclasses.replace(timelines[0], gpus=both, end_ns=max(timeline.end_ns for timeline in timelines))


@functools.cache
def _metered(gpu: FakeGpu, library: Path) -> Timeline:
    """Return what the meter recorded of one GPU, whose thread has a virtual time of its own beside others, too."""
    with fake_nvml.loaded(library, gpus=[gpu]) as fake:
        clock = EdgeClock(fake)
        clock.meter = meter = Meter(NvmlSource(), clock=clock)
        meter.start()
        return meter.stop(_ns(METERED_S))


def _restart(world: World, number: int, timeline: Timeline) -> RestartRecord:
    idle = [("idle-empty", EMPTY), ("idle-loaded", LOADED)]
    failure = world.failure if number == world.restarts - 1 else None
    return RestartRecord(
        number,
        spans=tuple(Span(name, _ns(start), _ns(end)) for name, (start, end) in idle),
        passes=() if failure else (_run(world, number),),
        clock_checks=(ClockCheck("boot", 1000),),
        timeline=timeline,
        failure=failure,
        runner_pids=frozenset({RUNNER.pid}),
        started_utc="2026-01-02T03:04:05.678+00:00",
    )


def _run(world: World, number: int) -> PassRecord:
    requests: list[RequestRecord] = []
    series: list[tuple[int, int]] = []
    total, at_s, tokens = 0, float(RUN[0]), world.output_tokens
    prompts = np.full((ROUNDS, IN_FLIGHT), PROMPT_TOKENS)
    if world.draw is not None:
        sigma = sqrt(log(2))
        drawn = np.random.default_rng((world.draw, number)).lognormal(
            log(PROMPT_TOKENS) - sigma**2 / 2, sigma, prompts.shape
        )
        prompts = drawn.round().astype(int)
    for lengths in prompts.tolist():
        prefill_s = PREFILL_S * sum(lengths) / len(lengths) / PROMPT_TOKENS
        edges_s = at_s, at_s + prefill_s, at_s + prefill_s + ROUND_S - PREFILL_S
        requests += [_request(world, len(requests) + slot, *edges_s, length) for slot, length in enumerate(lengths)]
        for step_s in np.linspace(*edges_s[1:], tokens):
            total += IN_FLIGHT
            series.append((_ns(step_s), total))
        at_s = edges_s[-1]
    at_ns, counts = np.array(series, dtype=np.int64).T
    answer = world.output_tokens
    declared = DeclaredWork(PROMPT_TOKENS, answer, PROMPT_TOKENS * (answer - 1) + answer * (answer - 1) / 2)
    record = PassRecord(
        span=Span("pass", _ns(RUN[0]), _ns(at_s - world.early_end_s)),
        requests=tuple(requests),
        tokens=TokenSeries(at_ns, counts),
        output_tokens=total,
        prompt_tokens=int(prompts.sum()),
        cached_prompt_tokens=world.cached_prompt_tokens * len(requests),
        prompt_repeats=0,
        cpu_others_share=0.02,
        prompts_sha256="f" * 64,
        declared=declared,
    )
    return dataclasses.replace(record, **world.run)


def _request(
    world: World, index: int, submitted_s: float, first_s: float, finished_s: float, prompt_tokens: int
) -> RequestRecord:
    return RequestRecord(
        index=index,
        submitted_ns=_ns(submitted_s),
        first_token_ns=_ns(first_s),
        finished_ns=_ns(finished_s),
        prompt_tokens=prompt_tokens,
        cached_prompt_tokens=world.cached_prompt_tokens,
        output_tokens=world.output_tokens,
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
        ecc=True,
        mig=False,
        persistence=True,
        driver_version="580",
        vram_reserved_bytes=None if "memory_v2" in gpu.unsupported else gpu.memory_reserved_bytes,
        cuda_driver_version="13.0",
    )


def _ns(at_s: float) -> int:
    return fake_nvml.VIRTUAL_ORIGIN_NS + round(at_s * NS_PER_S)
