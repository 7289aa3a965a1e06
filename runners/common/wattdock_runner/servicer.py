"""Answer the calls of runner.proto with a backend.

The engine works on a thread of its own, so that heartbeats do not depend on it. Must not know: engines.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from wattdock_proto.v1 import runner_pb2 as pb
from wattdock_proto.v1 import runner_pb2_grpc
from wattdock_runner import clock, messages
from wattdock_runner.errors import InvalidRequest, PassCancelled, WrongState
from wattdock_runner.gpus import cuda_findings
from wattdock_runner.likelihood import score
from wattdock_runner.process import leave_out_of_garbage_collection, package_version
from wattdock_runner.program import run_program
from wattdock_runner.recorder import PassRecorder, Progress
from wattdock_runner.spread import start_workers
from wattdock_runner.values import REPLICAS, Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wattdock_runner.backend import Backend
    from wattdock_runner.clock import Span
    from wattdock_runner.spread import Workers
    from wattdock_runner.values import LoadedModel, LoadOrder, Report

log = logging.getLogger(__name__)
T = TypeVar("T")

HEARTBEAT_S = 1.0
INSTALL = "install the backend's requirements file, or run it in its image"
CANCELLED_JOB_GRACE_S = 60.0
# gRPC may deliver a cancellation after the call that the client made next.
CANCEL_ARRIVAL_S = 2.0
POLL_S = 0.02


class RunnerServicer(runner_pb2_grpc.RunnerServicer):
    """Serves a backend; one job at a time."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._engine = EngineThread()
        self._workers: Workers | None = None
        self._is_loaded = False

    def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:  # noqa: N802, ARG002
        """Return what this runner is, without engine or accelerator."""
        reading = pb.ClockReading(
            boot_id=clock.boot_id(), time_namespace=clock.time_namespace(), monotonic_ns=clock.now_ns()
        )
        return messages.describe_message(self._backend, reading)

    def Load(self, request: pb.LoadRequest, context: Any) -> Iterator[pb.LoadEvent]:  # noqa: N802
        """Load a model; stream the stages, then what the engine runs with.

        Raises:
            InvalidRequest: Model folder, dtype or an engine argument is wrong.
            WrongState: A model is loaded already, the runner is busy, or it sees other GPUs than requested.
        """
        version = package_version(self._backend.framework_package)
        if version is None or self._backend.engine_arguments is None:
            raise WrongState(f"{self._backend.framework} is not installed here; {INSTALL}")
        order = messages.load_order_from(
            request,
            self._backend.engine_arguments,
            f"{self._backend.framework} {version}",
            needs_folder=self._backend.needs_folder,
        )
        if order.place and not self._backend.spans_nodes:
            raise InvalidRequest(f"{self._backend.name} cannot spread a model over nodes; vllm can")
        self._engine.require_idle()
        if self._is_loaded:
            raise WrongState("a model is loaded already; Unload it first")
        stages: queue.SimpleQueue[pb.LoadProgress | None] = queue.SimpleQueue()
        cancelled = threading.Event()

        def report(stage: str) -> None:
            log.info("loading: %s", stage)
            stages.put(pb.LoadProgress(stage=stage))

        job = self._engine.submit("Load", partial(self._load, order, report, cancelled), cancelled)
        job.add_done_callback(lambda _: stages.put(None))
        _cancel_with(context, cancelled)
        for progress in iter(stages.get, None):
            yield pb.LoadEvent(progress=progress)
        yield pb.LoadEvent(loaded=messages.loaded_message(self._backend, *job.result()))

    def _load(self, order: LoadOrder, report: Report, cancelled: threading.Event) -> tuple[LoadedModel, Span]:
        """Load on the engine's thread; a load that fails or is cancelled leaves nothing loaded."""
        start_ns = clock.now_ns()
        try:
            self._workers = start_workers(self._backend, order)
            loaded = self._workers.load(report) if self._workers else self._backend.load(order, report)
            leave_out_of_garbage_collection()
            span = clock.Span("load", start_ns, clock.now_ns())
            if cancelled.is_set():
                raise PassCancelled("the client cancelled the load")
            self._is_loaded = True
        finally:
            if not self._is_loaded:
                self._free()
        if self._backend.can_replicate:
            loaded = replace(loaded, effective_engine_args={**loaded.effective_engine_args, REPLICAS: order.replicas})
        return loaded, span

    def Generate(self, request_iterator: Iterator[pb.GenerateRequest], context: Any) -> Iterator[pb.GenerateEvent]:  # noqa: N802
        """Run a pass until the client lets it end; stream a heartbeat every second, then the record of the pass.

        Raises:
            InvalidRequest: The workload or a prompt is wrong, or the backend cannot serve the kind of arrival.
            WrongState: Nothing is loaded, or another pass runs.
        """
        self._engine.require_idle()
        if not self._is_loaded:
            raise WrongState("no model is loaded; Load one first")
        workload, prompts = messages.pass_from(request_iterator)
        if workload.arrival not in self._backend.arrivals:
            valid = ", ".join(arrival.value for arrival in self._backend.arrivals)
            raise InvalidRequest(
                f"{self._backend.name} cannot serve arrival {workload.arrival.value!r}; valid: {valid}"
            )
        recorder = PassRecorder()
        work = partial((self._workers or self._backend).generate, workload, prompts, recorder)
        job = self._engine.submit("Generate", work, recorder.cancelled)
        _cancel_with(context, recorder.cancelled)
        threading.Thread(target=_await_end, args=(request_iterator, recorder), daemon=True).start()
        yield _heartbeat(recorder)
        while not wait([job], timeout=HEARTBEAT_S).done:
            yield _heartbeat(recorder)
        job.result()
        settled_ns = recorder.span.end_ns + round(workload.settle_s * clock.NS_PER_S)
        yield _heartbeat(recorder, pass_over=True)
        while (remaining_s := (settled_ns - clock.now_ns()) / clock.NS_PER_S) > 0:
            if recorder.cancelled.wait(min(remaining_s, HEARTBEAT_S)):
                raise PassCancelled("the client cancelled the pass")
            yield _heartbeat(recorder, pass_over=True)
        yield from messages.pass_events(recorder, len(prompts))

    def Diagnose(self, request: pb.DiagnoseRequest, context: Any) -> pb.DiagnoseResponse:  # noqa: N802, ARG002
        """Return findings about installed packages, engine arguments, CUDA, and the backend's own caveats."""
        versions = {name: package_version(name) for name in self._backend.packages}
        findings = [
            Finding(name, "ok", version) if version else Finding(name, "fail", "not installed", INSTALL)
            for name, version in versions.items()
        ]
        if (arguments := self._backend.engine_arguments) is None:
            findings.append(Finding("engine arguments", "fail", "the engine's source cannot be found", INSTALL))
        else:
            findings.append(Finding("engine arguments", "ok", str(len(arguments))))
        findings += self._backend.caveats
        findings += cuda_findings(os.environ, self._backend.gpu_library, self._backend.gpu_probe)
        return pb.DiagnoseResponse(findings=[pb.Finding(**vars(finding)) for finding in findings])

    def LogLikelihood(self, request: pb.LogLikelihoodRequest, context: Any) -> pb.LogLikelihoodResponse:  # noqa: N802, ARG002
        """Say how likely the model finds texts after others; see `score`.

        Raises:
            WrongState: Nothing is loaded, or a pass runs.
            InvalidRequest: A pair cannot be scored.
            Unsupported: The engine tells no log-likelihoods.
        """
        if not self._is_loaded:
            raise WrongState("no model is loaded; Load one first")
        pairs = [(pair.context, pair.continuation) for pair in request.pairs]
        work = partial(score, self._backend.engine, self._backend.name, pairs, max(1, request.batch_size))
        scores, span = self._engine.submit("LogLikelihood", work, threading.Event()).result()
        told = [pb.PairScore(**item) for item in scores]
        return pb.LogLikelihoodResponse(scores=told, span=pb.Span(**vars(span)))

    def RunProgram(self, request: pb.RunProgramRequest, context: Any) -> pb.RunProgramResponse:  # noqa: N802, ARG002
        """Run a program that a model wrote; see `run_program`.

        Raises:
            InvalidRequest: Its time is too long.
            WrongState: A pass or a load runs, which it would disturb, or it cannot be run here.
        """
        work = partial(run_program, request.source, request.timeout_s)
        return pb.RunProgramResponse(exit_code=self._engine.submit("RunProgram", work, threading.Event()).result())

    def Unload(self, request: pb.UnloadRequest, context: Any) -> pb.UnloadResponse:  # noqa: N802, ARG002
        """Free the model; harmless when nothing is loaded.

        Raises:
            WrongState: A pass or a load runs.
        """
        self._engine.submit("Unload", self._unload, threading.Event()).result()
        return pb.UnloadResponse()

    def _unload(self) -> None:
        if self._is_loaded:
            self._free()
            self._is_loaded = False

    def _free(self) -> None:
        """Free the model, and end the processes that hold it."""
        if self._workers:
            self._workers.end()
            self._workers = None
        self._backend.unload()

    def shut_down(self, timeout_s: float) -> bool:
        """End a running job and free the model; return False if the engine did not end within `timeout_s`."""
        return self._engine.end(self._unload, timeout_s)


