"""The keeper of a runner: a program that ends the runner and all that it started when the coordinator is gone.

It imports the standard library only and has one thread, so that it starts in milliseconds. stdin is the lifeline: when
it ends, the coordinator is gone, however it ended. FOLDER holds the runner's socket and is removed.

`python -I -S keeper.py process GRACE_S FOLDER COMMAND...` starts the runner. A line "SECONDS" on stdin asks for a stop
within that time. stdout gets "started PID" or "failed REASON", and at last "ended REASON"; stderr is the runner's log.

`python -I -S keeper.py container ENGINE_SOCKET CONTAINER_ID FOLDER` removes the container, unless a line on stdin says
that the coordinator has done so.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# How the command line of a keeper begins.
KEEPER = (sys.executable, "-I", "-S", __file__)
LIFELINE_FD, STATUS_FD, LOG_FD = 0, 1, 2
# Source: <linux/prctl.h>.
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
REAP_INTERVAL_S = 0.02
# Python's process that unlinks named shared memory and semaphores once all that made or used them have ended.
TRACKER_WORDS = b"multiprocessing.resource_tracker"
# How many names of programs a line holds at most.
NAMED = 5
# How long it may take to end, which is milliseconds, once nothing else is left.
TRACKER_GRACE_S = 5.0

# How long an engine may take to answer, and to restart.
ANSWER_TIMEOUT_S, ENGINE_PATIENCE_S, ENGINE_PAUSE_S = 60.0, 60.0, 0.5

# With less memory left than this, of the whole and at most, a machine begins to thrash; no faster can memory be filled.
LEAST_LEFT_SHARE, LEAST_LEFT_BYTES, FILL_BYTES_PER_S = 0.03, 1e9, 10e9
# Between two looks at it.
LOOK_S = (0.02, 1.0)
# Where control groups are mounted, and a group's limit, use, and what of that can be had back: version 2 and version 1.
GROUPS = {
    "": ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    "memory": ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

LIBC = ctypes.CDLL(None, use_errno=True)


def keep_container(engine_socket: str, container_id: str, folder: str) -> int:
    """Wait for the coordinator's end, and remove its container if the coordinator did not."""
    # A signal to the whole session, as at log-out, must not end the keeper first.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if os.read(LIFELINE_FD, 1):
        return 0
    deadline_s = time.monotonic() + ENGINE_PATIENCE_S
    while not removed(engine_socket, container_id) and time.monotonic() < deadline_s:
        time.sleep(ENGINE_PAUSE_S)
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def removed(engine_socket: str, container_id: str) -> bool:
    """Ask the engine to remove the container; return whether it is gone.

    Source: Docker Engine API, DELETE /containers/{id}; `force` kills it first, 409 means that its removal goes on.
    """
    # Slow to import, and not for keepers of processes.
    import http.client

    engine = http.client.HTTPConnection("localhost")
    with contextlib.suppress(OSError, http.client.HTTPException), socket.socket(socket.AF_UNIX) as engine.sock:
        engine.sock.settimeout(ANSWER_TIMEOUT_S)
        engine.sock.connect(engine_socket)
        engine.request("DELETE", f"/containers/{container_id}?force=true&v=true")
        return engine.getresponse().status in (http.client.NO_CONTENT, http.client.NOT_FOUND)
    return False


def keep_process(grace_s: float, folder: str, command: list[str]) -> int:
    """Start a runner, and return when it and everything it started has ended; return 0 if it could be started."""
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake_fd = wake_on_signals()
    try:
        runner = start(command)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        say(f"failed {command[0]}: {error.strerror}")
        return 1
    say(f"started {runner}")
    watch = Watch(runner, wake_fd, grace_s)
    watch.wait()
    if watch.status is None:
        # Not reaped yet, so the number is still its own.
        end_group(runner)
    ended = f"ended {ending(watch.status, stopping=watch.deadline_s is not None)}"
    if watch.status == 0 and watch.deadline_s is None and (left := programs(descendants(os.getpid()))):
        ended += f", and {len(left)} of its processes outlived it and were killed: {', '.join(sorted({*left})[:NAMED])}"
    end_descendants()
    shutil.rmtree(folder, ignore_errors=True)
    say(f"starved {watch.shortage}" if watch.shortage else ended)
    return 0


def wake_on_signals() -> int:
    """Return a descriptor from which the number of each signal that concerns a keeper can be read."""
    read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write_fd)
    # Handlers, not SIG_IGN: the runner would inherit an ignored signal through exec.
    for number in (signal.SIGCHLD, *STOP_SIGNALS):
        signal.signal(number, lambda *_: None)
    return read_fd


