"""A whole study in virtual time: simulated GPUs, meter, launcher and engine as `MachineAccess`.

The engine takes settings of a backend section `fake`: `step_s`, `most_in_flight`, `visible_gpus`, `used_gpus`,
`encode_s` before the first request, `send_s` after the last one, and the faults, "die" or "bug".
"""

from __future__ import annotations

import threading
from array import array
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import numpy as np
from make.virtual_meter import Power, VirtualClock, VirtualMeter
from seams.execution import MachineAccess
from seams.records import Steps, TokenSeries

from wattdock.clock import NS_PER_S, Clock, ClockCheck
from wattdock.config import ExperimentConfig, Study
from wattdock.errors import Cause, RunnerError
from wattdock.execution import Measurement, NodeTask, RunOptions, measure
from wattdock.host import Gpu, GpuInventory, Machine
from wattdock.launch import LauncherChoice
from wattdock.metering import MeterChoice, Span, Timeline
from wattdock.planning import ExecutionPlan
from wattdock.records import PassRecord, RequestRecord, RunnerEnvironment
from wattdock.runner import Heartbeat, RunnerDescription
from wattdock.study import events, find_study
from wattdock_proto.prompt_hash import hash_of
from wattdock_runner.arrivals import Admission
from wattdock_runner.values import Arrival, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from wattdock.runner import LoadRequest, PassRequest

BASE = {
    "backend": "fake",
    "model": "shape:tiny-llama",
    "workload": {"batch_size": 2, "max_output_tokens": 10},
    "warmup": {"passes": 1},
    "repeats": {"passes": 2, "restarts": 1},
    "fake": {"step_s": 0.1},
}
LAUNCH_S, LOAD_S, PROMPT_TOKENS, BLOCK_TOKENS = 2.0, 10.0, 8, 16
HEARTBEAT_S = 1.0


@dataclass
class Served:
    """A request in the virtual engine, which gives each a token per step."""

    index: int
    limit: int
    prompt_tokens: int
    cached_tokens: int
    submitted_ns: int
    intended_ns: int | None
    prompt_hash: int
    first_ns: int = 0
    last_ns: int = 0
    tokens: int = 0

    def note(self, at_ns: int) -> None:
        """Count a token that was there at an instant."""
        self.first_ns, self.last_ns = self.first_ns or at_ns, at_ns
        self.tokens += 1

    def record(self) -> RequestRecord:
        """Return what a runner says of the finished request."""
        return RequestRecord(
            index=self.index,
            submitted_ns=self.submitted_ns,
            intended_ns=self.intended_ns,
            first_token_ns=self.first_ns,
            finished_ns=self.last_ns,
            prompt_tokens=self.prompt_tokens,
            cached_prompt_tokens=self.cached_tokens,
            output_tokens=self.tokens,
            finish_reason="length",
            max_output_tokens=self.limit,
            prompt_hash=self.prompt_hash,
        )


