"""What wattdock costs outside a pass: start-up, the wire, and energy arithmetic over long timelines."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wattdock.clock import NS_PER_S
from wattdock.config import ExperimentConfig, WorkloadSpec
from wattdock.inputs import load_prompts
from wattdock.launch.process import launch
from wattdock.launch.protocol import LaunchSpec
from wattdock.launch.runners import REPO
from wattdock.metering.curve import EnergyCurve
from wattdock.metering.timeline import GpuTimeline, Span, Ticks
from wattdock.runner import LoadRequest, PassRequest, RunnerClient, wire

if TYPE_CHECKING:
    from collections.abc import Callable


PASS_BYTES = 1_000_000
MISSED = "missed"
# Variables that this command and the make that started it have set.
OWN_VARIABLES = ("OMP_NUM_THREADS", "MAKEFLAGS", "MFLAGS", "MAKELEVEL")


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        aim: The most that the median should be, and `MISSED` where it is more; empty without an aim.
    """

    what: str
    median: str
    range: str
    aim: str = ""


def aim(most: float | None, unit: str, median: float) -> str:
    """Return the text of a row's aim; empty where there is none."""
    if most is None:
        return ""
    return f"{most:g} {unit}" + (f", **{MISSED}**" if median > most else "")


def callers_environ() -> dict[str, str]:
    """Return the environment that a person's own call would have: without what this command and its make set."""
    return {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}


def timed_ms(call: Callable[[], object], *, repeats: int) -> tuple[float, float, float]:
    """Return minimum, median and maximum duration of `call` in milliseconds."""
    taken = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        taken.append((time.perf_counter() - begun) * 1e3)
    return min(taken), statistics.median(taken), max(taken)


def row(name: str, times_ms: tuple[float, float, float], *, most_ms: float | None = None) -> Row:
    """Return one line of the table."""
    low, median, high = times_ms
    return Row(name, f"{median:.2f} ms", f"{low:.2f} … {high:.2f} ms", aim(most_ms, "ms", median))


def start_up() -> list[Row]:
    """How long a person waits for `--help`, beside an interpreter that does nothing."""

    def run_ms(*arguments: str) -> tuple[float, float, float]:
        command = [sys.executable, *arguments]
        return timed_ms(partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL), repeats=20)

    return [
        row("python -c pass", run_ms("-c", "pass")),
        row("wattdock --help", run_ms("-m", "wattdock", "--help"), most_ms=200),
    ]


def wire_costs() -> list[Row]:
    """Launch, round trip and bulk transfer with the fake backend in a real runner process."""
    with tempfile.TemporaryDirectory() as scratch:
        spec = LaunchSpec("fake", REPO / "tests/runners/fake", Path(scratch) / "log")
        (Path(scratch) / "config.json").write_text("{}")
        begun = time.perf_counter()
        with (
            launch(spec, python=Path(sys.executable), keep_pythonpath=True) as runner,
            RunnerClient(runner) as client,
        ):
            client.wait_ready(30)
            ready_ms = (time.perf_counter() - begun) * 1e3
            request = LoadRequest(Path(scratch), engine_args={"step_s": 0.0})
            client.load(request, timeout_s=30, progress=lambda _: None)
            trips_ms = [client.check_clock().round_trip_ns / 1e6 for _ in range(200)]
            order, size = megabyte_pass()
            send = partial(client.generate, order, silence_s=30, stall_s=30, heartbeat=lambda _: True)
            name = f"pass of {order.min_requests} prompts, {size / 1e6:.2f} MB, 1 token each"
            return [
                Row("process launch → first reply", f"{ready_ms:.0f} ms", "1 run"),
                row("round trip (best of 5)", (min(trips_ms), statistics.median(trips_ms), max(trips_ms))),
                row(name, timed_ms(send, repeats=20)),
            ]


def megabyte_pass() -> tuple[PassRequest, int]:
    """Return a pass of 1 MB on the wire, of prompts of 1,000 ids served together for a token each; and its bytes."""
    workload = {"prompts": {"source": "synthetic", "input_tokens": 1000, "count": PASS_BYTES // 1000}}
    config = ExperimentConfig.model_validate({"workload": workload})
    drawn = load_prompts(config, pass_index=0, vocab_size=32_000)

    def pass_of(count: int) -> tuple[PassRequest, int]:
        prompts = replace(drawn, items=drawn.items[:count], max_output_tokens=drawn.max_output_tokens[:count])
        spec = WorkloadSpec(batch_size=count, max_output_tokens=1)
        order = PassRequest(spec, prompts, min_requests=count, ignore_eos=True)
        _, *messages = wire.generate_requests(order)
        return order, sum(message.ByteSize() for message in messages)

    _, size = pass_of(len(drawn.items))
    return pass_of(round(len(drawn.items) * PASS_BYTES / size))


def energy_arithmetic() -> list[Row]:
    """Joules of a 20 s span out of an hour of one GPU's counter, and of 4,000 spans of 0.5 s."""
    at_ns = np.arange(0, 3600 * NS_PER_S, NS_PER_S // 10, dtype=np.int64)
    ticks = Ticks(at_ns - 4_000_000, at_ns - 1_000_000, at_ns, at_ns + 3_000_000, at_ns // 1_000_000 * 500)
    gpu = GpuTimeline("GPU-x", "counter", ticks, period_s=0.1)
    times = timed_ms(lambda: EnergyCurve(gpu).between(1800 * NS_PER_S, 1820 * NS_PER_S), repeats=20)
    curve = EnergyCurve(gpu)
    starts_ns = np.linspace(10, 3500, 4000) * NS_PER_S
    spans = [Span("step", int(start_ns), int(start_ns) + NS_PER_S // 2) for start_ns in starts_ns]
    of_all = timed_ms(lambda: curve.measured(spans), repeats=5)
    return [row("energy of one span, one hour of one GPU", times), row("energy of 4,000 spans of it together", of_all)]