def _cancel_with(context: Any, cancelled: threading.Event) -> None:
    """Set `cancelled` when the call ends, however it ends."""
    if not context.add_callback(cancelled.set):
        cancelled.set()


def _await_end(requests: Iterator[pb.GenerateRequest], recorder: PassRecorder) -> None:
    """Let the pass end when the client half-closes; cancel a pass whose client sends more than it announced."""
    # gRPC's iterator raises when the client has gone, and ends when the call has.
    with suppress(grpc.RpcError):
        (recorder.end_allowed if next(requests, None) is None else recorder.cancelled).set()


def _heartbeat(recorder: PassRecorder, *, pass_over: bool = False) -> pb.GenerateEvent:
    at_ns, parts = clock.now_ns(), recorder.parts
    sums = {name: sum(getattr(part, name) for part in parts) for name, _ in Progress._fields_}
    return pb.GenerateEvent(heartbeat=pb.Heartbeat(at_ns=at_ns, pass_over=pass_over, **sums))


@dataclass(frozen=True)
class _Job:
    name: str
    future: Future[Any]
    cancelled: threading.Event


class EngineThread:
    """A single thread for all jobs, because engines have thread-local state."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._lock = threading.Lock()
        self._job: _Job | None = None
        self._is_ending = False

    def require_idle(self) -> None:
        """Return when no job runs; wait for a job that is cancelled, now or within two seconds.

        Raises:
            WrongState: A job runs that nobody cancelled, or a cancelled job does not end.
        """
        if (job := self._job) is None:
            return
        deadline_s = time.monotonic() + CANCEL_ARRIVAL_S
        while not (job.cancelled.is_set() or job.future.done()) and time.monotonic() < deadline_s:
            wait([job.future], timeout=POLL_S)
        if job.cancelled.is_set():
            wait([job.future], timeout=CANCELLED_JOB_GRACE_S)
        _require_done(job)

    def submit(self, name: str, work: Callable[[], T], cancelled: threading.Event) -> Future[T]:
        """Start `work`; `cancelled` is the event that asks it to end early.

        Raises:
            WrongState: Another job is running, or the runner ends.
        """
        self.require_idle()
        with self._lock:
            if self._is_ending:
                raise WrongState("this runner was asked to stop")
            # Two calls may have waited for the same job.
            if self._job is not None:
                _require_done(self._job)
            future = self._executor.submit(work)
            self._job = _Job(name, future, cancelled)
        return future

    def end(self, last: Callable[[], None], timeout_s: float) -> bool:
        """Refuse new jobs, cancel the running job, do `last`; return whether each ended within `timeout_s`."""
        with self._lock:
            self._is_ending = True
        if self._job is not None:
            self._job.cancelled.set()
            if wait([self._job.future], timeout=timeout_s).not_done:
                return False
        return not wait([self._executor.submit(last)], timeout=timeout_s).not_done


def _require_done(job: _Job) -> None:
    if not job.future.done():
        state = "being cancelled" if job.cancelled.is_set() else "running"
        raise WrongState(f"this runner does one thing at a time, and {job.name} is still {state}")
