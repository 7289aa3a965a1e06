"""A backend without an engine: deterministic tokens at a settable rate, all arrivals, and faults on demand.

Loads and serves in the runner's own process with the standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wattdock_runner.arguments import Argument
from wattdock_runner.backend import Arrival, Finding, Gpu, LoadedModel, Prompt
from wattdock_runner.clock import Span, now_ns
from wattdock_runner.errors import OutOfMemory
from wattdock_runner.supply import PromptSupply, poisson_instants

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wattdock_runner.backend import LoadOrder, Workload
    from wattdock_runner.recorder import PassRecorder

VOCABULARY = 32_000
FAULTS = ("none", "die", "raise", "hang", "oom", "orphan")
FAULT_PREFIX = "fault:"
ORPHAN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def strike(fault: object) -> None:
    """Do what a fault's name says; "none" does nothing."""
    if fault == "die":
        os._exit(70)
    if fault == "raise":
        raise RuntimeError("the fake engine was told to fail")
    if fault == "hang":
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "oom":
        raise OutOfMemory("the fake engine has no room")
    if fault == "orphan":
        # Its own session and deaf to SIGTERM: what ends only the runner's process group leaves it behind.
        subprocess.Popen([sys.executable, "-c", ORPHAN], start_new_session=True)


@dataclass
class _Running:
    """One request being served."""

    index: int
    tokens_left: int
    reason: str
    next_id: int
    ids: list[int] = field(default_factory=list)


class _Admission:
    """Decides which requests enter the fake engine at each step."""

    def __init__(self, workload: Workload, prompts: Sequence[Prompt], started_ns: int) -> None:
        self._workload = workload
        self._supply = PromptSupply(workload, prompts, started_ns)
        self._arrivals = poisson_instants(workload.rate_per_s or 1.0, workload.seed, started_ns)
        self._next_arrival_ns = next(self._arrivals)
        self._waiting: deque[tuple[int, Prompt, int]] = deque()
        self._supply_is_empty = False

    @property
    def is_over(self) -> bool:
        """Nothing is left to admit."""
        return self._supply_is_empty and not self._waiting

    def admit(self, running: int) -> list[tuple[int, Prompt, int | None]]:
        """Return the requests that enter now, as (index, prompt, intended instant)."""
        free = self._workload.in_flight - running
        if self._workload.arrival is Arrival.POISSON:
            self._queue_arrivals()
            return [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]
        if self._workload.arrival is not Arrival.CLOSED and running:
            return []
        return [(index, prompt, None) for index, prompt in self._take(free)]

    def _queue_arrivals(self) -> None:
        while not self._supply_is_empty and self._next_arrival_ns <= now_ns():
            self._waiting.extend((index, prompt, self._next_arrival_ns) for index, prompt in self._take(1))
            self._next_arrival_ns = next(self._arrivals)

    def _take(self, count: int) -> list[tuple[int, Prompt]]:
        if count == 0:
            return []
        taken = self._supply.take(count)
        self._supply_is_empty = not taken
        return taken


