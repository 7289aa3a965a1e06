"""Turn a runner's exceptions into gRPC status codes, and log every call; nothing else does either.

A traceback goes to the log only; the client reads a single line.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import grpc

from wattdock_runner import errors
from wattdock_runner.clock import NS_PER_S, now_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)

CODES = {
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.WrongState: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Unsupported: grpc.StatusCode.UNIMPLEMENTED,
    errors.OutOfMemory: grpc.StatusCode.RESOURCE_EXHAUSTED,
    MemoryError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.WorkerDied: grpc.StatusCode.ABORTED,
    errors.ExchangeFailed: grpc.StatusCode.ABORTED,
    errors.PassCancelled: grpc.StatusCode.CANCELLED,
}
# Trailing metadata that holds the failure's cause.
CAUSE_KEY = "wattdock-cause"
KINDS = ("unary_unary", "unary_stream", "stream_stream")
# Status details travel in a header, which many peers limit to 8 KiB.
DETAIL_CHARACTERS = 1_000


class FaultInterceptor(grpc.ServerInterceptor):  # type: ignore[misc, unused-ignore]
    """Wraps every handler of the server."""

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        """Return the handler with faults mapped, or None for a method that does not exist."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method.rpartition("/")[2]

        def guarded(behaviour: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
            def unary(request: Any, context: Any) -> Any:
                with _mapped(method, context):
                    return behaviour(request, context)

            def stream(request: Any, context: Any) -> Iterator[Any]:
                with _mapped(method, context):
                    yield from behaviour(request, context)

            return stream if handler.response_streaming else unary

        behaviours = {kind: getattr(handler, kind) for kind in KINDS}
        # A handler is a named tuple.
        return handler._replace(**{kind: call and guarded(call) for kind, call in behaviours.items()})


@contextmanager
def _mapped(method: str, context: Any) -> Iterator[None]:
    """Log a call from begin to end, and end it with a status if it raises."""
    started_ns, outcome = now_ns(), "client went away"
    log.info("%s: began", method)
    try:
        yield
        outcome = "ok"
    except Exception as error:  # noqa: BLE001 - any exception becomes a status
        code, detail = _status(error)
        outcome = f"{code.name}: {detail}"
        cause = errors.HOST_MEMORY if isinstance(error, MemoryError) else getattr(error, "cause", None)
        context.set_trailing_metadata(((CAUSE_KEY, cause),) if cause else ())
        context.abort(code, detail)
    finally:
        log.info("%s: %s, after %.3f s", method, outcome, (now_ns() - started_ns) / NS_PER_S)


def _status(error: Exception) -> tuple[grpc.StatusCode, str]:
    # At a word: half a key is a secret that nobody recognises.
    line = shorten(str(error), DETAIL_CHARACTERS, placeholder=" …")
    for kind, code in CODES.items():
        if isinstance(error, kind):
            return code, line or type(error).__name__
    if isinstance(error, grpc.RpcError):
        return grpc.StatusCode.CANCELLED, "the client went away"
    log.error("unexpected error", exc_info=error)
    return grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {line}; the traceback is in the runner's log"