@dataclass
class VirtualRunner:
    """A launched runner and the client that talks to it.

    Attributes:
        limits: Receives the limits of the calls, in seconds, by their settings in `timeouts`.
    """

    clock: VirtualClock
    check: Callable[[], None] = lambda: None
    gpus: tuple[str, ...] = ()
    args: Mapping[str, Any] = field(default_factory=dict)
    load_fault: str = "none"
    limits: dict[str, float] = field(default_factory=dict)
    stopped: bool = False
    caches: bool = True
    cache: set[Any] = field(default_factory=set)

    address = "virtual"

    def alive(self) -> bool:
        return not self.stopped

    def exit_reason(self) -> str | None:
        return "stopped" if self.stopped else None

    def pids(self) -> frozenset[int]:
        return frozenset()

    def model_path(self, on_host: Path) -> Path:
        return on_host

    def stop(self, grace_s: float) -> None:
        self.limits["stop_s"] = grace_s
        self.stopped = True

    def wait_ready(self, timeout_s: float) -> RunnerDescription:
        self.limits["launch_s"] = timeout_s
        self.clock.sleep(LAUNCH_S)
        return RunnerDescription("fake", "fake", "1.0", "3.12", arrivals=("batch", "closed", "open", "single"))

    def check_clock(self) -> ClockCheck:
        return ClockCheck("boot", 1)

    def load(
        self, request: LoadRequest, *, timeout_s: float, progress: Callable[[str], None], waiting: Callable[[], None]
    ) -> tuple[RunnerEnvironment, Span]:
        waiting()
        self.limits["load_s"] = timeout_s
        self.args, self.gpus = dict(request.engine_args), tuple(request.gpu_uuids)
        progress("reading weights")
        began_ns = self.clock.now_ns()
        self.clock.sleep(LOAD_S)
        self._strike("load_fault", "loading")
        environment = RunnerEnvironment(
            visible_gpu_uuids=list(self.gpus[: self.args.get("visible_gpus")]),
            used_gpu_uuids=list(self.gpus[: self.args.get("used_gpus")]),
            framework="fake",
            framework_version="1.0",
            weight_bytes=10_000_000,
            python_version="3.12",
            engine_args={"dtype": "bfloat16", **self.args},
        )
        return environment, Span("load", began_ns, self.clock.now_ns())

    def generate(
        self,
        request: PassRequest,
        *,
        silence_s: float,
        stall_s: float,
        heartbeat: Callable[[Heartbeat], bool],
    ) -> PassRecord:
        self.limits |= {"heartbeat_s": silence_s, "stall_s": stall_s}
        in_flight = request.workload.batch_size
        if in_flight > self.args.get("most_in_flight", in_flight):
            raise RunnerError(f"a pass failed for lack of memory: {in_flight} in flight", cause=Cause.KV_CACHE)
        self._strike("pass_fault", "a pass")
        if encode_s := self.args.get("encode_s"):
            heartbeat(Heartbeat(self.clock.now_ns(), 0, 0, 0, pass_over=False))
            self.clock.sleep(encode_s)
        began_ns, steps, output_tokens = self.clock.now_ns(), list[tuple[int, ...]](), [0]
        may_end = threading.Event()
        admission = self._admission(request, began_ns, may_end.is_set)
        served, running = list[Served](), list[Served]()

        def beat(running: int, *, pass_over: bool = False) -> None:
            finished = len(served) - running
            if heartbeat(Heartbeat(self.clock.now_ns(), output_tokens[-1], len(served), finished, pass_over)):
                may_end.set()

        beat(0)
        while True:
            for index, (item, limit), intended_ns in admission.due(len(running), self.clock.now_ns()):
                hashed = hash_of(item if isinstance(item, array) else array("I", list(item.encode())))
                served.append(Served(index, limit, *self._lengths(item), self.clock.now_ns(), intended_ns, hashed))
                running.append(served[-1])
            if not running and admission.exhausted:
                break
            self.check()
            if running:
                steps.append(self._step(running))
                output_tokens.append(output_tokens[-1] + len(running))
                running = [one for one in running if one.tokens < one.limit]
            else:
                wait_ns = max(0, (admission.wake_ns(0) or 0) - self.clock.now_ns())
                self.clock.sleep(min(HEARTBEAT_S, wait_ns / NS_PER_S))
            beat(len(running))
        span = Span("pass", began_ns, self.clock.now_ns())
        beat(0, pass_over=True)
        self.clock.sleep(max(request.settle_s, self.args.get("send_s", 0.0)))
        series = Steps(*np.array(steps, dtype=np.int64).T)
        record = TokenSeries(series.end_ns, np.array(output_tokens[1:]))
        requests = tuple(one.record() for one in served)
        prompt_tokens, cached = (sum(one.prompt_tokens for one in served), sum(one.cached_tokens for one in served))
        return PassRecord(span, requests, record, output_tokens[-1], prompt_tokens, cached, 0, steps=series)

    def unload(self) -> None:
        self._strike("unload_fault", "unloading")

    def _step(self, running: Sequence[Served]) -> tuple[int, ...]:
        """Give each request a token; return the step's columns of `StepSeries`."""
        start_ns, new = self.clock.now_ns(), [one for one in running if not one.tokens]
        self.clock.sleep(self.args.get("step_s", 0.1))
        context_tokens = sum(one.prompt_tokens + one.tokens for one in running)
        prompt_tokens = sum(one.prompt_tokens - one.cached_tokens for one in new)
        for one in running:
            one.note(self.clock.now_ns())
        return start_ns, self.clock.now_ns(), prompt_tokens, len(running) - len(new), len(running), context_tokens

    def _admission(
        self, request: PassRequest, began_ns: int, may_end: Callable[[], bool]
    ) -> Admission[tuple[Any, int]]:
        """Hand out the requests' ids and output limits as a runner hands out its prompts."""
        spec = request.workload
        workload = Workload(
            Arrival(spec.loop),
            in_flight=spec.batch_size,
            max_output_tokens=spec.output_lengths.max,
            min_requests=request.min_requests,
            min_duration_s=request.min_duration_s,
            arrival_ns=request.prompts.arrivals_ns,
        )
        items, first_limits = request.prompts.items, request.prompts.first_output_tokens
        limits = [limit or spec.output_lengths.max for limit in request.prompts.max_output_tokens]
        first = [(items[i % len(items)], limit) for i, limit in enumerate(first_limits)]
        return Admission(workload, list(zip(items, limits, strict=True)), began_ns, first, may_end=may_end)

    def _lengths(self, item: Any) -> tuple[int, int]:
        """Tokens of a prompt, and those from a cache of blocks; `PROMPT_TOKENS` of any without a cache."""
        if not isinstance(item, array):
            return PROMPT_TOKENS, 0
        if not (self.caches and self.args.get("enable_prefix_caching")):
            return len(item), 0
        blocks = [bytes(item[:end]) for end in range(BLOCK_TOKENS, len(item) + 1, BLOCK_TOKENS)]
        cached = sum(block in self.cache for block in blocks)
        self.cache.update(blocks)
        return len(item), cached * BLOCK_TOKENS

    def _strike(self, name: str, what: str) -> None:
        faults = self.args.get(name), getattr(self, name, None)
        if "die" in faults:
            raise RunnerError(f"the runner died during {what}: exited with code 70", cause=Cause.RUNNER)
        if "bug" in faults:
            raise KeyError("put in by a test")


