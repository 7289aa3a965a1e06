"""gRPC calls to one runner.

Turns silence, death and status codes into one-line errors. Must not know how a runner is started or metered.
"""

from __future__ import annotations

import math
import queue
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

import grpc
from pydantic import ValidationError

from wattdock.clock import NS_PER_S, Clock, check_clock
from wattdock.errors import Cause, ConfigError, LaunchError, RunnerError, WattdockError
from wattdock.runner import wire
from wattdock_proto import PROTOCOL_VERSION
from wattdock_proto.v1 import runner_pb2 as pb
from wattdock_proto.v1 import runner_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wattdock.clock import ClockCheck
    from wattdock.launch import LaunchedRunner
    from wattdock.metering import Span
    from wattdock.records import PassRecord, RunnerEnvironment
    from wattdock.runner.wire import Heartbeat, LoadRequest, PairScore, PassRequest, RunnerDescription, RunnerFinding

QUEUED = 16
CALL_TIMEOUT_S = 10.0
READY_POLL_S = 0.05
CLOCK_READINGS = 5
CLOSE_WAIT_S = 2.0
# A runner's socket does not exist yet at the first attempts, between which gRPC would wait a second.
CHANNEL_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
]
# Longest time from the closing of a dying runner's socket to the end of its process.
DEATH_NOTICE_S = 3.0

