"""An engine's server: ask it; where it is a process on this host's loopback, start it, wait for it, end it, too.

Must not know: requests of a pass, their answers.
"""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict, deque
from contextlib import contextmanager, suppress
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any, TypeVar

from wattdock_proto.asking import TELL_S, fetch
from wattdock_runner.errors import InvalidRequest, OutOfMemory, RunnerFault, WorkerDied, lacks_memory
from wattdock_runner.process import Processes, descendants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from wattdock_runner.values import Report

T = TypeVar("T")

# How often a starting server is asked, how long a server and then its processes have to end; END_S and GRACE_S together
# are less than the coordinator gives a runner to end.
READY_POLL_S, END_S, GRACE_S = 0.2, 3.0, 1.0
# How long a server that has failed may take to end by itself: SGLang looks for its processes each second.
FAILED_S = 5.0
# Lines of a server's output that are kept, what every error of Python's has in its line, and lines of it in a message.
LAST_LINES, ERROR, ERROR_LINES = 200, "Error: ", 3
# The first and the last port that the kernel gives to connections of any program. Source: ip(7).
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
# The lowest port of a server, above those of well-known services, and how many ports are tried.
FIRST_PORT, PORT_TRIES = 10_000, 20
# Between fork and exec of a process that has gRPC's threads no Python may run, so the new program ties itself.
TIED = """
import os, sys
from wattdock_runner.process import die_with_parent
die_with_parent(int(sys.argv[1]))
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


def free_port() -> int:
    """Return a port of the loopback, below the kernel's range if one is free there.

    An engine starts for minutes, in which a connection of another program can take a port of that range.
    """
    below = range(0)
    with suppress(OSError, ValueError, IndexError):
        below = range(FIRST_PORT, int(PORT_RANGE.read_text(encoding="ascii").split()[0]))
    # Not from the generator that engines seed: replicas would all take the same ports.
    for port in (*SystemRandom().sample(below, min(PORT_TRIES, len(below))), 0):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise OSError("no port of the loopback is free")


class HttpServer:
    """A server that answers, whoever started it.

    Args:
        url: Scheme, host and port, without a slash at the end.
        headers: Sent with every request.
    """

    def __init__(self, url: str, headers: Mapping[str, str] = {}) -> None:
        self.url, self.headers = url, headers

    def ask(self, path: str, body: Any = None) -> Any:
        """Return the JSON that it answers, to a body of JSON if any."""
        return json.loads(self.text(path, body))

    def text(self, path: str, body: Any = None) -> str:
        """Return what it answers; no proxy of the environment stands between."""
        return fetch(self.url + path, body, self.headers)

    def metrics(self) -> dict[str, float]:
        """Return the sums over labels of all that its metrics page counts."""
        from prometheus_client.parser import text_string_to_metric_families

        totals = defaultdict[str, float](float)
        for family in text_string_to_metric_families(self.text("/metrics")):
            for sample in family.samples:
                totals[sample.name] += sample.value
        return dict(totals)

    def begin(self) -> None:
        """Forget what it said before this pass, which explains no failure of it."""

    def fault(self, doing: str, dying_s: float) -> RunnerFault | None:
        """Return what became of it, if that explains a failure; it may end up to `dying_s` after its connections."""
        raise NotImplementedError

    def end(self) -> None:
        """Stop what was started."""


class Server(HttpServer):
    """The process of an engine's server, which ends with this one.

    Args:
        program: A Python program, started with `argument` and a port of the loopback to serve. Its output goes into
            this process's log.
        variables: Added to its environment.

    Attributes:
        last_lines: What it printed last.
    """

    def __init__(self, program: Path, argument: str, variables: Mapping[str, str]) -> None:
        port = free_port()
        super().__init__(f"http://127.0.0.1:{port}")
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self.process = subprocess.Popen(
            [sys.executable, "-c", TIED, str(os.getpid()), str(program), argument, str(port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Variables that libraries such as MPI's have set in this process do not get here.
            env={**os.environ, **variables},
            text=True,
            errors="replace",
        )
        threading.Thread(target=self._pass_on, name="server-log", daemon=True).start()

    def _pass_on(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.last_lines.append(line.rstrip())
                os.write(2, line.encode(errors="replace"))

    def until(
        self, look: Callable[[], T | None], say: Report = lambda _: None, *, failure: str = "", workers: bytes = b""
    ) -> T:
        """Return what `look` finds, once it finds something and the server answers it.

        Args:
            say: Receives a line about a wait that lasts.
            failure: Words of its log by which its engine has failed.
            workers: Words in the commands of its own children without which it cannot serve.

        Raises:
            OutOfMemory, WorkerDied, InvalidRequest: The server ended before, or hangs after its engine has failed: for
            lack of memory, by a signal or a lost process without an error of its own, or by itself; holds what it said
            last.
        """
        began_s = told_s = time.monotonic()
        seen, failed_s = set[int](), math.inf
        # Once it has ended, another program may have its port.
        while self.process.poll() is None and (now_s := time.monotonic()) < failed_s + FAILED_S:
            why = "it has not told its settings"
            try:
                if (found := look()) is not None:
                    return found
            except OSError as error:
                why = f"it does not answer ({getattr(error, 'reason', error)})"
            if now_s - told_s > TELL_S:
                told_s = now_s
                say(f"waiting for the engine's server for {now_s - began_s:.0f} s: {why}")
            # A grandchild may be a fork of a worker, with its command until it has its own.
            live = {*descendants(self.process.pid, workers, children_only=True)} if workers else set()
            if seen - live or (failure and any(failure in line for line in self.last_lines.copy())):
                failed_s = min(failed_s, now_s)
            seen |= live
            time.sleep(READY_POLL_S)
        # Waits for its last words, which may name a lack of memory.
        said, code = f"the engine's server did not start: {self.ending()}", self.process.poll()
        is_killed = (code is None or code < 0) and not any(ERROR in line for line in self.last_lines.copy())
        raise self.memory_error() or (WorkerDied(said) if is_killed else InvalidRequest(said))

    def json_line(self) -> dict[str, Any] | None:
        """Return the last line of JSON that it printed; None without one."""
        line = next((line for line in reversed(self.last_lines.copy()) if line.startswith("{")), None)
        return None if line is None else dict(json.loads(line))

    def begin(self) -> None:
        """Forget its last lines."""
        self.last_lines.clear()

    def fault(self, doing: str, dying_s: float) -> RunnerFault | None:
        """Return a lack of memory or a death, which it has `dying_s` for."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(dying_s)
        if memory_error := self.memory_error():
            return memory_error
        if self.process.poll() is None:
            return None
        return WorkerDied(f"{doing}: the engine's server is gone: {self.ending()}")

    def memory_error(self) -> OutOfMemory | None:
        """Return the error of a server that lacked memory, as it said itself; None for any other."""
        line = next(filter(lacks_memory, self.last_lines.copy()), None)
        return None if line is None else OutOfMemory(f"the engine's server: {line}")

    def ending(self) -> str:
        """Return whether and how it ended, and the last error that it printed or else its last line, in one line."""
        # Its last words may still be on their way.
        time.sleep(0.1)
        words = [line for line in self.last_lines.copy() if line.strip()] or ["nothing"]
        # An error may take several lines.
        first = max((i for i, line in enumerate(words) if ERROR in line), default=len(words) - 1)
        last = " ".join(line.strip() for line in words[first : first + ERROR_LINES])
        code = self.process.poll()
        state = "it hangs without its engine" if code is None else f"it ended with code {code}"
        return f"{state}, and said last: {last}"

    def end(self) -> None:
        """Stop it, at once if it does not end in time, and whatever it started and left."""
        started = Processes(descendants(self.process.pid))
        self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        started.end(GRACE_S)


@contextmanager
def loading(program: Path, argument: str, variables: Mapping[str, str] = {}) -> Iterator[Server]:
    """Start a server, and end it where the block, which waits for it, fails: nobody else would."""
    server = Server(program, argument, variables)
    try:
        yield server
    except BaseException:
        server.end()
        raise