def start(command: list[str]) -> int:
    """Start the runner in a process group of its own, so that it dies with this process; return its pid."""
    keeper = os.getpid()

    def die_with_keeper() -> None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The kernel hangs up a group that loses its parent while a member is stopped, and the group's resource tracker
        # has shared memory to unlink.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if os.getppid() != keeper:
            os._exit(1)

    # This process never starts a thread, so code between fork and exec is safe here.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=LOG_FD,
        process_group=0,
        preexec_fn=die_with_keeper,  # noqa: PLW1509
    )
    # Reaped by waitpid below; Popen must not wait for it too.
    process.returncode = 0
    return process.pid


class Watch:
    """Waits until the runner has ended, or must be killed.

    Attributes:
        status: The runner's wait status; None while it has not ended.
        deadline_s: Monotonic instant at which the runner is killed; None until a stop was requested.
        shortage: Why the runner must be killed, where it takes the last of the memory; else empty.
    """

    def __init__(self, runner: int, wake_fd: int, grace_s: float) -> None:
        self.runner, self.wake_fd, self.grace_s = runner, wake_fd, grace_s
        self.status: int | None = None
        self.deadline_s: float | None = None
        self.shortage = ""
        self.poll = select.poll()
        self.poll.register(wake_fd, select.POLLIN)
        self.poll.register(LIFELINE_FD, select.POLLIN)

    def wait(self) -> None:
        """Return when the runner has ended by itself, its deadline has passed, or it takes the last of the memory."""
        while self.status is None:
            timeout_s = self.look_at_memory()
            if self.deadline_s is not None:
                timeout_s = min(timeout_s, self.deadline_s - time.monotonic())
            if self.shortage or timeout_s <= 0:
                return
            ready = {fd for fd, _ in self.poll.poll(timeout_s * 1_000 + 1)}
            if self.wake_fd in ready:
                numbers = os.read(self.wake_fd, 4096)
                with contextlib.suppress(ChildProcessError):
                    self.status = reap(self.runner)
                # A signal to the keeper itself is a request to stop.
                if any(number in STOP_SIGNALS for number in numbers):
                    self.stop(self.grace_s)
            if LIFELINE_FD in ready:
                lines = os.read(LIFELINE_FD, 4096)
                for line in lines.split():
                    self.stop(float(line))
                # The lifeline's end is a request to stop, too.
                if not lines:
                    self.poll.unregister(LIFELINE_FD)
                    self.stop(self.grace_s)

    def look_at_memory(self) -> float:
        """Return in how many seconds to look again; say so where memory is used up, and the runner holds the most."""
        total_bytes, left_bytes = memory_bytes()
        spare_bytes = left_bytes - min(LEAST_LEFT_SHARE * total_bytes, LEAST_LEFT_BYTES)
        if spare_bytes < 0:
            if (held_bytes := resident_bytes(descendants(os.getpid()))) <= left_bytes:
                # Others hold it, perhaps for long; to ask so much often would disturb what is measured.
                return LOOK_S[1] / 2
            self.shortage = (
                f"killed before host memory is used up: it held {held_bytes / 1e9:.1f} GB, and {left_bytes / 1e9:.1f} "
                f"of {total_bytes / 1e9:.1f} GB were left"
            )
        return min(max(LOOK_S[0], spare_bytes / FILL_BYTES_PER_S), LOOK_S[1])

    def stop(self, grace_s: float) -> None:
        """Ask the runner to end; a later request can shorten its grace, never lengthen it."""
        self.deadline_s = min(time.monotonic() + grace_s, self.deadline_s or float("inf"))
        if self.status is None and grace_s > 0:
            os.kill(self.runner, signal.SIGTERM)
            # A paused process gets no signal before it continues.
            os.kill(self.runner, signal.SIGCONT)


def reap(runner: int | None) -> int | None:
    """Collect every child that has ended; return the runner's wait status if it was among them.

    Raises:
        ChildProcessError: No child is left, and the runner was not among those collected.
    """
    status = None
    while True:
        try:
            pid, child_status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            if status is None:
                raise
            return status
        if pid == 0:
            return status
        if pid == runner:
            status = child_status


def end_group(group: int) -> None:
    """Kill all of a process group except for resource trackers, which then end by themselves.

    Raises:
        ProcessLookupError: There is no such group in this session: another user's may have its number by now.
    """
    if not members(group):
        raise ProcessLookupError(group)
    # One call for the whole group: a process that keeps forking could outrun a list of pids.
    os.killpg(group, signal.SIGSTOP)
    kill_all_but_trackers(members(group))


def members(group: int) -> list[int]:
    """Return the processes of a group of this session."""
    return [pid for pid, _, *place in processes() if place == [group, os.getsid(0)]]


