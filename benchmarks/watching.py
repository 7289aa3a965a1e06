"""What the live page costs: CPU time of its server and of a browser, and a run's throughput with and without them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from overheads import Row, aim
from paired import bounds, log_ratio, order

from wattdock.errors import PreflightError
from wattdock.launch.keeper import descendants
from wattdock.launch.runners import REPO

sys.path.append(str(REPO / "tests"))

import chromium
import fake_nvml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paired import Arm

# The most that the server and what the page adds to an empty page may take of one CPU, together.
MOST_PERCENT = 1.0
SIMULATED_GPUS = 8
# A block is two passes; the page is opened or left in one before them, which does not count.
QUADRUPLES, PASSES_PER_BLOCK, PASS_S = 8, 3, 6
PASSES = QUADRUPLES * 4 * PASSES_PER_BLOCK
WORK = ("--backend", "pytorch", "--model", "shape:tiny-llama", "--set", "workload.ignore_eos=true")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class Watched:
    """What was seen so far.

    Attributes:
        times: Arm and seconds per token of each pass that counts, one list per quadruple.
        percent: Share of one CPU that server and browser took in each of them, by arm.
    """

    times: list[list[tuple[Arm, float]]] = field(default_factory=lambda: [[] for _ in range(QUADRUPLES)])
    percent: dict[Arm, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def rows(self) -> list[Row]:
        """Return the table's lines."""
        server = [each for both in self.percent.values() for each, _ in both]
        page, empty = (median(each for _, each in self.percent[arm]) for arm in ("A", "B"))
        ratio = bounds([log_ratio(times) for times in self.times])
        both = median(server) + page - empty
        ends = f"{min(server):.1f} … {max(server):.1f} %"
        told = f"one-sided 95 % bounds {ratio.lower:.4f} and {ratio.upper:.4f}"
        return [
            Row("live page, share of one CPU: its server", f"{median(server):.1f} %", ends),
            Row("a browser that shows it", f"{page:.1f} %", f"{empty:.1f} % with an empty page"),
            Row("server, and browser beyond an empty page", f"{both:.1f} %", "", aim(MOST_PERCENT, "%", both)),
            Row("tokens/s with a viewer ÷ without", f"{ratio.ratio:.4f}", told),
        ]


def watching() -> list[Row]:
    """A server with simulated GPUs, a browser that shows its page (A) or an empty one (B), and a run on the CPU.

    Raises:
        PreflightError: There is no browser, or the run failed.
    """
    if not chromium.is_there():
        raise PreflightError(f"the live page: {chromium.MISSING}")
    watched = Watched()
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        results = Path(scratch, "results")
        library = fake_nvml.build(Path(scratch, "nvml"))
        gpus = [fake_nvml.FakeGpu(uuid=fake_nvml.uuid_of(number)) for number in range(SIMULATED_GPUS)]
        fake_nvml.config(library, gpus=gpus)
        env = os.environ | {"LD_LIBRARY_PATH": str(library)}
        page: tuple[str | Path, ...] = ("serve", "--port", "0", "--output-dir", results)
        server = stack.enter_context(_running(*page, env=env, stdout=subprocess.PIPE))
        assert server.stdout is not None
        url = server.stdout.readline().split()[0]
        browser = stack.enter_context(chromium.opened())
        lengths = ("--passes", str(PASSES), "--min-duration-s", str(PASS_S))
        work: tuple[str | Path, ...] = ("run", *WORK, *lengths, "--progress-json", "--output-dir", results)
        run = stack.enter_context(_running(*work, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL))
        assert run.stderr is not None
        events = (json.loads(line) for line in run.stderr if line.startswith("{"))
        passes = (event for event in events if event.get("stage", "").startswith("pass"))
        pids = (server.pid, browser.service.process.pid)
        for number in range(PASSES):
            quadruple, place = divmod(number, 4 * PASSES_PER_BLOCK)
            arm = order(quadruple)[place // PASSES_PER_BLOCK]
            _next(passes, "PassStarted")
            if place % PASSES_PER_BLOCK == 0:
                browser.get(url if arm == "A" else "about:blank")
            began_s, before = time.monotonic(), [cpu_s(pid) for pid in pids]
            done = _next(passes, "PassFinished")
            if place % PASSES_PER_BLOCK:
                took_s = time.monotonic() - began_s
                spent = [100 * (cpu_s(pid) - earlier) / took_s for pid, earlier in zip(pids, before, strict=True)]
                watched.percent[arm].append((spent[0], spent[1]))
                watched.times[quadruple].append((arm, done["duration_s"] / done["output_tokens"]))
    return watched.rows()


@contextmanager
def _running(*words: str | Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Yield a wattdock command, and end it after the block."""
    with subprocess.Popen([sys.executable, "-m", "wattdock", *words], text=True, **options) as command:
        try:
            yield command
        finally:
            command.terminate()


def _next(events: Iterator[dict[str, Any]], name: str) -> dict[str, Any]:
    for event in events:
        if event["event"] == name:
            return event
    raise PreflightError("the run that was watched failed; run it alone: wattdock run " + " ".join(WORK))


def cpu_s(pid: int) -> float:
    """Return the CPU time so far of a process and of those that descend from it and live, in seconds.

    Source: proc_pid_stat(5): fields 14 and 15.
    """
    ticks = 0
    for process in (pid, *descendants(pid)):
        with suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_S
