"""The head's link to one agent: orders and their answers, exchanges of instants, and what is wrong with the link.

A thread asks for instants ten times a second, which keeps the session alive. Knows no experiment.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc

from wattdock.clock import NS_PER_S
from wattdock.errors import Cause, PreflightError, RunnerError
from wattdock.metering.node_clock import Exchange, NodeClock
from wattdock.nodes.agent import SERVES_ANOTHER, SILENCE_S
from wattdock.nodes.messages import description, error_from
from wattdock_proto.v1 import node_pb2 as pb
from wattdock_proto.v1 import node_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable

    from wattdock.errors import WattdockError
    from wattdock.nodes.pairing import Pairing

EXCHANGE_S = 0.1
CONNECT_S, DESCRIBE_S = 5.0, 15.0
POLL_S = 0.2
CLOSE_WAIT_S = 2.0


class NodeLink:
    """A link to the agent at an address, open until `close`.

    Raises:
        PreflightError: Nothing listens there, it has another pairing, another wattdock or user, or serves another head.

    Attributes:
        exchanges: Made so far.
    """

    def __init__(self, address: str, pairing: Pairing) -> None:
        self.address = address
        _require_listening(address)
        self._channel = pairing.channel(address)
        self._stub = node_pb2_grpc.NodeStub(self._channel)  # type: ignore[no-untyped-call]
        try:
            told = self._stub.DescribeNode(pb.Nothing(), timeout=DESCRIBE_S, wait_for_ready=False)
        except grpc.RpcError as error:
            self._channel.close()
            raise PreflightError(
                f"what listens at {address} does not know this pairing",
                "copy the same, unexpired pairing file to both nodes, and start its agent with it",
                cause=Cause.NOT_PERMITTED,
            ) from error
        self._require_same(told)
        self.exchanges: list[Exchange] = []
        self._error: WattdockError | None = None
        self._heard_ns = time.monotonic_ns()
        self._calls: list[Any] = []
        self._closed = threading.Event()
        self._questions: queue.SimpleQueue[pb.Nothing | None] = queue.SimpleQueue()
        # The call is made here: a channel that is closed before a thread has begun takes no more.
        self._instants = self._stub.Exchange(iter(self._questions.get, None), wait_for_ready=True)
        threading.Thread(target=self._exchange, name=f"link-{address}", daemon=True).start()

    def send(self, **order: Any) -> Any:
        """Send an order, and return its call."""
        self._calls.append(self._stub.Do.future(pb.NodeOrder(**order)))
        return self._calls[-1]

    def give_up(self) -> None:
        """End what the agent does for earlier orders, whose errors are no longer raised."""
        while self._calls:
            self._calls.pop().cancel()

    def wait(self, call: Any, check: Callable[[], None] = lambda: None, timeout_s: float | None = None) -> Any:
        """Return the answer to an order.

        Args:
            check: Called five times a second; what it raises ends the wait.

        Raises:
            WattdockError: The agent could not do it, or the link is lost; what `check` raises.
        """
        began_ns = time.monotonic_ns()
        while not call.done():
            with suppress(grpc.FutureTimeoutError, grpc.RpcError):
                call.result(POLL_S)
            self.check()
            check()
            if timeout_s and time.monotonic_ns() - began_ns > timeout_s * NS_PER_S:
                raise self._lost(f"no answer within {timeout_s:g} s")
        self.check()
        return call.result()

    def ask(self, **order: Any) -> Any:
        """Return the answer to an order that is sent now; see `wait`."""
        return self.wait(self.send(**order))

    def check(self, wait_s: float = 0.0) -> None:
        """Take the answers that have come, and raise if one is an error, or the link or the node's part is lost."""
        self._closed.wait(wait_s)
        for call in [call for call in self._calls if call.done()]:
            self._calls.remove(call)
            if not (ended := call.exception()) and call.result().HasField("error"):
                raise error_from(call.result().error, self.address)
            self._error = self._error or (self._gone(call) if ended else None)
        if self._instants.done():
            self._error = self._error or self._gone(self._instants)
        if self._error:
            raise self._error
        if (silent_s := (time.monotonic_ns() - self._heard_ns) / NS_PER_S) > SILENCE_S:
            raise self._lost(f"nothing heard for {silent_s:.0f} s: it has stopped, or the link is cut")

    def clock(self, since: int = 0) -> NodeClock:
        """Return the node's clock by the exchanges from number `since` on.

        Raises:
            ClockError: They do not tell it.
        """
        return NodeClock.of(self.exchanges[since:])

    def beyond(self, at_ns: int) -> int:
        """Return an instant of the node that is not before an instant of this host."""
        last = self.exchanges[-1]
        return at_ns + last.received_ns - last.sent_ns

    def close(self) -> None:
        """End the session; the agent then ends all that it started for it."""
        self._closed.set()
        self._instants.cancel()
        closing = threading.Thread(target=self._channel.close, daemon=True)
        closing.start()
        closing.join(CLOSE_WAIT_S)

    def _lost(self, why: str) -> RunnerError:
        return RunnerError(f"node {self.address}: {why}", "see the agent's lines there", cause=Cause.NODE)

    def _gone(self, call: Any) -> WattdockError:
        """Return why a call has ended: the agent serves another head, or the link is lost."""
        details = call.details() or "the agent has ended"
        if SERVES_ANOTHER in details:
            return PreflightError(f"node {self.address}: {details}", "wait for that study", cause=Cause.IN_USE)
        return self._lost(f"the link is lost: {details}")

    def _require_same(self, there: pb.DescribeNodeResponse) -> None:
        """Refuse an agent whose wattdock, wire or user is not this one's."""
        own, names = description(), [field.name for field in there.DESCRIPTOR.fields]
        if unequal := [name for name in names if getattr(there, name) != getattr(own, name)]:
            both = [f"{name} {getattr(there, name) or 'none'}, here {getattr(own, name) or 'none'}" for name in unequal]
            self._channel.close()
            raise PreflightError(
                f"node {self.address} has another {'; '.join(both)}",
                "install the same wattdock on every node, and start its agent as the same user",
                cause=Cause.VERSION,
            )

    def _exchange(self) -> None:
        """Ask for instants, one question after the other, until the link is closed or lost."""
        with suppress(grpc.RpcError, StopIteration):
            while not self._closed.wait(EXCHANGE_S):
                sent_ns = time.monotonic_ns()
                self._questions.put(pb.Nothing())
                answer = next(self._instants)
                self._heard_ns = time.monotonic_ns()
                self.exchanges.append(Exchange(sent_ns, answer.received_ns, answer.replied_ns, self._heard_ns))
                if answer.HasField("fault"):
                    self._error = self._error or self._lost(answer.fault)
        self._questions.put(None)


def _require_listening(address: str) -> None:
    """Try whether anything listens at an address.

    Raises:
        PreflightError: Nothing does, or there is no way to it.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise PreflightError(
            f"no agent at {address}: {error}",
            "start `wattdock agent` there with the pairing file, and let its port through",
        ) from error
