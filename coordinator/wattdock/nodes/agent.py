"""The agent: a gRPC server on another node that takes one head of its pairing at a time.

Whatever ends a head's call, or its exchanges of instants, ends the session and all that it started.
Must not know: what a head orders.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import grpc

from wattdock.clock import NS_PER_S
from wattdock.errors import PreflightError, RunnerError, WattdockError
from wattdock.nodes.addresses import here
from wattdock.nodes.messages import description, error_message
from wattdock.nodes.node_session import NodeSession
from wattdock.nodes.pairing import CHANNEL_OPTIONS
from wattdock.nodes.slurm_step import LAUNCHED_FROM, LISTENS
from wattdock_proto.v1 import node_pb2 as pb
from wattdock_proto.v1 import node_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wattdock.nodes.pairing import Pairing

# A head that asks for no instant for so long is gone, or its link is cut: it asks ten times a second.
SILENCE_S = 10.0
POLL_S, FIRST_POLL_S = 0.5, 0.02
SERVES_ANOTHER = "it serves another head"
WORKERS = 8


class Agent(node_pb2_grpc.NodeServicer):
    """Serves heads of one pairing, one at a time; a context manager that opens the port and ends everything.

    Args:
        listen: Address and port; port 0 takes any.
        say: Receives lines for people.
        once: Serve one head, and end.

    Raises:
        PreflightError: The port cannot be opened.
    """

    def __init__(self, pairing: Pairing, listen: str, say: Callable[[str], None], *, once: bool = False) -> None:
        self._pairing, self._tell, self._once = pairing, say, once
        self._free, self._over = threading.Lock(), threading.Event()
        self._session: NodeSession | None = None
        self._peer, self._heard_ns = "", 0
        # Without this option two agents could share a port, and heads would meet either.
        options = [*CHANNEL_OPTIONS, ("grpc.so_reuseport", 0)]
        self._server = grpc.server(ThreadPoolExecutor(WORKERS), options=options)
        node_pb2_grpc.add_NodeServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        try:
            self.port = self._server.add_secure_port(listen, pairing.server())
        except RuntimeError as error:
            raise PreflightError(f"cannot listen on {listen}", "name a free address with --listen HOST:PORT") from error

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if session := self._session:
            session.end("the agent ends")
            session.close()
        self._server.stop(grace=1).wait()

    def address_in_job(self) -> str | None:
        """Return, in a line, where the node that launched this one's task finds it; None outside a step of Slurm's."""
        launcher = os.environ.get(LAUNCHED_FROM)
        return launcher and f"{LISTENS}{here(launcher)}:{self.port}"

    def wait(self) -> None:
        """Return when the agent is to end: its one head has gone, or its pairing has expired and nobody is served."""
        while not self._over.wait(POLL_S):
            if datetime.now(UTC) >= self._pairing.expires and self._session is None:
                self._say("the pairing has expired")
                return

    def DescribeNode(self, request: pb.Nothing, context: Any) -> pb.DescribeNodeResponse:  # noqa: N802, ARG002
        """Say what this side is."""
        return description()

    def Exchange(self, questions: Iterator[pb.Nothing], context: Any) -> Iterator[pb.ClockAnswer]:  # noqa: N802
        """Serve a head, and answer it with this node's instants; refuse a second head."""
        if not self._free.acquire(blocking=False):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{SERVES_ANOTHER}, at {self._peer}")
        self._peer, self._heard_ns = context.peer(), time.monotonic_ns()
        session = self._session = NodeSession(self._say)
        # The end of the call is told here, whatever this thread is doing; a call that has ended already is not.
        has_gone = partial(session.end, "the head has gone")
        if not context.add_callback(has_gone):
            has_gone()
        threading.Thread(target=self._close_when_over, args=(session, context), name="agent-end", daemon=True).start()
        self._say(f"serving {self._peer}")
        for _ in questions:
            self._heard_ns = received_ns = time.monotonic_ns()
            yield pb.ClockAnswer(received_ns=received_ns, replied_ns=time.monotonic_ns(), fault=session.fault())

    def Do(self, order: pb.NodeOrder, context: Any) -> pb.NodeAnswer:  # noqa: N802
        """Do an order of the head that is served, and return its answer; an error is one."""
        try:
            # A head's first order may come before its session has begun.
            while (session := self._session) is None or context.peer() != self._peer:
                if not context.is_active() or self._over.wait(FIRST_POLL_S):
                    raise RunnerError("the head is not served")
            return session.do(order, context.is_active)
        except WattdockError as error:
            return pb.NodeAnswer(error=error_message(error))
        except Exception as error:  # noqa: BLE001  (the head has to know)
            traceback.print_exc()
            bug = RunnerError(f"a bug in wattdock: {type(error).__name__}: {error}")
            return pb.NodeAnswer(error=error_message(bug))

    def _say(self, line: str) -> None:
        # Whoever read the lines may be gone: ssh, or a step of Slurm's.
        with suppress(OSError):
            self._tell(line)

    def _close_when_over(self, session: NodeSession, context: Any) -> None:
        """Wait for the session's end, or for silence; then end all that it started, and be free."""
        while not session.ended.wait(POLL_S):
            if time.monotonic_ns() - self._heard_ns > SILENCE_S * NS_PER_S:
                session.end(f"the head has asked nothing for {SILENCE_S:g} s")
                context.cancel()
        try:
            session.close()
            self._say(f"{session.why_ended}: everything of it has ended")
        finally:
            self._session = None
            self._free.release()
            if self._once:
                self._over.set()