def end_descendants() -> None:
    """Kill and reap until no descendant is left, resource trackers last.

    As child subreaper this process is the ancestor of all that the runner started, in whatever session.
    """
    patience_ends_s = time.monotonic() + TRACKER_GRACE_S
    with contextlib.suppress(ChildProcessError):
        while True:
            pids = descendants(os.getpid())
            if kill_all_but_trackers(pids):
                # A driver may take long to release a killed process, which holds its end of the tracker's pipe.
                patience_ends_s = time.monotonic() + TRACKER_GRACE_S
            elif time.monotonic() > patience_ends_s:
                send(signal.SIGKILL, pids)
            reap(None)
            time.sleep(REAP_INTERVAL_S)


def kill_all_but_trackers(pids: list[int]) -> bool:
    """Kill processes, and continue Python's resource trackers among them; return whether any was killed."""
    others = [pid for pid in pids if TRACKER_WORDS not in command_line(pid)]
    send(signal.SIGKILL, others)
    send(signal.SIGCONT, [pid for pid in pids if pid not in others])
    return bool(others)


def send(number: signal.Signals, pids: list[int]) -> None:
    """Send a signal to whichever of the processes still exist."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def command_line(pid: int) -> bytes:
    """Return a process's words, a null byte behind each; none of a process that has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def programs(pids: list[int]) -> list[str]:
    """Return the names of the programs that processes run, in one word each, without resource trackers."""
    lines = (line for line in map(command_line, pids) if line and TRACKER_WORDS not in line)
    names = (line.split(b"\0")[0].rpartition(b"/")[2].decode(errors="replace") for line in lines)
    return ["_".join(name.split()) or "?" for name in names]


def descendants(ancestor: int) -> list[int]:
    """Return the pids of all processes below `ancestor`, parents first."""
    children: dict[int, list[int]] = {}
    for pid, parent, *_ in processes():
        children.setdefault(parent, []).append(pid)
    pids = list(children.get(ancestor, []))
    for pid in pids:
        pids.extend(children.get(pid, []))
    return pids


def memory_bytes(root: Path = Path("/")) -> tuple[float, float]:
    """Return how much memory this process may have, with all others, and how much of it is left.

    The machine's, or that of a control group around this process that allows less. Without /proc it is without limit.
    Source: proc(5), Linux's cgroup-v1/memory and cgroup-v2.
    """
    found = [(float("inf"), float("inf"))]
    with contextlib.suppress(OSError, KeyError):
        lines = (line.split() for line in (root / "proc/meminfo").read_text().splitlines())
        sizes = {words[0]: 1024.0 * int(words[1]) for words in lines}
        found.append((sizes["MemTotal:"], sizes["MemAvailable:"]))
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controller, path = line.split(":", 2)
            if controller in GROUPS:
                found += groups_bytes(path.lstrip("/"), root, *GROUPS[controller])
    return min(found, key=lambda sizes: sizes[1])


def groups_bytes(path: str, root: Path, *names: str) -> Iterator[tuple[float, float]]:
    """Yield how much memory a control group and those around it allow, and how much of it is left; see `GROUPS`."""
    mounted, limit, use, reclaimable = names
    mount = root / mounted
    for folder in (mount / path, *(mount / path).parents):
        # A group of another namespace has no folder here, none may have the controller, and no limit is no number.
        with contextlib.suppress(OSError, ValueError):
            lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
            spare = sum(float(size) for name, size in lines if name == reclaimable)
            allowed = float((folder / limit).read_text())
            yield allowed, allowed - float((folder / use).read_text()) + spare


def resident_bytes(pids: list[int]) -> float:
    """Return the memory that processes hold; pages that several of them share count for each."""
    pages = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return float(PAGE_BYTES * pages)


def processes() -> Iterator[tuple[int, int, int, int]]:
    """Yield pid, parent, process group and session of every process."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name in brackets may itself hold brackets and spaces; the parent is the second field after it.
                _, *numbers = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                yield int(entry.name), int(numbers[0]), int(numbers[1]), int(numbers[2])


def ending(status: int | None, *, stopping: bool) -> str:
    """Return in words how the runner ended; `status` is its wait status, None if the keeper had to kill it."""
    if status is None:
        return "did not stop in time and was killed"
    code = os.waitstatus_to_exitcode(status)
    if stopping and code in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
        return "stopped"
    if code >= 0:
        return f"exited with code {code}"
    if code == -signal.SIGKILL:
        return "was killed by SIGKILL (out of memory?)"
    return f"was killed by signal {-code} ({signal.strsignal(-code)})"


def say(line: str) -> None:
    """Write a line to the coordinator, if it is still there."""
    with contextlib.suppress(BrokenPipeError):
        os.write(STATUS_FD, f"{line}\n".encode())


if __name__ == "__main__":
    if sys.argv[1] == "container":
        sys.exit(keep_container(*sys.argv[2:]))
    sys.exit(keep_process(float(sys.argv[2]), sys.argv[3], sys.argv[4:]))