GRPC_LIMIT = "larger than max"
# Trailing metadata in which a runner sends the cause of a failure.
CAUSE_KEY = "wattdock-cause"
NOT_THERE_YET = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class RunnerClient:
    """A connection to one runner; a context manager that closes the channel, not the runner.

    Args:
        check: Called at least twice a second while the runner is waited for; what it raises ends the wait.
        clock: The host's unless given.
    """

    def __init__(
        self, runner: LaunchedRunner, check: Callable[[], None] = lambda: None, clock: Clock | None = None
    ) -> None:
        self._runner, self._check, self._clock = runner, check, clock or Clock()
        self._channel = grpc.insecure_channel(runner.address, options=CHANNEL_OPTIONS)
        self._stub = runner_pb2_grpc.RunnerStub(self._channel)  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # gRPC's close can hang on a call that was cancelled just after it began.
        closing = threading.Thread(target=self._channel.close, daemon=True)
        closing.start()
        closing.join(CLOSE_WAIT_S)

    def wait_ready(self, timeout_s: float) -> RunnerDescription:
        """Return the runner's description as soon as it answers.

        Raises:
            LaunchError: The runner ended, did not answer within `timeout_s`, speaks another protocol version, or has an
                unsupported version of its engine.
        """
        deadline_ns = self._after_ns(timeout_s)
        while True:
            self._check()
            try:
                answer: pb.DescribeResponse = self._stub.Describe(pb.DescribeRequest(), timeout=CALL_TIMEOUT_S)
                break
            except grpc.RpcError as error:
                if error.code() not in NOT_THERE_YET:
                    raise LaunchError(f"the runner cannot describe itself: {error.details()}", "see its log") from error
                if not self._runner.alive():
                    raise self._died("ended before it answered", LaunchError) from error
                if self._clock.now_ns() > deadline_ns:
                    raise LaunchError(
                        f"the runner did not answer within {timeout_s:g} s",
                        "raise timeouts.launch_s or see its log",
                        cause=Cause.HANG,
                    ) from error
                self._clock.sleep(READY_POLL_S)
        # Before anything else is read: another version may hold values that this one has no name for.
        if answer.protocol_version != PROTOCOL_VERSION:
            raise LaunchError(
                f"the runner speaks protocol {answer.protocol_version}, this coordinator {PROTOCOL_VERSION}",
                "use a runner of the same wattdock version",
                cause=Cause.VERSION,
            )
        with _understood(LaunchError):
            described = wire.description(answer)
            described.require_supported()
        return described

    def check_clock(self) -> ClockCheck:
        """Return the tightest of a few readings that show runner and host on one clock.

        Raises:
            ClockError: The clocks differ, so that spans have no energy.
        """
        host = self._clock.identity()
        checks = []
        for _ in range(CLOCK_READINGS):
            sent_ns = self._clock.now_ns()
            reading = self._call(self._stub.Describe, pb.DescribeRequest()).clock
            received_ns = self._clock.now_ns()
            runner = wire.clock_identity(reading)
            checks.append(
                check_clock(host, runner, sent_ns=sent_ns, runner_ns=reading.monotonic_ns, received_ns=received_ns)
            )
        return min(checks, key=lambda check: check.round_trip_ns)

    def load(
        self,
        request: LoadRequest | pb.LoadRequest,
        *,
        timeout_s: float,
        progress: Callable[[str], None],
        waiting: Callable[[], None] = lambda: None,
    ) -> tuple[RunnerEnvironment, Span]:
        """Load a model; return the environment of the loaded engine, and the span of the load.

        Args:
            progress: Called with each stage of the load.
            waiting: Called at least twice a second meanwhile.

        Raises:
            ConfigError: The engine does not know an argument or a value.
            RunnerError: The runner failed, died, or took longer than `timeout_s`.
        """
        loaded: tuple[RunnerEnvironment, Span] | None = None
        # An agent passes on its head's message.
        call = self._stub.Load(request if isinstance(request, pb.LoadRequest) else wire.load_request(request))

        def check() -> None:
            self._check()
            waiting()

        for event in self._events(call, "loading", check, timeout_s=timeout_s):
            if event.HasField("loaded"):
                with _understood():
                    loaded = wire.loaded(event.loaded)
            else:
                progress(event.progress.stage)
        if loaded is None:
            raise RunnerError("the runner ended its answer to Load without saying what it loaded", "see its log")
        return loaded

    def generate(
        self, request: PassRequest, *, silence_s: float, stall_s: float, heartbeat: Callable[[Heartbeat], bool]
    ) -> PassRecord:
        """Run one pass and return its record; after the last token, an interruption no longer stops it.

        Args:
            silence_s: Longest time without any event; after it, the runner counts as hung.
            stall_s: Longest time without a new token or a finished request: a runner can live while its engine hangs.
            heartbeat: Called with each heartbeat; returns whether the pass may end now. A pass with a minimum duration
                goes on until it has returned True.

        Raises:
            RunnerError: The pass failed, the runner died or hung.
        """
        parts, pass_over = wire.PassParts(), False
        produced, produced_at_ns = (0, 0), self._clock.now_ns()

        def check() -> None:
            if not pass_over:
                self._check()

        with self._open_pass(request) as (call, may_end):
            for event in self._events(call, "a pass", check, silence_s=silence_s):
                beat = wire.heartbeat(event.heartbeat) if event.HasField("heartbeat") else None
                pass_over |= beat is None or beat.pass_over
                if beat:
                    if (beat.output_tokens, beat.requests_finished) != produced:
                        produced, produced_at_ns = (beat.output_tokens, beat.requests_finished), self._clock.now_ns()
                    elif not pass_over and self._clock.now_ns() - produced_at_ns > stall_s * NS_PER_S:
                        raise RunnerError(
                            f"the engine produced nothing for {stall_s:g} s though its runner lives",
                            "it was stopped (see timeouts.stall_s)",
                            cause=Cause.HANG,
                        )
                    if heartbeat(beat):
                        may_end.set()
                if pass_over:
                    with _understood():
                        parts.add(event)
        with _understood():
            return parts.record()

    @contextmanager
    def _open_pass(self, request: PassRequest) -> Iterator[tuple[Any, threading.Event]]:
        """Yield the call of a pass, and the event whose setting half-closes its stream."""
        may_end = threading.Event()

        def requests() -> Iterator[pb.GenerateRequest]:
            yield from wire.generate_requests(request)
            may_end.wait()

        try:
            yield self._stub.Generate(requests()), may_end
        finally:
            # However the call ends, gRPC's thread waits in `requests`.
            may_end.set()

    def diagnose(self, timeout_s: float) -> Sequence[RunnerFinding]:
        """Return the runner's findings about its environment.

        Raises:
            RunnerError: The runner failed, died, or took longer than `timeout_s`.
        """
        answer: pb.DiagnoseResponse = self._call(self._stub.Diagnose, pb.DiagnoseRequest(), timeout_s)
        return [wire.RunnerFinding(**wire.figures(finding)) for finding in answer.findings]

    def log_likelihoods(
        self, pairs: Sequence[tuple[str, str]], *, batch_size: int, timeout_s: float
    ) -> tuple[list[PairScore], Span]:
        """Return how likely the model finds each continuation after its context, and when it computed that.

        Args:
            pairs: Contexts and continuations, of 3 MB together at most.

        Raises:
            ConfigError: The backend tells no log-likelihoods, or a pair cannot be scored.
            RunnerError: It failed, died, or took longer than `timeout_s`.
        """
        asked = pb.LogLikelihoodRequest(batch_size=batch_size)
        for context, continuation in pairs:
            asked.pairs.add(context=context, continuation=continuation)
        told = self._call(self._stub.LogLikelihood, asked, timeout_s)
        return [wire.PairScore(**wire.figures(score)) for score in told.scores], wire.span(told.span)

    def run_program(self, source: str, *, timeout_s: float) -> int:
        """Run a Python program that a model wrote, apart from runner and host; return its exit code.

        The code is negative for the number of the signal that killed it.

        Args:
            timeout_s: When it is killed with all that it started; at most 600.

        Raises:
            RunnerError: A pass runs, or the runner can run no program.
        """
        asked = pb.RunProgramRequest(source=source, timeout_s=timeout_s)
        return int(self._call(self._stub.RunProgram, asked, timeout_s + CALL_TIMEOUT_S).exit_code)

    def unload(self) -> None:
        """Free the model."""
        self._call(self._stub.Unload, pb.UnloadRequest(), timeout_s=60.0)

    def _call(self, method: Any, request: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        try:
            return method(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise self._error(error, "a call") from error

    def _events(
        self,
        call: Any,
        activity: str,
        check: Callable[[], None],
        *,
        timeout_s: float = math.inf,
        silence_s: float = math.inf,
    ) -> Iterator[Any]:
        """Yield the events of a streaming call; cancel the call on an error, a timeout or an early end."""
        # Short: a runner that sends faster than it is read must wait, not fill the memory.
        arrived: queue.Queue[Any] = queue.Queue(QUEUED)
        threading.Thread(target=_pump, args=(call, arrived), daemon=True).start()
        began_ns = heard_ns = self._clock.now_ns()
        try:
            while True:
                check()
                now_ns = self._clock.now_ns()
                if now_ns - began_ns > timeout_s * NS_PER_S or now_ns - heard_ns > silence_s * NS_PER_S:
                    raise RunnerError(
                        f"the runner was silent for too long during {activity}",
                        "it was stopped (see `timeouts:`)",
                        cause=Cause.HANG,
                    )
                try:
                    event = arrived.get(timeout=0.5)
                except queue.Empty:
                    if not self._runner.alive():
                        raise self._died(f"died during {activity}") from None
                    continue
                if event is None:
                    return
                if isinstance(event, grpc.RpcError):
                    raise self._error(event, activity) from event
                yield event
                heard_ns = self._clock.now_ns()
        finally:
            call.cancel()
            with suppress(queue.Empty):
                while True:
                    arrived.get_nowait()

    def _after_ns(self, duration_s: float) -> int:
        return self._clock.now_ns() + round(duration_s * NS_PER_S)

    def _error(self, error: grpc.RpcError, what: str) -> WattdockError:
        code, detail = error.code(), error.details() or "no detail"
        if code == grpc.StatusCode.UNAVAILABLE:
            # A runner that ends closes its socket shortly before its process ends.
            deadline_ns = self._after_ns(DEATH_NOTICE_S)
            while self._runner.alive() and self._clock.now_ns() < deadline_ns:
                self._clock.sleep(READY_POLL_S)
            if not self._runner.alive():
                return self._died(f"died during {what}")
        sent = {item.key: str(item.value) for item in error.trailing_metadata() or ()}
        cause = next((known for known in Cause if known == sent.get(CAUSE_KEY)), None)
        if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED):
            return ConfigError(f"{what}: {detail}", cause=cause)
        # gRPC has this status for a message that is too large, too.
        if code == grpc.StatusCode.RESOURCE_EXHAUSTED and GRPC_LIMIT not in detail:
            return RunnerError(f"{what} failed for lack of memory: {detail}", cause=cause or Cause.MEMORY)
        return RunnerError(f"{what} failed: {detail}", cause=cause)

    def _died(self, how: str, kind: type[WattdockError] = RunnerError) -> WattdockError:
        cause = Cause.HOST_MEMORY if self._runner.lacked_memory else Cause.RUNNER
        return kind(f"the runner {how}: {self._runner.exit_reason() or 'for an unknown reason'}", cause=cause)


@contextmanager
def _understood(kind: type[WattdockError] = RunnerError) -> Iterator[None]:
    """Raise an impossible message as the runner's error."""
    try:
        yield
    except (ValueError, OverflowError) as error:
        problem = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise kind(f"the runner says what cannot be: {problem}", "see its log") from error


def _pump(call: Any, arrived: queue.Queue[Any]) -> None:
    """Move events from gRPC's blocking iterator to a queue that can be waited on with a limit."""
    try:
        for event in call:
            arrived.put(event)
        arrived.put(None)
    except grpc.RpcError as error:
        arrived.put(error)