class _Beat:
    """The rhythm of steps: one that a busy machine delays is made up for, so that equal passes last equally long."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._due_s = time.monotonic()

    def wait(self) -> None:
        self._due_s += self._step_s
        time.sleep(max(0.0, self._due_s - time.monotonic()))


class FakeBackend:
    """One token per request and step, on a beat of `step_s`; token ids depend on prompt and position only."""

    name = "fake"
    framework = "fake"
    framework_package = "grpcio"
    packages: tuple[str, ...] = ()
    supported_versions: str | None = None
    arrivals: tuple[Arrival, ...] = tuple(Arrival)
    engine_arguments: Mapping[str, Argument] | None = {
        "step_s": Argument((float,)),
        "tokens_per_step": Argument((int,)),
        "load_s": Argument((float,)),
        "stops_after": Argument((int, type(None))),
        "load_fault": Argument((str,), FAULTS),
        "pass_fault": Argument((str,), FAULTS),
        "used_gpus": Argument((int, type(None))),
        "most_in_flight": Argument((int,)),
    }
    can_replicate = True

    def __init__(self) -> None:
        self._args: dict[str, object] = {}
        self._step_s = 0.001
        self._tokens_per_step = 1
        self._stops_after: int | None = None

    def load(self, order: LoadOrder, report: Callable[[str, float | None], None]) -> LoadedModel:
        """Pretend to load for `load_s` seconds, on exactly the GPUs asked for."""
        start_ns = now_ns()
        defaults = {"step_s": 0.001, "tokens_per_step": 1, "load_s": 0.0, "stops_after": None, "most_in_flight": 10_000}
        self._args = {**defaults, "load_fault": "none", "pass_fault": "none", "used_gpus": None, **order.engine_args}
        report("pretending to load", 0.0)
        strike(self._args["load_fault"])
        time.sleep(float(str(self._args["load_s"])))
        self._step_s = float(str(self._args["step_s"]))
        self._tokens_per_step = int(str(self._args["tokens_per_step"]))
        stops_after, used_gpus = self._args["stops_after"], self._args["used_gpus"]
        self._stops_after = stops_after if isinstance(stops_after, int) else None
        used = order.gpu_uuids[: used_gpus if isinstance(used_gpus, int) else None]
        report("loaded", 1.0)
        return LoadedModel(
            visible_gpus=tuple(Gpu(uuid, "fake GPU") for uuid in order.gpu_uuids),
            used_gpu_uuids=used,
            effective_engine_args={**self._args, "dtype": "float32" if order.dtype == "auto" else order.dtype},
            parallelism={"kind": "none" if len(used) < 2 else "fake", "devices": dict.fromkeys(used, 1)},
            parameter_count=1_000,
            weight_bytes=4_000,
            spans=(Span("load", start_ns, now_ns(), drained=True),),
        )

    def generate(self, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> None:
        """Serve the pass step by step; a prompt "fault:NAME" strikes when it is admitted."""
        if workload.in_flight > int(str(self._args["most_in_flight"])):
            raise OutOfMemory(f"{workload.in_flight} requests in flight need more blocks of KV cache than there are")
        admission = _Admission(workload, prompts, recorder.open())
        strike(self._args["pass_fault"])
        running: list[_Running] = []
        tokens = finished = 0
        beat = _Beat(self._step_s)
        while running or not admission.is_over:
            recorder.check_cancelled()
            at_ns = now_ns() if workload.arrival is Arrival.BATCH else None
            for index, prompt, intended_ns in admission.admit(len(running)):
                tokens_in = _length(prompt)
                recorder.submitted(
                    index, prompt_tokens=tokens_in, cached_prompt_tokens=0, at_ns=at_ns, intended_ns=intended_ns
                )
                running.append(self._start(workload, index, prompt))
            beat.wait()
            tokens += self._step(running, recorder)
            for request in running:
                if request.tokens_left == 0:
                    _finish(workload, request, recorder)
                    finished += 1
            running = [request for request in running if request.tokens_left > 0]
            recorder.progress(output_tokens=tokens, requests_finished=finished)
        recorder.close(drained=True)

    def _start(self, workload: Workload, index: int, prompt: Prompt) -> _Running:
        if isinstance(prompt.content, str) and prompt.content.startswith(FAULT_PREFIX):
            strike(prompt.content.removeprefix(FAULT_PREFIX))
        wanted = workload.output_tokens_wanted(prompt)
        stops = self._stops_after is not None and not workload.ignore_eos and self._stops_after <= wanted
        return _Running(
            index,
            tokens_left=self._stops_after if stops and self._stops_after else wanted,
            reason="stop" if stops else "length",
            next_id=_length(prompt) % VOCABULARY,
        )

    def _step(self, running: list[_Running], recorder: PassRecorder) -> int:
        at_ns = now_ns()
        emitted = 0
        for request in running:
            count = min(self._tokens_per_step, request.tokens_left)
            request.ids += [(request.next_id + i) % VOCABULARY for i in range(count)]
            request.next_id += count
            request.tokens_left -= count
            emitted += count
            recorder.emitted(request.index, count, at_ns)
        return emitted

    def diagnose(self) -> Sequence[Finding]:
        """Find nothing wrong."""
        return [Finding("fake", "ok", "always")]

    def unload(self) -> None:
        """Forget what was loaded."""
        self._args = {}


def _finish(workload: Workload, request: _Running, recorder: PassRecorder) -> None:
    text = " ".join(f"t{token}" for token in request.ids) if workload.return_text else None
    ids = request.ids if workload.return_token_ids else None
    recorder.finished(request.index, request.reason, text=text, output_ids=ids)


def _length(prompt: Prompt) -> int:
    return len(prompt.content.split()) if isinstance(prompt.content, str) else len(prompt.content)
