"""A program in a runner's place, started as if it were the interpreter; its backend name says how it behaves.

Every process that it starts prints "pid N" into its log, and shared memory "segment NAME".
"""

from __future__ import annotations

import array
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

FOREVER_S = 600


def main() -> None:
    behaviour = sys.argv[sys.argv.index("--backend") + 1]
    socket = Path(sys.argv[sys.argv.index("--socket") + 1])
    print(f"pid {os.getpid()}", flush=True)
    if "deaf" in behaviour:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif os.getpid() == 1:
        # The kernel spares a container's first process whatever it has no handler for; real runners have one.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if "family" in behaviour:
        start_grandchild()
    if "sharing" in behaviour:
        share_memory()
    if "clinging" in behaviour:
        start_lasting_tracker()
    if "crash" in behaviour:
        print("loading\nCUDA driver is too old", file=sys.stderr, flush=True)
        sys.exit(3)
    if "killed" in behaviour:
        os.kill(os.getpid(), signal.SIGKILL)
    if "show" in behaviour:
        print("json " + json.dumps(surroundings()), flush=True)
        sys.exit(0)
    # In this order: a test may stop it as soon as the socket is there.
    print("ready", flush=True)
    socket.touch()
    if "frozen" in behaviour:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(FOREVER_S)


def start_grandchild() -> None:
    """Leave a process that is in a session of its own, has lost its parent, and ignores SIGTERM."""
    started, ready = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print(f"pid {os.getpid()}", flush=True)
            os.write(ready, b"1")
            time.sleep(FOREVER_S)
        os._exit(0)
    os.waitpid(child, 0)
    os.read(started, 1)


def share_memory() -> None:
    """Leave a segment to Python's resource tracker, as a killed engine does; return once the tracker knows it."""
    print(f"segment {SharedMemory(create=True, size=4096).name}", flush=True)
    pipe, unread_bytes = resource_tracker.getfd(), array.array("i", [1])
    assert pipe is not None
    while unread_bytes[0]:
        fcntl.ioctl(pipe, termios.FIONREAD, unread_bytes)
        time.sleep(0.01)


def start_lasting_tracker() -> None:
    """Start what looks like a resource tracker and does not end."""
    words = f"import multiprocessing.resource_tracker, time; time.sleep({FOREVER_S})"
    print(f"pid {subprocess.Popen([sys.executable, '-c', words]).pid}", flush=True)


def surroundings() -> dict[str, object]:
    listed = list(Path("/proc/self/fd").iterdir())
    return {
        "environ": dict(os.environ),
        "cwd": str(Path.cwd()),
        "session": os.getsid(0),
        "group": os.getpgid(0),
        "descriptors": sorted(int(fd.name) for fd in listed if fd.exists()),
        "arguments": sys.argv[1:],
    }


main()