@dataclass
class VirtualMachine:
    """A machine whose studies take no time; the results and studies of all runs on it lie in `folder`.

    Attributes:
        power: What each GPU draws; without any, studies run on the CPU.
        limit_w: The GPUs' power limit at an instant, in seconds.
        vram_used_bytes: Memory of each GPU in use at an instant, in seconds, when no runner of ours runs.
        load_fault: Strikes whatever an experiment's settings say.
        variables: Engine settings of the environment.
        as_read: What a meter makes of its timeline whenever it is read.
        at_meter_end: The same, when it is stopped.
        caches: Whether a prefix cache that is switched on serves anything.
        launches: How many runners were started.
        limits: What the last runner to be asked was given as each limit, in seconds, by its setting in `timeouts`.
        meters: Those that were started.
        emitted: The events of the last run.
    """

    folder: Path
    power: Mapping[str, Power] = field(default_factory=dict)
    limit_w: Power = lambda _: 700.0
    clock: VirtualClock = field(default_factory=VirtualClock)
    vram_used_bytes: Callable[[float], int] = lambda _: 0
    load_fault: str = "none"
    variables: Mapping[str, str] = field(default_factory=dict)
    as_read: Callable[[Timeline], Timeline] = lambda timeline: timeline
    at_meter_end: Callable[[Timeline], Timeline] = lambda timeline: timeline
    caches: bool = True
    launches: int = 0
    limits: dict[str, float] = field(default_factory=dict)
    meters: list[VirtualMeter] = field(default_factory=list)
    emitted: list[events.Event] = field(default_factory=list)

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def run(
        self,
        study: Study,
        *,
        gpus: Sequence[str] | None = None,
        on: Callable[[events.Event], None] = lambda _: None,
        **options: Any,
    ) -> Measurement:
        """Run a study to its end; `on` is called with each event. The run is returned after errors as `last`, too."""
        self.emitted = []

        def emit(event: events.Event) -> None:
            self.emitted.append(event)
            on(event)

        if task := options.pop("task", None):
            options["task"] = NodeTask(task, 0)
        if isinstance(name := options.get("resume"), str):
            options["resume"] = find_study(name, self.results)
        self.last = Measurement()
        told = RunOptions(self.results, self.folder / "home", **options)
        # A disk takes milliseconds for each file, and nothing here is to outlive a power cut.
        with patch("os.fsync"):
            measure(study, told, self.last, emit=emit, machine=self.access(gpus))
        return self.last

    def notes(self) -> list[str]:
        return [event.text for event in self.emitted if isinstance(event, events.Note)]

    def inventory(self) -> GpuInventory:
        now_s = self.clock.now_ns() / NS_PER_S
        gpus = [
            Gpu(
                index=index,
                uuid=uuid,
                name="NVIDIA H200",
                power_limit_w=self.limit_w(now_s),
                vram_used_bytes=self.vram_used_bytes(now_s),
            )
            for index, uuid in enumerate(self.power)
        ]
        return GpuInventory(tuple(gpus), reason=None if gpus else "no GPU")

    def plans(self, study: Study, gpus: Sequence[str] | None = None) -> list[ExecutionPlan]:
        """Return what preflight would decide about a study on these GPUs, or on all of this machine."""
        inventory = self.inventory()
        return [
            ExecutionPlan(
                config=config,
                machine=Machine("CPU", 8, 1, "Linux"),
                inventory=inventory,
                gpus=tuple(gpu for gpu in inventory.gpus if gpus is None or gpu.uuid in gpus),
                launch=LauncherChoice("process", "virtual", "nothing"),
                meter=MeterChoice("nvml", "virtual", "" if self.power else "no GPU"),
                variables=self.variables,
            )
            for config in study.experiments
        ]

    def access(self, gpus: Sequence[str] | None = None) -> MachineAccess:
        """Return simulations of all that a run meets, on these GPUs, or on all of this machine."""

        def new_meter(*_: object) -> VirtualMeter:
            # A test may set `as_read` meanwhile.
            as_read = lambda timeline: self.as_read(timeline)  # noqa: E731, PLW0108
            self.meters.append(VirtualMeter(self.clock, self.power, as_read, self.at_meter_end))
            return self.meters[-1]

        @contextmanager
        def launcher(*_: object) -> Iterator[Any]:
            yield self.launch

        @contextmanager
        def connect(runner: Any, check: Callable[[], None], _: Clock) -> Iterator[Any]:
            runner.check = check
            yield runner

        return MachineAccess(
            clock=self.clock,
            plan=lambda study, **_: self.plans(study, gpus),
            new_meter=cast("Any", new_meter),
            launcher=cast("Any", launcher),
            connect=cast("Any", connect),
            inventory=self.inventory,
        )

    def launch(self, spec: object) -> VirtualRunner:
        self.launches += 1
        return VirtualRunner(self.clock, load_fault=self.load_fault, limits=self.limits, caches=self.caches)


def experiment(name: str = "", **settings: Any) -> ExperimentConfig:
    """Return `BASE` with other settings, given by section: `workload={"batch_size": 4}`."""
    merged: dict[str, Any] = {**BASE, "name": name or None}
    for key, value in settings.items():
        merged[key] = {**BASE.get(key, {}), **value} if isinstance(value, dict) else value  # type: ignore[dict-item]
    return ExperimentConfig.model_validate(merged)


def study(*experiments: ExperimentConfig, **settings: Any) -> Study:
    return Study("s", experiments, **settings)
