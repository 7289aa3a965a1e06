"""Serve a backend on a Unix socket: `python -m wattdock_runner --backend NAME --socket PATH`.

Ends on SIGTERM or SIGINT; outside a container it also dies with the process that started it.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import logging
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import grpc

from wattdock_proto.v1 import runner_pb2_grpc
from wattdock_runner.backend import find_backend
from wattdock_runner.interceptor import FaultInterceptor
from wattdock_runner.process import die_with_parent, log_to_stderr
from wattdock_runner.servicer import RunnerServicer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock_runner.backend import Backend

log = logging.getLogger(__name__)

SERVER_THREADS = 8
# How long an engine may take to end before its stacks are logged, which is before a coordinator stops waiting (20 s),
# and after: it may be in a long step on busy CPUs.
STACKS_AFTER_S, STOP_GRACE_S = 10.0, 50.0
SIGNAL_LOOK_S = 1.0
# How often a thread of an engine on CPUs looks whether the others have ended an operation before it lets other programs
# compute. libgomp's own 300,000 take milliseconds of each operation: beside three busy programs on two cores PyTorch,
# vLLM and llama.cpp made 0.5 to 1.7 tokens/s, and with 1,000 9 to 22. On free cores that costs up to 7 %.
SPINS = 1000
EXIT_USAGE = 2
EXIT_STUCK = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until told to stop; return the exit status."""
    parser = argparse.ArgumentParser(prog="wattdock_runner", description="Serve a backend on a Unix socket.")
    parser.add_argument("--backend", required=True, help="name: module wattdock_NAME must be importable")
    parser.add_argument("--socket", required=True, help="path of the Unix socket; its folder must exist")
    options = parser.parse_args(argv)
    log_to_stderr()
    # The container engine ends a container's first process, whose parent is a short-lived helper of that engine.
    if os.getpid() != 1:
        die_with_parent()
    # An empty list of GPUs is how launchers give a runner none. Users' own values of either variable count.
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "" and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))
    try:
        backend = find_backend(options.backend)
    except LookupError as error:
        log.error("%s", error)
        return EXIT_USAGE
    return serve(backend, options.socket)


def serve(backend: Backend, socket_path: str) -> int:
    """Serve `backend` until SIGTERM or SIGINT; return the exit status."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    servicer = RunnerServicer(backend)
    server = grpc.server(ThreadPoolExecutor(SERVER_THREADS, "grpc"), interceptors=[FaultInterceptor()])
    # types-grpcio knows no servicer registration functions of generated code.
    cast("Any", runner_pb2_grpc).add_RunnerServicer_to_server(servicer, server)
    # Only the socket's owner may connect.
    umask = os.umask(0o077)
    try:
        server.add_insecure_port(f"unix:{socket_path}")
    finally:
        os.umask(umask)
    server.start()
    log.info("serving %s on %s (pid %d)", backend.name, socket_path, os.getpid())
    # Python runs signal handlers on this thread only, and a signal that another thread takes does not wake it.
    while not stop.wait(SIGNAL_LOOK_S):
        pass
    log.info("asked to stop")
    if not (ended := servicer.shut_down(STACKS_AFTER_S)):
        # Stacks show where an engine hangs. This thread holds the GIL, so no stack changes meanwhile; until Python 3.13
        # `dump_traceback_later` reads stacks as they change, and can crash or hang (github.com/python/cpython, 140815).
        with contextlib.suppress(Exception):
            faulthandler.dump_traceback()
        ended = servicer.shut_down(STOP_GRACE_S)
    server.stop(grace=1.0).wait()
    log.info("stopped" if ended else "the engine did not end; leaving without it")
    logging.shutdown()
    if not ended:
        # A normal exit would join the engine's thread.
        os._exit(EXIT_STUCK)
    return 0


if __name__ == "__main__":
    sys.exit(main())
